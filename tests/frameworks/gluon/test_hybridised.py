"""Hybridised nets run operator by operator: the same numbers, and the hybridisation is unchanged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embgrad
from tests.frameworks.gluon.exporting import exported, norm_and_dropout
from tests.frameworks.gluon.helpers import DIM, ROWS, Model, built, differences, distinct_ids, mx, randomise, relative
from tests.frameworks.gluon.test_models import Bare, Recurrent, TextCNN, bag, sparse

nn, rnn, autograd, nd = mx.gluon.nn, mx.gluon.rnn, mx.autograd, mx.nd
HybridBlock = mx.gluon.HybridBlock

# Gluon says so whenever it imports a symbol whose inputs' dtypes are open.
pytestmark = pytest.mark.filterwarnings("ignore:Cannot decide type:UserWarning")

GRAPH_DIFFERS = "is hybridised, and its graph computes something else than its Python"


OBJECTIVE = embgrad.Projection(np.array([0.7, -0.4, 0.2]))


class Layered(HybridBlock):
    """Embedding → layers over (example, dim, position) → the maximum over positions → Dense."""

    def __init__(self, *layers: Any) -> None:
        super().__init__()
        self.embedding = nn.Embedding(ROWS, DIM)
        self.layers = nn.HybridSequential()
        self.layers.add(*layers)
        self.top = nn.Dense(3)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.top(self.layers(F.swapaxes(self.embedding(x), 1, 2)))


class Positions(HybridBlock):
    """Positions are counted along what was looked up, and looked up in a table of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(ROWS, DIM)
        self.places = nn.Embedding(7, DIM)
        self.top = nn.Dense(3)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        rows = self.words(x)
        places = self.places(F.contrib.arange_like(rows, axis=1))
        return self.top(F.mean(F.tanh(F.broadcast_add(rows, F.expand_dims(places, 0))), axis=1))


class OnArrays(HybridBlock):
    """A net whose Python branches on arrays and symbols."""

    def __init__(self, way: Any) -> None:
        super().__init__()
        self.embedding, self.way = nn.Embedding(ROWS, DIM), way

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.way(F, F.tanh(self.embedding(x)))


def tolerance_of(net: Any) -> float:
    return 1e-12 if next(iter(net.collect_params().values())).dtype in ("float64", np.float64) else 2e-5


def expect_same(found: Any, expected: Any, tolerance: float) -> None:
    assert relative(found.values, expected.values) < tolerance
    assert relative(found.objective, expected.objective) < tolerance
    assert (found.activations == expected.activations).all()


