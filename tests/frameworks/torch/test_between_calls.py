"""A call sees and restores whatever the user changed on the model since the call before, and keeps no model alive."""

from __future__ import annotations

import collections
import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

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
        self.write: Callable[[Any], None] = write_everywhere

    def forward(self, x: Any) -> Any:
        self.write(self)
        return self.head(self.inner(self.table(x)).mean(1))


def write_everywhere(model: Any) -> None:
    for module in model.modules():
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
    """Return the attributes of all modules by identity, with the contents of containers and tensors."""
    state: list[Any] = []
    for module in model.modules():
        for name, value in vars(module).items():
            content: Any = None
            if isinstance(value, torch.Tensor):
                content = value.detach().numpy().tobytes()
            elif isinstance(value, dict):
                content = [(key, id(entry)) for key, entry in value.items()]
            elif isinstance(value, list):
                content = list(map(id, value))
            state.append((name, id(value), content))
        for weight in (*module._parameters.values(), *module._buffers.values()):
            if weight is not None:
                values = weight.detach().numpy().tobytes()
                state.append((weight.data_ptr(), weight.requires_grad, id(weight.grad), values))
    return state


def linear() -> Any:
    return nn.Linear(4, 4).double()


CHANGES: dict[str, Callable[[Any], Any]] = {
    "a module added": lambda model: model.inner.append(linear()),
    "a module replaced": lambda model: model.inner.__setitem__(0, linear()),
    "a table replaced": lambda model: setattr(model, "table", nn.Embedding(VOCAB, 4).double()),
    "a parameter replaced": lambda model: setattr(model.inner[0], "weight", nn.Parameter(torch.randn(4, 4).double())),
    "memory replaced": lambda model: setattr(model.inner[0].weight, "data", torch.randn(4, 4).double()),
    "a weight written to": lambda model: model.head.weight.data.mul_(3),
    "frozen": lambda model: model.requires_grad_(False),
    "a gradient": lambda model: setattr(model.head.weight, "grad", torch.ones(3, 4).double()),
    "a hook": lambda model: model.table.register_forward_hook(lambda module, args, output: output * 2),
    "a hook before": lambda model: model.head.register_forward_pre_hook(lambda module, args: (args[0] * 2,)),
    "training mode": lambda model: model.train(),
    "training mode of a part": lambda model: model.inner[2].train(),
    "a list": lambda model: setattr(model.inner[1], "maps", [None]),
    "a dict": lambda model: setattr(model, "note", collections.OrderedDict(first=None)),
    "a tensor": lambda model: setattr(model, "note", torch.zeros(3)),
    "a buffer": lambda model: model.inner.register_buffer("count", torch.zeros(())),
    "an attribute removed": lambda model: delattr(model, "note"),
    "a forward": lambda model: setattr(model.table, "forward", lambda x: functional.embedding(x, model.table.weight) * 2),
    "a class": lambda model: setattr(model.inner[1], "__class__", nn.Sigmoid),
}  # fmt: skip


def reference(model: Any) -> np.ndarray:
    """Return PyTorch's own gradient in evaluation mode at the rows of the table."""
    modes, writing = [module.training for module in model.modules()], model.write
    model.eval()
    model.write = lambda model: None
    rows = torch.zeros(*IDS.shape, 4, dtype=torch.float64, requires_grad=True)
    original = functional.embedding
    try:  # zeros are added to what the lookup itself returns, whatever `forward` or the hooks of the table do
        functional.embedding = lambda ids, table, *_, **__: original(ids, table) + rows
        (gradient,) = torch.autograd.grad(model(tensor())[:, 1].sum(), rows)
    finally:
        functional.embedding = original
        model.write = writing
        for module, mode in zip(model.modules(), modes, strict=True):
            module.training = mode
    expected: np.ndarray = gradient.numpy()
    return expected


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_between_calls_is_seen_and_kept(change: str) -> None:
    model = net()
    embgrad.gradients(model, IDS, OBJECTIVE)
    CHANGES[change](model)
    before = snapshot(model)
    for _ in range(2):
        result = embgrad.gradients(model, IDS, OBJECTIVE)
        assert snapshot(model) == before
        np.testing.assert_allclose(result.values, reference(model), rtol=1e-12, atol=1e-15)
        before = snapshot(model)


def renamed(model: Any) -> None:
    del model.first
    model.second = None


#: Changes by a pass that equality does not see.
EQUAL: dict[str, Callable[[Any], Any]] = {
    "an attribute renamed": renamed,
    "an entry renamed": lambda model: model.names.update(b=model.names.pop("a")),
    "an equal list": lambda model: setattr(model, "numbers", list(model.numbers)),
    "an equal tensor": lambda model: setattr(model, "scale", model.scale * 1),
    "an equal entry": lambda model: model.numbers.__setitem__(0, float("1.0")),
    "a hook": lambda model: model.inner[1]._forward_hooks.__setitem__(99, lambda *_: None),
}


@pytest.mark.parametrize("change", EQUAL)
def test_an_equal_object_in_place_of_another_is_restored(change: str) -> None:
    model = net()
    model.first, model.names, model.numbers, model.scale = None, {"a": None}, [1.0], torch.ones(())
    model.write = EQUAL[change]

    def state() -> list[Any]:
        contents = [list(model.names.items()), list(map(id, model.numbers)), list(model.inner[1]._forward_hooks)]
        return [[(name, id(value)) for name, value in vars(model).items()], *contents]

    before = state()
    embgrad.gradients(model, IDS, OBJECTIVE)
    assert state() == before


@pytest.mark.parametrize("circular", [False, True])
def test_a_model_is_freed_when_the_user_drops_it(circular: bool) -> None:
    model = net()
    model.write = lambda model: None
    if circular:
        model.inner[1].whole = [model]
    for _ in range(3):
        embgrad.gradients(model, IDS, OBJECTIVE)
    references = [weakref.ref(model), weakref.ref(model.table), weakref.ref(model.table.weight)]
    gc.disable()
    try:
        del model
        if not circular:  # without the garbage collector
            assert [reference() for reference in references] == [None] * 3
        gc.collect()
    finally:
        gc.enable()
    assert [reference() for reference in references] == [None] * 3
