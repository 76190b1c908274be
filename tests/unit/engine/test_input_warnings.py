"""What is warned of though the numbers are right: labels without a shift, padding on the left, empty masks; on the reference."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.engine.input_warnings import _has_a_decoder
from embgrad.testing.reference import ReferenceModel, Tensor, lookup

VOCAB, DIM = 12, 4
WEIGHTS = {
    "E": np.random.default_rng(0).normal(size=(VOCAB, DIM)),
    "P": np.random.default_rng(1).normal(size=(10, DIM)),
    "W": np.random.default_rng(2).normal(size=(DIM, VOCAB)),
}
IDS = np.array([[3, 5, 8, 2, 7], [2, 9, 3, 4, 1]])
MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
LEFT = MASK[:, ::-1].copy()


def language(model: Any, input_ids: np.ndarray, attention_mask: Any = None) -> Tensor:
    """Return logits over the vocabulary at each position."""
    return lookup(model["E"], input_ids).tanh() @ model["W"]


def model(forward: Callable[..., Any]) -> Any:
    return ReferenceModel(forward, WEIGHTS)


def warned(call: Callable[[], Any]) -> list[str]:
    """Return the warnings of a call, all of which name a line of this module."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    assert all(item.filename == __file__ and item.category is embgrad.errors.EmbgradWarning for item in caught)
    return [str(item.message) for item in caught]


def of_labels(labels: np.ndarray, ids: np.ndarray = IDS, forward: Any = language, **more: Any) -> list[str]:
    batch = {"input_ids": ids, "attention_mask": MASK, **more}
    return warned(lambda: embgrad.gradients(model(forward), batch, embgrad.CrossEntropy(labels)))


UNSHIFTED = (
    "the labels are the ids themselves at all 8 positions that count, and CrossEntropy does not shift them, so that each token "
    "is predicted from itself: for a causal model shift the labels by one (labels[:, :-1] = ids[:, 1:], and -100 in "
    "the last column), for a masked one mask the ids"
)


def test_labels_that_are_the_ids_are_a_warning() -> None:
    assert of_labels(IDS) == [UNSHIFTED]
    assert of_labels(np.where(MASK == 1, IDS, -100)) == [UNSHIFTED]
    some = np.where(np.arange(5) > 1, IDS, -100)  # as of the answer alone
    assert of_labels(some) == [UNSHIFTED.replace("8 positions", "4 positions")]
    batch = {"input_ids": IDS, "attention_mask": MASK}
    for call in (embgrad.tables.parameter_gradients, embgrad.tables.table_gradients):
        assert warned(lambda call=call: call(model(language), batch, embgrad.CrossEntropy(IDS))) == [UNSHIFTED]


def test_other_labels_are_no_warning() -> None:
    shifted = np.concatenate([IDS[:, 1:], np.full((2, 1), -100)], axis=1)
    masked = np.where(np.arange(5) == 2, 11, IDS)
    assert of_labels(shifted) == []
    assert of_labels(np.where(masked == 11, IDS, -100), masked) == []
    assert of_labels(IDS, masked) == []  # asked for what is masked, and for all the rest
    assert (
        of_labels(np.where(np.arange(10).reshape(2, 5) == 2, IDS, -100)) == []
    )  # one position alone may be so by chance
    assert of_labels((IDS + 1) % VOCAB) == []
    same = np.full((2, 5), 7)  # of one token: they may be shifted
    assert of_labels(np.concatenate([same[:, 1:], np.full((2, 1), -100)], axis=1), same) == []


def test_labels_of_a_decoder_are_no_warning() -> None:
    def decoding(
        model: Any, input_ids: np.ndarray, attention_mask: Any = None, decoder_input_ids: Any = None
    ) -> Tensor:
        return language(model, input_ids)

    of_decoder = of_labels(IDS, forward=decoding, decoder_input_ids=IDS)  # it reads all of the ids, padding included
    assert [text.partition(":")[0] for text in of_decoder] == ["the model reads padding though it was given a mask"]

    class Config:
        is_encoder_decoder = True

    made = model(language)
    made.config = Config()
    assert warned(lambda: embgrad.gradients(made, IDS, embgrad.CrossEntropy(IDS))) == []
    assert _has_a_decoder([model(language), made], embgrad.TokenBatch(IDS))
    assert not _has_a_decoder([model(language)], embgrad.TokenBatch(IDS, extras={"labels": IDS}))


def by_column(model: Any, input_ids: np.ndarray, attention_mask: Any = None, position_ids: Any = None) -> Tensor:
    """Number positions by column, as GPT-2 does."""
    positions = np.arange(input_ids.shape[1])[None] if position_ids is None else position_ids
    return pooled(model, lookup(model["E"], input_ids) + lookup(model["P"], positions), attention_mask)


