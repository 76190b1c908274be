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
from tests.unit.results.attributed import byte_level

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


@pytest.mark.parametrize(
    ("wanted", "positions"),
    [
        ([slice(1, None)], [[[1, 2, 3, 4]], [[3, 4, -1, -1]], [[1, -1, -1, -1]]]),
        (
            [slice(-1, None), None],
            [[[4, -1, -1, -1], [1, 2, 3, 4]], [[4, -1, -1, -1], [3, 4, -1, -1]], [[1, *[-1] * 3]] * 2],
        ),
        ([-1, slice(None)], [[[4, -1, -1, -1], [1, 2, 3, 4]], [[4, -1, -1, -1], [3, 4, -1, -1]], [[1, *[-1] * 3]] * 2]),
        ([[slice(1, 3), 4], slice(1, None), [-1]], [[[1, 2], [4, -1]], [[3, -1], [4, -1]], [[1, -1], [-1, -1]]]),
        ([slice(-1, None)], [[4], [4], [1]]),  # of single tokens
    ],
    ids=str,
)
def test_entries_of_a_list_are_spans(wanted: Any, positions: Any) -> None:
    chosen = targets(wanted)
    np.testing.assert_array_equal(chosen.positions, positions)
    flat = np.maximum(chosen.positions, 0).reshape(3, -1)
    ids = np.take_along_axis(IDS, flat, 1).reshape(chosen.positions.shape)
    np.testing.assert_array_equal(chosen.ids, np.where(chosen.positions >= 0, ids, -1))
    for output, objective in enumerate(chosen.objectives(BATCH)):
        expected = np.full(IDS.shape, -100)
        for example, row in enumerate(chosen.spans[:, output]):
            expected[example, row[row >= 0]] = IDS[example, row[row >= 0]]
        np.testing.assert_array_equal(objective.labels, expected)


def test_texts_are_found_by_their_characters_or_by_their_ids() -> None:
    tokenizer = words()
    by_characters = embgrad.encode(["the film is great", "bad film is great is bad"], tokenizer)
    by_ids = TokenBatch(by_characters.ids, by_characters.mask)
    for batch in (by_characters, by_ids):
        for text in ("film is great", " film is great"):
            chosen = targets(text, batch=batch, tokenizer=tokenizer)
            assert chosen.positions.tolist() == [[[2, 3, 4]], [[2, 3, 4]]]
        chosen = targets([["great", "the film"], ["is bad", "great is"]], batch=batch, tokenizer=tokenizer)
        assert chosen.positions.tolist() == [[[4, -1], [1, 2]], [[5, 6], [4, 5]]]
        with pytest.raises(
            EmbgradError,
            match=r"the target 'is' is a text that example 1 has at the positions \[3, 5\]: expected a text that is",
        ):
            targets("is", batch=batch, tokenizer=tokenizer)
        for text in ("the film", "is bad is"):
            with pytest.raises(
                EmbgradError, match=f"'{text}' is a text that example . does not have as whole tokens after its"
            ):
                targets(text, batch=batch, tokenizer=tokenizer)
    with pytest.raises(EmbgradError, match="'reat' is a text that example 0 does not have as whole tokens"):
        targets("reat", batch=by_characters)


def test_characters_of_several_bytes_are_whole_tokens() -> None:
    batch = embgrad.encode(["a 🙂 a"], byte_level())
    chosen = targets("🙂", batch=batch)
    assert batch.offsets is not None
    spans = batch.offsets[0, chosen.positions[0, 0]]
    assert "a 🙂 a"[spans[:, 0].min() : spans[:, 1].max()].strip() == "🙂"


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
        (
            "last",
            "the text 'last' names tokens of a batch of ids, and there is no tokenizer: give tokenizer=..., or positions",
        ),
        (" ", "the text ' ' has no characters but white space: expected those of some tokens"),
        (
            1.5,
            "targets is 1.5: expected positions, slices or texts, a list of them for each example, or None for every",
        ),
        ([slice(2, None), 1.5], "expected positions, slices or texts"),
        (True, "targets is True: expected positions"),
        ([[[1]], [[3]], [[1]]], "expected positions"),
        (np.ones((3, 1, 1), int), "expected positions"),
        ([["a"], [3], [1]], "the text 'a' names tokens of a batch of ids"),
        (
            [slice(3, None)],
            "the target slice(3, None, None) has no token of example 1 with a real token before it: expected a",
        ),
        ([slice(None, 1)], "the target slice(None, 1, None) has no token of example 0 with a real token before it"),
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
        ([["bad", "is"], ["film", "is"], ["is", "is"]], [[7, 5], [4, -1], [5, 5]]),
        ([[[1], [2]]], [[1, 2], [1, -1], [1, 2]]),
        ("bad film", [[[7, 4], [7, 4]], [[7, 4], [-1, -1]], [[7, 4], [7, 4]]]),
        (["bad film", "is"], [[[7, 4], [5, -1]], [[7, 4], [-1, -1]], [[7, 4], [5, -1]]]),
        ([[[1, 2], [3]]], [[[1, 2], [3, -1]], [[1, 2], [-1, -1]], [[1, 2], [3, -1]]]),
        (np.array([[[1, 2], [3, 4]]]), [[[1, 2], [3, 4]], [[1, 2], [-1, -1]], [[1, 2], [3, 4]]]),
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
        (-2, None,
            "contrast is -2: expected an id or a text, one for each output token, (output,) or (example, output); or"),
        (0.5, None, "contrast is 0.5: expected an id"),
        (["bad", 3], None, "contrast is ['bad', 3]: expected an id"),
        ([1, 2, 3], None,
            "contrast has the shape (3,): expected one id or text, or one for each output token, (example, output)"),
        ([[1, 2]] * 2, None, "contrast has the shape (2, 2): expected one id"),
        (np.ones((1, 3, 4), int), None, "contrast has the shape (1, 3): expected one id or text"),
        (-np.ones((1, 4, 4), int), None, "expected an id or a text"),
        ([[3, 4], [5]], None, "contrast is [[3, 4], [5]]: expected an id or a text"),
        ([[["bad"]]], words(), "contrast is [[['bad']]]: expected an id or a text"),
        ("bad", None, "contrast is 'bad', and there is no tokenizer: give tokenizer=..., or ids"),
        (["bad", "film"], None, "contrast is ['bad', 'film'], and there is no tokenizer"),
        ("", words(), "contrast is '', which has no tokens but special ones: expected a text of some tokens, or ids"),
    ],
)  # fmt: skip
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
