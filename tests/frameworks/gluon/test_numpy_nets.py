"""Nets of mx.np, MXNet's newer interface, against finite differences of the same net."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import embgrad
from tests.frameworks.gluon.helpers import DIM, ROWS, central_differences, distinct_ids, mx, relative

np_, npx = mx.np, mx.npx


pytestmark = pytest.mark.usefixtures("numpy_semantics")


class Net(mx.gluon.HybridBlock):
    def __init__(self, function: Callable[[Any], Any], table: Callable[[Any, Any], Any] | None = None) -> None:
        super().__init__()
        self.table = self.params.get("table", shape=(ROWS, DIM))
        self.function = function
        self.look_up = table or (lambda table, x: npx.embedding(x, table, ROWS, DIM))

    def hybrid_forward(self, F: Any, x: Any, table: Any) -> Any:
        return self.function(self.look_up(table, x))


def check(net: Any, ids: np.ndarray, tolerance: float = 1e-6) -> embgrad.results.EmbeddingGradients:
    """Compare the table's gradient of the sum of the output with finite differences in float64."""
    net.initialize()
    net.cast("float64")
    rows = np.random.default_rng(0).uniform(-1, 1, (ROWS, DIM))

    def value(table: np.ndarray) -> float:
        net.table.set_data(np_.array(table, dtype="float64"))
        return float(net(np_.array(ids, dtype="int32")).sum().asnumpy())

    expected = central_differences(value, rows)
    net.table.set_data(np_.array(rows, dtype="float64"))
    found = embgrad.gradients(net, ids, embgrad.Scalar(lambda out: out.sum()))
    assert relative(found.table().to_dense(), expected) < tolerance
    return found


