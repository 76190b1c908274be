"""Perturbed passes in PyTorch training loops, against loops with hooks that are written by hand, bit for bit."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import embgrad
from tests.frameworks.torch.checks import VOCAB, Layers
from tests.unit.refusals import refused

RANDOM = np.random.default_rng(0)
IDS = torch.tensor(RANDOM.integers(1, VOCAB, (3, 4)))
LABELS = torch.tensor([0, 2, 1])


class Net(Layers):
    """Layers that draw random numbers, in training mode."""

    def __init__(self, reentrant: bool | None = None) -> None:
        super().__init__(reentrant, dropout=0.3)


def net(kind: Callable[..., Any] = Net, **options: Any) -> Any:
    torch.manual_seed(0)
    return kind(**options).train()


def loss_of(model: Any, ids: Any) -> Any:
    return nn.functional.cross_entropy(model(input_ids=ids), LABELS)


def expect_clean(model: Any) -> None:
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert not torch.overrides._get_current_function_mode_stack()


@contextlib.contextmanager
def hooks_by_hand(model: Any, add: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Add tensors to the outputs of modules by hooks, and yield the outputs with their gradients kept."""
    outputs: dict[str, Any] = {}

    def hook(name: str) -> Any:
        def changed(module: Any, given: Any, output: Any) -> Any:
            first = output if isinstance(output, torch.Tensor) else output[0]
            new = first + add[name] if name in add else first
            new.retain_grad()
            outputs[name] = new
            return new if first is output else (new, *output[1:])

        return changed

    places = {"word": model.table, "layer.1": model.layers[1]}
    handles = [module.register_forward_hook(hook(name)) for name, module in places.items()]
    yield outputs
    for handle in handles:
        handle.remove()


@pytest.mark.parametrize("captured_first", [False, True])
@pytest.mark.parametrize("at", ["word", "layer.1", "layers.1:input"])
def test_what_is_captured_is_what_goes_on(at: str, captured_first: bool) -> None:
    by_hand, model = net(), net()
    add = {"word": torch.randn(3, 4, 4), "layer.1": torch.randn(4)}
    both = {**add, "layers.1:input": torch.randn(3, 1, 4)}
    torch.manual_seed(5)
    with hooks_by_hand(by_hand, add) as outputs:
        handle = by_hand.layers[1].register_forward_pre_hook(lambda _, given: (given[0] + both["layers.1:input"],))
        received = []
        reading = by_hand.layers[1].register_forward_pre_hook(
            lambda _, given: received.append(given[0]) or given[0].retain_grad()
        )
        loss_of(by_hand, IDS).backward()
        handle.remove()
        reading.remove()
    torch.manual_seed(5)
    with contextlib.ExitStack() as stack:
        if captured_first:
            tap = stack.enter_context(embgrad.capture(model, at))
        stack.enter_context(embgrad.perturbed(model, both))
        if not captured_first:
            tap = stack.enter_context(embgrad.capture(model, at))
        loss_of(model, IDS).backward()
    expected = received[0] if at == "layers.1:input" else outputs[at]
    np.testing.assert_array_equal(tap.steps[0].activations, expected.detach().numpy())
    np.testing.assert_array_equal(tap.steps[0].values, expected.grad.numpy())
    for mine, its in zip(model.parameters(), by_hand.parameters(), strict=True):
        assert torch.equal(mine.grad, its.grad)
    expect_clean(model)


def test_a_child_inside_of_what_is_captured() -> None:
    model = nn.Sequential(net(), nn.Linear(3, 3))
    delta = np.ones((3, 4, 4))
    for captured_first in (False, True):
        inner, outer = embgrad.perturbed(model[0], {"word": delta}), embgrad.capture(model)
        with outer if captured_first else inner as first, inner if captured_first else outer as second:
            model(IDS).sum().backward()
        tap = first if captured_first else second
        rows = model[0].table.weight[IDS] + 1
        np.testing.assert_array_equal(tap.steps[0].activations, rows.detach().numpy())


