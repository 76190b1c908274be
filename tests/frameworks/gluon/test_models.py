"""Whole models as users write them in Gluon, against finite differences and Gluon's own table gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.errors import NoGradientError
from tests.frameworks.gluon.helpers import (
    DIM,
    ROWS,
    Model,
    built,
    differences,
    distinct_ids,
    lookups_of,
    mx,
    pulled_back,
    randomise,
    relative,
)

nn, rnn, autograd, nd = mx.gluon.nn, mx.gluon.rnn, mx.autograd, mx.nd
HybridBlock, Block = mx.gluon.HybridBlock, mx.gluon.Block


class TextCNN(HybridBlock):
    """Embedding → convolutions of several widths → max over positions → Dense; computes its mask from float ids."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.embedding = nn.Embedding(ROWS, DIM)
            self.narrow = nn.Conv1D(3, 2, activation="relu")
            self.wide = nn.Conv1D(3, 3, activation="relu")
            self.pool = nn.GlobalMaxPool1D()
            self.dropout = nn.Dropout(0.5)
            self.top = nn.Dense(3)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        rows = F.swapaxes(F.broadcast_mul(self.embedding(x), F.expand_dims(x != 0, 2)), 1, 2)
        return self.top(self.dropout(F.concat(self.pool(self.narrow(rows)), self.pool(self.wide(rows)), dim=1)))


class Recurrent(HybridBlock):
    """Time-major, as Gluon's recurrent layers are by default."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.embedding = nn.Embedding(ROWS, DIM)
        self.encoder = layer
        self.top = nn.Dense(3)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.top(F.mean(self.encoder(self.embedding(F.transpose(x))), axis=0))


class Masked(HybridBlock):
    """Takes a valid length, and the mask under another name."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(ROWS, DIM)
        self.top = nn.Dense(3)

    def hybrid_forward(self, F: Any, data: Any, valid_length: Any = None) -> Any:
        rows = self.embedding(data)
        if valid_length is not None:
            rows = F.SequenceMask(rows, valid_length, use_sequence_length=True, axis=1)
        return self.top(F.sum(rows, axis=1))


class Typed(Block):
    """Three arguments of which the middle one may be left out."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(ROWS, DIM)
        self.kinds = nn.Embedding(2, DIM)
        self.top = nn.Dense(3)

    def forward(self, ids: Any, mask: Any = None, token_types: Any = None) -> Any:
        rows = self.words(ids)
        if token_types is not None:
            rows = rows + self.kinds(token_types)
        if mask is not None:
            rows = rows * mask.expand_dims(2)
        return self.top(rows.tanh().sum(axis=1))


class Bare(HybridBlock):
    """A table that is a parameter of its own, looked up in one of the ways there are."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.table = self.params.get("table", shape=(ROWS, DIM))
        self.top = nn.Dense(3)

    def hybrid_forward(self, F: Any, x: Any, table: Any) -> Any:
        rows = {
            "Embedding": lambda: F.Embedding(x, table, input_dim=ROWS, output_dim=DIM),
            "take": lambda: F.take(table, x),
            "method": lambda: table.take(x, mode="wrap"),
            "index": lambda: table[x],
            "index by integers": lambda: table[x.astype("int32")],
            "index with a slice": lambda: table[x, :],
            "gather": lambda: F.gather_nd(table, F.expand_dims(x, 0)),
            "flat": lambda: F.take(table, x.reshape((-1,))).reshape((*x.shape, -1)),
            "copy": lambda: F.take(table.detach(), x),
            "scaled table": lambda: F.take(table * 2, x) / 2,
        }[self.way]()
        return self.top(rows.tanh().mean(axis=1))


