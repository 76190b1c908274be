"""Faithfulness of a batch with further inputs, of a decoder, and of objectives and models that read positions."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.errors import ObjectiveError, OutputError, UnsupportedError
from embgrad.testing.reference import ReferenceModel, Tensor, lookup
from tests.unit.attribution.models import CLASSES, DIM, VOCAB, curved
from tests.unit.attribution.test_faithfulness import BATCH, IDS, LOGIT, TOKENS, measured, scores, tagger


def numbered(model: Any, inputs: Any) -> Any:
    """Call the model with an input of each example, and with the positions' numbers."""
    rows = lookup(model["E"], inputs["input_ids"])
    places = np.asarray(inputs["position_ids"], float)[..., None] * np.asarray(inputs["scale"], float)[:, None, None]
    return (rows + Tensor(places)).tanh().sum(1) @ model["W"]


@pytest.mark.parametrize("whole", [True, False])
def test_inputs_of_examples_follow_and_positions_are_counted_anew(whole: bool) -> None:
    ids = np.arange(3, 11)[None] if whole else np.broadcast_to(np.arange(3, 11), IDS.shape)
    extras = {"position_ids": ids, "scale": np.array([0.1, -0.2])}
    batch = embgrad.TokenBatch(IDS, tokens=TOKENS, extras=extras, shared=["position_ids"] if whole else [])
    found = measured(scores(), batch=batch, call=numbered, curves=False)
    for example in (0, 1):
        stays = np.arange(8) != 2
        extras = {"position_ids": np.arange(3, 10)[None], "scale": np.array([[0.1, -0.2][example]])}
        shorter = embgrad.TokenBatch(IDS[example : example + 1, stays], extras=extras)
        expected = found.objective[example] - embgrad.evaluate(curved(), shorter, LOGIT, call=numbered)[0]
        assert found.leave_one_out[example, 2] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("extras", "message"),
    [
        ({"boxes": np.zeros((2, 8, 4))}, "the further input 'boxes' has the shape (2, 8, 4), with as many entries as the text"),
        ({"boxes": [[0] * 8] * 2}, "the further input 'boxes' has the shape (2, 8), with as many entries as the text"),
        ({"position_ids": np.zeros((2, 8), int)}, "position_ids of example 0 are [0, 0, 0, 0, 0, 0, 0, 0]: expected numbers"),
        ({"position_ids": np.zeros(3, int)}, "position_ids of example 0 are [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]: expected"),
    ],
)  # fmt: skip
def test_a_further_input_that_cannot_be_cut_is_refused(extras: Any, message: str) -> None:
    with pytest.raises(UnsupportedError, match=re.escape(message)):
        measured(scores(), batch=BATCH.replace(extras=extras), call=lambda model, inputs: model(inputs["input_ids"]))


def test_further_inputs_without_positions_are_passed_on() -> None:
    """A decoder's have its own positions; lists of several lengths have none."""
    extras = {"decoder_input_ids": np.ones((2, 8), int), "notes": [[1], [2, 3]]}
    call = lambda model, inputs: model(inputs["input_ids"], inputs["attention_mask"])  # noqa: E731
    found = measured(scores(), batch=BATCH.replace(extras=extras), call=call)
    np.testing.assert_array_equal(found.deletion, measured(scores()).deletion)


def translate(model: Any, input_ids: np.ndarray, decoder_input_ids: Any = None, labels: Any = None) -> Tensor:
    """Run an encoder-decoder, which derives the decoder's ids from labels without a shift."""
    text = lookup(model["E"], input_ids).tanh().sum(1).reshape(-1, 1, DIM)
    decoder = labels if decoder_input_ids is None else decoder_input_ids
    return (text + lookup(model["E2"], np.asarray(decoder))).tanh() @ model["W"]