def test_hooks_of_the_user_come_first() -> None:
    model = net().eval()
    seen: list[Any] = []
    model.table.register_forward_hook(lambda module, given, output: seen.append(output) or 2 * output)
    with (
        embgrad.perturbed(model, {"layers.0:input": 1.0, "table:output": 1.0}),
        embgrad.capture(model, "table:output") as tap,
    ):
        loss_of(model, IDS).backward()
    np.testing.assert_array_equal(tap.steps[0].activations, 2 * seen[0].detach().numpy() + 1)


def test_evaluation_passes_are_perturbed_too() -> None:
    model = net().eval()
    delta = torch.randn(3, 4, 4)
    with hooks_by_hand(model, {"word": delta}):
        expected = model(IDS).detach()
    for mode in (torch.no_grad, torch.inference_mode):
        with mode(), embgrad.perturbed(model, {"word": delta}):
            actual = model(IDS)
        assert torch.equal(actual, expected)
        assert not actual.requires_grad


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_arrays_are_cast_to_half_precision(dtype: Any) -> None:
    by_hand, model = net().to(dtype).eval(), net().to(dtype).eval()
    delta = RANDOM.normal(size=(3, 4, 4))
    with hooks_by_hand(by_hand, {"word": torch.tensor(delta).to(dtype)}):
        by_hand(IDS).float().sum().backward()
    with embgrad.perturbed(model, {"word": delta}):
        model(IDS).float().sum().backward()
    assert model.table.weight.grad.dtype is dtype
    for mine, its in zip(model.parameters(), by_hand.parameters(), strict=True):
        assert torch.equal(mine.grad, its.grad)


@pytest.mark.parametrize(("at", "path"), [("word", "table"), ("head", "head")])
@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpoints(reentrant: bool, at: str, path: str) -> None:
    by_hand, model = net(reentrant=reentrant), net(reentrant=reentrant)
    delta = torch.randn(3, 3) if at == "head" else torch.randn(3, 4, 4)
    torch.manual_seed(5)
    handle = by_hand.get_submodule(path).register_forward_hook(lambda *given: given[2] + delta)
    loss_of(by_hand, IDS).backward()
    handle.remove()
    torch.manual_seed(5)
    recording: list[bool] = []
    model.layers[0].register_forward_pre_hook(lambda *given: recording.append(torch.is_grad_enabled()))
    with embgrad.perturbed(model, {at: delta}):
        loss = loss_of(model, IDS)
    assert recording[-1] is not reentrant  # it stays the kind that it is
    loss.backward()  # the segments run again after the perturbation is closed
    for mine, its in zip(model.parameters(), by_hand.parameters(), strict=True):
        assert torch.equal(mine.grad, its.grad)
    with (
        refused(
            embgrad.errors.UnsupportedError,
            "lies inside a gradient checkpoint",
            "Name a point outside of it, such as 'word'",
        ),
        embgrad.perturbed(model, {"layers.1": 1.0}),
    ):
        loss_of(model, IDS)
    with torch.no_grad(), embgrad.perturbed(model.eval(), {"layers.1": 1.0}):  # nothing runs again
        model(IDS)
    model.layers[0]._forward_pre_hooks.clear()
    expect_clean(model)


def test_compiled_passes_are_refused() -> None:
    model = net()
    with refused(embgrad.errors.UnsupportedError, "is compiled by torch.compile", "cannot be captured or perturbed"):
        embgrad.perturbed(torch.compile(model, backend="eager"), {"word": 1.0}).__enter__()
    step = torch.compile(lambda ids: model(ids).sum(), backend="eager")
    with (
        refused(embgrad.errors.UnsupportedError, "inside a function that torch.compile compiles"),
        embgrad.perturbed(model, {"word": 1.0}),
    ):
        step(IDS)
    with torch.no_grad():
        step(IDS)
    expect_clean(model)


def test_only_a_child_is_called() -> None:
    model = nn.Sequential(net(), nn.Linear(3, 3))
    message = "the forward of Sequential was never called while the perturbation was open, and that of its child '0' was: perturb"
    with pytest.raises(embgrad.errors.PointNotReachedError, match=message), embgrad.perturbed(model, {"word": 1.0}):
        model[0](IDS)
    with torch.no_grad(), embgrad.perturbed(model, {"word": 1.0}) as perturbation:
        pass
    assert perturbation.passes == 0
