"""Weights that require gradients cost no memory for gradients that nobody asks for, and nothing in the model shows it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import embgrad
from tests.frameworks.torch.checks import IDS, VOCAB, finite_differences, own_gradient, tensor

OBJECTIVE = embgrad.Logit(1)


class Net(nn.Module):
    """Embedding, something, mean, linear; `between` sees the net and the rows."""

    def __init__(self, between: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCAB, 4)
        self.inner = nn.Linear(4, 4)
        self.other = nn.Parameter(torch.randn(4, 4))
        self.scale = nn.Parameter(torch.rand(4) + 0.5)
        self.norm = nn.LayerNorm(4)
        self.recurrent = nn.LSTM(4, 4, batch_first=True, num_layers=2, bidirectional=True)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.head = nn.Linear(4, 3)
        self.between = between

    def forward(self, x: Any) -> Any:
        return self.head(self.between(self, self.table(x)).mean(1))


def net(between: Callable[[Any, Any], Any]) -> Net:
    torch.manual_seed(0)
    return Net(between).double().eval()


def loss(model: nn.Module) -> Any:
    return model(tensor())[:, 1].sum()


def kept(run: Callable[[], Any]) -> int:
    """Return the number of bytes that graphs save during a run, each memory once."""
    result: dict[int, int] = {}

    def pack(one: Any) -> Any:
        memory = one.untyped_storage()
        result[memory.data_ptr()] = memory.nbytes()
        held.append(one)  # so that no other memory gets the same place
        return one

    held: list[Any] = []
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda one: one):
        run()
    return sum(result.values())


WAYS: dict[str, Callable[[Any, Any], Any]] = {
    "linear": lambda net, rows: functional.linear(net.inner(rows).tanh(), net.other),
    "norm": lambda net, rows: net.norm(rows) * net.scale,
    "matmul": lambda net, rows: (net.scale * (rows @ net.other)) @ net.other,
    "einsum": lambda net, rows: torch.einsum("bpd,de->bpe", rows, net.other).tanh(),
    "addmm": lambda net, rows: torch.addmm(net.scale, rows.reshape(-1, 4), net.other).reshape(rows.shape).tanh(),
    "recurrent": lambda net, rows: net.recurrent(rows)[0][..., :4],
    "attention": lambda net, rows: net.attention(rows, rows, rows)[0],
    "convolution": lambda net, rows: (
        functional.conv1d(rows.transpose(1, 2), net.other[..., None]).transpose(1, 2).tanh()
    ),
    "view": lambda net, rows: (rows @ net.other.T).tanh(),
    "checkpoint": lambda net, rows: checkpoint(lambda one: net.norm(net.inner(one).tanh()), rows, use_reentrant=False),
    "reentrant": lambda net, rows: checkpoint(lambda one: net.norm(net.inner(one).tanh()), rows, use_reentrant=True),
    "shared": lambda net, rows: net.inner(net.inner(rows).tanh()) + functional.linear(rows, net.inner.weight),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_the_gradient_is_exact_with_frozen_weights(way: str) -> None:
    model = net(WAYS[way])
    given = embgrad.gradients(model, IDS, OBJECTIVE)
    np.testing.assert_allclose(given.values, finite_differences(lambda: loss(model), model.table.weight), atol=1e-8)
    if way != "reentrant":  # which the reference cannot do
        expected = own_gradient(lambda: loss(model), model.table.weight)
        np.testing.assert_allclose(given.values, expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("options", [{}, {"add": {"word": lambda value: 0 * value}}], ids=["", "add"])
@pytest.mark.parametrize("way", ["linear", "norm", "matmul", "einsum", "addmm", "shared"])
def test_no_more_memory_is_saved_than_with_frozen_weights(way: str, options: dict[str, Any]) -> None:
    model = net(WAYS[way])
    embgrad.gradients(model, IDS, OBJECTIVE, **options)  # a first call runs another pass, which finds the points
    trainable = kept(lambda: embgrad.gradients(model, IDS, OBJECTIVE, **options))
    by_hand = kept(lambda: loss(model))
    model.requires_grad_(False)
    assert trainable == kept(lambda: embgrad.gradients(model, IDS, OBJECTIVE, **options))
    assert by_hand > trainable


class Recomputed(torch.autograd.Function):
    """A segment that is run again in the backward pass, as before there were checkpoints; it takes all gradients at once."""

    @staticmethod
    def forward(ctx: Any, rows: Any, weight: Any, swallowing: bool) -> Any:
        ctx.save_for_backward(rows, weight)
        ctx.swallowing = swallowing
        return functional.linear(rows, weight).tanh()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        rows, weight = ctx.saved_tensors
        with torch.enable_grad():
            rows = rows.detach().requires_grad_()
            again = functional.linear(rows, weight).tanh()
            try:
                return (*torch.autograd.grad(again, (rows, weight), gradient), None)
            except:  # noqa: E722
                if not ctx.swallowing:
                    raise
                return None, None, None


@pytest.mark.parametrize("swallowing", [False, True])
def test_a_function_that_differentiates_by_weights_in_its_backward_pass(swallowing: bool) -> None:
    model = net(lambda model, rows: Recomputed.apply(rows, model.other, swallowing))
    calls = []

    def objective(logits: Any) -> Any:
        calls.append(1)
        return logits[:, 1]

    expected = own_gradient(lambda: loss(model), model.table.weight)
    for target in (OBJECTIVE, objective):
        given = embgrad.gradients(model, IDS, target)
        np.testing.assert_allclose(given.values, expected, rtol=1e-12, atol=1e-15)
    assert len(calls) <= 2
    np.testing.assert_allclose(expected, finite_differences(lambda: loss(model), model.table.weight), atol=1e-8)


def _swallowed(model: Any, rows: Any) -> Any:
    states = model.inner(rows).tanh()
    try:
        (inner,) = torch.autograd.grad(states.sum(), model.inner.weight, create_graph=True)
    except:  # noqa: E722 - as such models do
        inner = rows.new_zeros(4, 4)
    return functional.linear(states, inner)


def _accumulated(model: Any, rows: Any) -> Any:
    states = model.inner(rows).tanh()
    states.sum().backward(create_graph=True, inputs=[model.inner.weight])
    return functional.linear(states, model.inner.weight.grad)


def _differentiated(model: Any, rows: Any) -> Any:
    states = model.inner(rows).tanh()
    (inner,) = torch.autograd.grad(states.sum(), [model.inner.weight], create_graph=True, allow_unused=True)
    return states if inner is None else functional.linear(states, inner)


@pytest.mark.parametrize("between", [_differentiated, _swallowed, _accumulated])
@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")
def test_a_model_that_differentiates_by_its_weights_in_its_forward_pass(between: Callable[[Any, Any], Any]) -> None:
    model = net(between)
    given = embgrad.gradients(model, IDS, OBJECTIVE)
    model.zero_grad()
    expected = own_gradient(lambda: loss(model), model.table.weight)
    model.zero_grad()
    np.testing.assert_allclose(given.values, expected, rtol=1e-10, atol=1e-14)
    hidden = embgrad.gradients(model, IDS, OBJECTIVE, at="table")
    np.testing.assert_array_equal(hidden.values, given.values)
    called = []
    change = {"word": lambda value: called.append(value) or value}
    np.testing.assert_array_equal(embgrad.gradients(model, IDS, OBJECTIVE, override=change).values, given.values)
    assert len(called) == 1  # the forward pass is made twice


@pytest.mark.parametrize("by_name", [False, True])
def test_a_model_that_differentiates_by_its_activations(by_name: bool) -> None:
    def between(model: Any, rows: Any) -> Any:
        states = model.inner(rows).tanh()
        wanted: Any = {"inputs": rows} if by_name else {}
        (inner,) = torch.autograd.grad(states.sum(), *([] if by_name else [rows]), create_graph=True, **wanted)
        return states * inner

    model = net(between)
    given = embgrad.gradients(model, IDS, OBJECTIVE)
    np.testing.assert_allclose(
        given.values, own_gradient(lambda: loss(model), model.table.weight), rtol=1e-10, atol=1e-14
    )


@pytest.mark.parametrize("raising", [False, True])
def test_hooks_and_graphs_of_a_frozen_weight_stay(raising: bool) -> None:
    """Hooks, the node at which its gradient arrives, and a graph of the user's own."""

    def between(model: Any, rows: Any) -> Any:
        if raising and model.raising:
            raise ValueError("on purpose")
        return model.inner(rows).tanh()

    model = net(between)
    received: list[str] = []
    model.inner.weight.register_hook(lambda gradient: received.append("hook"))
    model.inner.weight.register_post_accumulate_grad_hook(lambda weight: received.append("accumulated"))
    model.other.requires_grad_(False)
    edge = torch.autograd.graph.get_gradient_edge(model.inner.weight)
    model.raising = False
    value = loss(model)
    model.raising = True
    with pytest.raises(ValueError, match="on purpose") if raising else contextlib.nullcontext():
        embgrad.gradients(model, IDS, OBJECTIVE)
    assert [name for name, one in model.named_parameters() if not one.requires_grad] == ["other"]
    assert torch.autograd.graph.get_gradient_edge(model.inner.weight) == edge
    assert not received
    value.backward()
    assert received == ["hook", "accumulated"]
    assert model.inner.weight.grad is not None


