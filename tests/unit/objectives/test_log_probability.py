"""The log-probability of tokens: closed forms, which labels count, and the continuations of prompts."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors

import embgrad
from embgrad import LogProbability, TokenBatch
from embgrad.errors import ObjectiveError
from tests.unit.attribution.language_models import causal, log_softmax
from tests.unit.numerics import differences
from tests.unit.refusals import refused

EXAMPLES, POSITIONS, CLASSES = 3, 5, 7
IDS = np.random.default_rng(4).integers(0, CLASSES, (EXAMPLES, POSITIONS))
RIGHT = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 1, 1, 1, 0]])
RIGHT_BATCH, LEFT_BATCH = TokenBatch(IDS, RIGHT), TokenBatch(IDS, RIGHT[:, ::-1])
seeds = st.integers(0, 2**32 - 1)


def logits(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(EXAMPLES, POSITIONS, CLASSES)) * 3


def of_texts(outputs: np.ndarray, batch: TokenBatch) -> list[float]:
    """The sum over the real tokens after an example's first of their log-probabilities, token by token."""
    sums = []
    for example in range(len(batch)):
        columns = np.flatnonzero(batch.real[example])
        pairs = itertools.pairwise(columns)
        sums.append(sum(log_softmax(outputs[example, at])[batch.ids[example, then]] for at, then in pairs))
    return sums


@pytest.mark.parametrize("batch", [RIGHT_BATCH, LEFT_BATCH, TokenBatch(IDS)], ids=["right", "left", "no mask"])
@given(seeds)
def test_the_ids_as_labels_give_the_log_probability_of_the_texts(batch: TokenBatch, seed: int) -> None:
    values, _ = LogProbability(batch.ids).evaluate(logits(seed), batch)
    np.testing.assert_allclose(values, of_texts(logits(seed), batch), rtol=1e-12)


@pytest.mark.parametrize("batch", [RIGHT_BATCH, LEFT_BATCH], ids=["right", "left"])
@pytest.mark.parametrize("against", [None, (IDS + 1) % CLASSES], ids=["alone", "against"])
@pytest.mark.parametrize("shift", [True, False])
def test_the_cotangent_is_the_slope_of_the_value(batch: TokenBatch, against: Any, shift: bool) -> None:
    objective = LogProbability(batch.ids, shift, against)
    _, cotangent = objective.evaluate(logits(), batch)
    slopes = differences(lambda outputs: float(objective.evaluate(outputs, batch)[0].sum()), logits())
    np.testing.assert_allclose(cotangent, slopes, atol=1e-8)


def test_the_last_position_and_padding_get_no_cotangent_with_shift() -> None:
    _, cotangent = LogProbability(IDS).evaluate(logits(), LEFT_BATCH)
    expected = LEFT_BATCH.real & np.append(LEFT_BATCH.real[:, 1:], np.zeros((EXAMPLES, 1), bool), 1)
    np.testing.assert_array_equal(cotangent.any(-1), expected)


@given(seeds)
def test_without_shift_the_logits_at_the_labels_own_position_count(seed: int) -> None:
    values, _ = LogProbability(IDS, shift=False).evaluate(logits(seed), RIGHT_BATCH)
    of_labels = np.take_along_axis(log_softmax(logits(seed)), IDS[..., None], -1)[..., 0]
    np.testing.assert_allclose(values, (of_labels * RIGHT).sum(1), rtol=1e-12)


def test_labels_of_minus_100_and_the_first_real_token_do_not_count() -> None:
    labels = np.full(IDS.shape, -100)
    labels[0, [0, 3]], labels[2, 2] = [5, 1], 4
    values, _ = LogProbability(labels).evaluate(logits(), RIGHT_BATCH)
    each = log_softmax(logits())
    np.testing.assert_allclose(values, [each[0, 2, 1], 0, each[2, 1, 4]], rtol=1e-12)
    first = np.where(np.arange(POSITIONS) == [[0], [2], [1]], 3, -100)
    values, cotangent = LogProbability(first).evaluate(logits(), LEFT_BATCH)
    assert not values.any()
    assert not cotangent.any()


def test_the_difference_from_another_id_is_that_of_the_logits() -> None:
    against = (IDS + 2) % CLASSES
    values, _ = LogProbability(IDS, against=against).evaluate(logits(), LEFT_BATCH)
    alone = LogProbability(IDS).evaluate(logits(), LEFT_BATCH)[0]
    others = LogProbability(against).evaluate(logits(), LEFT_BATCH)[0]
    np.testing.assert_allclose(values, alone - others, rtol=1e-10)
    values, cotangent = LogProbability(IDS, against=IDS).evaluate(logits(), LEFT_BATCH)
    assert not values.any()
    assert not cotangent.any()


