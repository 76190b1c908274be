"""Further inputs that describe the text, where tokens are deleted, inserted or replaced, on a model that reads its lengths."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.testing.reference import ReferenceModel, Tensor, lookup

VOCAB, DIM = 9, 4
IDS = np.array([[3, 4, 5, 0], [6, 7, 8, 3]])
MASK = np.array([[1, 1, 1, 0], [1, 1, 1, 1]])
LENGTHS = np.array([3, 4])
TABLE = np.random.default_rng(3).normal(size=(VOCAB, DIM))
LOGIT = embgrad.Logit(1)


def by_hand(ids: Any, length: int) -> float:
    """Return the logit of class 1: the mean of the first rows, divided by the length given, and the last row."""
    rows = TABLE[list(ids)][:length]
    return float(np.tanh(rows.sum(0) / length)[1] + 0.5 * TABLE[ids[length - 1]][2])


def read_lengths(model: Any, inputs: Any) -> Tensor:
    """Call a model that reads lengths and last positions, not the mask."""
    ids, lengths = np.asarray(inputs["input_ids"]), np.asarray(inputs["lengths"])
    last = np.asarray(inputs["last"]) if "last" in inputs else lengths - 1
    rows = lookup(model["E"], ids)
    real = (np.arange(ids.shape[1]) < lengths[:, None])[..., None]
    mean = (rows * Tensor(real / lengths[:, None, None])).sum(1).tanh()
    end = (rows * Tensor((np.arange(ids.shape[1]) == last[:, None])[..., None].astype(float))).sum(1)
    return mean + end @ Tensor(np.eye(DIM)[:, [0, 2, 1, 3]] * 0.5)


def model() -> ReferenceModel:
    """Return the model."""
    return ReferenceModel(lambda own, input_ids: lookup(own["E"], input_ids), {"E": TABLE})


def batch(**extras: Any) -> embgrad.TokenBatch:
    """Return a padded batch with lengths."""
    return embgrad.TokenBatch(IDS, MASK, extras={"lengths": LENGTHS, **extras})


def test_deleted_tokens_shorten_the_lengths() -> None:
    given = batch(last=LENGTHS - 1).replace(tokens=[["[CLS]", "a", "b", "[PAD]"], ["[CLS]", "c", "d", "e"]])
    found = embgrad.metrics.faithfulness(model(), given, LOGIT, np.zeros((2, 4)), call=read_lengths, curves=False)
    for example, length in enumerate(LENGTHS):
        text = IDS[example, :length]
        assert found.objective[example] == pytest.approx(by_hand(text, length), abs=1e-12)
        for position in range(1, length):
            without = by_hand(np.delete(text, position), length - 1)
            expected = found.objective[example] - without
            assert found.leave_one_out[example, position] == pytest.approx(expected, abs=1e-12)


def test_infidelity_of_deleted_tokens_reads_the_new_lengths() -> None:
    removed = np.zeros((1, 2, 4), bool)
    removed[0, :, 1] = True
    found = embgrad.metrics.infidelity(
        model(), batch(), LOGIT, np.zeros((2, 4)), removed=removed, keep_special=False, call=read_lengths
    )
    for example, length in enumerate(LENGTHS):
        text = IDS[example, :length]
        change = by_hand(text, length) - by_hand(np.delete(text, 1), length - 1)
        assert found[example] == pytest.approx(change**2, abs=1e-12)


@pytest.mark.parametrize("edit", ["insert", "delete"])
@pytest.mark.parametrize("last", [True, False])
def test_a_search_brings_lengths_up_to_date(edit: str, last: bool) -> None:
    """The best of all texts with one edit is found, and what is returned says the same of itself."""
    given = batch(last=LENGTHS - 1) if last else batch()
    method = embgrad.methods.HotFlip(steps=1, beam=1, candidates=999, **{edit: True})
    found = embgrad.search(model(), given, LOGIT, method, call=read_lengths)
    for example, length in enumerate(LENGTHS):
        text = IDS[example, :length].tolist()
        edits = [text, *([*text[:at], new, *text[at + 1 :]] for at in range(length) for new in range(VOCAB))]
        if edit == "insert":
            edits += [[*text[:at], new, *text[at:]] for at in range(length) for new in range(VOCAB)]
        else:
            edits += [[*text[:at], *text[at + 1 :]] for at in range(length)]
        best = max(by_hand(ids, len(ids)) for ids in edits)
        assert found.objective[example] == pytest.approx(best, abs=1e-12)
        now = int(found.batch.real[example].sum())
        assert found.batch.extras["lengths"][example] == now
        assert by_hand(found.batch.ids[example, :now], now) == pytest.approx(best, abs=1e-12)
    np.testing.assert_allclose(embgrad.evaluate(model(), found.batch, LOGIT, call=read_lengths), found.objective)
    if last:
        np.testing.assert_array_equal(found.batch.extras["last"], found.batch.real.sum(1) - 1)


@pytest.mark.parametrize("place", ["start", "end"])
def test_a_trigger_lengthens_the_texts(place: str) -> None:
    method = embgrad.methods.UniversalTrigger(2, place=place, steps=2, candidates=8)
    found = embgrad.search(model(), batch(), LOGIT, method, call=read_lengths)
    assert found.trigger is not None
    trigger = found.trigger.tolist()
    for example, length in enumerate(LENGTHS):
        text = IDS[example, :length].tolist()
        whole = [*trigger, *text] if place == "start" else [*text, *trigger]
        assert found.objective[example] == pytest.approx(by_hand(whole, length + 2), abs=1e-12)
    assert found.batch.extras["lengths"].tolist() == [5, 6]


def call_with(name: str) -> Any:
    """Return a call that adds a row of the table, chosen by a further input, to what the lengths give."""

    def call(own: Any, inputs: Any) -> Tensor:
        chosen = TABLE[np.asarray(inputs[name]).reshape(len(inputs["input_ids"]), -1)[:, 0]]
        return read_lengths(own, inputs) + Tensor(chosen)

    return call


def test_a_position_of_the_text_is_refused_with_what_to_do() -> None:
    given = batch(entity=np.array([1, 2]))
    search = embgrad.methods.HotFlip(steps=1, delete=True)
    with pytest.raises(
        embgrad.errors.UnsupportedError,
        match=r"'entity' is \[1, 2\], which may count or name positions .*: give insert=False and delete=False",
    ):
        embgrad.search(model(), given, LOGIT, search, call=call_with("entity"))
    with pytest.raises(
        embgrad.errors.UnsupportedError, match=r"'entity' is \[1, 2\].*: give remove='mask', 'pad' or 'zero'"
    ):
        embgrad.metrics.faithfulness(
            model(), given, LOGIT, np.zeros((2, 4)), call=call_with("entity"), keep_special=False
        )
    with pytest.raises(
        embgrad.errors.UnsupportedError, match=r"'entity' is \[1, 2\].*: search each text by itself, by HotFlip"
    ):
        embgrad.search(model(), given, LOGIT, embgrad.methods.UniversalTrigger(1), call=call_with("entity"))
    kept = embgrad.search(model(), given, LOGIT, embgrad.methods.HotFlip(steps=1), call=call_with("entity"))
    assert kept.batch.extras["entity"].tolist() == [1, 2]


def test_numbers_on_which_the_objective_does_not_depend_stay() -> None:
    """A data set's own labels and answers stand beside the inputs, and feed a loss that no objective reads."""
    given = batch(start_positions=np.array([1, 2]), end_positions=np.array([2, 0]))
    found = embgrad.search(model(), given, LOGIT, embgrad.methods.HotFlip(steps=1, delete=True), call=read_lengths)
    plain = embgrad.search(model(), batch(), LOGIT, embgrad.methods.HotFlip(steps=1, delete=True), call=read_lengths)
    np.testing.assert_array_equal(found.objective, plain.objective)
    assert found.batch.extras["start_positions"].tolist() == [1, 2]


