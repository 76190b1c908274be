"""Gluon blocks that carry a state from call to call, and objectives of several examples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.company import expect_of_own_number, expect_others_held
from tests.frameworks.gluon.helpers import mx

IDS = np.array([[5, 6, 2], [7, 8, 1], [3, 3, 4]])


class Carry(mx.gluon.Block):  # type: ignore[misc]  # MXNet has no types
    """A GRU that begins with the state in which the call before ended, kept in one of several ways."""

    def __init__(self, way: str) -> None:
        super().__init__()
        mx.random.seed(0)
        with self.name_scope():
            self.table, self.rnn = mx.gluon.nn.Embedding(9, 4), mx.gluon.rnn.GRU(4, layout="NTC")
        self.way = way
        self.state: Any = [] if way == "list" else None
        self.initialize()

    def read(self, count: int) -> Any:
        value = self.state
        if self.way == "list":
            value = value[0] if value else None
        return mx.nd.zeros((1, count, 4)) if value is None or value.shape[1] != count else value

    def write(self, value: Any) -> None:
        if self.way == "list":
            self.state[:] = [value]
        else:
            self.state = value

    def forward(self, ids: Any) -> Any:
        out, (state,) = self.rnn(self.table(ids), [self.read(len(ids))])
        self.write(state.detach())
        return mx.nd.slice_axis(out, 1, -1, None).reshape((0, -1))


@pytest.mark.parametrize("way", ["attribute", "list"])
def test_a_state_that_goes_on_from_call_to_call(way: str) -> None:
    model = Carry(way)
    model(mx.nd.array(IDS[::-1].copy()))
    state = model.read(3).copy()
    own = model(mx.nd.array(IDS)).asnumpy()[:, 1]
    model.write(state)
    expect_of_own_number(model, IDS, own)
    np.testing.assert_array_equal(model.read(3).asnumpy(), state.asnumpy())


def test_a_similarity_of_the_rows_of_a_batch() -> None:
    mx.random.seed(0)
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Embedding(9, 4), mx.gluon.nn.Dense(3))
    net.initialize()

    def similarity(out: Any) -> Any:
        rows = mx.nd.L2Normalization(out)
        return (rows * mx.nd.reverse(rows, axis=0)).sum(1)

    expect_others_held(net, IDS, similarity)
