"""Further inputs that describe the text, where tokens are deleted, inserted or replaced."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.errors import UnsupportedError
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
    """Call a model that reads the mask as lengths."""
    ids, lengths = np.asarray(inputs["input_ids"]), np.asarray(inputs["attention_mask"]).sum(1)
    rows = lookup(model["E"], ids)
    real = (np.arange(ids.shape[1]) < lengths[:, None])[..., None]
    mean = (rows * Tensor(real / lengths[:, None, None])).sum(1).tanh()
    end = (rows * Tensor((np.arange(ids.shape[1]) == lengths[:, None] - 1)[..., None].astype(float))).sum(1)
    return mean + end @ Tensor(np.eye(DIM)[:, [0, 2, 1, 3]] * 0.5)


def model() -> ReferenceModel:
    """Return the model."""
    return ReferenceModel(lambda own, input_ids: lookup(own["E"], input_ids), {"E": TABLE})


def batch(**extras: Any) -> embgrad.TokenBatch:
    """Return a padded batch with further inputs."""
    return embgrad.TokenBatch(IDS, MASK, extras=extras)


@pytest.mark.parametrize("edit", ["insert", "delete"])
def test_the_best_of_all_texts_with_one_edit_is_found(edit: str) -> None:
    given = batch()
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
        assert by_hand(found.batch.ids[example, :now], now) == pytest.approx(best, abs=1e-12)
    np.testing.assert_allclose(embgrad.evaluate(model(), found.batch, LOGIT, call=read_lengths), found.objective)


def call_with(name: str) -> Any:
    """Return a call that adds a row of the table, chosen by a further input, to what the mask gives."""

    def call(own: Any, inputs: Any) -> Tensor:
        chosen = TABLE[np.asarray(inputs[name]).reshape(len(inputs["input_ids"]), -1)[:, 0]]
        return read_lengths(own, inputs) + Tensor(chosen)

    return call


def test_a_position_of_the_text_is_refused_with_what_to_do() -> None:
    given = batch(entity=np.array([1, 2]))
    search = embgrad.methods.HotFlip(steps=1, delete=True)
    with pytest.raises(
        UnsupportedError,
        match=r"'entity' is \[1, 2\], which may count or name positions .*: give insert=False and delete=False",
    ):
        embgrad.search(model(), given, LOGIT, search, call=call_with("entity"))
    with pytest.raises(UnsupportedError, match=r"'entity' is \[1, 2\].*: give remove='mask', 'pad' or 'zero'"):
        embgrad.metrics.faithfulness(
            model(), given, LOGIT, np.zeros((2, 4)), call=call_with("entity"), keep_special=False
        )
    with pytest.raises(UnsupportedError, match=r"'entity' is \[1, 2\].*: search each text by itself, by HotFlip"):
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
        with pytest.raises(UnsupportedError, match="the further input 'labels' holds the batch's ids, and whether"):
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
    with pytest.raises(UnsupportedError, match=re.escape(message)):
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
