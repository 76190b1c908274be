"""compile=True gives what a plain call gives, whatever a module does that runs compiled, and whatever changes in it."""

from __future__ import annotations

import random
import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import embgrad
from tests.frameworks.torch.compiling import IDS, LONGER, PROJECTION, Body, Net, agree, falls_back

pytestmark = pytest.mark.usefixtures("graphs")


class Clamped(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, value: Any) -> Any:
        return value.clone()

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        return gradient.clamp(-0.01, 0.01)


def clamped(body: Any, rows: Any) -> Any:
    return Clamped.apply(body.inner(rows))


def hooking_nodes(body: Any, rows: Any) -> Any:
    bent = body.inner(rows)
    bent.grad_fn.register_prehook(lambda gradients: tuple(gradient.clamp(-0.01, 0.01) for gradient in gradients))
    return bent


def deciding(body: Any, rows: Any) -> Any:
    return body.inner(rows) * (2 if rows.sum().item() > 0 else 1)


def drawing(body: Any, rows: Any) -> Any:
    return body.inner(rows) + torch.randn_like(rows) + functional.dropout(rows, 0.5, training=True)


def drawing_of_python(body: Any, rows: Any) -> Any:
    return body.inner(rows) * random.random()


def leaving(body: Any, rows: Any) -> Any:
    return body.inner(torch.tensor(rows.detach().numpy()) + rows)


def writing_to_data(body: Any, rows: Any) -> Any:
    bent = body.inner(rows)
    bent.data.masked_fill_(rows > 0, 0.0)
    return bent * bent


def giving_other_memory(body: Any, rows: Any) -> Any:
    bent = body.inner(rows)
    bent.data = bent.data * (rows > 0)
    return bent * bent


def writing_without_gradients(body: Any, rows: Any) -> Any:
    bent = body.inner(rows)
    with torch.no_grad():
        bent[:, -1].mul_(rows[:, -1] > 0)
        bent[rows[..., 0] > 0] = 0.0
    return bent * bent


def looking_up(body: Any, rows: Any) -> Any:
    return body.inner(rows) + functional.embedding(torch.tensor([1, 2, 3]), body.inner.weight).sum()


def branching(body: Any, rows: Any) -> Any:
    return body.inner(rows) * (2 if rows.shape[1] > 5 else 1)


BODIES = (
    *(clamped, hooking_nodes, deciding, drawing, drawing_of_python, leaving),
    *(writing_to_data, giving_other_memory, writing_without_gradients, looking_up, branching),
)


@pytest.mark.sampled(10)
@pytest.mark.parametrize("function", BODIES, ids=lambda function: function.__name__)
def test_a_module_gives_the_same_compiled_or_uncompiled(function: Any) -> None:
    """Compiled, or as it is where the compiler does not take it or a lookup is made inside: the numbers are the same."""
    model, taken = Net(function), set()

    def seeded(batch: Any, **options: Any) -> Any:
        random.seed(1)
        torch.manual_seed(1)
        return embgrad.gradients(model, batch, PROJECTION, **options)

    for batch in (IDS, LONGER, IDS):
        plain, compiled = seeded(batch), seeded(batch, compile=True)
        np.testing.assert_allclose(compiled.values, plain.values, rtol=1e-10, atol=1e-14)
        np.testing.assert_allclose(compiled.objective, plain.objective, rtol=1e-10)
        taken.add(compiled.provenance["compiled"])
    refused = (hooking_nodes, deciding, drawing_of_python, giving_other_memory, looking_up)
    assert taken == {function not in refused}


def _ramp(first: float, last: float) -> Any:
    return torch.linspace(first, last, 6, dtype=torch.float64)


class Constants(Body):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.held = _ramp(1, 2), {"by": [1.0]}
        self.aside = [nn.Linear(6, 6).double()]

    def forward(self, rows: Any) -> Any:
        return self.aside[0](self.norm(self.inner(rows).tanh()) * self.scale * self.factor * self.held["by"][0])


def _weight(model: Any) -> torch.Tensor:
    weight: torch.Tensor = model.body.inner.weight.detach()
    return weight


def _in_two_places(model: Any) -> None:
    model.body.inner.weight = model.body.aside[0].weight = nn.Parameter(_weight(model) * 3)


