"""Softmax over lengths in kept graphs, which runs over masked scores there, against the same net operator by operator."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from embgrad_gluon import graphsoftmax

import embgrad
from tests.gluon.exporting import BERT_OUTPUTS, exported
from tests.gluon.helpers import mx, randomise
from tests.gluon.test_bert import BATCH, loaded

nn = mx.gluon.nn

# Gluon says so whenever it imports a symbol whose inputs' dtypes are open.
pytestmark = pytest.mark.filterwarnings("ignore:Cannot decide type:UserWarning")

ROWS, DIM = 40, 6

#: Zeros are padding.
IDS = np.array([[5, 9, 11, 3, 8], [7, 31, 2, 0, 0], [12, 0, 0, 0, 0]])
FULL = np.where(IDS == 0, 4, IDS)

Function = Callable[[Any, Any, Any], Any]


def over_lengths(F: Any, scores: Any, lengths: Any, **options: Any) -> Any:
    return F.softmax(scores, lengths, **{"axis": -1, "use_length": True, **options})


class Attention(mx.gluon.HybridBlock):
    """Embedding → each position's mean of the rows that are none of padding's, weighed by their products."""

    def __init__(self, function: Function = over_lengths) -> None:
        super().__init__()
        self.embedding = nn.Embedding(ROWS, DIM)
        self.query = nn.Dense(DIM, flatten=False, in_units=DIM)
        self._function = function

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        rows = self.embedding(x)
        scores = F.batch_dot(self.query(rows), rows, transpose_b=True)
        counts = F.cast(F.sum(x > 0, axis=1, keepdims=True), "int32")
        return F.batch_dot(self._function(F, scores, F.broadcast_add(counts, F.cast(x * 0, "int32"))), rows)


def built(function: Function = over_lengths, dtype: str = "float32") -> Any:
    net = Attention(function)
    net.initialize()
    net.cast(dtype)
    randomise(net)
    return net


def hybridised(net: Any, ids: np.ndarray = IDS) -> Any:
    net.hybridize()
    net(mx.nd.array(ids))
    return net


def of(dtype: str = "float32") -> Callable[[Any], Any]:
    weights = np.random.default_rng(1).normal(size=(*IDS.shape, DIM))
    return lambda returned: (returned * mx.nd.array(weights, dtype=dtype)).sum(axis=(1, 2))


def gradient(net: Any, ids: np.ndarray = IDS, dtype: str = "float32", **options: Any) -> np.ndarray:
    return embgrad.gradients(net, ids, of(dtype), **options).values


def expect_close(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=5e-6 * np.nanmax(abs(expected)))


@pytest.fixture
def masks(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Grows at each run of a graph by what it takes for masks; None where it is the graph as it is."""
    monkeypatch.setattr(graphsoftmax, "FEWEST", 0)
    found: list[Any] = []
    before = graphsoftmax.Masked.masks

    def noted(self: Any, values: Any) -> Any:
        given = before(self, values)
        found.append(None if given is None else sorted(given))
        return given

    monkeypatch.setattr(graphsoftmax.Masked, "masks", noted)
    return found


MASK = [["embgrad mask0", "embgrad nothing0"]]
PLAIN: list[Any] = [None]
NOTHING_MASKED: list[Any] = [[]]


@pytest.mark.parametrize(("ids", "expected"), [(IDS, MASK), (FULL, NOTHING_MASKED)], ids=["padded", "full"])
def test_the_gradient_is_that_of_float64(ids: np.ndarray, expected: list[Any], masks: list[Any]) -> None:
    found = gradient(hybridised(built(), ids), ids)
    assert masks == expected
    expect_close(found, gradient(built(dtype="float64"), ids, "float64"))


