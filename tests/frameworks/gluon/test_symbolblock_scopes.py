"""SymbolBlocks: the blocks that a graph was made of are points and layers, by what its operators are called."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from embgrad_gluon.graphs import graph_of
from embgrad_gluon.scopes import scopes

import embgrad
from embgrad.model_points.points import split_name
from tests.frameworks.gluon.exporting import exported
from tests.frameworks.gluon.helpers import DIM, ROWS, built, distinct_ids, mx, small_bert

nn, nd = mx.gluon.nn, mx.nd
SymbolBlock, HybridBlock = mx.gluon.SymbolBlock, mx.gluon.HybridBlock

# Gluon says so whenever it imports a symbol whose inputs' dtypes are open.
pytestmark = pytest.mark.filterwarnings("ignore:Cannot decide type:UserWarning")


def test_the_input_of_a_scope_is_one_with_a_gradient() -> None:
    class Inner(HybridBlock):
        def hybrid_forward(self, F: Any, mask: Any, rows: Any) -> Any:
            return F.tanh(F.broadcast_mul(mask, rows))

    class Outer(HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            with self.name_scope():
                self.embedding, self.inner = nn.Embedding(ROWS, DIM), Inner()

        def hybrid_forward(self, F: Any, x: Any) -> Any:
            return F.sum(self.inner(F.expand_dims(x != 0, 2), self.embedding(x)), axis=1)

    net, ids = Outer(), mx.sym.var("data")
    graph = graph_of(SymbolBlock(net(ids), [ids], params=net.collect_params()))
    number = {node.op: number for number, node in enumerate(graph.nodes)}
    named = {scope.path: scope for scope in scopes(graph)}
    assert number["expand_dims"] < number["Embedding"]
    assert named[net.inner.name].entering == (number["Embedding"], 0)
    assert named[net.inner.name].leaving == (number["tanh"], 0)
    assert named[net.name].entering is None
    assert named[net.embedding.name].leaving == (number["Embedding"], 0)


def test_the_layers_inside_are_points(tmp_path: Path) -> None:
    """An exported BERT, against the same net in Python: roles, and values replaced, added to and edited inside."""
    mx.random.seed(0)
    net = small_bert(3)
    ids, lengths = np.array([[4, 7, 7, 1, 2], [9, 4, 2, 0, 0]]), np.array([5, 3])
    batch = embgrad.TokenBatch(ids, np.arange(5) < lengths[:, None], np.zeros_like(ids), convention="gluonnlp")
    block = exported(net, [nd.array(value) for value in batch.to_gluonnlp()], tmp_path)
    pooled = embgrad.Sum(output=f"{net.prefix}pooler_tanh_fwd_output")
    at = ["word", "embeddings", "layer.0", "layer.1", "layer.-1"]
    for changes in ({}, {"add": {"layer.1": np.linspace(-1, 1, 8)}}, {"edit": {"layer.2": lambda grad: grad**3}}):
        expected = embgrad.gradients(net, batch, embgrad.Sum(output="pooled"), at=at, **changes)
        found = embgrad.gradients(block, batch, pooled, at=at, **changes)
        for name in at:
            np.testing.assert_allclose(found[name].values, expected[name].values, atol=1e-6)
            np.testing.assert_allclose(found[name].activations, expected[name].activations, atol=1e-6)
    quiet = embgrad.gradients(block, batch, pooled, edit={"layer.1": lambda grad: grad * 0})
    assert not quiet.values.any()
    path = found["layer.1"].provenance["path"].partition(":")[0]
    given = embgrad.gradients(block, batch, pooled, at=f"{path}:input")
    np.testing.assert_allclose(given.values, embgrad.gradients(block, batch, pooled, at="layer.0").values, atol=1e-6)


class Residual(HybridBlock):
    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.dense = nn.Dense(DIM, flatten=False, in_units=DIM, activation="tanh")

    def hybrid_forward(self, F: Any, rows: Any) -> Any:
        return rows + self.dense(rows)


class Doubled(HybridBlock):
    """Calls one block twice, beside each other."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.inner = Residual()

    def hybrid_forward(self, F: Any, rows: Any) -> Any:
        return self.inner(rows) * self.inner(rows + 1)


def cells(*kinds: Callable[[], Any]) -> Any:
    net = nn.HybridSequential()
    with net.name_scope():
        net.add(*(kind() for kind in kinds))
    return net


def prefixed(name: str) -> Any:
    return nn.Dense(DIM, flatten=False, in_units=DIM, activation="tanh", prefix=f"{name}_")


class Stacked(HybridBlock):
    def __init__(self, body: Callable[[], Any], calls: int = 1) -> None:
        super().__init__()
        self._calls = calls
        with self.name_scope():
            self.words, self.body, self.top = nn.Embedding(ROWS, DIM), body(), nn.Dense(3, in_units=DIM)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        rows = self.words(x)
        for _ in range(self._calls):
            rows = self.body(rows)
        return self.top(F.mean(rows, axis=1))


SHAPES: dict[str, Callable[[], Any]] = {
    "blocks": lambda: Stacked(lambda: cells(Residual, Residual)),
    "dropout between": lambda: Stacked(lambda: cells(Residual, lambda: nn.Dropout(0.5), Residual)),
    "one block several times": lambda: Stacked(Residual, calls=3),
    "one block beside itself": lambda: Stacked(lambda: cells(Doubled, Doubled)),
    "names that begin alike": lambda: Stacked(
        lambda: cells(*(lambda name=name: prefixed(name) for name in ("dense1", "dense10", "dense1_out")))
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_scope_agrees_with_the_block_it_was_exported_from(shape: str, tmp_path: Path) -> None:
    """Each scope of an exported net has the role, the value and the gradient of the block of its name, at both sides."""
    ids = distinct_ids()
    net = built(SHAPES[shape], ids, "float64")
    block = exported(net, [nd.array(ids)], tmp_path)
    block.cast("float64")
    net.hybridize(False)
    objective = embgrad.Projection(np.arange(1.0, 4.0))
    roles = {role: point.path for point in embgrad.points(net, ids) for role in point.roles}
    assert "layer.1" in roles
    points = embgrad.points(block, ids)
    assert {role for point in points for role in point.roles} == set(roles)
    inside = [
        f"{point.path}:{side}#{split_name(point.name).occurrence}"
        for point in points
        if point.lookup is None and point.path not in (net.name, net.words.name)
        for side in ("input", "output")
    ]
    assert len(inside) > 5
    expected = embgrad.gradients(net, ids, objective, at=[*roles, *inside])
    found = embgrad.gradients(block, ids, objective, at=[*roles, *inside])
    for name, one in found.items():
        np.testing.assert_allclose(one.activations, expected[name].activations, atol=1e-12, err_msg=name)
        np.testing.assert_allclose(one.values, expected[name].values, atol=1e-12, err_msg=name)
    one = next(name for name in inside if "dense" in name and ":input" in name)
    for other, changes in (
        ("layer.-1", {"override": {one: np.linspace(-1, 1, DIM)}}),
        ("word", {"edit": {one: lambda grad: grad**3}}),
    ):
        changed = [embgrad.gradients(model, ids, objective, at=[other, one], **changes) for model in (net, block)]
        for at in (other, one):
            np.testing.assert_allclose(changed[1][at].values, changed[0][at].values, atol=1e-12, err_msg=at)
            np.testing.assert_allclose(changed[1][at].activations, changed[0][at].activations, atol=1e-12, err_msg=at)