@pytest.mark.parametrize("position", [-1, [4, 2, 3]])
@pytest.mark.parametrize("labels", [6, [6, 1, 0]])
def test_one_label_at_a_position_is_predicted_by_the_position_before(position: Any, labels: Any) -> None:
    values, _ = LogProbability(labels, position=position).evaluate(logits(), RIGHT_BATCH)
    chosen = np.broadcast_to(labels, EXAMPLES)
    each = log_softmax(logits())
    expected = [each[example, [3, 1, 2][example], chosen[example]] for example in range(EXAMPLES)]
    np.testing.assert_allclose(values, expected, rtol=1e-12)
    own, _ = LogProbability(labels, shift=False, position=position).evaluate(logits(), RIGHT_BATCH)
    expected = [each[example, [4, 2, 3][example], chosen[example]] for example in range(EXAMPLES)]
    np.testing.assert_allclose(own, expected, rtol=1e-12)


def test_a_position_chooses_one_of_the_labels_of_all_positions() -> None:
    values, _ = LogProbability(IDS, position=-1).evaluate(logits(), RIGHT_BATCH)
    at_end = [[0, 3, IDS[0, 4]], [1, 1, IDS[1, 2]], [2, 2, IDS[2, 3]]]
    np.testing.assert_allclose(values, [log_softmax(logits())[tuple(index)] for index in at_end], rtol=1e-12)


def test_an_output_of_one_row_for_each_example_takes_one_label_for_each() -> None:
    rows = logits()[:, 0]
    values, _ = LogProbability([1, 2, 3]).evaluate(rows, RIGHT_BATCH)
    np.testing.assert_allclose(values, log_softmax(rows)[np.arange(3), [1, 2, 3]], rtol=1e-12)
    values, _ = LogProbability(4).evaluate(rows, RIGHT_BATCH)
    np.testing.assert_allclose(values, log_softmax(rows)[:, 4], rtol=1e-12)


@pytest.mark.parametrize(
    ("make", "fragments"),
    [
        (lambda: LogProbability(IDS, against=IDS[:2]), ["against has shape (2, 5)", "that of the labels, (3, 5)"]),
        (lambda: LogProbability("yes"), ["labels is 'yes': expected whole numbers"]),
        (lambda: LogProbability(IDS, against=0.5), ["against is 0.5: expected whole numbers"]),
        (lambda: LogProbability.of([], words()), ["text is []: expected the continuation"]),
        (lambda: LogProbability.of(3, words()), ["text is 3: expected the continuation"]),  # type: ignore[arg-type]
        (lambda: LogProbability.of([" yes", 3], words()), ["text is [' yes', 3]: expected the continuation"]),  # type: ignore[list-item]
        (lambda: LogProbability.of("", words()), ["the continuation '' has no tokens"]),
        (lambda: LogProbability.of("[END]", words()), ["the continuation '[END]' has no tokens"]),
    ],
)
def test_wrong_arguments_are_refused(make: Any, fragments: list[str]) -> None:
    with refused(ObjectiveError, *fragments):
        make()


def test_a_shift_that_is_no_truth_value_is_refused() -> None:
    with pytest.raises(embgrad.EmbgradError, match="shift is 'yes'"):
        LogProbability(IDS, shift="yes")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("objective", "output", "fragments"),
    [
        (LogProbability(IDS[:, :4]), logits(), ["labels have shape (3, 4)", "expected labels of shape (3, 5)"]),
        (LogProbability(IDS[:, :4], position=4), logits(), ["labels have shape (3, 4)", "one label for each example"]),
        (LogProbability([1, 2, 3]), logits(), ["labels have shape (3,)", "or position=..."]),
        (
            LogProbability(1, position=[1, 0, 1]),
            logits(),
            ["the label of example 1 is at position 0, and no real token before it predicts it", "shift=False"],
        ),
        (LogProbability(IDS), logits()[..., :1], ["the output has one entry", "is always 0", "Sum()"]),
        (LogProbability(IDS + 4), logits(), ["label ", "is out of range: the output has 7 classes"]),
        (LogProbability(IDS, against=IDS + 4), logits(), ["against ", "is out of range: the output has 7 classes"]),
        (LogProbability(IDS), np.exp(log_softmax(logits())), ["the model seems to end in a softmax"]),
        (LogProbability([1, 2], position=-1), logits(), ["label has 2 entries: expected 3"]),
    ],
)
def test_labels_that_do_not_fit_the_output_are_refused(
    objective: LogProbability, output: np.ndarray, fragments: list[str]
) -> None:
    with refused(ObjectiveError, *fragments):
        objective.evaluate(output, TokenBatch(IDS))


WORDS = ("[UNK]", "[START]", "[END]", "the", "film", "is", "great", "bad")


