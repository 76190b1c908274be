"""What a model keeps in attributes, in containers and arrays at any depth, is what it was after a call."""

from __future__ import annotations

from typing import Any

import pytest

from tests.frameworks.gluon.helpers import mx
from tests.keeping import (
    OBJECTS,
    VOCAB,
    WAYS,
    Builder,
    SlottedBuilder,
    Way,
    assert_left_and_seen,
    assert_parts_stay,
    assert_put_back_after_an_error,
)


def _written(kept: dict[str, Any], value: float) -> None:
    kept["sums"] += value


#: With what MXNet has of its own.
OURS: dict[str, Way] = {
    **{name: way for name, way in WAYS.items() if name not in OBJECTS},
    "an array of MXNet's in a list": (
        lambda: [{"sums": mx.nd.zeros((2,))}],
        lambda kept, value: _written(kept[0], value),
        lambda kept: kept[0]["sums"].asnumpy().sum(),
    ),
}


class Net(mx.gluon.Block):
    """Keeps something at each pass, and gives other numbers for what it has kept."""

    def __init__(self, way: Way) -> None:
        super().__init__()
        make, self._write, self._count = way
        with self.name_scope():
            self.table = mx.gluon.nn.Embedding(VOCAB, 4)
            self.inner = mx.gluon.nn.Dense(3, flatten=False, in_units=4)
        self.kept = make()

    def forward(self, x: Any) -> Any:
        self._write(self.kept, 1.0)
        return mx.nd.tanh(self.inner(self.table(x)) + 0.1 * float(self._count(self.kept))).sum(axis=1)


def net(way: str) -> Net:
    mx.random.seed(1)
    model = Net(OURS[way])
    model.initialize(mx.init.Normal(0.5))
    return model


@pytest.mark.parametrize("way", OURS)
def test_calls_leave_what_is_kept_and_see_what_the_user_keeps(way: str) -> None:
    model = net(way)
    kept = model.kept
    assert_left_and_seen(model, kept, OURS[way])
    assert model.kept is kept


def test_what_an_error_leaves_is_put_back() -> None:
    assert_put_back_after_an_error(net("a dict of lists"))


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
