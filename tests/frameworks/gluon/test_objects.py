"""Objects that people have in Gluon: blocks that take one dict, and what `call=` is given."""

from __future__ import annotations

from typing import Any

import numpy as np
from embgrad_gluon.importing import import_mxnet

import embgrad

mx = import_mxnet()

IDS = np.array([[3, 1, 4, 10], [9, 2, 6, 5]])
MASK = np.array([[1, 1, 1, 1], [1, 1, 1, 0]])


class Net(mx.gluon.Block):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = mx.gluon.nn.Embedding(11, 6), mx.gluon.nn.Dense(3, in_units=6)
        self.initialize(mx.init.Normal(0.5))

    def read(self, ids: Any, mask: Any = None) -> Any:
        hidden = self.words(ids).tanh()
        return self.head((hidden if mask is None else hidden * mask.expand_dims(2)).sum(1))


def test_call_receives_the_triple_with_zeros_for_missing_types() -> None:
    """The format has a place for them, which a net reads."""
    seen: list[Any] = []

    def call(model: Any, inputs: Any) -> Any:
        seen.append(inputs)
        return model.read(inputs[0])

    for types in (None, MASK):
        embgrad.gradients(Net(), (IDS, types, np.array([4, 3])), embgrad.Logit(1), call=call)
    ids, types, lengths = seen[0]
    np.testing.assert_array_equal(types.asnumpy(), np.zeros_like(MASK))
    np.testing.assert_array_equal(ids.asnumpy(), IDS)
    assert lengths.asnumpy().tolist() == [4, 3]
    np.testing.assert_array_equal(seen[-1][1].asnumpy(), MASK)
