"""Products with matrices of no module are points by the names of the matrices."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import embgrad
from embgrad.engine.weights import weights_of
from tests.frameworks.torch.checks import IDS as SMALL_IDS
from tests.frameworks.torch.checks import VOCAB, tensor


class Functional(nn.Module):
    """A model in functions of parameters: a matrix of each layer in one array, and one of the model itself."""

    def __init__(self, way: str, *, frozen: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.way, self.table = way, nn.Embedding(VOCAB, 4)
        self.p = nn.ParameterDict({"layers": torch.randn(2, 4, 4)})
        last = torch.randn(4, 4)
        if frozen:
            self.register_buffer("last", last)
            self.register_buffer("mask", torch.ones(4, 4, dtype=torch.int64))
        else:
            self.last = nn.Parameter(last)

    def product(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        if self.way == "linear":
            return nn.functional.linear(x, weight)
        return x @ weight.T if self.way == "matmul" else torch.einsum("bsm,nm->bsn", x, weight)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        x = self.table(input_ids)
        for weight in self.p["layers"]:
            x = torch.tanh(self.product(x, weight))
        return self.product(x, self.last).sum((1, 2))


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("way", ["linear", "matmul", "einsum"])
def test_a_product_with_a_parameter_or_a_buffer_of_no_module_is_a_point(way: str, frozen: bool) -> None:
    model = Functional(way, frozen=frozen)
    names = [point.key for point in embgrad.points(model, SMALL_IDS)]
    assert [name for name in names if name.endswith(("output#0", "output#1"))] == [
        "p.layers:output#0",
        "p.layers:output#1",
        "last:output#0",
    ]
    own = embgrad.gradients(model, SMALL_IDS, embgrad.Sum(), at="p.layers#1")
    first, second = model.p["layers"]
    product = (torch.tanh(model.table(tensor(SMALL_IDS)) @ first.T) @ second.T).detach()
    np.testing.assert_allclose(own.activations, product.numpy(), rtol=1e-4, atol=1e-6)
    wanted = (1 - torch.tanh(product) ** 2) * model.last.sum(0)
    np.testing.assert_allclose(own.values, wanted.detach().numpy(), rtol=1e-4, atol=1e-6)


class Einsums(nn.Module):
    """An attention whose heads are axes of their own, and whose last einsum has three factors."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(VOCAB, 4)
        self.v, self.o = nn.Parameter(torch.randn(2, 3, 4)), nn.Parameter(torch.randn(2, 3, 4))

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        v = torch.einsum("blm,hdm->bhld", self.table(input_ids), self.v)
        weights = torch.softmax(torch.einsum("bhqd,bhkd->bhqk", v, v), -1)
        return torch.tanh(torch.einsum("bhqk, bhkd, hdm -> bqm", weights, v, self.o)).sum((1, 2))


def test_products_of_heads_and_of_three_factors_are_points() -> None:
    """At a point positions come first, and the features of heads last; the model itself goes on with its own axes."""
    model = Einsums()
    x = model.table(tensor(SMALL_IDS)).detach()
    v = torch.einsum("blm,hdm->blhd", x, model.v).detach()
    mixed = torch.einsum("bhqk,bkhd->bqhd", torch.softmax(torch.einsum("bqhd,bkhd->bhqk", v, v), -1), v)
    last = torch.einsum("bqhd,hdm->bqm", mixed, model.o).detach()
    names = ["v", "o:input", "o"]
    first, entered, left = embgrad.gradients(model, SMALL_IDS, embgrad.Sum(), at=names).values()
    for found, wanted in ((first, v), (entered, mixed), (left, last)):
        np.testing.assert_allclose(found.activations.reshape(wanted.shape), wanted.numpy(), rtol=1e-4, atol=1e-6)
    gradient = 1 - torch.tanh(last) ** 2
    np.testing.assert_allclose(left.values, gradient.numpy(), rtol=1e-4, atol=1e-6)
    before = torch.einsum("bqm,hdm->bqhd", gradient, model.o).detach()
    np.testing.assert_allclose(entered.values.reshape(before.shape), before.numpy(), rtol=1e-4, atol=1e-6)
    alone = embgrad.gradients(model, SMALL_IDS, embgrad.Sum(), at="v")
    np.testing.assert_allclose(alone.objective, torch.tanh(last).sum((1, 2)).numpy(), rtol=1e-4)
    changed = embgrad.gradients(model, SMALL_IDS, embgrad.Sum(), at="o", override={"v": 2 * first.activations})
    twice = torch.einsum("bhqk,bkhd->bqhd", torch.softmax(4 * torch.einsum("bqhd,bkhd->bhqk", v, v), -1), 2 * v)
    wanted = torch.einsum("bqhd,hdm->bqm", twice, model.o).detach()
    np.testing.assert_allclose(changed.activations, wanted.numpy(), rtol=1e-4, atol=1e-6)


class Loose(nn.Module):
    """A net whose weights are tensors in a dict of lists, and no parameters."""

    def __init__(self, act: str = "tanh") -> None:
        super().__init__()
        random = torch.Generator().manual_seed(0)
        self.act = getattr(torch, act)
        self.w = {"table": torch.randn(VOCAB, 4, generator=random), "count": torch.tensor([3])}
        self.w["layers"] = [{"up": torch.randn(5, 4, generator=random), "down": torch.randn(4, 5, generator=random)}]
        self.register_buffer("mask", torch.ones(3))

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        x = self.w["table"][input_ids]
        for layer in self.w["layers"]:
            x = x + self.act(x @ layer["up"].T) @ layer["down"].T
        return x


def test_tensors_that_are_no_parameters_are_weights_of_a_model_without_any() -> None:
    model = Loose()
    model.w["again"] = model.w
    assert [weight.name for weight in weights_of(model)] == ["mask", "w.table", "w.layers.0.up", "w.layers.0.down"]
    names = [point.key for point in embgrad.points(model, SMALL_IDS)]
    assert names[0] == "w.table#0"
    assert names[-1] == "w.layers.0.down:output#0"
    report = embgrad.check_port(model, Loose("sigmoid"), SMALL_IDS)
    assert "the activation is tanh in a and the logistic function in b" in report.verdict
    mixed = nn.Sequential(Loose(), nn.Linear(4, 2))
    assert [weight.name for weight in weights_of(mixed)] == ["0.mask", "1.weight", "1.bias"]


def test_tensors_in_one_memory_are_no_points() -> None:
    """In a flat array nothing shows which matrix a product is made with."""
    model = Loose()
    up, down = model.w["layers"][0].values()
    flat = torch.cat([up.ravel(), down.ravel()])
    model.w["layers"] = [{"up": flat[:20].view(5, 4), "down": flat[20:].view(4, 5)}]
    assert [point.key for point in embgrad.points(model, SMALL_IDS)] == ["w.table#0"]
