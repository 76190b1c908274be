"""Operators whose gradient is wrong in MXNet for some shapes, values or options, against finite differences of the table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import embgrad
from tests.frameworks.gluon.helpers import DIM, ROWS, Model, built, central_differences, mx, relative

nn, nd = mx.gluon.nn, mx.nd

#: Ids that repeat within an example: entries of the lookup that are equal, and change together with their row.
TIED = np.array([[7, 7, 7, 1], [9, 4, 2, 2]])


class Through(mx.gluon.HybridBlock):
    """Embedding → a function of F and the rows → numbers of which the first axis is the examples'."""

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(ROWS, DIM)
        self._function = function

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self._function(F, self.embedding(x))


def slopes(net: Any, inputs: Any, step: float = 1e-6) -> np.ndarray:
    """Return the gradient of the sum of the output with respect to the table, by central differences."""
    table = net.embedding.weight
    before = table.data().asnumpy()

    def value(rows: np.ndarray) -> float:
        table.set_data(nd.array(rows, dtype="float64"))
        return float(net(inputs).asnumpy().sum())

    gradient = central_differences(value, before, step)
    table.set_data(nd.array(before, dtype="float64"))
    return gradient


EXTREMES: dict[str, Callable[[Any, Any], Any]] = {
    "max": lambda F, rows: F.max(rows, axis=1),
    "min": lambda F, rows: F.min(rows, axis=1),
    "an axis from behind": lambda F, rows: F.max(rows, axis=-2, keepdims=True),
    "several axes": lambda F, rows: F.max(rows, axis=(1, 2)),
    "all but the examples": lambda F, rows: F.min(rows, axis=0, exclude=True),
    "all": lambda F, rows: F.broadcast_add(F.max(rows).reshape((1, 1)), F.sum(rows, axis=2)),
    "largest magnitude": lambda F, rows: F.max(F.abs(rows), axis=1),
}


@pytest.mark.parametrize("name", EXTREMES)
@pytest.mark.parametrize("hybrid", [False, True])
def test_one_of_equal_extremes_has_the_gradient(name: str, hybrid: bool) -> None:
    net = built(lambda: Through(EXTREMES[name]), TIED, "float64")
    inputs = nd.array(TIED, dtype="float64")
    expected = slopes(net, inputs)
    if hybrid:
        net.hybridize()
        net(inputs)
    found = embgrad.gradients(net, TIED, lambda returned: returned.reshape((0, -1)).sum(axis=1))
    assert relative(found.table().to_dense(), expected) < 1e-6


def test_nan_is_kept_by_maxima() -> None:
    net = built(lambda: Through(lambda F, rows: F.max(F.log(rows), axis=1)), TIED, "float64")
    with pytest.raises(embgrad.errors.ObjectiveError, match=r"not finite|nan"):
        embgrad.gradients(net, TIED, embgrad.Sum())


class Characters(mx.gluon.HybridBlock):
    """Words of characters: a map for each word, whose memory is that of the rows, and maxima of pairs."""

    def __init__(self, view: Callable[[Any], Any]) -> None:
        super().__init__()
        self.embedding, self.pool, self.dense = nn.Embedding(ROWS, DIM), nn.MaxPool2D((2, 1)), nn.Dense(3)
        self._view = view

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.dense(F.tanh(self.pool(self._view(self.embedding(x)))))


IDS = np.array([[4, 7, 6, 1], [9, 5, 2, 8]])


@pytest.mark.parametrize("hybrid", [False, True])
def test_maxima_of_a_view(hybrid: bool) -> None:
    """oneDNN loses the positions of maxima in an array that shares another's memory."""

    single, double = (
        built(lambda: Characters(lambda rows: rows.reshape((0, 1, -1, DIM))), IDS, dtype)
        for dtype in ("float32", "float64")
    )
    expected = slopes(double, nd.array(IDS, dtype="float64"))
    if hybrid:
        single.hybridize()
        single(nd.array(IDS))
    for options in ({}, {"at": ["word", "pool"]}):
        found = embgrad.gradients(single, IDS, lambda returned: returned.sum(axis=1), **options)
        word = found["word"] if isinstance(found, dict) else found
        assert relative(word.table().to_dense(), expected) < 1e-5
    weights = embgrad.tables.parameter_gradients(single, IDS, lambda returned: returned.sum(axis=1))
    assert relative(weights["embedding.weight"], expected) < 1e-5


class Raising(mx.operator.CustomOp):
    def __init__(self, error: str) -> None:
        super().__init__()
        self._error = error

    def forward(self, is_train: Any, req: Any, in_data: Any, out_data: Any, aux: Any) -> None:
        self.assign(out_data[0], req[0], in_data[0] * 2)

    def backward(self, req: Any, out_grad: Any, in_data: Any, out_data: Any, in_grad: Any, aux: Any) -> None:
        errors = {"ValueError": ValueError, "KeyboardInterrupt": KeyboardInterrupt, "SystemExit": SystemExit}
        if self._error in errors:
            raise errors[self._error]("of the user's own")
        self.assign(in_grad[0], req[0], out_grad[0] * 2)


@mx.operator.register("embgrad_tests_raising")
class RaisingProp(mx.operator.CustomOpProp):
    def __init__(self, error: str = "") -> None:
        super().__init__(need_top_grad=True)
        self._error = error

    def create_operator(self, ctx: Any, shapes: Any, dtypes: Any) -> Any:
        return Raising(self._error)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_exception_in_a_custom_operators_backward_is_raised(error: type[BaseException]) -> None:
    def net(name: str) -> Any:
        return built(
            lambda: Through(lambda F, rows: F.Custom(rows, op_type="embgrad_tests_raising", error=name)), IDS, "float32"
        )

    with pytest.raises(error, match="of the user's own"):
        embgrad.gradients(net(error.__name__), IDS, embgrad.Sum())
    np.testing.assert_array_equal(embgrad.gradients(net("none"), IDS, embgrad.Sum()).values, 2)


@pytest.mark.parametrize("side", ["flip_left_right", "flip_top_bottom"])
def test_flipped_images_are_refused(side: str) -> None:
    net = built(
        lambda: Through(lambda F, rows: getattr(F.image, side)(F.slice_axis(rows, axis=2, begin=0, end=3))),
        TIED,
        "float64",
    )
    with pytest.raises(
        embgrad.errors.UnsupportedError, match=f"the operator '_image_{side}', which has a wrong gradient"
    ):
        embgrad.gradients(net, TIED, lambda returned: returned.sum(axis=(1, 2)))


def test_dropout_in_evaluation_mode_returns_its_input() -> None:
    held, drawn = [], []

    def forward(net: Any, F: Any, ids: Any) -> Any:
        rows, scale = net.words(ids), nd.ones((DIM,))  # the model may write into `scale`, and not into `rows`
        held.append(nd.Dropout(rows, p=0.5) is not rows)
        held.append(nd.Dropout(scale, p=0.5) is not scale)
        drawn.append(nd.Dropout(rows, p=0.5, mode="always").asnumpy())
        return rows.sum(axis=(1, 2))

    net = Model(forward)
    net.initialize(mx.init.One())
    embgrad.gradients(net, IDS, embgrad.Sum())
    embgrad.gradients(net, IDS, embgrad.Sum(), training=True)
    assert held == [False, True, True, True]
    assert (drawn[0] == 0).any()