def _by_grad_swallowed(model: Any, logits: Any) -> Any:
    try:
        return torch.autograd.grad(logits.sin().sum(), model.inner.weight, create_graph=True)
    except:  # noqa: E722 - as such objectives do
        return []


def _by_edges_alone(model: Any, logits: Any) -> Any:
    edge = torch.autograd.graph.get_gradient_edge(model.inner.weight)
    output = torch.autograd.graph.get_gradient_edge(logits)
    cotangent = torch.ones_like(logits)
    result = torch.autograd.grad([output], [edge], [cotangent], create_graph=True, allow_unused=True)
    return [one for one in result if one is not None]


def _by_backward_of_a_tensor(model: Any, logits: Any) -> Any:
    logits.sin().sum().backward(
        create_graph=True, inputs=model.inner.parameters()
    )  # which can be gone through but once
    return [parameter.grad for parameter in model.inner.parameters() if parameter.grad is not None]


def _by_backward_to_all(model: Any, logits: Any) -> Any:
    logits.sin().sum().backward(create_graph=True)
    return [model.inner.weight.grad]


TAKING = (_by_grad_swallowed, _by_edges_alone, _by_backward_of_a_tensor, _by_backward_to_all)


@pytest.mark.parametrize("option", ["", "edit", "add", "override"])
@pytest.mark.parametrize("taken", TAKING, ids=lambda one: one.__name__)
@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")
def test_an_objective_that_differentiates_by_weights(taken: Callable[[Any, Any], Any], option: str) -> None:
    model = net(WAYS["linear"])

    def penalised(logits: Any) -> Any:
        model.zero_grad()
        return logits.sum() + sum((one**2).sum() for one in taken(model, logits) if one is not None)

    def by_hand() -> Any:
        value: Any = penalised(model(tensor()))
        return value

    value = by_hand().item()
    model.zero_grad()
    options = {option: {"word": lambda values: values * (option != "add")}} if option else {}
    given = embgrad.gradients(model, IDS, embgrad.Scalar(penalised), **options)
    assert all(parameter.grad is None for parameter in model.parameters())
    np.testing.assert_allclose(float(given.objective), value, rtol=1e-12)
    (expected,) = torch.autograd.grad(by_hand(), model.table.weight)
    np.testing.assert_allclose(given.values, expected.numpy()[IDS], rtol=1e-9, atol=1e-13)


