"""override, add and edit against hand-written Gluon and finite differences in float64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from embgrad_gluon import GluonBackend

import embgrad
from tests.frameworks.gluon.helpers import DIM, ROWS, Model, distinct_ids, mx, randomise, relative

nn, nd, autograd = mx.gluon.nn, mx.nd, mx.autograd


class Layer(mx.gluon.HybridBlock):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Dense(DIM, in_units=DIM, flatten=False)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        bent = F.tanh(self.dense(x))
        return x + bent, bent


class Stack(mx.gluon.HybridBlock):  # type: ignore[misc]
    """Three layers; what the first gives goes to the head past the others, too."""

    def __init__(self, past: bool = False) -> None:
        super().__init__()
        self.past = past
        self.words = nn.Embedding(ROWS, DIM)
        self.layers = nn.HybridSequential()
        self.layers.add(Layer(), Layer(), Layer())
        self.top = nn.Dense(3, in_units=DIM)

    def hybrid_forward(self, F: Any, ids: Any) -> Any:
        x = self.words(ids)
        seen = []
        for layer in self.layers:
            x, _ = layer(x)
            seen.append(x)
        return self.top(F.sum(F.tanh(x) + (seen[0] * seen[0] if self.past else 0 * x), axis=1))


def stack(dtype: str = "float64", *, past: bool = False, hybrid: bool = True) -> Any:
    net = Stack(past)
    net.initialize()
    net.cast(dtype)
    randomise(net)
    net.hybridize(hybrid)
    return net


IDS = distinct_ids(2, 5)
COTANGENT = np.random.default_rng(4).normal(size=3)
OBJECTIVE = embgrad.Projection(COTANGENT)


def test_override_at_the_lookup_and_at_an_input() -> None:
    net, new = stack(), np.random.default_rng(0).normal(size=(2, 5, DIM))
    found = embgrad.gradients(net, IDS, OBJECTIVE, override={"word": new})
    by_input = embgrad.gradients(net, IDS, OBJECTIVE, at="layers.0:input", override={"layers.0:input": new})
    assert relative(by_input.values, found.values) < 1e-12
    functional = embgrad.gradients(net, IDS, OBJECTIVE, override={"word": lambda value: value * 0 + new})
    assert (functional.values == found.values).all()


def test_an_edit_is_called_once_for_each_set_of_cotangents() -> None:
    net, calls = stack(past=True), []

    def edit(gradient: np.ndarray) -> np.ndarray:
        calls.append(gradient.copy())
        return gradient * 2

    split = embgrad.gradients(net, IDS, OBJECTIVE, edit={"layer.0": edit, "layer.2": edit}, split=True)
    assert len(calls) == 4
    together = embgrad.gradients(net, IDS, OBJECTIVE, edit={"layer.0": edit, "layer.2": edit})
    assert len(calls) == 6
    assert relative(split.values, together.values) < 1e-12
    calls.clear()
    embgrad.gradients(net, IDS, lambda logits: logits[:, 0] * 0 + 1, at="layer.2", edit={"layer.0": edit})
    assert len(calls) == 1  # with a gradient of zeros, which is a gradient


def test_functions_receive_half_precision_as_float32() -> None:
    def forward(net: Any, F: Any, x: Any) -> Any:
        return F.mean(F.tanh(net.norm(net.words(x))), axis=1)

    net = Model(forward, norm=nn.LayerNorm(in_channels=DIM))
    net.initialize(mx.init.Normal(0.5))
    net.cast("float16")
    seen = []

    def look(value: np.ndarray) -> np.ndarray:
        seen.append(value.dtype)
        value += 0.25  # is the function's own
        return value

    found = embgrad.gradients(
        net,
        IDS,
        embgrad.Logit(1),
        at=["word", "norm"],
        override={"word": look},
        add={"norm": look},
        edit={"norm": look},
    )
    assert seen == [np.float32] * 3
    assert found["word"].values.dtype == np.float32
    assert found["word"].provenance["compute_dtype"] == "float16"
    rows = net.words.weight.data().asnumpy()[IDS].astype(np.float32)
    assert relative(found["word"].activations, rows + 0.25) < 2e-3
    assert (found["norm"].values == (found["norm"].before + np.float32(0.25)).astype(np.float16)).all()


AWKWARD = np.array([-0.0, 0.0, np.inf, -np.inf, np.nan, 1e-42, -1e-42, 1.5])


@pytest.fixture
def numpy_semantics(request: Any) -> Iterator[bool]:
    if request.param:
        mx.npx.set_np()
    yield request.param
    if request.param:
        mx.npx.reset_np()


@pytest.mark.parametrize("numpy_semantics", [False, True], indirect=True)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_point_keeps_every_bit_of_its_value(dtype: str, numpy_semantics: bool) -> None:
    """Not even the sign of zero, which +0.0 would: 1 / -0.0 is another infinity."""

    class Same(mx.gluon.HybridBlock):  # type: ignore[misc]
        def hybrid_forward(self, F: Any, x: Any) -> Any:
            return F.identity(x) if not numpy_semantics else F.np.copy(x)

    class Bits(mx.gluon.HybridBlock):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(3, 8)
            self.same = Same()

        def hybrid_forward(self, F: Any, x: Any) -> Any:
            return self.same(self.words(x))

    net = Bits()
    net.initialize()
    net.cast(dtype)
    array = mx.np.array if numpy_semantics else nd.array
    net.words.weight.set_data(array(np.tile(AWKWARD, (3, 1)), dtype=dtype))
    request = embgrad.backend.Request(
        ("same:output#0",), (embgrad.backend.Callback(lambda out: [{None: np.ones_like(out[None])}]),)
    )
    run = GluonBackend().run(net, embgrad.TokenBatch([[1, 2]], convention="ids"), request)
    expected = np.tile(AWKWARD, (1, 2, 1)).astype(dtype)
    expected = expected.astype(np.float32) if dtype == "float16" else expected
    assert run.points["same:output#0"].activation.tobytes() == expected.tobytes()
    assert (run.points["same:output#0"].gradients[0] == 1).all()