def test_the_gradient_is_that_of_the_formula(masks: list[Any]) -> None:
    """Of y = w · e over the first so many positions, where w = softmax(q · e)."""
    net = hybridised(built())
    found = gradient(net)
    table, weight, bias = (
        one.data().asnumpy().astype(np.float64) for one in (net.embedding.weight, net.query.weight, net.query.bias)
    )
    cotangents = np.random.default_rng(1).normal(size=(*IDS.shape, DIM))
    for example, ids in enumerate(IDS):
        e, count, g = table[ids], int((ids > 0).sum()), cotangents[example]
        q = e @ weight.T + bias
        w = np.exp(q @ e[:count].T)
        w = np.pad(w / w.sum(-1, keepdims=True), ((0, 0), (0, len(ids) - count)))
        scores = w * (g @ e.T - (w * (g @ e.T)).sum(-1, keepdims=True))
        expect_close(found[example], w.T @ g + scores.T @ q + scores @ e @ weight)
    assert masks == MASK


def test_what_it_gives_is_the_same_but_for_rounding(masks: list[Any]) -> None:
    kept: list[np.ndarray] = []

    class Weights(Attention):
        def hybrid_forward(self, F: Any, x: Any) -> Any:
            rows = self.embedding(x)
            scores = F.batch_dot(self.query(rows), rows, transpose_b=True)
            counts = F.broadcast_add(F.sum(x > 0, axis=1, keepdims=True), x * 0)
            return over_lengths(F, scores, F.cast(counts, "int32"))

    net = Weights()
    net.initialize()
    randomise(net)
    hybridised(net)
    embgrad.gradients(net, IDS, lambda returned: kept.append(returned.asnumpy()) or returned[:, :, 0].sum(axis=1))
    own = net(mx.nd.array(IDS)).asnumpy()
    np.testing.assert_allclose(kept[0], own, rtol=0, atol=3e-7)
    np.testing.assert_array_equal(kept[0] == 0, own == 0)
    assert masks == MASK


def test_rows_of_no_scores_are_zero(masks: list[Any]) -> None:
    ids = np.where(np.arange(3)[:, None] == 2, 0, IDS)
    found = gradient(hybridised(built(), ids), ids)
    assert masks == PLAIN
    expect_close(found, gradient(built(dtype="float64"), ids, "float64"))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_masked_scores_may_be_anything(value: float, masks: list[Any]) -> None:
    """What padding's scores are does not matter."""

    def spoilt(F: Any, scores: Any, lengths: Any) -> Any:
        places = F.arange(0, IDS.shape[1]).reshape((1, 1, -1))
        kept = F.broadcast_lesser(places, F.expand_dims(F.cast(lengths, "float32"), 2))
        return over_lengths(F, F.where(kept, scores, F.ones_like(scores) * value), lengths)

    found = gradient(hybridised(built(spoilt)))
    assert masks == MASK
    expect_close(found, gradient(built()))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_is_told_of(value: float, masks: list[Any]) -> None:
    def spoilt(F: Any, scores: Any, lengths: Any) -> Any:
        first = F.broadcast_equal(F.arange(0, IDS.shape[1]).reshape((1, 1, -1)), F.zeros_like(scores))
        return over_lengths(F, F.where(first, F.ones_like(scores) * value, scores), lengths)

    said = []
    for net in (built(spoilt), hybridised(built(spoilt))):
        with pytest.raises(embgrad.EmbgradError) as raised:
            gradient(net)
        said.append(str(raised.value))
    assert said[0] == said[1]
    assert masks == MASK


def other_lengths(F: Any, scores: Any, lengths: Any) -> Any:
    """The same lengths, of scores of other shapes."""
    twice = F.concat(scores, scores, dim=2)
    return over_lengths(F, scores, lengths) + over_lengths(F, twice, lengths).slice_axis(2, 0, IDS.shape[1])


def over_rows(F: Any, scores: Any, lengths: Any) -> Any:
    return over_lengths(F, scores, lengths, axis=1)


def cooler(F: Any, scores: Any, lengths: Any) -> Any:
    return over_lengths(F, scores, lengths, temperature=2.0)


