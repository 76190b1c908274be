"""Searches and deletion of tokens in a Gluon block that reads valid lengths, as floats."""

from __future__ import annotations

from typing import Any

from tests.frameworks.gluon.helpers import mx
from tests.support.lengths_by_hand import TABLE, WEIGHT, expect_new_lengths


class Mean(mx.gluon.HybridBlock):
    """The mean and the last of the first rows."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.table = mx.gluon.nn.Embedding(9, 4)
        self.table.initialize(mx.init.Zero())
        self.table.weight.set_data(mx.nd.array(TABLE))

    def hybrid_forward(self, F: Any, ids: Any, text_lengths: Any) -> Any:
        rows = F.swapaxes(self.table(ids), 0, 1)
        real = F.SequenceMask(rows, sequence_length=text_lengths, use_sequence_length=True)
        mean = F.tanh(F.broadcast_div(F.sum(real, 0), F.expand_dims(text_lengths, 1)))
        last = F.SequenceLast(rows, sequence_length=text_lengths, use_sequence_length=True)
        return F.dot(mean + last, mx.nd.array(WEIGHT))


def test_valid_lengths_follow_inserted_and_deleted_tokens() -> None:
    expect_new_lengths(Mean(), "text_lengths", lambda counts: mx.nd.array(counts, dtype="float32"))
