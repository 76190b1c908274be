"""SymbolBlocks: exported nets against finite differences of theirs and the gradient that the net before the export has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from embgrad_gluon.graphs import graph_of
from embgrad_gluon.scopes import scopes

import embgrad
from tests.frameworks.gluon.exporting import BERT_OUTPUTS, exported, exported_bert, norm_and_dropout
from tests.frameworks.gluon.helpers import (
    DIM,
    ROWS,
    Model,
    built,
    central_differences,
    differences,
    distinct_ids,
    mx,
    pulled_back,
    randomise,
    relative,
)
from tests.frameworks.gluon.test_bert import BATCH, MASK, by_differences
from tests.frameworks.gluon.test_models import Siamese, TextCNN, bag

nn, autograd, nd = mx.gluon.nn, mx.autograd, mx.nd
SymbolBlock, HybridBlock = mx.gluon.SymbolBlock, mx.gluon.HybridBlock

# Gluon says so whenever it imports a symbol whose inputs' dtypes are open.
pytestmark = pytest.mark.filterwarnings("ignore:Cannot decide type:UserWarning")


def own_gradient(net: Any, table: Any, ids: np.ndarray, cotangent: np.ndarray, training: bool = False) -> np.ndarray:
    """Return the table's gradient by the net's own backward pass, at the rows of distinct ids."""
    with autograd.record(train_mode=training):
        loss = (net(nd.array(ids, dtype=table.dtype)) * nd.array(cotangent, dtype=table.dtype)).sum()
    loss.backward(train_mode=training)
    return table.grad().tostype("default").asnumpy()[ids]  # type: ignore[no-any-return]


def weighted(cotangent: np.ndarray, dtype: str) -> Callable[[Any], Any]:
    """Return the objective with this cotangent."""
    return lambda out: (out * nd.array(cotangent, dtype=dtype)).sum(axis=1)


def test_the_names_of_an_exported_net(tmp_path: Path) -> None:
    net = built(TextCNN, distinct_ids(), "float32")
    block = exported(net, [nd.array(distinct_ids())], tmp_path)
    lookups = [point for point in embgrad.points(block, distinct_ids()) if point.lookup is not None]
    assert [point.name for point in lookups] == [f"{net.embedding.weight.name}#0"]
    output = f"{net.top.name}_fwd_output"
    by_role, by_name = (
        embgrad.gradients(block, distinct_ids(), embgrad.Logit(1, output=name)) for name in ("logits", output)
    )
    assert (by_role.values == by_name.values).all()
    with pytest.raises(embgrad.errors.OutputError, match="no output 'nothing'"):
        embgrad.gradients(block, distinct_ids(), embgrad.Sum(output="nothing"))


def test_training_mode_agrees_with_the_symbol_blocks_own_pass(tmp_path: Path) -> None:
    ids = distinct_ids()
    block = exported(built(norm_and_dropout, ids, "float64"), [nd.array(ids, dtype="float64")], tmp_path)
    table = next(p for p in block.collect_params().values() if p.data().shape == (ROWS, DIM))
    averages = {name: p.data().asnumpy() for name, p in block.collect_params().items() if p.grad_req == "null"}
    assert len(averages) == 2
    mx.random.seed(3)
    found = embgrad.gradients(block, ids, lambda out: out[:, 1], training=True)
    assert all((block.collect_params()[name].data().asnumpy() == value).all() for name, value in averages.items())
    mx.random.seed(3)
    expected = own_gradient(block, table, ids, np.array([[0, 1, 0], [0, 1, 0]]), training=True)
    assert relative(found.values, expected) < 1e-9
    evaluated = embgrad.gradients(block, ids, lambda out: out[:, 1])
    assert relative(evaluated.values, expected) > 0.1


def test_one_table_looked_up_twice_and_inputs_by_name(tmp_path: Path) -> None:
    ids, other = distinct_ids(2, 5), distinct_ids(2, 6, seed=3)
    net = Siamese()
    net.initialize()
    net.cast("float64")
    randomise(net)
    arrays = [nd.array(array, dtype="float64") for array in (ids, other)]
    block = exported(net, arrays, tmp_path)
    name = net.embedding.weight.name
    rows = net.embedding.weight.data().asnumpy()
    bent = np.tanh(rows[other])
    batch = embgrad.TokenBatch(ids, extras={"data1": other})
    found = embgrad.gradients(block, batch, embgrad.Sum(), at=["word", f"{name}#1"])
    assert relative(found["word"].values, np.repeat(bent.mean(1, keepdims=True) / 5, 5, 1)) < 1e-12
    assert relative(found[f"{name}#1"].values, rows[ids].mean(1, keepdims=True) * (1 - bent**2) / 6) < 1e-12
    with pytest.raises(
        embgrad.errors.BatchError, match=r"inputs are 'data0', 'data1', and none has a name that means token ids"
    ):
        embgrad.gradients(block, ids, embgrad.Sum())
    assert [scope.occurrence for scope in scopes(graph_of(block)) if scope.path == net.embedding.name] == [0, 1]


@pytest.mark.parametrize("output", BERT_OUTPUTS)
def test_gradient_of_an_exported_bert(output: str, tmp_path: Path) -> None:
    net, block = exported_bert(tmp_path)
    vector = np.random.default_rng(0).normal(size=8)
    cotangent = np.tile(vector, (2, 1)) if output == "pooled" else MASK[..., None] * vector
    expected = by_differences("gelu", cotangent, int(output == "pooled"))
    objective = embgrad.Projection(vector, output=net.name + BERT_OUTPUTS[output])
    for given in (BATCH.to_gluonnlp(), BATCH.replace(convention="gluonnlp")):
        found = embgrad.gradients(block, given, objective)
        assert relative(found.values, expected) < 1e-4
        assert found.pad_leak == 0
        assert found.provenance["path"] == f"{net.word_embed[0].weight.name}#0"
        assert found.provenance["unused"] == []
    called = embgrad.gradients(block, BATCH.to_gluonnlp(), objective, call=lambda model, inputs: model(*inputs))
    assert (called.values == found.values).all()
    with pytest.raises(embgrad.errors.BatchError, match="none has a name that means token ids"):
        embgrad.gradients(block, BATCH, objective)


class NumpyNet(HybridBlock):
    """Operators whose attributes the cures compute with: variance, and choices between an array and a number."""

    def __init__(self) -> None:
        super().__init__()
        self.table = self.params.get("table", shape=(ROWS, DIM))
        self.gate = self.params.get("gate", shape=(DIM,), init=mx.init.One())
        self.top = nn.Dense(3, in_units=DIM)

    def hybrid_forward(self, F: Any, x: Any, table: Any, gate: Any) -> Any:
        rows = F.npx.embedding(x, table, ROWS, DIM)
        spread = F.np.var(rows, axis=(1,), ddof=1) + F.np.std(rows, axis=1, keepdims=False)
        kept = F.np.where(rows > 0.0, rows, 0.25)
        return self.top(F.np.mean(kept * rows, axis=1) + spread * F.np.where(gate > 0.0, gate, 0.5))


@pytest.mark.usefixtures("numpy_semantics")
def test_an_exported_net_of_numpy(tmp_path: Path) -> None:
    ids = distinct_ids()
    net = NumpyNet()
    net.initialize()
    net.cast("float64")
    rows = np.random.default_rng(0).uniform(-1, 1, (ROWS, DIM))
    net.table.set_data(mx.np.array(rows, dtype="float64"))
    block = exported(net, [mx.np.array(ids, dtype="int32")], tmp_path)
    table = block.collect_params()[net.table.name]

    def value(moved: np.ndarray) -> float:
        table.set_data(nd.array(moved, dtype="float64"))  # Gluon imports parameters as arrays of the older kind
        return float(block(mx.np.array(ids, dtype="int32")).asnumpy()[:, 1].sum())

    expected = central_differences(value, rows)[ids]
    table.set_data(nd.array(rows, dtype="float64"))
    kinds: list[type] = []

    def total(out: Any) -> Any:
        kinds.append(type(out))
        return out[:, 1].sum()

    found = embgrad.gradients(block, ids, embgrad.Scalar(total))
    assert relative(found.values, expected) < 1e-6
    assert kinds == [mx.np.ndarray]
    assert found.objective.shape == ()
    assert found.provenance["path"] == f"{net.table.name}#0"
    assert relative(embgrad.gradients(block, ids, embgrad.Logit(1)).values, expected) < 1e-6


class Around(HybridBlock):
    """A SymbolBlock in a block of Python."""

    def __init__(self, body: Any) -> None:
        super().__init__()
        self.body = body
        self.top = nn.Dense(2)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.top(F.tanh(self.body(x)))


@pytest.mark.parametrize("hybrid", [False, True])
def test_symbol_blocks_among_blocks_of_python(hybrid: bool, tmp_path: Path) -> None:
    ids = distinct_ids()
    net = built(TextCNN, ids, "float64")
    block = exported(net, [nd.array(ids, dtype="float64")], tmp_path)
    around = Around(block)
    around.top.initialize(mx.init.Normal(1))
    around.top.cast("float64")
    if hybrid:
        around.hybridize(static_alloc=True)
    inputs = nd.array(ids, dtype="float64")
    around(inputs)
    cotangent = np.random.default_rng(1).normal(size=(2, 2))
    name = net.embedding.weight.name
    expected = differences(around, block.collect_params()[name], ids, cotangent)
    assert relative(pulled_back(around, ids, cotangent), expected) < 1e-6
    seen = embgrad.points(around, ids)
    assert [point.name for point in seen if point.lookup is not None] == [f"body.{name}#0"]

    def call(parts: Any, inputs: Any) -> Any:
        return parts[1](parts[0](inputs).tanh())

    found = embgrad.gradients([block, around.top], ids, weighted(cotangent, "float64"), call=call)
    assert relative(found.values, expected) < 1e-6
    assert found.provenance["path"] == f"0.{name}#0"


def test_missing_parameters_raise_gluons_error_and_deferred_ones_are_initialized(tmp_path: Path) -> None:
    ids = distinct_ids()
    exported(built(bag, ids, "float32"), [nd.array(ids)], tmp_path)
    block = SymbolBlock.imports(str(tmp_path / "net-symbol.json"), ["data"])
    with pytest.raises(RuntimeError, match="has not been initialized"):
        embgrad.gradients(block, ids, embgrad.Sum())
    block.initialize(mx.init.Normal(1))
    found = embgrad.gradients(block, ids, embgrad.Logit(0))
    table = next(p for p in block.collect_params().values() if p.shape == (ROWS, DIM))
    assert relative(found.values, own_gradient(block, table, ids, np.array([[1, 0, 0], [1, 0, 0]]))) < 1e-5


def test_a_sparse_table_with_a_trainer() -> None:
    net = nn.Sequential()
    net.add(mx.gluon.contrib.nn.SparseEmbedding(ROWS, DIM), nn.Dense(3))
    net.initialize(mx.init.Normal(1))
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    ids = np.array([[1, 2, 2], [4, 1, 6]])
    with autograd.record():
        loss = (net(nd.array(ids))[:, 1] ** 2).sum()
    loss.backward()
    before = net[0].weight.grad().asnumpy()
    found = embgrad.gradients(net, ids, lambda out: out[:, 1] ** 2)
    assert relative(found.table().to_dense(), before) < 1e-6
    assert (net[0].weight.grad().asnumpy() == before).all()
    trainer.step(1)


def test_gradients_of_parameters_without_shapes(tmp_path: Path) -> None:
    """Those of an imported block; one that the objective does not reach has zeros of its own shape."""

    def forward(net: Any, F: Any, x: Any) -> Any:
        rows = net.words(x)
        return net.left(rows), net.right(rows)

    ids = distinct_ids()
    net = built(lambda: Model(forward, left=nn.Dense(2), right=nn.Dense(3)), ids, "float32")
    block = exported(net, [nd.array(ids)], tmp_path)
    objective = embgrad.Sum(output=block._cached_graph[1].list_outputs()[0])
    found = embgrad.tables.parameter_gradients(block, ids, objective)
    shapes = {parameter.name: parameter.shape for parameter in net.collect_params().values()}
    assert {name: gradient.shape for name, gradient in found.items()} == shapes
    assert set(found.unreached) == {net.right.weight.name, net.right.bias.name}
    assert embgrad.gradients(block, ids, objective, check=True).certificate.scatter < 1e-6