def by_mask(model: Any, input_ids: np.ndarray, attention_mask: Any = None) -> Tensor:
    """Number positions by the mask, as OPT does."""
    mask = np.ones_like(input_ids) if attention_mask is None else attention_mask
    positions = (mask.cumsum(1) - 1).clip(0).astype(int)
    return pooled(model, lookup(model["E"], input_ids) + lookup(model["P"], positions), attention_mask)


def without(model: Any, input_ids: np.ndarray, attention_mask: Any = None) -> Tensor:
    return pooled(model, lookup(model["E"], input_ids), attention_mask)


def pooled(model: Any, rows: Tensor, mask: Any) -> Tensor:
    mask = np.ones(rows.shape[:2]) if mask is None else mask
    return (rows.tanh() * Tensor(mask[..., None].astype(float))).sum(1) @ model["W"]


def of_padding(forward: Any, mask: Any, **more: Any) -> list[str]:
    batch = {"input_ids": IDS, "attention_mask": mask, **more}
    return warned(lambda: embgrad.gradients(model(forward), batch, embgrad.Sum()))


BY_COLUMN = (
    "the batch is padded on the left, and the model counts the padding in its positions ('P'): example 1, after 2 of padding, "
    "gets another result than without padding. Pass position_ids with the ids, (mask.cumsum(1) - 1).clip(0), or pad on the right"
)


def test_further_inputs_are_cut_with_the_padding_where_they_have_positions() -> None:
    def scaled(model: Any, input_ids: np.ndarray, attention_mask: Any, scale: Any, factor: Any) -> Tensor:
        rows = lookup(model["E"], input_ids) * Tensor(scale[..., None] * factor[:, None, None])
        return pooled(model, rows + lookup(model["P"], np.arange(input_ids.shape[1])[None]), attention_mask)

    scale, factor = np.linspace(1, 2, IDS.size).reshape(IDS.shape), np.array([2.0, 3.0])
    assert of_padding(scaled, LEFT, scale=scale, factor=factor) == [BY_COLUMN]


def test_padding_on_the_left_that_is_counted_is_a_warning() -> None:
    assert of_padding(by_column, LEFT) == [BY_COLUMN]
    made = model(by_column)
    batch = {"input_ids": IDS, "attention_mask": LEFT}
    for _ in range(2):  # the second time from what is remembered of the model
        assert warned(lambda: embgrad.gradients(made, batch, embgrad.Sum())) == [BY_COLUMN]
    assert warned(lambda: embgrad.tables.parameter_gradients(made, batch, embgrad.Sum())) == [BY_COLUMN]
    assert warned(lambda: embgrad.tables.table_gradients(made, batch, embgrad.Sum())) == [BY_COLUMN]
    assert warned(lambda: embgrad.gradients(made, batch, embgrad.Sum(), call=lambda m, inputs: m(**inputs))) == [
        BY_COLUMN
    ]


def test_the_example_with_most_padding_is_run_alone() -> None:
    def of_each(model: Any, input_ids: np.ndarray, attention_mask: np.ndarray) -> Tensor:
        return by_column(model, input_ids, attention_mask, np.tile(np.arange(input_ids.shape[1]), (len(input_ids), 1)))

    assert of_padding(of_each, LEFT[::-1]) == [BY_COLUMN.replace("example 1", "example 0")]