CHANGES: dict[str, Callable[[Any], Any]] = {
    "an epsilon": lambda model: setattr(model.body.norm, "eps", 0.5),
    "a number": lambda model: setattr(model.body, "factor", 3.0),
    "a number in a container": lambda model: model.body.held["by"].__setitem__(0, 3.0),
    "a tensor": lambda model: setattr(model.body, "scale", _ramp(2, 1)),
    "a tensor in place": lambda model: model.body.scale.mul_(2),
    "a weight in place": lambda model: model.body.inner.weight.data.mul_(2),
    "a weight": lambda model: setattr(model.body.inner, "weight", nn.Parameter(_weight(model) * 2)),
    "a weight's layout": lambda model: setattr(model.body.inner.weight, "data", _weight(model).t()),
    "a weight removed": lambda model: setattr(model.body.inner, "bias", None),
    "a module": lambda model: setattr(model.body, "inner", nn.Linear(6, 6).double()),
    "a module that is registered nowhere": lambda model: model.body.aside.__setitem__(0, nn.Linear(6, 6).double()),
    "a tied weight": lambda model: setattr(model.body.aside[0], "weight", model.body.inner.weight),
    "a weight in two places": _in_two_places,
    "a forward of an object": lambda model: setattr(model.body.inner, "forward", lambda rows: rows * 2),
    "a hook": lambda model: model.body.inner.register_forward_hook(lambda module, args, output: output * 2),
    "a hook on gradients": lambda model: model.body.inner.register_full_backward_hook(lambda _, grads, __: (grads[0] * 2,)),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_between_calls_is_seen(change: str) -> None:
    model = Net()
    model.body = Constants().double().eval()
    before = agree(model)
    CHANGES[change](model)
    after = agree(model)
    assert np.abs(after.values - before.values).max() > 1e-3 * np.abs(before.values).max()


def test_the_dtype_and_the_mode_may_change(graphs: list[Any]) -> None:
    model = Net()
    agree(model)
    model.train()
    agree(model)
    model.requires_grad_(False)
    agree(model)
    assert len(graphs) == 1
    model.float()
    agree(model, rel=1e-5)
    model.double()
    agree(model, rel=1e-5)


def test_lengths_and_numbers_of_examples(graphs: list[Any]) -> None:
    model = Net()
    generator = np.random.default_rng(0)
    for shape in ((3, 5), (2, 2), (2, 7), (5, 33), (1, 5), (1, 7), (5, 1), (1, 1)):
        agree(model, generator.integers(1, 12, shape))
    assert len(graphs) <= 4  # several of both, one of either, one of both


@pytest.mark.parametrize("at", ["word", "body", "body:input", "body.inner", "outer"])
@pytest.mark.parametrize("option", ["override", "add", "edit"])
def test_changes_at_points(at: str, option: str) -> None:
    model = Net()
    for by in (2.0, -3.0):
        called: list[Any] = []

        def change(value: Any, by: float = by, called: list[Any] = called) -> Any:
            called.append(value)
            return value * by

        agree(model, at=at, **{option: {at: change}})
        assert len(called) == 3  # once a call


def test_modules_that_the_user_calls_run_compiled() -> None:
    parts = [Net(), nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 3)).double()]
    agree(parts, call=lambda parts, inputs: parts[1](parts[0](inputs)))


