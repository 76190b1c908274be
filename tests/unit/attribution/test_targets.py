"""Which output tokens are attributed, and what they are compared with, in every form that is accepted."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad import EmbgradError, TokenBatch
from embgrad.attribution.targets import Targets, targets_of
from tests.unit.attribution.language_models import causal
from tests.unit.objectives.test_log_probability import words

IDS = np.array([[3, 4, 5, 6, 7], [0, 0, 4, 5, 6], [7, 6, 0, 0, 0]])
MASK = np.array([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1], [1, 1, 0, 0, 0]])
BATCH = TokenBatch(IDS, MASK)


def targets(wanted: Any = None, contrast: Any = None, batch: TokenBatch = BATCH, tokenizer: Any = None) -> Targets:
    return targets_of(wanted, contrast, batch, tokenizer)


@pytest.mark.parametrize(
    ("wanted", "positions"),
    [
        (None, [[1, 2, 3, 4], [3, 4, -1, -1], [1, -1, -1, -1]]),
        (-1, [[4], [4], [1]]),
        ([-1], [[4], [4], [1]]),
        (np.int64(-1), [[4], [4], [1]]),
        ([[4, 2], [-2], []], [[4, 2], [3, -1], [-1, -1]]),
        ([[4], 3, (1,)], [[4], [3], [1]]),
        (np.array([[4], [3], [1]]), [[4], [3], [1]]),
        (slice(2, None), [[2, 3, 4], [4, -1, -1], [-1, -1, -1]]),
        (slice(None, 2), [[1], [3], [1]]),  # an example's first token has none before it
        (slice(-1, None), [[4], [4], [1]]),
    ],
    ids=str,
)
def test_output_tokens_are_chosen_in_every_form(wanted: Any, positions: list[list[int]]) -> None:
    chosen = targets(wanted)
    np.testing.assert_array_equal(chosen.positions, positions)
    expected = [[IDS[example, at] if at >= 0 else -1 for at in row] for example, row in enumerate(positions)]
    np.testing.assert_array_equal(chosen.ids, expected)
    np.testing.assert_array_equal(chosen.present, np.array(positions) >= 0)
    assert chosen.contrast is None
    assert chosen.positions.dtype == chosen.ids.dtype == np.int64


def test_a_token_after_padding_inside_an_example_is_no_default_target() -> None:
    inside = TokenBatch([[3, 4, 0, 5, 6]], [[1, 1, 0, 1, 1]])
    np.testing.assert_array_equal(targets(batch=inside).positions, [[1, 4]])


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (0, "the target 0 of example 0 is not a token with a real token before it: expected one of [1, 2, 3, 4], or"),
        (
            [[1], [2], [1]],
            "the target 2 of example 1 is not a token with a real token before it: expected one of [3, 4]",
        ),
        (2, "the target 2 of example 1 is not a token"),
        (5, "the target 5 of example 0 is not a token"),
        (-3, "the target -3 of example 1 is not a token"),
        ([[1], [3]], "targets is [[1], [3]]: expected 3 rows, one for each example"),
        (np.array([[1], [3]]), "expected 3 rows, one for each example"),
        ("last", "targets is 'last': expected positions, a list of them for each example, a slice"),
        (1.5, "targets is 1.5: expected positions"),
        (True, "targets is True: expected positions"),
        ([[[1]], [[3]], [[1]]], "expected positions"),
        (np.ones((3, 1, 1), int), "expected positions"),
        ([["a"], [3], [1]], "expected positions"),
        (slice(5, None), "no example has an output token: expected at least one real token after an example's first"),
        ([], "no example has an output token"),
    ],
    ids=str,
)
def test_what_is_no_output_token_is_refused(wanted: Any, message: str) -> None:
    with pytest.raises(EmbgradError, match=re.escape(message)):
        targets(wanted)


def test_an_example_without_real_tokens_has_no_output() -> None:
    batch = TokenBatch([[3, 4], [0, 0]], [[1, 1], [0, 0]])
    np.testing.assert_array_equal(targets(batch=batch).positions, [[1], [-1]])
    with pytest.raises(EmbgradError, match="the target -1 of example 1 is not a token"):
        targets(-1, batch=batch)


@pytest.mark.parametrize(
    ("contrast", "expected"),
    [
        (7, [[7, 7], [7, -1], [7, 7]]),
        ([7, 5], [[7, 5], [7, -1], [7, 5]]),
        ([[1, 2], [3, 4], [5, 6]], [[1, 2], [3, -1], [5, 6]]),
        ([[1], [3], [5]], [[1, 1], [3, -1], [5, 5]]),
        ("bad", [[7, 7], [7, -1], [7, 7]]),
        (" bad", [[7, 7], [7, -1], [7, 7]]),
        (["bad", "is"], [[7, 5], [7, -1], [7, 5]]),
    ],
    ids=str,
)
def test_ids_and_texts_are_compared_with(contrast: Any, expected: list[list[int]]) -> None:
    batch = TokenBatch([[3, 4, 5], [3, 4, 0], [3, 4, 5]], [[1, 1, 1], [1, 1, 0], [1, 1, 1]])
    chosen = targets(contrast=contrast, batch=batch, tokenizer=words())
    assert chosen.contrast is not None
    np.testing.assert_array_equal(chosen.contrast, expected)


@pytest.mark.parametrize(
    ("contrast", "tokenizer", "message"),
    [
        (-2, None, "contrast is -2: expected an id or a token's text, one for each output token, or ids of shape"),
        (0.5, None, "contrast is 0.5: expected an id"),
        (["bad", 3], None, "contrast is ['bad', 3]: expected an id"),
        (
            [1, 2, 3],
            None,
            "contrast has the shape (3,): expected one id, or one for each output token, (example, output)",
        ),
        ([[1, 2]] * 2, None, "contrast has the shape (2, 2): expected one id"),
        (np.ones((1, 3, 4), int), None, "expected an id"),
        ("bad", None, "contrast is 'bad', and there is no tokenizer: give tokenizer=..., or ids"),
        (["bad", "film"], None, "contrast is ['bad', 'film'], and there is no tokenizer"),
        ("a bad film", words(), "contrast 'a bad film' has 3 tokens, [0, 7, 4]: expected a text of a single token"),
        (
            "",
            words(),
            "contrast is '', which has no tokens but special ones: expected the text of one token, or its id",
        ),
    ],
)
def test_what_cannot_be_compared_with_is_refused(contrast: Any, tokenizer: Any, message: str) -> None:
    with pytest.raises(EmbgradError, match=re.escape(message)):
        targets(contrast=contrast, tokenizer=tokenizer)


def test_each_column_of_outputs_has_an_objective() -> None:
    chosen = targets([[4, 2], [-2], []], contrast=7)
    first, second = chosen.objectives(BATCH)
    for objective, positions in ((first, [4, 3, None]), (second, [2, None, None])):
        labels, against = np.full(IDS.shape, -100), np.full(IDS.shape, -100)
        for example, position in enumerate(positions):
            if position is not None:
                labels[example, position], against[example, position] = IDS[example, position], 7
        np.testing.assert_array_equal(objective.labels, labels)
        np.testing.assert_array_equal(objective.against, against)
        assert objective.shift
    assert isinstance(first, embgrad.LogProbability)


@pytest.mark.parametrize("targets", [slice("a"), slice(None, None, 0)])
def test_slices_of_something_else_than_whole_numbers_are_refused(targets: slice) -> None:
    with pytest.raises(
        EmbgradError, match="expected a slice of whole numbers, with a step that is not 0, of an example's real"
    ):
        embgrad.attribute_tokens(causal(), [[1, 2, 3]], targets)
