"""Classes by their names in a model's config: the same numbers as by index, and what is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad import BinaryCrossEntropy, CrossEntropy, Logit, Margin, Probability
from embgrad.errors import ObjectiveError
from embgrad.testing.reference import ReferenceModel, lookup
from tests.unit.refusals import refused

IDS = np.array([[2, 7, 7, 5], [1, 4, 9, 3], [6, 6, 1, 2]])
NAMES = {0: "negative", 1: "neutral", 2: "positive"}


def model(names: Any = NAMES, per_position: bool = False) -> Any:
    """Return a classifier with these names of classes in its config; None for a model without a config."""
    random = np.random.default_rng(0)

    def forward(model: Any, input_ids: np.ndarray) -> Any:
        rows = lookup(model["E"], input_ids).tanh()
        return (rows if per_position else rows.sum(1)) @ model["W"]

    built = ReferenceModel(forward, {"E": random.normal(size=(12, 4)), "W": random.normal(size=(4, 3))})
    if names is not None:
        built.config = SimpleNamespace(id2label=names)
    return built


@pytest.mark.parametrize(
    ("named", "by_index"),
    [
        (Logit("positive"), Logit(2)),
        (Logit(["positive", "negative", "positive"]), Logit([2, 0, 2])),
        (Logit(np.array(["positive", "negative", "neutral"])), Logit([2, 0, 1])),
        (Logit(["positive", 0, np.int64(1)]), Logit([2, 0, 1])),
        (Probability("neutral"), Probability(1)),
        (Margin("positive"), Margin(2)),
        (Margin("positive", against="negative"), Margin(2, 0)),
        (Margin(["positive", "neutral", "negative"], against=[0, 0, 2]), Margin([2, 1, 0], [0, 0, 2])),
        (CrossEntropy(["neutral", "negative", "positive"]), CrossEntropy([1, 0, 2])),
        (
            BinaryCrossEntropy([["positive", "neutral"], [], ["negative"]]),
            BinaryCrossEntropy([[0, 1, 1], [0, 0, 0], [1, 0, 0]]),
        ),
    ],
)
@pytest.mark.parametrize("names", [NAMES, {str(index): name for index, name in NAMES.items()}])
def test_names_are_the_indices_of_the_config(named: Any, by_index: Any, names: Any) -> None:
    made, expected = (embgrad.gradients(model(names), IDS, objective, batch_size=2) for objective in (named, by_index))
    np.testing.assert_array_equal(made.values, expected.values)
    np.testing.assert_array_equal(made.objective, expected.objective)
    assert made.provenance["objective"] == expected.provenance["objective"]
    np.testing.assert_allclose(embgrad.evaluate(model(names), IDS, named), expected.objective, rtol=1e-12)
    np.testing.assert_allclose(
        embgrad.attribute(model(names), IDS, named, "input_x_gradient").scores,
        embgrad.attribute(model(names), IDS, by_index, "input_x_gradient").scores,
    )
    assert named.take(slice(0, 1), 3).named == named.named  # of names, until a call with a model


def test_tokens_have_labels_by_name_and_ignored_ones() -> None:
    tagger = model({0: "O", 1: "B-PER", 2: "I-PER"}, per_position=True)
    labels = [[-100, "O", "B-PER", "I-PER"], ["O", "O", -100, -100], [-100, "I-PER", -100, "O"]]
    made = embgrad.gradients(tagger, IDS, CrossEntropy(labels))
    by_index = CrossEntropy([[-100, 0, 1, 2], [0, 0, -100, -100], [-100, 2, -100, 0]])
    np.testing.assert_array_equal(made.values, embgrad.gradients(tagger, IDS, by_index).values)


def test_a_search_and_a_stream_know_the_names() -> None:
    options = {"method": "input_x_gradient"}
    (made,) = embgrad.stream(model(), [IDS], Logit("positive"), **options)
    np.testing.assert_allclose(made.scores, embgrad.attribute(model(), IDS, Logit(2), "input_x_gradient").scores)
    named, by_index = (
        embgrad.substitutions(model(), IDS, objective, top=3) for objective in (Logit("neutral"), Logit(1))
    )
    np.testing.assert_array_equal(named.ids, by_index.ids)
    found = [
        embgrad.search(model(), IDS, objective, embgrad.methods.HotFlip(steps=2))
        for objective in (CrossEntropy(["neutral"] * 3), CrossEntropy([1] * 3))
    ]
    np.testing.assert_array_equal(found[0].batch.ids, found[1].batch.ids)


def test_a_name_that_the_model_does_not_have_is_refused() -> None:
    with refused(
        ObjectiveError, "index names the class 'postive', which is not in", "'positive'. Did you mean 'positive'?"
    ):
        embgrad.gradients(model(), IDS, Logit("postive"))
    with refused(ObjectiveError, "labels names the class 'x', but the model has no config.id2label", "a whole number"):
        embgrad.gradients(model(None), IDS, CrossEntropy(["x", "y", "z"]))
    twice = {0: "a", 1: "b", 2: "a"}
    with refused(ObjectiveError, "label names the class 'a', but several classes of the model have that name, 0, 2"):
        embgrad.gradients(model(twice), IDS, Probability("a"))
    with refused(ObjectiveError, "name the same entry: its margin over itself is always 0"):
        embgrad.gradients(model(), IDS, Margin("positive", against=2))
    with refused(ObjectiveError, "index is ['positive'", "only a call with a model knows the classes by name"):
        Logit(["positive", "neutral", "positive"]).evaluate(np.zeros((3, 3)), embgrad.TokenBatch(IDS))


@pytest.mark.parametrize(
    "wrong", [["positive", 0.5], [["positive"], ["neutral", "negative"]], ["positive", None], ["a", True]]
)
def test_arguments_that_are_neither_names_nor_numbers_are_refused(wrong: Any) -> None:
    with refused(ObjectiveError, "index is ", "expected whole numbers, or names of classes, in an array"):
        Logit(wrong)
    with refused(ObjectiveError, "labels holds ['positive', 1]: expected a list of names of classes for each example"):
        BinaryCrossEntropy([["positive", 1]])