class Layered(nn.Module):
    """Calls the layers inside of a module that has a forward of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layers = nn.Embedding(12, 6), nn.Sequential(*(Body() for _ in range(3)))
        self.double().eval()

    def forward(self, input_ids: Any) -> Any:
        hidden = self.table(input_ids)
        for layer in self.layers:
            hidden = layer(hidden)
        return hidden.mean(1)[:, :3]


def test_a_module_whose_children_are_called_runs_uncompiled() -> None:
    model = Layered()
    plain = embgrad.gradients(model, IDS, PROJECTION)
    with pytest.warns(embgrad.EmbgradWarning, match="compile=True: Sequential: the model calls its children"):
        embgrad.gradients(model, IDS, PROJECTION, compile=True)
    np.testing.assert_allclose(agree(model).values, plain.values, rtol=1e-10)


def test_a_module_that_begins_to_look_up_runs_uncompiled() -> None:
    """Its compiled code does not serve any more, and that which would is refused."""

    def function(body: Any, rows: Any) -> Any:
        more = 0 if body.factor < 3 else functional.embedding(body.ids, body.inner.weight)
        return body.norm(body.inner(rows)) + more

    class Knowing(Net):
        def forward(self, input_ids: Any) -> Any:
            self.body.ids = input_ids % 6
            return super().forward(input_ids)

    model = Knowing(function)
    agree(model)
    model.body.factor = 4.0
    falls_back(model, "Body: it calls embedding, which has to be recorded")


class Taking(Net):
    def forward(self, input_ids: Any) -> Any:
        hidden = self.body(self.table(input_ids))
        return {"hidden": hidden, "logits": self.outer(hidden.mean(1))}


def test_a_model_or_objective_that_takes_gradients_runs_uncompiled() -> None:
    why = "the model or the objective takes gradients itself"

    def weighted(out: Any) -> Any:
        (gradient,) = torch.autograd.grad(out["logits"].pow(2).sum(), out["hidden"], create_graph=True)
        return (gradient * out["hidden"]).sum((1, 2))

    def differentiating(body: Any, rows: Any) -> Any:
        return body.inner(rows) * torch.autograd.grad(body.inner(rows.detach()).sum(), body.inner.weight)[0].sum()

    falls_back(Taking(), why, objective=weighted)
    falls_back(Taking().requires_grad_(False), why, objective=weighted)
    falls_back(Net(differentiating), why)


def test_an_error_of_the_model_keeps_its_compiled_code(graphs: list[Any]) -> None:
    model = Net()
    agree(model)
    model.body.inner = nn.Linear(5, 6).double()
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        embgrad.gradients(model, IDS, PROJECTION, compile=True)
    model.body.inner = nn.Linear(6, 6).double()
    agree(model)
    assert len(graphs) == 1


def test_a_setting_that_prevents_compilation_is_reported() -> None:
    model = Net()
    falls_back(model, "in training mode", training=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        falls_back(model, "torch.autocast is in force")
    with nn.utils.parametrize.cached():
        falls_back(model, "torch.nn.utils.parametrize.cached is in force")
    handle = nn.modules.module.register_module_forward_hook(lambda module, given, returned: None)
    try:
        falls_back(model, "hooks are registered for all modules")
    finally:
        handle.remove()
    scripted = Net()
    scripted.outer = torch.jit.script(scripted.outer)
    falls_back(scripted, "outer is a TorchScript module")
    agree(model)


def test_a_model_without_modules_runs_uncompiled() -> None:
    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(12, 3, dtype=torch.float64))

        def forward(self, input_ids: Any) -> Any:
            return functional.embedding(input_ids, self.weight).tanh().mean(1)

    falls_back(Bare(), "lookup|which has to be recorded")


class Doubling(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result * 2 if func is torch.Tensor.tanh else result


class Counting(torch.utils._python_dispatch.TorchDispatchMode):  # type: ignore[misc]
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def test_modes_of_the_user_take_effect() -> None:
    model = Net()
    before = agree(model)
    with Doubling():
        assert not np.array_equal(agree(model).values, before.values)
    with Counting():
        falls_back(model, "")
    agree(model)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            agree(model)
    with torch.device("cpu"):
        agree(model)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("option", ["objective", "override", "add", "edit"])
def test_functions_that_call_parts_of_the_model_find_it_as_in_a_pass(option: str, training: bool) -> None:
    """In evaluation mode, unless another is asked for; and what they write to its buffers is not there afterwards."""
    model = Net()
    model.head = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 6)).double()

    def part(value: Any) -> np.ndarray:
        rows = torch.from_numpy(value).reshape(-1, value.shape[-1])
        result: np.ndarray = model.head(rows).detach().reshape(value.shape).numpy()
        return result

    changes = {option: {"word": part}} if option in ("override", "add", "edit") else {}
    objective = PROJECTION if changes else lambda out: model.head(out.repeat(1, 6)[:, :6])[:, 1]
    options: dict[str, Any] = {"training": training, **changes}
    model.eval()
    embgrad.gradients(model, IDS, objective, compile=True, **options)
    model.train()
    before = {name: one.clone() for name, one in model.state_dict().items()}
    plain, compiled = (embgrad.gradients(model, IDS, objective, compile=one, **options) for one in (False, True))
    assert compiled.provenance["compiled"]
    np.testing.assert_allclose(compiled.values, plain.values, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(compiled.objective, plain.objective, rtol=1e-10)
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())
    assert model.training
    assert model.head.training


def test_what_the_user_has_compiled_stays_compiled() -> None:
    compiled: list[Any] = []

    def backend(module: Any, inputs: Any) -> Any:
        compiled.append(module)
        return module.forward

    model = nn.Sequential(nn.Embedding(12, 4), nn.Linear(4, 3)).double()
    called = torch.compile(model, backend=backend, dynamic=False)
    with torch.no_grad():
        called(torch.tensor(IDS))
        result = len(compiled)
        agree(called, IDS, embgrad.Sum())
        called(torch.tensor(IDS))
    assert len(compiled) == result == 1


def test_several_threads_may_compile() -> None:
    failed: list[Any] = []
    shared = Net()

    def work(number: int) -> None:
        try:
            expected = Net()
            for batch in (IDS, LONGER):
                agree(expected, batch)
                agree(shared, batch, at=("word", "body.inner")[number % 2])
        except BaseException as error:
            failed.append(error)

    with warnings.catch_warnings():
        warnings.simplefilter("error", embgrad.EmbgradWarning)
        workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    assert not failed
