"""MXNet's arrays that a model keeps in containers are restored after a call, and parts made in the first call stay."""

from __future__ import annotations

from typing import Any

import pytest

from tests.frameworks.gluon.helpers import mx
from tests.support.keeping import VOCAB, Builder, SlottedBuilder, Way, assert_left_and_seen, assert_parts_stay


def _write(kept: list[dict[str, Any]], value: float) -> None:
    kept[0]["sums"] += value


ARRAY_IN_A_LIST: Way = (lambda: [{"sums": mx.nd.zeros((2,))}], _write, lambda kept: kept[0]["sums"].asnumpy().sum())


class Net(mx.gluon.Block):
    """Adds to what it keeps at each pass, and computes with it."""

    def __init__(self) -> None:
        super().__init__()
        make, self._write, self._count = ARRAY_IN_A_LIST
        with self.name_scope():
            self.table = mx.gluon.nn.Embedding(VOCAB, 4)
            self.inner = mx.gluon.nn.Dense(3, flatten=False, in_units=4)
        self.kept = make()

    def forward(self, x: Any) -> Any:
        self._write(self.kept, 1.0)
        return mx.nd.tanh(self.inner(self.table(x)) + 0.1 * float(self._count(self.kept))).sum(axis=1)


def test_an_array_in_a_list_is_restored_and_the_users_own_values_are_used() -> None:
    mx.random.seed(1)
    model = Net()
    model.initialize(mx.init.Normal(0.5))
    kept = model.kept
    assert_left_and_seen(model, kept, ARRAY_IN_A_LIST)
    assert model.kept is kept


def _table() -> Any:
    table = mx.gluon.nn.Embedding(VOCAB, 4)
    table.initialize(mx.init.One())
    return table


@pytest.mark.parametrize("builder", [Builder, SlottedBuilder])
def test_parts_that_an_object_makes_in_the_first_call_stay(builder: Any) -> None:
    class Made(mx.gluon.Block):
        def __init__(self) -> None:
            super().__init__()
            self.builder = builder(_table)

        def forward(self, x: Any) -> Any:
            return (self.builder.table()(x) ** 2).sum(axis=1)

    assert_parts_stay(Made())