@pytest.mark.parametrize("name", ["labels", "decoder_input_ids"])
def test_positions_of_a_decoder_stay(name: str) -> None:
    random = np.random.default_rng(0)
    shapes = {"E": (VOCAB, DIM), "E2": (VOCAB, DIM), "W": (DIM, CLASSES)}
    model = ReferenceModel(translate, {key: random.normal(size=shape) for key, shape in shapes.items()})
    decoder = random.integers(1, VOCAB, IDS.shape)
    objective = embgrad.CrossEntropy(decoder % CLASSES)
    batch = embgrad.TokenBatch(IDS, tokens=TOKENS, extras={name: decoder})
    found = measured(scores(), model, objective, batch, curves=False)
    for example in (0, 1):
        stays = np.arange(8) != 2
        shorter = embgrad.TokenBatch(IDS[example : example + 1, stays], extras={name: decoder[example : example + 1]})
        without_one = embgrad.evaluate(model, shorter, objective.take(np.array([example]), 2))[0]
        assert found.leave_one_out[example, 2] == pytest.approx(found.objective[example] - without_one, abs=1e-12)


def test_a_function_as_objective_takes_replaced_tokens_alone() -> None:
    def function(output: Any) -> Any:
        assert output.shape == (2, CLASSES)
        return (output * Tensor(np.array([1.0, 0.0]))).sum(1)

    by_function, by_objective = (measured(scores(), objective=entry, remove="zero") for entry in (function, LOGIT))
    np.testing.assert_allclose(by_function.deletion, by_objective.deletion)
    with pytest.raises(UnsupportedError, match="the objective is a function, which may know the whole batch in order"):
        measured(scores(), objective=function)


def test_labels_of_positions_cannot_follow_deleted_tokens() -> None:
    labels = embgrad.CrossEntropy(np.ones(IDS.shape, int))
    with pytest.raises(UnsupportedError, match=re.escape("the objective has a label for each position, (2, 8)")):
        measured(scores(), tagger(), labels)
    assert measured(scores(), tagger(), labels, remove="zero").deletion.shape == (1, 2, 7)


def test_chosen_positions_cannot_follow_deleted_tokens() -> None:
    objective = embgrad.Probability([2, 2], output="start_logits")
    with pytest.raises(UnsupportedError, match="the objective chooses positions of 'start_logits', which would have"):
        measured(scores(), tagger(), objective)


def test_chosen_positions_of_an_output_without_a_name_cannot_follow_either() -> None:
    def scored(model: Any, inputs: Any) -> Any:
        return model(inputs["input_ids"], inputs["attention_mask"])[:, :, 0]

    message = "entries in a row, and 8 for the whole text: they follow its positions"
    with pytest.raises(ObjectiveError, match=message):
        measured(scores(), tagger(), embgrad.Logit([1, 1]), call=scored)
    assert measured(scores(), tagger(), embgrad.Sum(), call=scored).deletion.shape == (1, 2, 7)


def test_a_model_of_one_shape_takes_no_shorter_text() -> None:
    def fixed(model: Any, inputs: Any) -> Any:
        assert np.asarray(inputs["input_ids"]).shape[1] == 8
        return model(inputs["input_ids"], inputs["attention_mask"])

    with pytest.raises(
        UnsupportedError,
        match=r"the model takes 8 positions, and raised AssertionError for \d texts of 2, from which",
    ):
        measured(scores(), call=fixed)
    assert measured(scores(), call=fixed, remove=4).deletion.shape == (1, 2, 7)


def test_an_objective_that_is_not_finite_without_some_tokens_names_the_examples() -> None:
    class Short(embgrad.Objective):
        def _rows(self, rows: Any) -> Any:
            return np.where(rows.values[:, 0] == whole[: len(rows.values)], 1.0, np.nan), np.zeros_like(rows.values)

    whole = embgrad.gradients(curved(), BATCH, LOGIT).objective
    with pytest.raises(ObjectiveError, match=r"with tokens deleted from the examples \[0, 1\], numbered in the pass"):
        measured(scores(), objective=Short())


def test_an_input_of_which_the_embgrad_error_is_kept() -> None:
    def picky(model: Any, inputs: Any) -> Any:
        if np.asarray(inputs["input_ids"]).shape[1] < 8:
            raise OutputError("no output")
        return model(inputs["input_ids"], inputs["attention_mask"])

    with pytest.raises(OutputError, match="no output"):
        measured(scores(), call=picky)