WAYS: dict[str, Callable[[Any, Any], Any]] = {
    "npx.embedding": lambda table, x: npx.embedding(x, table, ROWS, DIM),
    "np.take": lambda table, x: np_.take(table, x, axis=0, mode="clip"),
    "method": lambda table, x: table.take(x, axis=0),
    "index": lambda table, x: table[x],
    "index with a slice": lambda table, x: table[x, :],
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_look_up(way: str) -> None:
    net = Net(lambda rows: np_.tanh(rows) * 2, WAYS[way])
    found = check(net, distinct_ids())
    assert (found.provenance["path"], found.values.dtype) == ("table#0", np.float64)
    with pytest.raises(embgrad.errors.BatchError, match=f"id {ROWS} at example 0, position 0"):
        embgrad.gradients(net, np.array([[ROWS]]), embgrad.Scalar(lambda out: out.sum()))


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "where, of an array or a number": lambda e: np_.where(e > 0, e * e * 3, 0.5) * e,
    "where, of a number or an array": lambda e: np_.where(e > 0, 2, e * e * 3) * e,
    "where, of arrays": lambda e: np_.where(e > 0, e * e, e * 3),
    "masked attention": lambda e: np_.matmul(
        npx.softmax(np_.where(np_.ones((5, 5)) > 0, np_.matmul(e, e.swapaxes(1, 2)), -1e9), axis=-1), e
    ),
    "variance": lambda e: np_.var(e, axis=1),
    "variance of a sample": lambda e: np_.var(e, axis=(1, 2), ddof=1, keepdims=True) * e,
    "standard deviation": lambda e: np_.std(e, axis=-1),
    "layer norm by hand": lambda e: np_.square((e - e.mean(-1, keepdims=True)) / (e.std(-1, keepdims=True) + 0.1)) * e,
    "einsum": lambda e: np_.einsum("bpd,bqd->bpq", e, e) ** 2,
    "maximum": lambda e: np_.maximum(e, 0.1).max(axis=1),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_mx_np_agree_with_finite_differences(name: str) -> None:
    check(Net(FUNCTIONS[name]), distinct_ids(), tolerance=1e-5)


#: Ids that repeat within an example: entries of the lookup that are equal, and change together with their row.
TIED = np.array([[7, 7, 7, 1], [9, 4, 2, 2]])


def weight() -> Any:
    return np_.array(np.random.default_rng(1).uniform(-0.7, 0.7, (3, DIM, DIM)), dtype="float64")


CURED: dict[str, Callable[[Any], Any]] = {
    "matmul, a matrix each for several heads": lambda e: np_.tanh(np_.matmul(e[:, None], weight())),
    "matmul, heads times rows": lambda e: np_.tanh(np_.matmul(weight(), e[:, None].swapaxes(2, 3))),
    "matmul, fewer axes": lambda e: np_.tanh(np_.matmul(e[:, None], weight()[:1])),
    "matmul, one matrix": lambda e: np_.tanh(np_.matmul(e[:, None], weight()[0])),
    "einsum, no index twice": lambda e: np_.einsum("bij,hjk->bhik", e, weight()) ** 2,
    "max": lambda e: np_.max(e, axis=1),
    "max of all": lambda e: np_.max(e) ** 2,
    "min, a method": lambda e: e.min(axis=(1, 2), keepdims=True) ** 2,
    "norm": lambda e: np_.linalg.norm(e, axis=(1, 2)),
}


@pytest.mark.parametrize("name", CURED)
def test_cured_functions_of_mx_np_with_repeated_ids(name: str) -> None:
    check(Net(CURED[name]), TIED)


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "rot90": (lambda e: np_.rot90(e.sum(axis=0)), "is the operator '.*rot90', which has"),
    "atleast_2d": (lambda e: np_.atleast_2d(e), "is the operator '.*atleast_2d', which has"),
    "percentile": (lambda e: np_.percentile(e, 30, axis=1), "is the operator '.*percentile', which has"),
    "polyval": (lambda e: np_.polyval(np_.array([1.0, 2.0, 3.0]), e), "is the operator '_npi_polyval', which has"),
    "eigvals": (lambda e: np_.linalg.eigvals(np_.matmul(e.swapaxes(1, 2), e)), "'_npi_eigvals', which has"),
    "eigvalsh": (lambda e: np_.linalg.eigvalsh(np_.matmul(e.swapaxes(1, 2), e)), "'_npi_eigvalsh', which has"),
    "einsum, a diagonal": (lambda e: np_.einsum("bii->bi", e), r"np\.einsum\('bii->bi'\), with an index twice"),
    "einsum, with an ellipsis": (lambda e: np_.einsum("... ii", e), r"np\.einsum\('... ii'\), with an index twice"),
    "padding": (
        lambda e: np_.pad(e, ((0, 0), (1, 1), (0, 0)), mode="reflect"),
        "MXNet fails to compute the gradient|has no gradient",
    ),
    **{
        f"norm of order {order}": (
            lambda e, order=order: np_.linalg.norm(e, ord=order, axis=(1, 2)),
            r"np\.linalg\.norm with ord=.*on matrices.*Use ord=None",
        )
        for order in (np.inf, -np.inf, 0.5)
    },
}


@pytest.mark.parametrize("name", REFUSED)
def test_functions_with_a_wrong_gradient_are_refused(name: str) -> None:
    function, message = REFUSED[name]
    net = Net(function)
    net.initialize()
    with pytest.raises(embgrad.errors.UnsupportedError, match=message):
        embgrad.gradients(net, TIED, embgrad.Scalar(lambda out: out.sum()))


def test_a_call_does_not_warn() -> None:
    """Arrays of mx.np have attributes of the older kind, which warn that they were renamed."""
    nn = mx.gluon.nn
    net = nn.HybridSequential()
    net.add(nn.Embedding(ROWS, DIM), nn.BatchNorm(axis=-1), nn.Dense(3))
    net.initialize()
    net(np_.array(distinct_ids(), dtype="int32"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        embgrad.gradients(net, distinct_ids(), embgrad.Sum())
