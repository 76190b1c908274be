"""Whatever is done to a model between two calls is noticed, and put back."""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import embgrad
from tests.frameworks.torch.checks import IDS, VOCAB, tensor

OBJECTIVE = embgrad.Logit(1)


class Net(nn.Module):
    """Writes, in every pass, into whatever its modules hold that can be written into."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCAB, 4)
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Dropout(0.5))
        self.head = nn.Linear(4, 3)
        self.note: Any = None
        self.writing = True

    def forward(self, x: Any) -> Any:
        if self.writing:
            for module in self.modules():
                self._write(module)
        return self.head(self.inner(self.table(x)).mean(1))

    @staticmethod
    def _write(module: Any) -> None:
        for name, value in list(vars(module).items()):
            if type(value) is list:
                value.append(1.0)
            elif name == "note" and isinstance(value, dict):
                value["later"] = 1.0
            elif type(value) is torch.Tensor:
                value += 1
        for buffer in module._buffers.values():
            buffer += 1
        module.later = object()


def net() -> Net:
    torch.manual_seed(0)
    return Net().double().eval()


def snapshot(model: nn.Module) -> list[Any]:
    """All that the modules hold, and what is in it."""
    seen: list[Any] = []
    for module in model.modules():
        for name, value in vars(module).items():
            inside: Any = None
            if isinstance(value, torch.Tensor):
                inside = value.detach().numpy().tobytes()
            elif isinstance(value, dict):
                inside = [(key, id(one)) for key, one in value.items()]
            elif isinstance(value, list):
                inside = list(map(id, value))
            seen.append((name, id(value), inside))
        for one in (*module._parameters.values(), *module._buffers.values()):
            if one is not None:
                seen.append((one.data_ptr(), one.requires_grad, id(one.grad), one.detach().numpy().tobytes()))
    return seen


def _module_added(model: Any) -> None:
    model.inner.append(nn.Linear(4, 4).double())


def _module_replaced(model: Any) -> None:
    model.inner[0] = nn.Linear(4, 4).double()


def _table_replaced(model: Any) -> None:
    model.table = nn.Embedding(VOCAB, 4).double()


def _parameter_replaced(model: Any) -> None:
    model.head.weight = nn.Parameter(torch.randn(3, 4).double())


def _table_weight_replaced(model: Any) -> None:
    model.table.weight = nn.Parameter(torch.randn(VOCAB, 4).double())


def _memory_replaced(model: Any) -> None:
    model.head.weight.data = torch.randn(3, 4).double()


def _weights_written(model: Any) -> None:
    with torch.no_grad():
        model.head.weight.mul_(3)


def _frozen(model: Any) -> None:
    model.requires_grad_(False)


def _given_a_gradient(model: Any) -> None:
    model.head.weight.grad = torch.ones(3, 4).double()


def _hooked(model: Any) -> None:
    model.inner[0].register_forward_hook(lambda module, args, output: output * 2)


def _table_hooked(model: Any) -> None:
    model.table.register_forward_hook(lambda module, args, output: output * 2)


def _hooked_before(model: Any) -> None:
    model.head.register_forward_pre_hook(lambda module, args: (args[0] * 2,))


def _in_training_mode(model: Any) -> None:
    model.train()


def _partly_in_training_mode(model: Any) -> None:
    model.inner[2].train()


def _a_list_put(model: Any) -> None:
    model.note = []


def _a_list_put_deep(model: Any) -> None:
    model.inner[1].maps = [None]


def _a_dict_put(model: Any) -> None:
    model.note = {}


def _an_ordered_dict_put(model: Any) -> None:
    model.note = collections.OrderedDict(first=None)


def _a_tensor_put(model: Any) -> None:
    model.note = torch.zeros(3)


def _a_buffer_added(model: Any) -> None:
    model.inner.register_buffer("count", torch.zeros(()))


def _an_attribute_removed(model: Any) -> None:
    del model.note


def _an_attribute_added(model: Any) -> None:
    model.inner.note = None


def _forward_swapped(model: Any) -> None:
    model.forward = lambda x: model.head(torch.sin(model.inner(model.table(x))).mean(1))


def _forward_of_a_module_swapped(model: Any) -> None:
    model.inner[1].forward = torch.sin


def _of_another_class(model: Any) -> None:
    model.inner[1].__class__ = nn.Sigmoid


def _of_a_class_that_adds(model: Any) -> None:
    model.table.__class__ = type(
        "Scaled", (nn.Embedding,), {"forward": lambda self, x: nn.Embedding.forward(self, x) * 2}
    )


def _other_attributes(model: Any) -> None:
    model.inner[0].__dict__ = {
        **vars(model.inner[0]),
        "_parameters": dict(vars(nn.Linear(4, 4).double())["_parameters"]),
    }


def _forward_of_the_table_swapped(model: Any) -> None:
    model.table.forward = lambda x: nn.functional.embedding(x, model.table.weight) * 2


CHANGES = [
    *(_module_added, _module_replaced, _table_replaced, _parameter_replaced, _table_weight_replaced, _memory_replaced),
    *(_weights_written, _frozen, _given_a_gradient, _hooked, _table_hooked, _hooked_before, _in_training_mode),
    *(_partly_in_training_mode, _a_list_put, _a_list_put_deep, _a_dict_put, _an_ordered_dict_put, _a_tensor_put),
    *(_a_buffer_added, _an_attribute_removed, _an_attribute_added, _forward_swapped, _forward_of_a_module_swapped),
    *(_forward_of_the_table_swapped, _of_another_class, _of_a_class_that_adds, _other_attributes),
]


def reference(model: Any) -> np.ndarray:
    """The gradient that PyTorch itself gives, in evaluation mode, at the rows of the table."""
    modes = [module.training for module in model.modules()]
    frozen, gradients = model.table.weight.requires_grad, [one.grad for one in model.parameters()]
    model.eval()
    writing, model.writing = model.writing, False
    model.table.weight.requires_grad_(True)
    rows = torch.zeros(*IDS.shape, 4, dtype=torch.float64, requires_grad=True)
    # Added to what the lookup gives and to nothing behind it, whatever `forward` or the hooks of the table do.
    original = nn.functional.embedding
    try:
        nn.functional.embedding = lambda ids, table, *_, **__: original(ids, table) + rows
        (found,) = torch.autograd.grad(model(tensor())[:, 1].sum(), rows)
    finally:
        nn.functional.embedding = original
        model.table.weight.requires_grad_(frozen)
        model.writing = writing
        for module, mode in zip(model.modules(), modes, strict=True):
            module.training = mode
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter.grad = gradient
    expected: np.ndarray = found.numpy()
    return expected


@pytest.mark.parametrize("change", CHANGES, ids=lambda one: one.__name__)
@pytest.mark.parametrize("writing", [True, False], ids=["writing", "reading"])
def test_a_change_between_calls_is_noticed_and_left_alone(change: Callable[[Any], None], writing: bool) -> None:
    model = net()
    model.writing = writing
    for _ in range(3):
        embgrad.gradients(model, IDS, OBJECTIVE)
    change(model)
    before = snapshot(model)
    for _ in range(2):
        result = embgrad.gradients(model, IDS, OBJECTIVE)
        assert snapshot(model) == before
        np.testing.assert_allclose(result.values, reference(model), rtol=1e-12, atol=1e-15)
        before = snapshot(model)


def test_a_change_and_the_change_back() -> None:
    model = net()
    first = embgrad.gradients(model, IDS, OBJECTIVE).values
    own = model.inner[1]
    for _ in range(2):
        model.inner[1] = nn.ReLU()
        other = embgrad.gradients(model, IDS, OBJECTIVE).values
        assert not np.array_equal(other, first)
        model.inner[1] = own
        np.testing.assert_array_equal(embgrad.gradients(model, IDS, OBJECTIVE).values, first)


def test_another_tensor_in_the_place_of_a_table_does_not_get_its_path() -> None:
    """Also where Python puts it where another was."""
    model = net()
    assert embgrad.gradients(model, IDS, OBJECTIVE).provenance["path"] == "table#0"
    for _ in range(20):
        del model.table
        model.words = words = nn.Embedding(VOCAB, 4).double()
        model.forward = lambda x, words=words: model.head(words(x).mean(1))
        assert embgrad.gradients(model, IDS, OBJECTIVE).provenance["path"] == "words#0"
        del model.words
        model.table = words
        model.forward = lambda x: model.head(model.table(x).mean(1))
        assert embgrad.gradients(model, IDS, OBJECTIVE).provenance["path"] == "table#0"


def test_threads_in_which_the_model_is_changed_and_run_in_turns() -> None:
    """Each change is made while no call runs, and each call sees the last one."""
    model, turn, failures = net(), threading.Lock(), []

    def work(scale: float) -> None:
        for _ in range(20):
            with turn:
                model.inner[1] = nn.Tanh()
                model.inner[1].register_forward_hook(lambda module, args, output: output * scale)
                found = embgrad.gradients(model, IDS, OBJECTIVE).values
                expected = reference(model)
            if not np.allclose(found, expected, rtol=1e-12, atol=1e-15):
                failures.append(scale)

    threads = [threading.Thread(target=work, args=(scale,)) for scale in (1.0, 2.0, 3.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_several_calls_at_once_leave_one_model_as_it_was() -> None:
    model = net()
    expected = embgrad.gradients(model, IDS, OBJECTIVE).values
    before, failures = snapshot(model), []

    def work() -> None:
        for _ in range(20):
            if not np.array_equal(embgrad.gradients(model, IDS, OBJECTIVE).values, expected):
                failures.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert snapshot(model) == before
