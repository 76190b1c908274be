"""Sub-batches of a batch: which of them are compared with the whole batch, and the progress that is reported."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.backend.registry import bind
from embgrad.engine import sub_batches
from embgrad.engine.options import GradientOptions
from embgrad.engine.question import Question
from embgrad.testing.reference import ReferenceModel, lookup

BATCH = embgrad.TokenBatch(np.arange(15).reshape(5, 3))
MODEL = ReferenceModel(lambda own, input_ids: lookup(own.parameters["table"], input_ids), {"table": np.ones((15, 2))})


@pytest.mark.parametrize(
    ("size", "training", "compared"),
    [
        (2, False, [0, 4]),  # the first, and the only one of another size
        (2, True, []),  # each pass draws other random numbers
        (5, False, []),
        (None, False, []),
    ],
)
def test_a_sub_batch_of_each_size_is_compared(
    size: int | None, training: bool, compared: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    question = Question(bind(MODEL, None), BATCH, (embgrad.Sum(),), GradientOptions(training=training))
    found: list[int] = []

    def record(whole: Question, part: Question, start: int) -> Any:
        assert whole is question
        found.append(start)
        return contextlib.nullcontext()

    monkeypatch.setattr(sub_batches, "compare_sub_batch", record)
    reported: list[tuple[int, int]] = []
    ids = sub_batches.run_in_sub_batches(
        question, size, lambda *figures: reported.append(figures), lambda part: part.batch.ids
    )
    np.testing.assert_array_equal(np.concatenate(ids), BATCH.ids)
    assert found == compared
    assert reported == [(done, 5) for done in ([0, 2, 4, 5] if size == 2 else [0, 5])]


@pytest.mark.parametrize("call", [embgrad.gradients, embgrad.evaluate])
@pytest.mark.parametrize("number", [0, 1, 3])
def test_an_error_of_the_progress_is_the_callers_own(call: Any, number: int) -> None:
    """StopIteration too, which a generator would turn into another error, or take for its end."""
    calls = []

    def progress(done: int, total: int) -> None:
        calls.append(done)
        if len(calls) > number:
            raise StopIteration("enough")

    with pytest.raises(StopIteration, match="enough"):
        call(MODEL, BATCH, embgrad.Sum(), batch_size=2, progress=progress)
