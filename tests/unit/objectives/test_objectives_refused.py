"""Arguments and outputs of other shapes, types and numbers: which objectives refuse them, and how."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad import (
    BinaryCrossEntropy,
    CosineSimilarity,
    CrossEntropy,
    Logit,
    Margin,
    Objective,
    Probability,
    Projection,
    Scalar,
    SquaredError,
    Sum,
    TokenBatch,
)
from tests.unit.objectives.test_objectives import BATCH, PER_POSITION, ROWS, softmax
from tests.unit.refusals import refused


def test_a_margin_over_the_largest_other_needs_another_class() -> None:
    with pytest.raises(embgrad.errors.ObjectiveError, match=r"single class.*use embgrad.Logit"):
        Margin(0).evaluate(np.ones((1, 1)), TokenBatch([[1]]))


@pytest.mark.parametrize(
    ("build", "fragments"),
    [
        (lambda: CrossEntropy([0.5, 1]), ["labels is [0.5, 1]", "expected whole numbers"]),
        *(
            (lambda labels=labels: CrossEntropy(labels), [f"labels is {labels}"])
            for labels in ([np.nan], [True, False], [], None, [[0], [1, 2]], [2**70])
        ),
        (lambda: CrossEntropy(np.float16([2048])), ["labels is [2048.0]"]),
        (lambda: CrossEntropy([0], of="logit"), ["of is 'logit'", "expected 'logits' or 'probabilities'"]),
        (lambda: CrossEntropy([0], of=np.array(["a", "b"])), ["of is array"]),
        (lambda: Probability(0, of="logit"), ["of is 'logit'", "Did you mean 'logits'"]),
        (lambda: Probability(0.5), ["label is 0.5", "expected whole numbers"]),
        *((lambda index=index: Logit(index), [f"index is {index}"]) for index in (None, 1.5)),
        (lambda: Margin(1, 1), ["index=1 and against=1 name the same entry", "always 0"]),
        (lambda: Margin([0, 1], [2, 1]), ["index=[0, 1] and against=[2, 1]"]),
        (lambda: Margin([0, 1], 1), ["index=[0, 1] and against=1"]),
        (lambda: Projection("a"), ["vector is 'a'", "expected an array of real numbers"]),
        (lambda: Projection(["1", "2"]), ["vector is ['1', '2']", "expected an array of real numbers"]),
        (lambda: Projection([1j]), ["vector is [1j]", "expected an array of real numbers"]),
        (lambda: Projection(np.zeros(2, "datetime64[D]")), ["expected an array of real numbers", "datetime64"]),
        (lambda: Projection(np.zeros(2, [("a", int)])), ["expected an array of real numbers", "('a', '<i8')"]),
        (lambda: Projection([[1], [1, 2]]), ["vector is [[1], [1, 2]]"]),
        (lambda: Projection(3.0), ["vector has shape ()", "(classes,) or (example, classes)"]),
        (lambda: Projection([1.0, np.nan]), ["vector has shape (2,)", "expected finite numbers"]),
        (lambda: Projection(np.ones((1, 1, 1))), ["vector has shape (1, 1, 1)"]),
        (lambda: Sum(position="last"), ["position is 'last'", "expected whole numbers"]),
        (lambda: Sum(position=True), ["position is True"]),
        (lambda: Sum(position=0.5), ["position is 0.5"]),
        (lambda: Projection([10**400]), ["int too large to convert to float"]),
        (lambda: Sum(output=["logits"]), ["output is ['logits']", "expected the name of an output"]),
        (lambda: Sum(output=0), ["output is 0", "such as 'logits' or '0'"]),
        (lambda: Scalar(3), ["the function of Scalar is 3", "expected a function"]),
    ],
)
def test_arguments_that_are_refused(build: Callable[[], Any], fragments: list[str]) -> None:
    with refused(embgrad.errors.ObjectiveError, *fragments):
        build()


@pytest.mark.parametrize(
    ("objective", "output", "fragments"),
    [
        (Sum(), np.array(1.0), ["the output has shape ()", "expected 3 examples", "output=...", "callable"]),
        (Sum(), ROWS[:2], ["the output has shape (2, 5)", "expected 3 examples on its first axis"]),
        (CrossEntropy([0, 1]), ROWS, ["label has 2 entries", "expected 3, one for each example"]),
        (CrossEntropy([0, 1, 2, 0]), ROWS, ["label has 4 entries"]),
        (CrossEntropy([0, 1, 5]), ROWS, ["label 5 at example 2 is out of range", "5 classes, expected 0 to 4"]),
        (CrossEntropy([0, -1, 1]), ROWS, ["label -1 at example 1 is out of range"]),
        (CrossEntropy([-100, 0, 0]), ROWS, ["label -100 at example 0 is out of range"]),
        (CrossEntropy([[0], [1], [2]]), ROWS, ["labels have shape (3, 1)", "one label for each example"]),
        (CrossEntropy(np.eye(3, 5).astype(int)), ROWS, ["labels have shape (3, 5)", "one label for each example"]),
        (CrossEntropy([0, 0, 0]), ROWS[:, :1], ["one entry for each example", "Sum()", "BinaryCrossEntropy"]),
        (CrossEntropy([0, 0, 0]), ROWS[:, 0], ["one entry for each example"]),
        (CrossEntropy([0, 1, 2]), PER_POSITION, ["labels have shape (3,)", "labels of shape (3, 4)", "position=..."]),
        (CrossEntropy(np.full((3, 4), 5)), PER_POSITION, ["label 5 at example 0, position 0 is out of range"]),
        (CrossEntropy(np.zeros((3, 4), int), position=0), PER_POSITION, ["labels have shape (3, 4)"]),
        (CrossEntropy([0, 1, 2]), softmax(ROWS), ["end in a softmax", "pass of='probabilities'", "output=..."]),
        (CrossEntropy([0, 1, 2]), softmax(ROWS).astype(np.float16), ["end in a softmax"]),
        (CrossEntropy([0, 1, 2], of="probabilities"), ROWS, ["output at example 0", "not probabilities", "'logits'"]),
        (CrossEntropy([1, 0, 0], of="probabilities"), np.eye(3), ["label at example 0 is 0.0", "infinite", "logits"]),
        (Probability(5), ROWS, ["label 5 at example 0 is out of range"]),
        (Probability([0, 1]), ROWS, ["label has 2 entries"]),
        (Probability(0), ROWS[:, :1], ["the probability of a single class is always 1", "the sigmoid"]),
        (Probability(0), PER_POSITION, ["the output is per position, (3, 4, 5)", "expected position=..."]),
        (Probability(0), softmax(ROWS), ["end in a softmax", "pass of='probabilities'"]),
        (Probability(0, of="probabilities"), ROWS, ["output at example 0", "not probabilities"]),
        (Logit(5), ROWS, ["index 5 at example 0 is out of range"]),
        (Logit(-1), ROWS, ["index -1 at example 0 is out of range"]),
        (Logit([0, 1]), ROWS, ["index has 2 entries"]),
        (Logit([[0], [1], [2]]), ROWS, ["index has shape (3, 1)", "or (3,), one for each example"]),
        (Logit(np.zeros((3, 4), int)), PER_POSITION, ["index has shape (3, 4)"]),
        (Margin(0, 5), ROWS, ["against 5 at example 0 is out of range"]),
        (Margin([0, 1, 2], [1, 0]), ROWS, ["against has 2 entries"]),
        (Projection([1.0, 2.0]), ROWS, ["vector has shape (2,)", "the output has 5 entries"]),
        (Projection(ROWS[:2]), ROWS, ["vector has 2 entries"]),
        (Sum(position=0), ROWS, ["position=0 selects one position", "shape (3, 5)", "(3, 4, …)", "omit position"]),
        (Sum(position=4), PER_POSITION, ["position 4 of example 0 is outside the 4 positions"]),
        (Sum(position=-5), PER_POSITION, ["position -5 of example 0 is outside"]),
        (Sum(position=-3), PER_POSITION, ["position -3 of example 2 is outside", "its real positions are [0, 1]"]),
        (Sum(position=3), PER_POSITION, ["position 3 of example 1 is padding", "its real positions are [0, 1, 2]"]),
        (Sum(position=[0, 1]), PER_POSITION, ["position has shape (2,)", "expected one number, or 3, one for each"]),
        (Sum(position=[[0], [1], [1]]), PER_POSITION, ["position has shape (3, 1)"]),
        (Logit(0), ROWS.reshape(3, 5, 1), ["the output has shape (3, 5, 1)", "(example, position, classes)"]),
        (CrossEntropy([0, 1, 2]), np.zeros((3, 0)), ["0 classes"]),
        (Sum(), ROWS * np.nan, ["the objective is nan at example 0", "expected finite numbers"]),
        (Sum(), PER_POSITION * np.inf, ["at example 0, position 0"]),
        (CrossEntropy([0, 1, 2]), np.full((3, 5), -np.inf), ["the objective is nan at example 0"]),
    ],
)
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_outputs_that_are_refused(objective: Objective, output: np.ndarray, fragments: list[str]) -> None:
    with refused(embgrad.errors.ObjectiveError, *fragments):
        objective.evaluate(output, BATCH)


def test_a_position_of_an_example_that_is_all_padding() -> None:
    batch = BATCH.replace(mask=[[1, 1, 1, 1], [0, 0, 0, 0], [1, 1, 1, 1]])
    with refused(embgrad.errors.ObjectiveError, "position -1 of example 1 is padding: its real positions are []"):
        Sum(position=-1).evaluate(PER_POSITION, batch)


@pytest.mark.parametrize(
    ("objective", "fragment"),
    [
        (CrossEntropy([0, 1]), "labels has 2 entries: expected 3"),
        (Logit([0, 1]), "index has 2 entries"),
        (Probability([0, 1]), "label has 2 entries"),
        (Projection(np.ones((2, 2))), "vector has 2 entries"),
        (BinaryCrossEntropy([0, 1]), "labels has 2 entries"),
        (SquaredError([0, 1]), "target has 2 entries"),
        (CosineSimilarity(np.ones((2, 2))), "vector has 2 entries"),
        (Sum(position=[0, 1]), "position has 2 entries"),
    ],
)
def test_arguments_of_the_wrong_length_cannot_be_sliced(objective: Objective, fragment: str) -> None:
    with pytest.raises(embgrad.errors.ObjectiveError, match=fragment):
        objective.take(slice(0, 1), 3)


@pytest.mark.parametrize("make", [list, tuple, np.array, lambda numbers: np.array(numbers)[:, None]])
def test_an_attribute_of_the_users_own_with_an_entry_for_each_example_is_not_sliced(make: Any) -> None:
    class Own(Sum):
        def __init__(self, extra: Any) -> None:
            super().__init__()
            self.extra = extra

    with refused(embgrad.errors.ObjectiveError, "Own has the attribute 'extra' with 3 entries, as many as the batch"):
        Own(make([4, 5, 6])).take(slice(0, 1), 3)
    for other in (make([4, 5]), np.array(3), 3, "abc", None):
        assert Own(other).take(slice(0, 1), 3).extra is other


def test_the_row_whose_label_has_no_probability_is_named() -> None:
    rows = np.array([[0.5, 0.5], [0.0, 1.0], [1.0, 0.0]])
    with refused(embgrad.errors.ObjectiveError, "the probability of the label at example 2 is 0.0"):
        CrossEntropy([0, 1, 1], of="probabilities").evaluate(rows, BATCH)
