"""The ledger of a tied table: total = lookup + head, against hand-written Gluon, and what stays as it was."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from embgrad_gluon.walk import memory

import embgrad
from tests.frameworks.gluon.helpers import DIM, ROWS, distinct_ids, model, mx, randomise, relative

nn, nd = mx.gluon.nn, mx.nd


class Tied(mx.gluon.HybridBlock):  # type: ignore[misc]
    def __init__(self, sparse: bool = False) -> None:
        super().__init__()
        self.words = nn.Embedding(ROWS, DIM, sparse_grad=sparse)
        self.head = nn.Dense(ROWS, in_units=DIM, flatten=False, use_bias=False, params=self.words.params)
        self.again = nn.HybridSequential()
        self.again.add(self.head)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.again(F.tanh(self.words(x)))


def tied(sparse: bool = False) -> Any:
    net = Tied(sparse)
    net.initialize()
    net.cast("float64")
    randomise(net)
    return net


IDS = np.array([[1, 2, 1, 5], [3, 0, 1, 2]])
VECTOR = np.random.default_rng(3).normal(size=ROWS)


def by_hand() -> tuple[np.ndarray, np.ndarray]:
    """The two parts of the table's gradient in closed form, of Σ tanh(E[ids]) Eᵀ v."""
    rows = tied().words.weight.data().asnumpy()
    bent = np.tanh(rows[IDS])
    lookup = np.zeros_like(rows)
    np.add.at(lookup, IDS, (1 - bent**2) * (VECTOR @ rows))
    return lookup, np.outer(VECTOR, bent.sum((0, 1)))


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize("state", ["write", "add", "null", "sparse"])
def test_the_parts_of_a_tied_table(state: str, hybrid: bool) -> None:
    net = tied(sparse=state == "sparse")
    if state != "sparse":
        net.collect_params().setattr("grad_req", state)
    if hybrid and state != "sparse":  # MXNet cannot add a sparse gradient to a dense one there
        net.hybridize()
        net(nd.array(IDS, dtype="float64"))
    parameters = list(net.collect_params().values())
    objects = [(p._grad_req, p._grad, p._data, p._data[0].asnumpy().tobytes()) for p in parameters]
    for parameter in parameters:
        for gradient in parameter._grad or ():
            if gradient.stype == "default":
                gradient[:] = 5
    held = [[one.asnumpy().tobytes() for one in p._grad or ()] for p in parameters]
    found = embgrad.tables.table_gradients(net, IDS, embgrad.Projection(VECTOR))
    lookup, head = by_hand()
    assert relative(found.lookup, lookup) < 1e-12
    assert relative(found.head, head) < 1e-12
    assert found.names == ("words.weight", "head.weight", "again.0.weight")
    assert found.tied
    assert found.lookups == 1
    if state == "null":
        assert found.apart is None
    else:
        assert found.apart < 1e-12
    for p, (request, gradients, data, values) in zip(parameters, objects, strict=True):
        assert (p._grad_req, p._grad, p._data) == (request, gradients, data)
        assert p._grad is gradients
        assert p._data is data
        assert data[0].asnumpy().tobytes() == values
    assert held == [[one.asnumpy().tobytes() for one in p._grad or ()] for p in parameters]


def test_a_penalty_and_a_second_lookup_are_separated() -> None:
    def forward(net: Any, F: Any, x: Any) -> Any:
        products = (net.words(x) * net.words(x + 1)).sum(axis=(1, 2))
        return products.reshape((-1, 1)) + (net.words.weight.data() ** 2).sum()

    net = model(forward)
    net.cast("float64")
    randomise(net)
    ids = distinct_ids() - 1
    rows = net.words.weight.data().asnumpy()
    found = embgrad.tables.table_gradients(net, ids, embgrad.Sum(), at="words#0")
    lookup = np.zeros_like(rows)
    np.add.at(lookup, ids, rows[ids + 1])
    np.add.at(lookup, ids + 1, rows[ids])
    assert relative(found.lookup, lookup) < 1e-12
    assert relative(found.head, 2 * 2 * rows) < 1e-12  # both examples have it
    assert found.lookups == 2
    assert found.apart < 1e-12


def test_the_address_of_an_array_that_is_still_computed() -> None:
    """Asked for too early, MXNet gives it twice, and what was computed is lost: not a number, or a crash."""
    left, right = nd.random.normal(shape=(64, 64)), nd.random.normal(shape=(64, 64))

    for _ in range(1000):
        between = nd.FullyConnected(left, right, num_hidden=64, no_bias=True)
        product = nd.FullyConnected(between, right, num_hidden=64, no_bias=True)
        address = memory(product)
        nd.waitall()
        assert memory(product) == address