def scored_by_labels(own: Any, inputs: Any) -> Tensor:
    """Call a language model that returns the logit of each label, summed."""
    rows = lookup(own["E"], np.asarray(inputs["input_ids"])).tanh()
    return (rows * Tensor(TABLE[np.asarray(inputs["labels"])])).sum(1)


def test_labels_that_are_the_ids_are_refused_where_a_search_replaces_tokens() -> None:
    given = embgrad.TokenBatch(IDS, extras={"labels": IDS})
    for method in (embgrad.methods.HotFlip(steps=1), embgrad.methods.GCG(steps=1)):
        with pytest.raises(
            embgrad.errors.UnsupportedError, match="the further input 'labels' holds the batch's ids, and whether"
        ):
            embgrad.search(model(), given, LOGIT, method, call=scored_by_labels)
    for labels in (np.minimum(IDS + 1, 8), IDS[:, ::-1]):  # other labels are no copy, and stay
        found = embgrad.search(
            model(),
            given.replace(extras={"labels": labels}),
            LOGIT,
            embgrad.methods.HotFlip(steps=1),
            call=scored_by_labels,
        )
        np.testing.assert_array_equal(found.batch.extras["labels"], labels)


def test_labels_that_are_the_ids_may_stand_beside_where_the_objective_does_not_read_them() -> None:
    given = batch(labels=IDS)
    found = embgrad.search(model(), given, LOGIT, embgrad.methods.HotFlip(steps=1), call=read_lengths)
    np.testing.assert_array_equal(found.objective, embgrad.evaluate(model(), found.batch, LOGIT, call=read_lengths))


def test_a_model_that_takes_no_longer_text_is_named_with_what_to_do() -> None:
    def call(own: Any, inputs: Any) -> Tensor:
        if np.asarray(inputs["input_ids"]).shape[1] < 3:
            raise ValueError("too short")
        return read_lengths(own, inputs)

    message = (
        "the model takes 4 positions, and raised ValueError for texts of 2 in place of example 0, in which tokens were inserted "
        "or deleted: give insert=False and delete=False"
    )
    with pytest.raises(embgrad.errors.UnsupportedError, match=re.escape(message)):
        embgrad.search(model(), batch(), LOGIT, embgrad.methods.HotFlip(steps=2, delete=True), call=call)
    with pytest.raises(ValueError, match="always"):
        embgrad.search(model(), batch(), LOGIT, embgrad.methods.HotFlip(steps=2), call=raising)


def raising(own: Any, inputs: Any) -> Any:
    """Raise an error of the user's own."""
    raise ValueError("always")


def test_a_second_text_of_the_same_length_stays() -> None:
    def two_texts(own: Any, inputs: Any) -> Tensor:
        first, second = (lookup(own["E"], np.asarray(inputs[name])).tanh().sum(1) for name in ("input_ids", "doc_ids"))
        return first * second

    second = np.array([[2, 3, 4, 5], [5, 6, 7, 8]])
    given = embgrad.TokenBatch(IDS, extras={"doc_ids": second})
    found = embgrad.search(model(), given, LOGIT, embgrad.methods.HotFlip(steps=1, delete=True), call=two_texts)
    np.testing.assert_array_equal(found.batch.extras["doc_ids"], second)
    for example, real in enumerate(found.batch.real):
        sums = [np.tanh(TABLE[ids]).sum(0)[1] for ids in (found.batch.ids[example, real], second[example])]
        assert found.objective[example] == pytest.approx(sums[0] * sums[1], abs=1e-12)
