"""The gradients of parameters against PyTorch's own backward pass; the user's buffers stay as they were."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import embgrad
from tests.frameworks.torch.checks import IDS, VOCAB, Recomputing, tensor


class Net(nn.Module):
    def __init__(self, **embedding: Any) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCAB, 4, **embedding)
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        self.again = self.inner[0]
        self.unused = nn.Parameter(torch.ones(2, 3))
        self.fixed = nn.Linear(4, 4).requires_grad_(False)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Any) -> Any:
        return self.head(self.fixed(self.again(self.inner(self.table(x)))).mean(1))


def net(**options: Any) -> Any:
    torch.manual_seed(0)
    return Net(**options).double().eval()


def own(model: Any, loss: Any) -> dict[str, np.ndarray]:
    """Return the gradients that `backward` leaves in `grad`."""
    model.zero_grad()
    loss().backward()
    result = {
        name: np.zeros(one.shape) if one.grad is None else one.grad.to_dense().numpy().copy()
        for name, one in model.named_parameters()
        if one.requires_grad
    }
    model.zero_grad()
    return result


def same(found: Any, expected: dict[str, np.ndarray], tolerance: float = 1e-12) -> None:
    assert list(found) == list(expected)
    for name, gradient in expected.items():
        np.testing.assert_allclose(found[name], gradient, rtol=tolerance, atol=1e-14)
        assert found[name].flags.owndata
        assert found[name].flags.c_contiguous


@pytest.mark.parametrize("options", [{}, {"sparse": True}, {"padding_idx": 4}])
def test_each_parameter_once_with_its_own_gradient(options: dict[str, Any]) -> None:
    model = net(**options)
    expected = own(model, lambda: model(tensor())[:, 1].sum())
    result = embgrad.tables.parameter_gradients(model, IDS, embgrad.Logit(1))
    same(result, expected)
    assert result.unreached == ("unused",)
    assert list(result)[:3] == ["unused", "table.weight", "inner.0.weight"]  # `again` is `inner.0`


@pytest.mark.parametrize("sparse", [False, True])
def test_the_users_buffers_stay_as_they_were(sparse: bool) -> None:
    model = net(sparse=sparse)
    model(tensor()).sum().backward()
    stepped: list[Any] = []
    model.head.weight.register_post_accumulate_grad_hook(stepped.append)  # an optimiser in the backward pass
    before = {
        name: (one.grad, None if one.grad is None else one.grad.clone()) for name, one in model.named_parameters()
    }
    embgrad.tables.parameter_gradients(model, IDS, embgrad.Logit(1))
    embgrad.tables.table_gradients(model, IDS, embgrad.Logit(1))
    with pytest.raises(embgrad.errors.OutputError):
        embgrad.tables.parameter_gradients(model, IDS, embgrad.Sum(output="nothing"))
    for name, one in model.named_parameters():
        buffer, value = before[name]
        assert one.grad is buffer
        assert buffer is None or torch.equal(buffer.to_dense(), value.to_dense())
    assert not stepped
    model(tensor()).sum().backward()
    assert stepped


class Reversible(Net):
    def forward(self, x: Any) -> Any:
        return self.head(Recomputing.apply(self.table(x), self.inner).mean(1))


def test_weights_whose_gradients_a_custom_backward_accumulates() -> None:
    torch.manual_seed(0)
    model = Reversible().double().eval()
    model(tensor())[:, 1].sum().backward()
    expected = {name: one.grad for name, one in model.named_parameters() if one.grad is not None}
    result = embgrad.tables.parameter_gradients(model, IDS, embgrad.Logit(1))
    for name, gradient in expected.items():
        np.testing.assert_allclose(result[name], gradient, rtol=1e-12)
        assert model.get_parameter(name).grad is gradient
    assert set(result.unreached) == {"unused"}
    np.testing.assert_allclose(
        embgrad.gradients(model, IDS, embgrad.Logit(1)).table().to_dense(), expected["table.weight"]
    )


@pytest.mark.parametrize("call", [embgrad.tables.parameter_gradients, embgrad.tables.table_gradients])
def test_a_graph_of_the_user_behind_the_weights_stays_valid(call: Any) -> None:
    """As where the weights of a call are those of a step before."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(VOCAB, 4), nn.Flatten(), nn.Linear(16, 3)).double()
    fast = {name: one.sin() for name, one in model.named_parameters()}

    def with_fast(model: Any, inputs: Any) -> Any:
        return torch.func.functional_call(model, fast, (inputs,))

    result = call(model, IDS, embgrad.Logit(1), call=with_fast)
    expected = own(model, lambda: with_fast(model, tensor())[:, 1].sum())
    if call is embgrad.tables.parameter_gradients:
        same(result, expected)


class Tied(Net):
    """A net that reads its table in another way, too."""

    def forward(self, x: Any) -> Any:
        return super().forward(x) + self.table.weight.square().sum()


@pytest.mark.parametrize("kind", [Tied, Net])
def test_another_default_device_changes_nothing(kind: type[Net]) -> None:
    torch.manual_seed(0)
    model = kind().double().eval()
    torch.set_default_device("meta")
    try:
        if kind is Tied:
            result = embgrad.tables.table_gradients(model, IDS, embgrad.Logit(1)).total
        else:
            result = embgrad.gradients(model, IDS, embgrad.Logit(1), check=True).table().to_dense()
    finally:
        torch.set_default_device(None)
    np.testing.assert_allclose(result, own(model, lambda: model(tensor())[:, 1].sum())["table.weight"], atol=1e-14)


def test_a_graph_is_freed_as_it_is_pulled_back() -> None:
    class Saved:
        def __init__(self, tensor: Any) -> None:
            self.tensor = tensor

    model, saved, alive = net(), list[weakref.ref[Saved]](), list[int]()

    def pack(tensor: Any) -> Saved:
        made = Saved(tensor)
        saved.append(weakref.ref(made))
        return made

    def count(_: Any) -> None:
        alive.append(sum(one() is not None for one in saved))

    def hook(module: Any, given: Any) -> None:
        given[0].register_hook(count)

    model.inner.register_forward_pre_hook(hook)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda made: made.tensor):
        embgrad.tables.parameter_gradients(model, IDS, embgrad.Logit(1))
    assert alive[-1] < len(saved) / 2
