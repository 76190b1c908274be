"""The rows of a linear head: read without a gradient for all positions where nothing else takes part, else by autograd."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from embgrad_torch import inputs
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import embgrad

IDS = np.arange(1, 13).reshape(2, 6)
OBJECTIVE = embgrad.Logit(3, position=2)

Forward = Callable[["Decoder", Any], Any]


class Decoder(torch.nn.Module):
    """A causal model of sums, whose head is called by a function of the test."""

    def __init__(self, forward: Forward, dtype: Any = torch.float64) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = torch.nn.Embedding(20, 6)
        self.inner = torch.nn.Linear(6, 6)
        self.head = torch.nn.Linear(6, 20)
        self.side = torch.nn.Linear(6, 20)
        self.call = forward
        self.to(dtype)

    def forward(self, input_ids: Any) -> Any:
        hidden = torch.tanh(self.inner(self.embedding(input_ids))).cumsum(1)
        return self.call(self, hidden)


def plain(model: Decoder, hidden: Any) -> Any:
    return model.head(hidden)


def by_autograd(model: Any) -> np.ndarray:
    """Return the gradient of the objective by autograd alone."""
    rows: list[Any] = []

    def leaf(module: Any, args: Any, output: Any) -> Any:
        rows.append(output.detach().requires_grad_())
        return rows[-1]

    handle = model.embedding.register_forward_hook(leaf)
    model(torch.tensor(IDS))[:, 2, 3].sum().backward()
    handle.remove()
    model.zero_grad()
    return np.array(rows[0].grad.numpy())


@pytest.fixture
def shortcuts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that grows with each use of the shortcut."""
    used: list[int] = []
    apply = inputs._RowsOfHead.apply

    def counted(*arguments: Any) -> Any:
        used.append(1)
        return apply(*arguments)

    monkeypatch.setattr(inputs._RowsOfHead, "apply", counted)
    return used


def rows_times(factor: float) -> Any:
    return lambda gradients: tuple(None if gradient is None else factor * gradient for gradient in gradients)


def then(change: Callable[[Any], Any]) -> Forward:
    """Return a forward pass that changes something about the logits before it returns them."""

    def forward(model: Decoder, hidden: Any) -> Any:
        logits = model.head(hidden)
        change(logits)
        return logits

    return forward


def after_input_hook(model: Decoder, hidden: Any) -> Any:
    hidden.register_hook(lambda gradient: gradient * gradient)
    return model.head(hidden)


def written_before(model: Decoder, hidden: Any) -> Any:
    return model.head((hidden * 1).mul_(3))


def rechecked(model: Decoder, hidden: Any) -> Any:
    return checkpoint(lambda value: model.head(torch.tanh(value)), hidden, use_reentrant=False)


@pytest.mark.parametrize(
    "forward",
    [
        plain,
        lambda model, hidden: functional.linear(hidden, model.head.weight),
        lambda model, hidden: model.head(hidden).contiguous(),
        after_input_hook,
        written_before,
        rechecked,
        lambda model, hidden: checkpoint(model.head, hidden, use_reentrant=True),
        then(lambda logits: logits.data.mul_(2)),
    ],
    ids=[
        *("plain", "no bias", "contiguous", "hook on the input", "input written before"),
        *("checkpoint", "reentrant checkpoint", "values written"),
    ],
)
def test_rows_of_a_head_have_the_gradient_of_autograd(forward: Forward, shortcuts: list[int]) -> None:
    model = Decoder(forward)
    result = embgrad.gradients(model, IDS, OBJECTIVE)
    assert shortcuts
    np.testing.assert_allclose(result.values, by_autograd(model), rtol=1e-12, atol=1e-15)


def summed_in_place(model: Decoder, hidden: Any) -> Any:
    low = model.side(hidden)
    logits = model.head(hidden)
    logits += low
    return logits


class Doubled(torch.autograd.Function):
    """The identity, written in place, with twice its gradient."""

    @staticmethod
    def forward(ctx: Any, value: Any) -> Any:
        ctx.mark_dirty(value)
        return value

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return 2 * gradient


BY_AUTOGRAD: dict[str, Forward] = {
    "logits written in place": then(lambda logits: logits.mul_(2)),
    "logits masked in place": then(lambda logits: logits.__setitem__((..., slice(2)), -1e4)),
    "a view of logits written": then(lambda logits: logits[:, 2].mul_(3)),
    "a hook on logits": then(lambda logits: logits.register_hook(lambda gradient: 2 * gradient)),
    "a hook on the node": then(
        lambda logits: logits.grad_fn.register_hook(lambda gradients, _: rows_times(2)(gradients))
    ),
    "a prehook on the node": then(lambda logits: logits.grad_fn.register_prehook(rows_times(2))),
    "a prehook on a node inside": then(
        lambda logits: logits.grad_fn.next_functions[0][0].register_prehook(rows_times(2))
    ),
    "logits that retain their gradient": then(lambda logits: logits.retain_grad()),
    "soft-capping": lambda model, hidden: 3 * torch.tanh(model.head(hidden) / 3),
    "a sum with a low-rank map": lambda model, hidden: model.head(hidden) + model.side(hidden),
    "a sum in place": summed_in_place,
    "a function that marks logits dirty": lambda model, hidden: Doubled.apply(model.head(hidden)),
    "a bias computed from the input": lambda model, hidden: functional.linear(
        hidden, model.head.weight, hidden.sum((0, 1)) @ model.head.weight.T
    ),
    "a named bias computed from the input": lambda model, hidden: functional.linear(
        hidden, model.head.weight, bias=hidden.sum((0, 1)) @ model.head.weight.T
    ),
    "a weight computed from the input": lambda model, hidden: functional.linear(
        hidden, model.head.weight + hidden.mean()
    ),
    "torch.vmap": lambda model, hidden: torch.vmap(model.head)(hidden),
    "forward-mode differentiation": lambda model, hidden: torch.func.jvp(model.head, (hidden,), (hidden,))[1],
    "a vector as weight": lambda model, hidden: functional.linear(
        torch.stack([hidden] * 6, 2) * torch.arange(6.0, dtype=hidden.dtype)[:, None], model.head.weight[0]
    ),
}