class Tied(HybridBlock):
    """The table is the head, too."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(ROWS, DIM)
        self.head = nn.Dense(ROWS, use_bias=False, in_units=DIM, params=self.embedding.params)
        self.top = nn.Dense(3)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.top(F.log_softmax(self.head(F.mean(F.tanh(self.embedding(x)), axis=1))))


def pooled_and_normed() -> Any:
    return Layered(
        nn.BatchNorm(axis=1), nn.Dropout(0.5), nn.LeakyReLU(0.1), nn.MaxPool1D(2, 1), nn.SELU(), nn.GlobalAvgPool1D()
    )


def pooled() -> Any:
    return Layered(nn.Dropout(0.5), nn.MaxPool1D(2, 1), nn.SELU(), nn.GlobalAvgPool1D())


MODELS: dict[str, Callable[[], Any]] = {
    "bag": bag,
    "bidirectional gru": lambda: Recurrent(rnn.GRU(3, num_layers=2, bidirectional=True, dropout=0.5)),
    "dropped lstm": lambda: Recurrent(rnn.LSTM(3, num_layers=2, dropout=0.5)),
    "gather": lambda: Bare("gather"),
    "maximum": lambda: Layered(nn.HybridLambda(lambda F, x: F.max(x, axis=2) - F.min(x, axis=-1))),
    "norm and dropout": norm_and_dropout,
    "pooled": pooled,
    "pooled and normed": pooled_and_normed,
    "positions": Positions,
    "selu": lambda: Layered(nn.SELU(), nn.GlobalAvgPool1D()),
    "sparse gradient": sparse,
    "take": lambda: Bare("take"),
    "text cnn": TextCNN,
    "tied": Tied,
    "vanilla rnn": lambda: Recurrent(rnn.RNN(3, activation="tanh")),
}


def hybridised(net: Any, ids: np.ndarray, dtype: str = "float64", **flags: Any) -> Any:
    net.hybridize(**flags)
    net(nd.array(ids, dtype=dtype))
    return net


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", MODELS)
def test_hybridised_and_exported_nets_agree_with_the_net(name: str, dtype: str, tmp_path: Path) -> None:
    ids = distinct_ids()
    net = built(MODELS[name], ids, dtype)
    expected = embgrad.gradients(net, ids, OBJECTIVE)
    tolerance = tolerance_of(net)
    block = exported(net, [nd.array(ids, dtype=dtype)], tmp_path)  # which hybridises the net, and calls it
    block.cast(dtype)
    expect_same(embgrad.gradients(net, ids, OBJECTIVE), expected, tolerance)
    expect_same(embgrad.gradients(block, ids, OBJECTIVE), expected, tolerance)


@pytest.mark.parametrize("name", ["maximum", "pooled", "selu", "bidirectional gru", "vanilla rnn", "text cnn"])
def test_against_finite_differences(name: str, tmp_path: Path) -> None:
    """Each of these nets fails without a cure."""
    ids = distinct_ids()
    cotangent = np.tile([0.7, -0.4, 0.2], (2, 1))
    double = built(MODELS[name], ids, "float64")
    table = next(p for p in double.collect_params().values() if p.shape == (ROWS, DIM))
    expected = differences(double, table, ids, cotangent)
    for dtype, tolerance in (("float64", 1e-6), ("float32", 2e-4)):
        net = built(MODELS[name], ids, dtype)
        block = exported(net, [nd.array(ids, dtype=dtype)], tmp_path)
        block.cast(dtype)
        for one in (net, block):
            assert relative(embgrad.gradients(one, ids, OBJECTIVE).values, expected) < tolerance


def test_compile_is_refused_with_what_to_do() -> None:
    ids = distinct_ids()
    net = hybridised(built(TextCNN, ids, "float32"), ids, "float32")
    with pytest.raises(
        embgrad.errors.UnsupportedError, match=r"does not support 'compile'.*hybridised net runs operator by operator"
    ):
        embgrad.gradients(net, ids, OBJECTIVE, compile=True)


@pytest.mark.parametrize("option", ["edit", "override"])
def test_an_mxnet_error_of_a_function_given_by_the_user_is_raised_unchanged(option: str) -> None:
    net, raised = built(TextCNN, distinct_ids(), "float32"), mx.MXNetError("from the function")

    def change(_: Any) -> Any:
        raise raised

    with pytest.raises(mx.MXNetError) as caught:
        embgrad.gradients(net, distinct_ids(), OBJECTIVE, **{option: {"word": change}})
    assert caught.value is raised


def test_a_replaced_parameter_of_a_hybridised_net_is_refused() -> None:
    """Gluon goes on with the graph, and with the parameter that it was traced with."""
    ids = distinct_ids()
    net, other = hybridised(built(bag, ids, "float32"), ids, "float32"), built(bag, ids, "float32")
    randomise(other, seed=5)
    shared = nn.Dense(3, in_units=DIM, params=other[2].params)
    for name, parameter in shared._reg_params.items():
        net[2]._reg_params[name] = parameter
        object.__setattr__(net[2], name, parameter)
    with pytest.raises(embgrad.errors.UnsupportedError, match=GRAPH_DIFFERS):
        embgrad.gradients(net, ids, OBJECTIVE)


class Ending(HybridBlock):
    """Ends in what is to be refused."""

    def __init__(self, end: Callable[..., Any]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(ROWS, DIM)
        self.end = end

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.end(F, F.sum(self.embedding(x), axis=1), x)


def test_an_unread_output_does_not_contribute(tmp_path: Path) -> None:
    """An operator with a gradient of its own would add that, and zero times infinity is no number."""
    ids = distinct_ids(2, 4)

    def pick(model: Any, inputs: Any) -> dict[str, Any]:
        given = inputs if isinstance(inputs, nd.NDArray) else next(iter(inputs.values()))
        return dict(zip(("logits", "other", "blocked"), model(given), strict=True))

    for other in (lambda F, rows: F.make_loss(rows), lambda F, rows: F.sqrt(rows - rows)):
        end = lambda F, rows, x, other=other: (F.tanh(rows), other(F, rows), F.BlockGrad(rows))  # noqa: E731
        net = built(lambda end=end: Ending(end), ids, "float64")
        block = exported(net, [nd.array(ids, dtype="float64")], tmp_path)
        block.cast("float64")
        for one in (net, block):
            found = embgrad.gradients(one, ids, embgrad.Sum(output="logits"), call=pick)
            rows = found.activations.sum(axis=1, keepdims=True)
            np.testing.assert_allclose(found.values, np.broadcast_to(1 - np.tanh(rows) ** 2, found.shape), rtol=1e-10)
            with pytest.raises(embgrad.errors.NoGradientError):
                embgrad.gradients(one, ids, embgrad.Sum(output="blocked"), call=pick)


def test_a_changed_attribute_of_a_hybridised_net_is_refused() -> None:
    ids = distinct_ids()
    net = hybridised(built(lambda: Layered(nn.LeakyReLU(0.1), nn.GlobalAvgPool1D()), ids, "float64"), ids)
    embgrad.gradients(net, ids, OBJECTIVE)
    net.layers[0]._alpha = 0.9
    for options in ({}, {"at": "layers"}, {"training": True}):
        with pytest.raises(embgrad.errors.UnsupportedError, match=rf"{GRAPH_DIFFERS}.*hybridize\(\)"):
            embgrad.gradients(net, ids, OBJECTIVE, **options)
    hybridised(net, ids)
    expected = built(lambda: Layered(nn.LeakyReLU(0.9), nn.GlobalAvgPool1D()), ids, "float64")
    for options in ({}, {"training": True}):
        found = embgrad.gradients(net, ids, OBJECTIVE, **options)
        assert relative(found.values, embgrad.gradients(expected, ids, OBJECTIVE).values) < 1e-12


def test_each_hybridised_block_of_an_imperative_net_is_compared_with_its_graph() -> None:
    net = nn.Sequential()
    net.add(nn.Embedding(ROWS, DIM), nn.LeakyReLU(0.1), nn.LeakyReLU(0.2))
    net.initialize()
    net.hybridize()
    net(nd.array(distinct_ids()))
    assert embgrad.gradients(net, distinct_ids(), embgrad.Sum(position=0)).values.any()
    net[2]._alpha = 0.9
    with pytest.raises(embgrad.errors.UnsupportedError, match=GRAPH_DIFFERS):
        embgrad.gradients(net, distinct_ids(), embgrad.Sum(position=0))


def test_a_net_that_branches_on_arrays_and_symbols_is_refused() -> None:
    def forward(net: Any, F: Any, x: Any) -> Any:
        return net.dense(F.tanh(net.words(x)) if F is mx.nd else net.words(x) * 2)

    ids = distinct_ids()
    net = hybridised(built(lambda: Model(forward, dense=nn.Dense(3)), ids, "float64"), ids)
    for options in ({}, {"at": "dense"}, {"training": True}):
        with pytest.raises(embgrad.errors.UnsupportedError, match=GRAPH_DIFFERS):
            embgrad.gradients(net, ids, embgrad.Logit(1), **options)
    with (
        pytest.raises(embgrad.errors.UnsupportedError, match=GRAPH_DIFFERS),
        embgrad.capture(net),
        mx.autograd.record(),
    ):
        net(nd.array(ids, dtype="float64"))


def test_a_net_that_returns_more_for_arrays_is_refused() -> None:
    ids = distinct_ids()
    net = built(
        lambda: OnArrays(lambda F, rows: rows.mean(axis=1) if F is nd else [rows.mean(axis=1)] * 2), ids, "float32"
    )
    hybridised(net, ids, "float32")
    with pytest.raises(embgrad.errors.UnsupportedError, match=GRAPH_DIFFERS):
        embgrad.gradients(net, ids, lambda out: out[0].sum(axis=1))


def test_a_hybridised_net_whose_python_enters_a_scope_is_refused() -> None:
    def gated(F: Any, rows: Any) -> Any:
        with autograd.pause():
            gate = rows.sigmoid()
        return (rows * gate).mean(axis=1)

    ids = distinct_ids()
    net = hybridised(built(lambda: OnArrays(gated), ids, "float64"), ids)
    for options in ({}, {"at": "embedding"}, {"training": True}):
        with pytest.raises(embgrad.errors.UnsupportedError, match=r"enters autograd\.pause\(\)"):
            embgrad.gradients(net, ids, embgrad.Sum(), **options)
