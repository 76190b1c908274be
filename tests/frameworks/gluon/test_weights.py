"""The weights of Gluon blocks: hybridised ones, SymbolBlocks, constants, several parts, BERTs with heads, under a recording."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.engine.weights import depth_of, substitute, weights_of
from tests.frameworks.gluon.exporting import exported
from tests.frameworks.gluon.helpers import mx

nn = mx.gluon.nn
IDS = np.array([[3, 5, 7, 2], [4, 1, 6, 8]])


def net(**hybridise: Any) -> Any:
    model = nn.HybridSequential()
    model.add(nn.Embedding(20, 6), nn.Dense(5, flatten=False, activation="tanh"), nn.BatchNorm(axis=2), nn.Dense(3))
    model.initialize(mx.init.Normal(0.5))
    if hybridise:
        model.hybridize(**hybridise)
    model(mx.nd.array(IDS))
    return model


def total(model: Any) -> np.ndarray:
    return embgrad.gradients(model, IDS, embgrad.Sum()).values


@pytest.mark.parametrize("options", [{}, {"active": True}, {"static_alloc": True, "static_shape": True}], ids=str)
def test_a_cached_graph_uses_the_new_value(options: dict[str, Any]) -> None:
    model = net(**options)
    before, own = total(model), model(mx.nd.array(IDS)).asnumpy()
    found = {one.name: one for one in weights_of(model)}
    assert {"2.running_mean", "2.running_var", "3.weight"} < found.keys()
    assert found["3.weight"].module == "3"
    assert depth_of(model) == 3
    with substitute(model, {"3.weight": found["3.weight"].get() * 2, "3.bias": np.ones(3)}):
        np.testing.assert_allclose(total(model), before * 2, rtol=1e-5)
        np.testing.assert_allclose(model(mx.nd.array(IDS)).asnumpy(), own * 2 + 1, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(total(model), before)
    np.testing.assert_array_equal(model(mx.nd.array(IDS)).asnumpy(), own)


def test_a_symbol_block(tmp_path: Path) -> None:
    model = net(active=True)
    block = exported(model, [mx.nd.array(IDS)], tmp_path)
    before = total(block)
    np.testing.assert_allclose(before, total(model), rtol=1e-5)
    last = [one for one in weights_of(block) if one.shape == (3, 20)]
    assert len(last) == 1
    assert any(point.path == last[0].module for point in embgrad.points(block, IDS))
    with substitute(block, {last[0].name: last[0].get() * 2}):
        np.testing.assert_allclose(total(block), before * 2, rtol=1e-5)
    np.testing.assert_array_equal(total(block), before)


def test_half_precision_constants_and_parts() -> None:
    class Net(nn.HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            with self.name_scope():
                self.table = nn.Embedding(20, 6)
                self.scale = self.params.get_constant("scale", np.full((1, 6), 2.0))

        def hybrid_forward(self, F: Any, ids: Any, scale: Any) -> Any:
            return F.broadcast_mul(self.table(ids), scale.reshape((1, 1, 6))).sum(axis=1)

    model = Net()
    model.initialize(mx.init.Normal(0.5))
    before = total(model)
    (constant,) = (one for one in weights_of(model) if one.shape == (1, 6))
    with substitute(model, {constant.name: np.full((1, 6), 6.0)}):
        np.testing.assert_allclose(total(model), before * 3)
    model.cast("float16")
    found = {one.name: one for one in weights_of([net(), model])}
    table = found["1.table.weight"]
    assert (table.dtype, table.module, table.get().dtype) == ("float16", "1.table", np.float32)


def test_a_deferred_parameter_is_not_a_weight() -> None:
    model = nn.HybridSequential()
    model.add(nn.Embedding(20, 6), nn.Dense(5))
    model.initialize()  # the Dense waits for the size of its input
    assert [one.name for one in weights_of(model)] == ["0.weight", "1.bias"]