@pytest.mark.parametrize("case", BY_AUTOGRAD)
def test_logits_that_something_else_takes_part_in_are_left_to_autograd(case: str, shortcuts: list[int]) -> None:
    model = Decoder(BY_AUTOGRAD[case])
    result = embgrad.gradients(model, IDS, OBJECTIVE)
    assert not shortcuts
    np.testing.assert_allclose(result.values, by_autograd(model), rtol=1e-12, atol=1e-15)


def replaced(module: Any, args: Any, output: Any) -> Any:
    return output * 2


HOOKS: dict[str, Callable[[Decoder], Any]] = {
    "forward": lambda model: model.head.register_forward_hook(replaced),
    "full backward": lambda model: model.head.register_full_backward_hook(
        lambda module, gradients, _: rows_times(2)(gradients)
    ),
    "full backward before": lambda model: model.head.register_full_backward_pre_hook(
        lambda module, gradients: rows_times(2)(gradients)
    ),
    "backward": lambda model: model.head.register_backward_hook(lambda module, gradients, _: rows_times(2)(gradients)),
    "full backward of all modules": lambda model: torch.nn.modules.module.register_module_full_backward_hook(
        lambda module, gradients, _: rows_times(2)(gradients) if module is model.head else None
    ),
}


@pytest.mark.filterwarnings("ignore")  # PyTorch advises against some of these hooks
@pytest.mark.parametrize("name", HOOKS)
def test_hooks_of_the_head_are_called(name: str, shortcuts: list[int]) -> None:
    model = Decoder(plain)
    without = embgrad.gradients(model, IDS, OBJECTIVE).values
    assert shortcuts.pop()
    handle = HOOKS[name](model)
    try:
        result = embgrad.gradients(model, IDS, OBJECTIVE)
        expected = by_autograd(model)
    finally:
        handle.remove()
    assert not shortcuts
    np.testing.assert_allclose(result.values, expected, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(result.values, 2 * without, rtol=1e-12)


def test_tied_weights_get_their_whole_gradient(shortcuts: list[int]) -> None:
    model = Decoder(plain)
    model.head.weight = model.embedding.weight
    tables = embgrad.tables.table_gradients(model, IDS, OBJECTIVE)
    parameters = embgrad.tables.parameter_gradients(model, IDS, OBJECTIVE)
    assert not shortcuts
    model(torch.tensor(IDS))[:, 2, 3].sum().backward()
    expected = model.embedding.weight.grad.numpy()
    np.testing.assert_allclose(parameters["embedding.weight"], expected, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(tables.total, expected, rtol=1e-12, atol=1e-15)
    assert np.abs(tables.head).max() > 0
    assert embgrad.gradients(model, IDS, OBJECTIVE).values.any()
    assert shortcuts


def test_autocast_is_left_to_autograd(shortcuts: list[int]) -> None:
    model = Decoder(plain, torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = embgrad.gradients(model, IDS, OBJECTIVE)
        expected = by_autograd(model)
    assert not shortcuts
    np.testing.assert_array_equal(result.values, expected)


def test_an_input_that_is_written_to_after_the_head_is_left_to_autograd(shortcuts: list[int]) -> None:
    def forward(model: Decoder, hidden: Any) -> Any:
        before = hidden * 1
        logits = model.head(before)
        before.mul_(5)
        return logits

    result = embgrad.gradients(Decoder(forward), IDS, OBJECTIVE)
    assert not shortcuts
    np.testing.assert_allclose(result.values, by_autograd(Decoder(plain)), rtol=1e-12, atol=1e-15)


def test_a_weight_that_is_written_to_after_the_head_is_refused_by_autograd(shortcuts: list[int]) -> None:
    def forward(model: Decoder, hidden: Any) -> Any:
        logits = model.head(hidden)
        with torch.no_grad():
            model.head.weight.add_(0)
        return logits

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        embgrad.gradients(Decoder(forward), IDS, OBJECTIVE)
    assert not shortcuts


def test_nothing_of_the_head_lives_on_after_a_call() -> None:
    alive: list[Any] = []

    def forward(model: Decoder, hidden: Any) -> Any:
        logits = model.head(hidden)
        alive.extend([weakref.ref(hidden), weakref.ref(logits)])
        return logits

    model = Decoder(forward)
    gc.collect()
    gc.disable()  # nothing waits for the collector
    try:
        embgrad.gradients(model, IDS, [OBJECTIVE, embgrad.Logit(1, position=1)])
        assert alive
        assert not [reference for reference in alive if reference() is not None]
    finally:
        gc.enable()
    assert not model.head._forward_hooks
    assert not model.head._backward_hooks
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())
