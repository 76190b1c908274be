"""What functions of changes receive, and the bits of values at points."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from embgrad_gluon import GluonBackend

import embgrad
from tests.frameworks.gluon.helpers import DIM, Model, distinct_ids, mx, relative

nn, nd = mx.gluon.nn, mx.nd


IDS = distinct_ids(2, 5)


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