class Nested(Block):
    """A model in a model, in a list-like child, with the result in a dict."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.body = nn.Sequential()
        self.body.add(inner)

    def forward(self, ids: Any) -> Any:
        return {"logits": self.body(ids), "ids": ids}


def bag() -> Any:
    net = nn.HybridSequential()
    net.add(nn.Embedding(ROWS, DIM), nn.HybridLambda(lambda F, e: F.mean(e, axis=1)), nn.Dense(3))
    return net


MODELS = {
    "text cnn": TextCNN,
    "lstm": lambda: Recurrent(rnn.LSTM(3)),
    "gru": lambda: Recurrent(rnn.GRU(3, num_layers=2, bidirectional=True)),
    "vanilla rnn": lambda: Recurrent(rnn.RNN(3, activation="tanh")),
    "bag": bag,
    "masked": Masked,
    "typed": Typed,
    "nested": lambda: Nested(bag()),
    "sparse gradient": lambda: sparse(),
}


def sparse() -> Any:
    net = nn.HybridSequential()
    net.add(nn.Embedding(ROWS, DIM, sparse_grad=True), nn.Dense(3))
    return net


def table_of(net: Any) -> Any:
    return next(p for p in net.collect_params().values() if p.shape == (ROWS, DIM))


@pytest.mark.parametrize("flags", [None, {}, {"static_alloc": True}, {"static_alloc": True, "static_shape": True}])
@pytest.mark.parametrize("name", MODELS)
def test_model(name: str, flags: dict[str, bool] | None) -> None:
    ids = distinct_ids(2, 5)
    double, single = (built(MODELS[name], ids, dtype) for dtype in ("float64", "float32"))
    labels = np.array([2, 0])
    logits = logits_of(double, ids)
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    expected = differences(Logits(double), table_of(double), ids, probabilities - np.eye(3)[labels])
    for net, tolerance in ((double, 1e-6), (single, 2e-4)):
        if flags is not None:
            net.hybridize(**flags)
            net(mx.nd.array(ids, dtype=table_of(net).dtype))  # its graph is there already
        found = embgrad.gradients(net, ids, embgrad.CrossEntropy(labels))
        assert relative(found.values, expected) < tolerance
        assert np.allclose(found.objective, -np.log(probabilities[[0, 1], labels]), atol=1e-6)


class Logits:
    def __init__(self, net: Any) -> None:
        self.net = net

    def __call__(self, x: Any) -> Any:
        returned = self.net(x)
        return returned["logits"] if isinstance(returned, dict) else returned


def logits_of(net: Any, ids: np.ndarray) -> np.ndarray:
    return np.array(Logits(net)(mx.nd.array(ids, dtype=table_of(net).dtype)).asnumpy())


WAYS = ["Embedding", "take", "method", "index", "index by integers", "index with a slice", "gather", "flat", "copy"]


@pytest.mark.parametrize("way", [*WAYS, "scaled table"])
def test_every_way_to_look_up(way: str) -> None:
    ids = distinct_ids(2, 5)
    net = built(lambda: Bare(way), ids, "float64")
    cotangent = np.random.default_rng(0).normal(size=(2, 3))
    found = pulled_back(net, ids, cotangent).reshape(2, 5, DIM)
    if way == "scaled table":
        expected = differences(net, net.table, ids, cotangent) / 2  # the point is behind the factor
    else:
        expected = differences(net, net.table, ids, cotangent)
    assert relative(found, expected) < 1e-6
    (point,) = lookups_of(net, ids)
    assert point.name == ("lookup#0" if way == "scaled table" else "table#0")
    assert (point.lookup.rows, point.lookup.dim, point.roles) == (ROWS, DIM, ("word",))


def test_masks_lengths_and_types_are_passed_by_name() -> None:
    ids, mask = distinct_ids(2, 5), np.array([[1] * 5, [1, 1, 1, 0, 0]])
    net = built(Masked, ids, "float64")
    batch = embgrad.TokenBatch(ids, mask)
    found = embgrad.gradients(net, batch, embgrad.Logit(1))
    lengths = mx.nd.array([5, 3], dtype="float64")
    cotangent = np.tile([0, 1.0, 0], (2, 1))
    expected = differences(lambda x: net(x, lengths), net.embedding.weight, ids, cotangent)
    assert relative(found.values, expected) < 1e-6
    assert found.pad_leak == 0
    assert found.provenance["unused"] == []

    typed = built(Typed, ids, "float64")
    types = np.array([[0, 0, 1, 1, 1], [0, 1, 1, 1, 1]])
    randomise(typed.kinds, 5)
    for given in (None, mask):
        found = embgrad.gradients(typed, embgrad.TokenBatch(ids, given, types), embgrad.Logit(1))
        native = [None if given is None else mx.nd.array(given, dtype="float64"), mx.nd.array(types)]
        expected = differences(lambda x, native=native: typed(x, *native), typed.words.weight, ids, cotangent)
        assert relative(found.values, expected) < 1e-6
    with pytest.warns(embgrad.EmbgradWarning, match="mask"):
        unmasked = embgrad.gradients(built(bag, ids, "float32"), batch, embgrad.Logit(1))
    assert unmasked.provenance["unused"] == ["mask"]


def test_a_wrapper_passes_extra_inputs_of_any_type() -> None:
    got: dict[str, Any] = {}

    class Inner(Block):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(ROWS, DIM)

        def forward(self, ids: Any, weights: Any, ragged: Any = None, name: Any = None, ready: Any = None) -> Any:
            got.update(weights=weights, ragged=ragged, name=name, ready=ready)
            return self.embedding(ids).sum(axis=1) * weights.expand_dims(1)

    class Outer(Block):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Inner()

        def forward(self, *args: Any) -> Any:
            return self.inner(*args)

    net = Outer()
    net.initialize()
    extras = {"weights": [2, 3.5], "ragged": [[1], [2, 3]], "name": "x", "ready": nd.array([1, 2], dtype="int32")}
    found = embgrad.gradients(net, {"input_ids": distinct_ids(), **extras}, embgrad.Sum())
    assert (found.values[:, 0, 0] == [2, 3.5]).all()
    assert (got["ragged"], got["name"], got["ready"].dtype) == ([[1], [2, 3]], "x", np.int32)


def test_ids_are_floats_of_the_models_dtype_and_large_ids_integers() -> None:
    kinds: list[Any] = []

    class Seen(Block):
        def __init__(self, rows: int, dim: int) -> None:
            super().__init__()
            self.embedding = nn.Embedding(rows, dim)

        def forward(self, x: Any, extra: Any = None) -> Any:
            kinds.append((np.dtype(x.dtype).name, None if extra is None else np.dtype(extra.dtype).name))
            return self.embedding(x)

    for dtype in ("float32", "float64", "float16"):
        net = Seen(9, 2)
        net.initialize()
        net.cast(dtype)
        embgrad.gradients(net, {"input_ids": np.array([[1, 8]]), "extra": np.ones((1, 2))}, embgrad.Sum())
    assert kinds == [("float32", "float32"), ("float64", "float64"), ("float32", "float16")]
    kinds.clear()
    large = Seen(2**24 + 2, 1)
    large.initialize(mx.init.Zero())
    found = embgrad.gradients(large, np.array([[2**24 + 1, 3]]), embgrad.Sum(), at="embedding")
    assert set(kinds) == {("int32", None)}
    assert found.ids.tolist() == [[2**24 + 1, 3]]


class Siamese(HybridBlock):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(ROWS, DIM)

    def hybrid_forward(self, F: Any, ids: Any, other: Any) -> Any:
        return F.sum(
            F.mean(self.embedding(ids), axis=1) * F.mean(F.tanh(self.embedding(other)), axis=1), axis=1, keepdims=True
        )


def test_a_lookup_in_the_rows_of_another_lookup() -> None:
    """The second table is computed from the first lookup, which a mark on the second must not cut off."""

    def forward(net: Any, F: Any, x: Any) -> Any:
        rows = net.words(x)
        return F.mean(F.take(F.reshape(rows, shape=(-1, DIM)) * 3, x), axis=1) + F.mean(rows, axis=1)

    ids = np.array([[2, 0, 1]])
    net = built(lambda: Model(forward), ids, "float64")
    found = embgrad.gradients(net, ids, embgrad.Sum(), at=["word#0", "word#1"])
    assert np.allclose(found["word#1"].values, 1 / 3)
    assert np.allclose(found["word#0"].values, 3 / 3 + 1 / 3)


def test_a_zero_gradient_is_a_result_and_no_gradient_an_error() -> None:
    cuts: list[Callable[..., Any]] = [
        lambda F, rows: F.BlockGrad(F.mean(rows, axis=1)) * 2,
        lambda F, rows: F.mean(rows > 0, axis=1) * 2,
        lambda F, rows: F.one_hot(F.argmax(rows, axis=1), 3).mean(axis=1),
        lambda F, rows: F.mean(F.Embedding(F.argmax(rows, axis=2), F.ones((DIM, 2)), DIM, 2), axis=1),
        lambda F, rows: F.take(F.ones((2, 3)), F.mean(rows, axis=(1, 2)), axis=1),
        lambda F, rows: F.where(F.mean(rows, axis=1), F.ones((2, DIM)), F.zeros((2, DIM))),
        lambda F, rows: F.mean(F.cast(F.cast(rows, "int32"), "float32"), axis=1),
        lambda F, rows: F.random.normal(F.mean(rows, axis=1), F.exp(F.mean(rows, axis=1))),
        lambda F, rows: F.random.uniform_like(F.mean(rows, axis=1)),
        lambda F, rows: F.ones((2, 3)),
    ]

    def through(cut: Callable[..., Any]) -> Any:
        return built(lambda: Model(lambda net, F, x: cut(F, net.words(x))), distinct_ids(), "float32")

    for cut in cuts:
        with pytest.raises(NoGradientError):
            embgrad.gradients(through(cut), distinct_ids(), embgrad.Sum())
    zero = through(lambda F, rows: F.relu(F.mean(rows, axis=1) - 100))
    assert not embgrad.gradients(zero, distinct_ids(), embgrad.Sum()).values.any()