def test_the_warning_is_true() -> None:
    padded = {"input_ids": IDS, "attention_mask": LEFT}
    bare = {"input_ids": IDS[1:, 2:]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        item, other = (embgrad.gradients(model(by_column), batch, embgrad.Sum()) for batch in (padded, bare))
        same, again = (embgrad.gradients(model(by_mask), batch, embgrad.Sum()) for batch in (padded, bare))
    assert np.abs(item.values[1, 2:] - other.values[0]).max() > 0.01
    np.testing.assert_allclose(same.values[1, 2:], again.values[0], rtol=1e-12)


def test_padding_outside_the_positions_is_no_warning() -> None:
    for forward in (by_mask, without):
        assert of_padding(forward, LEFT) == []
    assert of_padding(by_column, MASK) == []
    assert of_padding(by_column, np.ones_like(MASK)) == []
    assert of_padding(by_column, np.array([[0] * 5, [1] * 5])) == []  # nothing of the first is real
    assert of_padding(by_column, LEFT, position_ids=(LEFT.cumsum(1) - 1).clip(0)) == []


def test_a_model_of_one_fixed_length_is_no_warning() -> None:
    def fixed(model: Any, input_ids: np.ndarray, attention_mask: Any = None) -> Tensor:
        assert input_ids.shape[1] == 5
        return by_column(model, input_ids, attention_mask)

    assert of_padding(fixed, LEFT) == []


def test_a_mask_of_zeros_is_a_warning() -> None:
    assert of_padding(without, np.zeros_like(MASK)) == [
        "the mask is 0 at all 10 positions, so that all of them count as padding: expected 1 at real positions. Pass an "
        "additive mask, of 0 and large negative numbers, to the model with call=..."
    ]


# Padding that the model reads though it took the mask


def running(model: Any, input_ids: np.ndarray, attention_mask: np.ndarray) -> Tensor:
    """Return logits of the sum of each position's row and half of the one before, of real positions: the first reads padding."""
    rows, mask = lookup(model["E"], input_ids), Tensor(attention_mask[..., None] * 1.0)
    shift = Tensor(np.eye(input_ids.shape[1], k=1) * 0.5)
    before = rows.swap(1, 2) @ shift
    return ((rows + before.swap(1, 2)) * mask).sum(1).tanh() @ model["W"]


def masked(model: Any, input_ids: np.ndarray, attention_mask: np.ndarray) -> Tensor:
    return (lookup(model["E"], input_ids) * Tensor(attention_mask[..., None] * 1.0)).sum(1).tanh() @ model["W"]


def of_leak(forward: Any, mask: np.ndarray, objective: Any = None, **options: Any) -> list[str]:
    batch = {"input_ids": IDS, "attention_mask": mask}
    chosen = embgrad.Logit(3) if objective is None else objective
    found = warned(lambda: embgrad.gradients(model(forward), batch, chosen, **options))
    return [text for text in found if "reads padding though" in text]


def test_padding_that_a_model_reads_beside_its_mask_is_a_warning() -> None:
    batch = {"input_ids": IDS, "attention_mask": LEFT}
    with pytest.warns(embgrad.errors.EmbgradWarning):
        result = embgrad.gradients(model(running), batch, embgrad.Logit(3))
    largest = np.abs(result.values[LEFT == 1]).max()
    expected = [
        f"the model reads padding though it was given a mask: at 'word' the gradient at padding is up to {result.pad_leak:.2g}, "
        f"{result.pad_leak / largest:.0%} of the largest at real positions, so that an example's result depends on its padding. "
        "Pad on the other side, or run texts of one length at a time, without padding"
    ]
    assert result.pad_leak > 0.05 * largest
    assert (
        of_leak(running, LEFT)
        == of_leak(running, LEFT, pads="zero")
        == of_leak(running, LEFT, batch_size=1)
        == expected
    )
    assert len(of_leak(running, LEFT, [embgrad.Logit(3), embgrad.Logit(2)])) == 2
    assert (
        len(of_leak(running, np.array([[0, 1, 1, 1, 1], [0, 0, 1, 1, 1]]))) == 1
    )  # no example is real in the first column


def test_padding_that_is_read_is_reported_at_the_first_point_that_is_named() -> None:
    def through(model: Any, input_ids: np.ndarray, attention_mask: np.ndarray) -> Tensor:
        return model.module("head", lambda x: x.tanh(), running(model, input_ids, attention_mask))

    built = ReferenceModel(through, WEIGHTS, ["head"])
    batch = {"input_ids": IDS, "attention_mask": LEFT}
    (found,) = warned(lambda: embgrad.gradients(built, batch, embgrad.Logit(3), at=["word", "head"]))
    assert "at 'word' the gradient at padding" in found


def test_padding_that_a_model_does_not_read_is_no_warning() -> None:
    assert of_leak(running, MASK) == of_leak(masked, MASK) == of_leak(masked, LEFT) == []
    assert of_leak(running, np.ones((2, 5), int)) == []
    assert of_leak(language, LEFT, embgrad.Logit(3, position=-1)) == []


def test_padding_that_the_user_reads_is_no_warning() -> None:
    assert of_leak(running, LEFT, call=lambda model, inputs: model(**inputs)) == []
    assert of_leak(running, LEFT, lambda logits: logits.column(3)) == []


def test_padding_of_a_model_without_a_mask_is_the_warning_of_the_mask_alone() -> None:
    def unmasked(model: Any, input_ids: np.ndarray) -> Tensor:
        return lookup(model["E"], input_ids).sum(1) @ model["W"]

    assert of_leak(unmasked, LEFT) == []


def test_a_warning_from_a_pass_of_an_attribution_names_the_line_of_the_call() -> None:
    batch = {"input_ids": IDS, "attention_mask": LEFT}
    assert warned(lambda: embgrad.attribute(model(by_column), batch, embgrad.Sum(), "saliency")) == [BY_COLUMN]
