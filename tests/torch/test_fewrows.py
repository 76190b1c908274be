"""Gradients of few rows are multiplied as such in large passes: the same gradients, whatever the model does with what it gets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from embgrad_torch import fewrows, ways
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import embgrad

IDS = np.random.default_rng(0).integers(1, 20, (3, 8))
FIRST, ALL = embgrad.Logit(1, position=0), embgrad.Logit(1)


@pytest.fixture(autouse=True)
def products(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """However small a pass is, it is taken for a large one; of each product that leaves out rows the shape."""
    made: list[tuple[int, ...]] = []
    genuine = fewrows._few

    def few(flat: Any) -> Any:
        places = genuine(flat)
        if places is not None:
            made.append((len(places), *flat.shape))
        return places

    monkeypatch.setattr(ways, "SMALL", 0)
    monkeypatch.setattr(fewrows, "LEAST", 0)
    monkeypatch.setattr(fewrows, "_few", few)
    return made


class Net(nn.Module):
    """Rows that meet once, and layers behind; `between` is what is done behind, by a function of the net and the rows."""

    def __init__(self, between: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 4)
        self.before, self.inner, self.outer = nn.Linear(4, 4), nn.Linear(4, 6), nn.Linear(6, 4, bias=False)
        self.head = nn.Linear(4, 3)
        self.between = between

    def forward(self, x: Any) -> Any:
        rows = self.before(self.table(x)).tanh()
        mixed = rows + rows.mean(1, keepdim=True)
        return self.head(self.between(self, mixed))


def net(between: Callable[[Any, Any], Any]) -> Net:
    torch.manual_seed(0)
    return Net(between).double().eval()


def two(one: Net, rows: Any) -> Any:
    return rows + one.outer(one.inner(rows).tanh())


def penalised(one: Net, rows: Any) -> Any:
    """A model that takes gradients of its own, which are differentiated in their turn."""
    (slope,) = torch.autograd.grad(one.inner(rows)[:, 0].square().sum(), rows, create_graph=True)
    return rows + slope


def jacobian(one: Net, rows: Any) -> Any:
    """A model that takes several gradients of its own at once."""
    inner = one.inner(rows).tanh()
    (slopes,) = torch.autograd.grad(
        inner.sum((0, 1)), rows, torch.eye(6, dtype=rows.dtype), is_grads_batched=True, create_graph=True
    )
    return rows + slopes.sum(0)


def slopes(one: Net, rows: Any) -> Any:
    """The same, of which nobody takes gradients in their turn."""
    inner = one.inner(rows).tanh()
    (found,) = torch.autograd.grad(
        inner.sum((0, 1)), rows, torch.eye(6, dtype=rows.dtype), is_grads_batched=True, retain_graph=True
    )
    return one.outer(inner) * found.sum(0)


def turned(one: Net, rows: Any) -> Any:
    """Of which the gradient is the imaginary part of a conjugate, which PyTorch holds as the negative of what is there."""
    return torch.imag(torch.complex(rows, one.before(rows)).conj())


def in_place(one: Net, rows: Any) -> Any:
    inner = one.inner(rows)
    inner[:, :, 0] *= 2
    inner.relu_()
    return one.outer(inner).add_(rows)


def nested(one: Net, rows: Any) -> Any:
    """Examples of their own lengths, as PyTorch has them in one tensor."""
    examples = torch.nested.as_nested_tensor(list(rows.unbind()))
    return rows + torch.nested.to_padded_tensor(one.outer(one.inner(examples).relu()), 0.0)


WAYS: dict[str, Callable[[Any, Any], Any]] = {
    "two": two,
    "penalised": penalised,
    "jacobian": jacobian,
    "slopes": slopes,
    "turned": turned,
    "in place": in_place,
    "checkpoint": lambda one, rows: checkpoint(lambda given: two(one, given), rows, use_reentrant=False),
    "reentrant": lambda one, rows: checkpoint(lambda given: two(one, given), rows, use_reentrant=True),
    "flat": lambda one, rows: two(one, rows.reshape(-1, 4)).reshape(rows.shape),
    "transposed": lambda one, rows: two(one, rows.transpose(0, 1)).transpose(0, 1),
    "nested": nested,
    "by name": lambda one, rows: functional.linear(bias=one.before.bias, input=rows, weight=one.before.weight),
    "vmap": lambda one, rows: torch.vmap(lambda given: two(one, given))(rows),
    "jvp": lambda one, rows: torch.func.jvp(lambda given: two(one, given), (rows,), (torch.ones_like(rows),))[1] + rows,
    "autocast": lambda one, rows: rows + torch.autocast("cpu")(lambda given: one.before(given))(rows).double(),
}


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("objective", [FIRST, ALL])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_exact(way: str, objective: Any, frozen: bool) -> None:
    model = net(WAYS[way]).requires_grad_(not frozen)
    given = embgrad.gradients(model, IDS, objective).values
    one = 0 if objective is FIRST else slice(None)
    if way in (
        "autocast",
        "reentrant",
    ):  # of the first differences are too coarse, and of the second there is no plain gradient
        return
    model.requires_grad_(True)
    (own,) = torch.autograd.grad(model(torch.tensor(IDS))[:, one, 1].sum(), model.table.weight)
    table = np.zeros(own.shape)
    np.add.at(table, IDS, given)
    np.testing.assert_allclose(table, own.numpy(), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("way", ["two", "penalised", "in place", "reentrant"])
def test_against_differences(way: str) -> None:
    model = net(WAYS[way])
    table = np.zeros(model.table.weight.shape)
    np.add.at(table, IDS, embgrad.gradients(model, IDS, FIRST).values)
    rows = model.table.weight.data
    for place in np.ndindex(*table.shape):
        ends = []
        for step in (1e-5, -1e-5):
            rows[place] += step
            ends.append(model(torch.tensor(IDS))[:, 0, 1].sum().item())
            rows[place] -= step
        assert table[place] == pytest.approx((ends[0] - ends[1]) / 2e-5, abs=1e-8)


def test_few_rows_are_multiplied_behind_where_they_meet_and_all_before(products: list[tuple[int, ...]]) -> None:
    model = net(two)
    embgrad.gradients(model, IDS, FIRST)
    assert products == [(3, 24, 3), (3, 24, 4), (3, 24, 6)]
    products.clear()
    embgrad.gradients(model, IDS, ALL)
    assert not products


def test_small_products_are_left_alone(products: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fewrows, "LEAST", 1 << 26)
    embgrad.gradients(net(two), IDS, FIRST)
    assert not products


@pytest.mark.parametrize("entry", [float("nan"), float("inf"), 1e-300, -1e-320, -3.0])
def test_every_row_that_is_not_zero_counts(entry: float) -> None:
    flat, weight = torch.zeros(64, 5, dtype=torch.float64), torch.randn(5, 7, dtype=torch.float64)
    flat[17, 3], flat[63, 4], flat[5] = entry, 2.0, -0.0
    assert fewrows._few(flat).tolist() == [17, 63]
    with torch.no_grad():
        torch.testing.assert_close(fewrows._product(flat, weight), flat @ weight, rtol=1e-12, atol=0, equal_nan=True)
        assert torch.equal(fewrows._product(torch.zeros_like(flat), weight), torch.zeros(64, 7, dtype=torch.float64))


@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 3, 5), (2, 1, 3, 5)])
@pytest.mark.parametrize("bias", [True, False])
def test_it_gives_the_bits_of_pytorchs_and_no_view(shape: tuple[int, ...], bias: bool) -> None:
    rows = torch.randn(shape, requires_grad=True)
    weight, added = torch.randn(7, 5), torch.randn(7) if bias else None
    for given in (rows, rows.transpose(0, -2) if len(shape) > 1 else rows):
        found, own = fewrows.linear(given, weight, added), functional.linear(given, weight, added)
        assert torch.equal(found, own)
        assert found.stride() == own.stride()
        if len(shape) > 1:
            assert not found._is_view()
            found.add_(1)
        (gradient,) = torch.autograd.grad(found.sum(), rows, retain_graph=True)
        torch.testing.assert_close(gradient, torch.autograd.grad(own.sum(), rows, retain_graph=True)[0])


def test_weights_that_are_asked_for_get_their_gradients() -> None:
    model = net(two)
    asked = embgrad.parameter_gradients(model, IDS, FIRST)
    total = model(torch.tensor(IDS))[:, 0, 1].sum()
    for name, parameter in model.named_parameters():
        (own,) = torch.autograd.grad(total, parameter, retain_graph=True)
        np.testing.assert_allclose(asked[name], own.numpy(), rtol=1e-12, atol=1e-15)
