"""Sub-batches of a batch: which of them are compared with the whole batch, and the progress that is reported."""

from __future__ import annotations

import contextlib
import warnings
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.backend.registry import bind
from embgrad.engine import sub_batches
from embgrad.engine.options import GradientOptions
from embgrad.engine.question import Question
from embgrad.objectives.native import NativeObjective
from embgrad.testing.reference import ReferenceModel, Tensor, lookup
from tests.support.company import expect_state_of_one_number
from tests.unit.company import DIM, FULL, LOGIT, WEIGHTS, carried, of_one_number, plain, rows_of, stateful

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


def test_a_part_has_its_examples_entries() -> None:
    objectives = (embgrad.CrossEntropy([4, 3, 2, 1, 0]), NativeObjective(len, scalar=False))
    question = Question(bind(MODEL, None), BATCH, objectives, GradientOptions())
    part = question.part(1, 4).part(1, 3)
    np.testing.assert_array_equal(part.batch.ids, BATCH.ids[2:4])
    assert (part.objectives[0].labels.tolist(), part.objectives[1]) == ([2, 1], objectives[1])  # type: ignore[union-attr]
    assert (part.examples, part.count) == (slice(2, 4), 5)


# States


def test_sub_batches_of_a_model_that_carries_a_state_are_refused() -> None:
    for call in (embgrad.gradients, embgrad.evaluate):
        model = stateful(3, DIM)
        with pytest.raises(
            embgrad.errors.UnsupportedError,
            match=r"the model keeps 'state' from call to call, and L of example .* in a pass of 2 examples .*Give batch_size=3",
        ):
            call(model, FULL, LOGIT, batch_size=2)
        whole = call(model, FULL, LOGIT, batch_size=3)
        objective = getattr(whole, "objective", whole)
        state = model.kept["state"]  # type: ignore[attr-defined]
        np.testing.assert_allclose(objective, carried(rows_of(), state), rtol=1e-12)


def test_one_example_that_differs_suffices() -> None:
    model = stateful(3, DIM)
    model.kept["state"][[0, 2]] = 0  # type: ignore[attr-defined]
    with pytest.raises(embgrad.errors.UnsupportedError, match="and L of example 1 is"):
        embgrad.evaluate(model, FULL, LOGIT, batch_size=2)


def test_a_state_that_passes_of_one_number_of_examples_write() -> None:
    expect_state_of_one_number(of_one_number, FULL)
    model = of_one_number(1)
    model.kept[:] = 0  # type: ignore[attr-defined]
    parts, whole = (embgrad.evaluate(model, FULL, LOGIT, batch_size=size) for size in (2, None))
    np.testing.assert_allclose(parts, whole, rtol=1e-12)


def test_a_constant_as_long_as_the_batch_is_no_state() -> None:
    sizes: list[int] = []

    def forward(model: Any, ids: np.ndarray) -> Tensor:
        sizes.append(len(ids))
        sums = lookup(model["E"], ids).sum(1)
        return (sums + sums.mean(0) * -1.0) @ model["W"]

    model = ReferenceModel(forward, WEIGHTS)
    model.constant = np.ones((3, DIM))  # type: ignore[attr-defined]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parts = embgrad.gradients(model, FULL, LOGIT, batch_size=2)
    np.testing.assert_allclose(parts.values[2], 0, atol=1e-12, err_msg="an example without others is its own mean")
    assert sizes == [2, 3, 1]


def test_a_batch_that_does_not_fit_is_not_run_for_a_constant_as_long() -> None:
    def forward(model: Any, ids: np.ndarray) -> Tensor:
        if len(ids) > 2:
            raise MemoryError
        return lookup(model["E"], ids).sum(1) @ model["W"]

    model = ReferenceModel(forward, WEIGHTS)
    model.constant = np.ones((3, DIM))  # type: ignore[attr-defined]
    parts = embgrad.gradients(model, FULL, LOGIT, batch_size=2)
    np.testing.assert_array_equal(parts.values, embgrad.gradients(plain(), FULL, LOGIT).values)


def test_sub_batches_of_a_model_that_keeps_its_last_output_are_those_of_the_batch() -> None:
    def forward(model: Any, ids: np.ndarray) -> Tensor:
        out = lookup(model["E"], ids).sum(1) @ model["W"]
        model.last = out.value
        return out

    model = ReferenceModel(forward, WEIGHTS)
    model(FULL)
    last = model.last  # type: ignore[attr-defined]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parts = embgrad.gradients(model, FULL, LOGIT, batch_size=1)
    np.testing.assert_array_equal(parts.values, embgrad.gradients(plain(), FULL, LOGIT).values)
    assert model.last is last  # type: ignore[attr-defined]