def computed_at_length(F: Any, scores: Any, lengths: Any) -> Any:
    for _ in range(graphsoftmax.MOST_BEFORE):
        lengths = lengths * 1
    return over_lengths(F, scores, lengths)


def of_no_input(F: Any, scores: Any, lengths: Any) -> Any:
    return over_lengths(F, scores, F.cast(F.full(IDS.shape, 3), "int32"))


@pytest.mark.parametrize(
    "function", [other_lengths, over_rows, cooler, computed_at_length, of_no_input], ids=lambda f: f.__name__
)
def test_others_are_left_to_mxnet(function: Function, masks: list[Any]) -> None:
    found = gradient(hybridised(built(function)))
    assert masks == PLAIN
    expect_close(found, gradient(built(function, dtype="float64"), dtype="float64"))


def test_other_dtypes_are_left_to_mxnet(masks: list[Any]) -> None:
    net = built(dtype="float64")
    expected = gradient(net, dtype="float64")
    net.hybridize()
    net(mx.nd.array(IDS, dtype="float64"))
    np.testing.assert_array_equal(gradient(net, dtype="float64"), expected)
    assert masks == PLAIN


def test_few_scores_are_left_to_mxnet(masks: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphsoftmax, "FEWEST", IDS.size * IDS.shape[1] + 1)
    gradient(hybridised(built()))
    assert masks == PLAIN


def two_of_a_kind(F: Any, scores: Any, lengths: Any) -> Any:
    """The same lengths computed twice, and others."""
    again, fewer = F.identity(lengths), F.broadcast_minimum(lengths, F.ones_like(lengths) * 2)
    first, second = (over_lengths(F, scores * 2, F.identity(one)) for one in (lengths, lengths))
    return first * over_lengths(F, scores, again) + second * over_lengths(F, scores, fewer)


def test_several_softmaxes_share_masks(masks: list[Any]) -> None:
    found = gradient(hybridised(built(two_of_a_kind)))
    assert masks == [["embgrad mask0", "embgrad mask1", "embgrad nothing0", "embgrad nothing1"]]
    expect_close(found, gradient(built(two_of_a_kind, dtype="float64"), dtype="float64"))


def test_one_graph_serves_all_lengths(masks: list[Any]) -> None:
    net = hybridised(built())
    own = built()
    for positions in (5, 3, 2, 5):
        for ids in (IDS[:, :positions], FULL[:, :positions]):
            given = np.maximum(ids, np.arange(positions) == 0)
            weights = mx.nd.array(np.random.default_rng(1).normal(size=(*given.shape, DIM)), dtype="float32")
            objective = lambda returned, weights=weights: (returned * weights).sum(axis=(1, 2))  # noqa: E731
            found, expected = (embgrad.gradients(one, given, objective).values for one in (net, own))
            expect_close(found, expected)
    assert masks == [MASK[0], []] * 4


def test_several_pullbacks(masks: list[Any]) -> None:
    expect_close(gradient(hybridised(built()), split=True), gradient(built(), split=True))
    assert masks == MASK


@pytest.mark.parametrize("output", ["sequence", "pooled"])
def test_bert(output: str, masks: list[Any], tmp_path: Path) -> None:
    """gluonnlp's, hybridised, compiled and exported, with padding."""
    objective = embgrad.Projection(np.arange(8.0), output=output)
    expected = embgrad.gradients(loaded(), BATCH, objective).values
    net, inputs = loaded(), [mx.nd.array(array) for array in BATCH.to_gluonnlp()]
    found = [embgrad.gradients(net, BATCH, objective, compile=True)]
    block = exported(net, inputs, tmp_path)  # which hybridises the net, and calls it
    found.append(embgrad.gradients(net, BATCH, objective))
    named = embgrad.Projection(np.arange(8.0), output=net.name + BERT_OUTPUTS[output])
    found.append(embgrad.gradients(block, BATCH.replace(convention="gluonnlp"), named))
    for one in found:
        expect_close(one.values, expected)
        assert one.pad_leak == 0
    assert set(map(str, masks)) == {str(MASK[0])}