def words(*, special: bool = True, side: str = "right") -> Any:
    """Return a tokenizer whose tokens are words."""
    tokenizer = Tokenizer(models.WordLevel({word: id_ for id_, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["[UNK]", "[START]", "[END]"])
    if special:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[START] $A [END]", pair=None, special_tokens=[("[START]", 1), ("[END]", 2)]
        )
    tokenizer.enable_padding(pad_id=0, pad_token="[UNK]", direction=side)
    return tokenizer


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("special", [True, False])
def test_a_continuation_counts_at_the_end_of_each_example(special: bool, side: str) -> None:
    tokenizer = words(special=special, side=side)
    batch = embgrad.encode(["the film is great", "film is great"], tokenizer)
    outputs = np.random.default_rng(1).normal(size=(*batch.shape, len(WORDS)))
    values, _ = LogProbability.of(" is great", tokenizer).evaluate(outputs, batch)
    expected = []
    for example in range(2):
        real = np.flatnonzero(batch.real[example])
        ends = real[:-1] if special else real
        expected.append(log_softmax(outputs[example, ends[-3]])[5] + log_softmax(outputs[example, ends[-2]])[6])
    np.testing.assert_allclose(values, expected, rtol=1e-12)


def test_each_example_may_have_a_continuation_of_its_own() -> None:
    tokenizer = words()
    batch = embgrad.encode(["the film is great", "the film is bad", "the film"], tokenizer)
    objective = LogProbability.of([" is great", " bad", " film"], tokenizer)
    model = causal()
    result = embgrad.gradients(model, batch, objective)
    logits = model(batch.ids, batch.mask).value
    each = log_softmax(logits)
    expected = [each[0, 2, 5] + each[0, 3, 6], each[1, 3, 7], each[2, 1, 4]]
    np.testing.assert_allclose(result.objective, expected, rtol=1e-12)
    cut = embgrad.gradients(model, batch, objective, batch_size=1)
    np.testing.assert_allclose(cut.values, result.values, rtol=1e-12)
    shared = LogProbability.of(" bad", tokenizer)
    one = embgrad.gradients(model, batch[1:2], shared)
    np.testing.assert_allclose(one.objective, expected[1:2], rtol=1e-12)
    pair = embgrad.encode(["the film is bad", "is bad"], tokenizer)
    np.testing.assert_allclose(
        embgrad.gradients(model, pair, shared, batch_size=1).values, embgrad.gradients(model, pair, shared).values
    )


def test_a_text_that_does_not_end_with_the_continuation_is_refused() -> None:
    tokenizer = words()
    batch = embgrad.encode(["the film is great", "the film is bad"], tokenizer)
    with refused(ObjectiveError, "example 1 ends with the ids [7], and the continuation has [6]"):
        embgrad.gradients(causal(), batch, LogProbability.of(" great", tokenizer))
    bare = words(special=False)
    with refused(ObjectiveError, "the label of example 0 is at position 0, and no real token before it predicts it"):
        embgrad.gradients(causal(), embgrad.encode(["great"], bare), LogProbability.of("great", bare))
    with refused(ObjectiveError, "text has 2 entries: expected 1, one for each example"):
        embgrad.gradients(causal(), batch[:1], LogProbability.of(["great", "bad"], tokenizer))
    with refused(ObjectiveError, "the output has one row for each example, and a continuation needs one for each"):
        LogProbability.of(" great", tokenizer).evaluate(np.zeros((2, 8)), batch)


def test_the_arguments_stand_in_the_description_and_in_the_file(tmp_path: Path) -> None:
    labels = IDS[:2]
    batch = TokenBatch(labels)
    objective = LogProbability(labels, against=(labels + 1) % CLASSES)
    described = {
        "class": "LogProbability",
        "labels": labels.tolist(),
        "shift": True,
        "against": ((labels + 1) % CLASSES).tolist(),
    }
    assert objective.describe() == described
    result = embgrad.gradients(causal(), batch, objective)
    result.save(tmp_path / "gradients.npz")
    loaded = embgrad.load(tmp_path / "gradients.npz")
    assert loaded.provenance["objective"] == described
    np.testing.assert_array_equal(loaded.values, result.values)
    assert LogProbability.of("great", words()).describe() == {
        "class": "LogProbability",
        "labels": [6],
        "shift": True,
        "at_end": True,
    }


@pytest.mark.parametrize("position", [None, -1])
def test_labels_are_taken_with_their_examples(position: Any) -> None:
    against = (IDS + 1) % CLASSES
    objective = LogProbability(IDS, against=against, position=position)
    values, _ = objective.evaluate(logits(), RIGHT_BATCH)
    for index in (slice(1, 3), np.array([2, 0])):
        part = objective.take(index, EXAMPLES)
        examples = np.arange(EXAMPLES)[index]
        np.testing.assert_array_equal(part.evaluate(logits()[index], RIGHT_BATCH.take(examples))[0], values[index])


def test_the_first_example_without_a_token_before_its_label_is_named() -> None:
    batch = TokenBatch([[5, 6], [7, 8], [5, 8]])
    with refused(ObjectiveError, "the label of example 1 is at position 0, and no real token before it"):
        LogProbability([1, 2, 3], position=[1, 0, 0]).evaluate(np.zeros((3, 2, 9)), batch)