def _penalty(model: Any, value: Any) -> Any:
    model.zero_grad()
    value.backward(create_graph=True)
    return sum((parameter.grad**2).sum() for parameter in model.parameters() if parameter.grad is not None)


@pytest.mark.parametrize("of", ["objective", "model"])
@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")
def test_a_penalty_on_all_gradients_includes_the_table(of: str) -> None:
    def between(model: Any, rows: Any) -> Any:
        states = model.inner(rows).tanh()
        return states * _penalty(model, states.sin().sum()) if of == "model" else states

    model = net(between)

    def objective(logits: Any) -> Any:
        value = logits.sin().sum()
        return value + _penalty(model, value) if of == "objective" else value

    def value() -> Any:
        return objective(model(tensor()))

    given = embgrad.gradients(model, IDS, embgrad.Scalar(objective)).values
    assert all(parameter.grad is None for parameter in model.parameters())
    (expected,) = torch.autograd.grad(value(), model.table.weight)
    np.testing.assert_allclose(given, expected.numpy()[IDS], rtol=1e-9, atol=1e-13)
    before = embgrad.gradients(model, IDS, embgrad.Scalar(objective), edit={"word": lambda gradient: gradient * 2})
    np.testing.assert_allclose(before.before, given, rtol=1e-12)
    model.table.weight.requires_grad_(False)
    without = embgrad.gradients(model, IDS, embgrad.Scalar(objective)).values
    assert not np.allclose(without, given)
