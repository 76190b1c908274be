"""Functions of the user's inside a call: they may call embgrad, draw random numbers, and find nothing changed around them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import embgrad

IDS = np.random.default_rng(0).integers(1, 30, (3, 6))
OBJECTIVE = embgrad.CrossEntropy([0, 1, 2])


class Net(torch.nn.Module):
    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embedding = torch.nn.Embedding(30, 8)
        self.layers = torch.nn.ModuleList([torch.nn.Linear(8, 8) for _ in range(8)])
        self.head = torch.nn.Linear(8, 3)

    def forward(self, input_ids: Any) -> Any:
        rows = self.embedding(input_ids)
        for layer in self.layers:
            rows = torch.tanh(layer(rows))
        return self.head(rows.mean(1))


def test_a_call_while_torch_functions_are_disabled() -> None:
    net = Net().eval()
    with torch._C.DisableTorchFunction():
        result = embgrad.gradients(net, IDS, OBJECTIVE)
        assert not torch._C._is_torch_function_enabled()
    np.testing.assert_array_equal(result.values, embgrad.gradients(Net().eval(), IDS, OBJECTIVE).values)
    np.testing.assert_array_equal(embgrad.gradients(net, IDS, OBJECTIVE).values, result.values)


@pytest.mark.parametrize("option", ["override", "add", "edit", "objective"])
def test_a_function_of_the_user_draws_random_numbers(option: str) -> None:
    net, drawn = Net().eval(), []

    def noisy(values: Any) -> Any:
        drawn.append(torch.randn(values.shape))
        return values.sum(1) * drawn[-1][:, 0] if option == "objective" else values + drawn[-1].numpy()

    torch.manual_seed(3)
    for _ in range(2):
        if option == "objective":
            embgrad.gradients(net, IDS, noisy)
        else:
            embgrad.gradients(net, IDS, OBJECTIVE, **{option: {"word": noisy}})
    torch.manual_seed(3)
    assert all(torch.equal(noise, torch.randn(noise.shape)) for noise in drawn)


def test_random_numbers_that_the_model_draws_are_restored() -> None:
    class Drawing(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, rows: Any) -> Any:
            return rows.clone()

        @staticmethod
        def backward(context: Any, gradient: Any) -> Any:
            return gradient + 0 * torch.rand_like(gradient)

    class Random(Net):
        def forward(self, input_ids: Any) -> Any:
            torch.rand(2)
            return self.head(Drawing.apply(self.embedding(input_ids)).mean(1))

    torch.manual_seed(3)
    before = torch.get_rng_state()
    net = Random().eval()
    torch.set_rng_state(before)
    embgrad.gradients(net, IDS, OBJECTIVE, add={"word": np.zeros(8)})
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_capture_around_compiled_code_is_refused(backend: str) -> None:
    net = Net()
    ids = torch.tensor(IDS)

    @torch.compile(backend=backend)
    def loss_of(given: Any) -> Any:
        return net(given).sum()

    loss_of(ids).backward()
    with (
        pytest.raises(
            embgrad.errors.UnsupportedError,
            match=r"not called inside the `with` block, but code that torch\.compile compiled before was",
        ),
        embgrad.capture(net),
    ):
        loss_of(ids).backward()
    torch._dynamo.reset()


@pytest.mark.parametrize("transform", ["grad", "vmap"])
@pytest.mark.parametrize("point", ["word", "layers.1"])
def test_a_capture_inside_a_transform_is_refused(transform: str, point: str) -> None:
    net = Net()
    weights = dict(net.named_parameters())

    def loss_of(given: Any, ids: Any) -> Any:
        return torch.func.functional_call(net, given, (ids,)).sum()

    transformed = torch.func.grad(loss_of) if transform == "grad" else torch.vmap(loss_of, (None, 0))
    with (
        pytest.raises(
            embgrad.errors.UnsupportedError, match=r"inside torch\.func\.grad, torch\.vmap.*\. Use loss\.backward"
        ),
        embgrad.capture(net, at=point),
    ):
        transformed(weights, torch.tensor(IDS)[:, None])
