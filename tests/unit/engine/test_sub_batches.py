"""Sub-batches of a batch: which of them are compared with the whole batch."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

import embgrad
from embgrad.backend.registry import bind
from embgrad.engine.options import GradientOptions
from embgrad.engine.question import Question
from embgrad.engine.sub_batches import pieces_of
from embgrad.testing.reference import ReferenceModel, lookup

BATCH = embgrad.TokenBatch(np.arange(15).reshape(5, 3))
MODEL = ReferenceModel(lambda own, input_ids: lookup(own.parameters["table"], input_ids), {"table": np.ones((15, 2))})


@pytest.mark.parametrize(
    ("size", "training", "compared"),
    [
        (2, False, [True, False, True]),  # the first, and the only one of another size
        (2, True, [False, False, False]),  # each pass draws other random numbers
        (5, False, [False]),
        (None, False, [False]),
    ],
)
def test_a_sub_batch_of_each_size_is_compared(size: int | None, training: bool, compared: list[bool]) -> None:
    question = Question(bind(MODEL, None), BATCH, (embgrad.Sum(),), GradientOptions(training=training))
    done: list[tuple[int, int]] = []
    with pieces_of(question, size, lambda *figures: done.append(figures)) as pieces:
        found = [not isinstance(piece.compared, contextlib.nullcontext) for piece in pieces]
    assert found == compared
    assert done[0] == (0, 5)
    assert done[-1] == (5, 5)
