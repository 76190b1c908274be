"""Batches in sub-batches, and gradients of each example by itself: the same result, and what cannot be cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.errors import ObjectiveError, UnsupportedError
from embgrad.testing.reference import Tensor, lookup
from tests.unit.engine.test_gradients import CLASSES, DIM, IDS, RIGHT, VOCAB, gradients, masked, mean
from tests.unit.refusals import refused


def centred(model: Any, input_ids: np.ndarray) -> Tensor:
    """Subtract the mean of the batch, as in batch norm, so that examples interact."""
    hidden = lookup(model["E"], input_ids).mean(1)
    return (hidden + hidden.mean(0) * -1.0).tanh() @ model["W"]


def test_split_where_examples_interact() -> None:
    vectors = np.random.default_rng(3).normal(size=(2, CLASSES))
    objective, *alone = (embgrad.Projection(vectors * part) for part in (1, [[1], [0]], [[0], [1]]))
    together, split = gradients(centred, IDS, objective), gradients(centred, IDS, objective, split=True)
    each = [gradients(centred, IDS, one_example) for one_example in alone]
    for example in range(2):
        np.testing.assert_allclose(split.values[example], each[example].values[example], atol=1e-14)
        np.testing.assert_allclose(
            split.per_example()[example].to_dense(), each[example].table().to_dense(), atol=1e-14
        )
    np.testing.assert_allclose(split.table().to_dense(), together.table().to_dense(), atol=1e-14)
    assert not np.allclose(split.values, together.values)
    assert split.provenance["split"]
    np.testing.assert_array_equal(split.objective, together.objective)


@pytest.mark.parametrize("batch_size", [1, 2, 3, 100, np.int64(2), np.uint8(1)])
@pytest.mark.parametrize("split", [False, True])
def test_micro_batches_are_the_same_result(batch_size: Any, split: bool) -> None:
    random = np.random.default_rng(3)
    batch = embgrad.TokenBatch(
        random.integers(0, VOCAB, (5, 4)),
        np.arange(4) < random.integers(1, 5, (5, 1)),
        random.integers(0, 2, (5, 4)),
        tokens=[list("abcd")] * 5,
        words=random.integers(-1, 3, (5, 4)),
        truncated=[0, 1, 0, 2, 0],
    )
    objective = embgrad.Projection(random.normal(size=(5, CLASSES)))
    whole = gradients(masked, batch, objective, split=split)
    pieces = gradients(masked, batch, objective, split=split, batch_size=batch_size)
    np.testing.assert_allclose(pieces.values, whole.values, rtol=1e-13, atol=1e-14)
    np.testing.assert_allclose(pieces.objective, whole.objective, rtol=1e-13)
    for name in ("activations", "ids", "mask", "types", "words_of"):
        np.testing.assert_array_equal(getattr(pieces, name), getattr(whole, name))
    assert pieces.tokens == whole.tokens
    assert pieces.provenance["truncated"] == [0, 1, 0, 2, 0]
    assert pieces.provenance["output_shape"] == whole.provenance["output_shape"] == [5, CLASSES]
    assert len(pieces.per_example()) == 5
    np.testing.assert_allclose(pieces.table().to_dense(), whole.table().to_dense(), rtol=1e-12, atol=1e-13)
    assert pieces.provenance.get("batch_size") == (None if batch_size >= 5 else batch_size)


def test_micro_batches_in_which_a_point_has_other_shapes() -> None:
    def packed(model: Any, input_ids: np.ndarray, attention_mask: np.ndarray) -> Tensor:
        longest = int(attention_mask.sum(1).max())
        share = (attention_mask / attention_mask.sum(1, keepdims=True))[:, :longest, None]
        hidden = model.module("packed", lambda x: x.tanh(), lookup(model["E"], input_ids[:, :longest]))
        return (hidden * Tensor(share)).sum(1) @ model["W"]

    batch = embgrad.TokenBatch(IDS, RIGHT)
    assert gradients(packed, batch, at="packed").shape == (2, 3, DIM)
    message = (
        r"the point 'packed' has the shapes \(1, 3, 4\) and \(1, 2, 4\) in two sub-batches: expected examples on its first "
        "axis; omit batch_size"
    )
    with pytest.raises(UnsupportedError, match=message):
        gradients(packed, batch, at="packed", batch_size=1)


@pytest.mark.parametrize(("count", "batch_size"), [(3, 1), (3, 2), (2, 1)])
@pytest.mark.parametrize(
    "extras",
    [["positions"], ["classes"], ["positions", "classes"], ["examples"], ["examples", "classes"]],
    ids=" and ".join,
)
def test_inputs_that_all_examples_share_are_not_cut(extras: list[str], count: int, batch_size: int) -> None:
    """There are as many positions and classes as examples, so that shapes alone do not decide."""

    def weighted(model: Any, input_ids: np.ndarray, **weights: np.ndarray) -> Tensor:
        positions, classes, examples = [weights.get(name, np.ones(1)) for name in ("positions", "classes", "examples")]
        rows = model.module("bend", Tensor.tanh, lookup(model["E"], input_ids) * Tensor(positions[:, None]))
        return (rows.mean(1) @ Tensor(model["W"].value[:, :count])) * Tensor(classes) * Tensor(examples[:, None])

    given = {
        "input_ids": np.arange(count**2).reshape(count, count),
        **dict.fromkeys(extras, np.array([0.5, 2.0, 3.0])[:count]),
    }
    for at in ("word", "bend"):
        whole = gradients(weighted, given, embgrad.Sum(), at=at)
        pieces = gradients(weighted, given, embgrad.Sum(), at=at, batch_size=batch_size)
        np.testing.assert_allclose(pieces.values, whole.values, rtol=1e-12)
        np.testing.assert_allclose(pieces.objective, whole.objective, rtol=1e-12)


def test_micro_batches_of_native_objectives() -> None:
    whole = gradients(mean, objective=lambda logits: logits.column(1))
    pieces = gradients(mean, objective=lambda logits: logits.column(1), batch_size=1)
    np.testing.assert_allclose(pieces.values, whole.values)
    scalar = embgrad.Scalar(lambda logits: logits.column(1).sum(0))
    with refused(UnsupportedError, "batch_size=1 splits the batch of 2, and a Scalar ", "omit batch_size"):
        gradients(mean, objective=scalar, batch_size=1)
    assert gradients(mean, objective=scalar, batch_size=2).objective.shape == ()


def test_labels_of_the_wrong_length_are_refused_in_sub_batches_too() -> None:
    with pytest.raises(ObjectiveError, match="labels has 3 entries: expected 2, one for each example"):
        gradients(objective=embgrad.CrossEntropy([0, 1, 2]), batch_size=1)


def test_split_with_a_native_objective() -> None:
    native = gradients(centred, objective=lambda logits: logits.column(1), split=True)
    ours = gradients(centred, objective=embgrad.Logit(1), split=True)
    np.testing.assert_allclose(native.values, ours.values, atol=1e-15)
    np.testing.assert_allclose(native.objective, ours.objective, atol=1e-15)
    for own, other in zip(native.per_example(), ours.per_example(), strict=True):
        np.testing.assert_allclose(own.to_dense(), other.to_dense(), atol=1e-15)
    assert not np.allclose(native.values, gradients(centred, objective=lambda logits: logits.column(1)).values)


def test_split_needs_an_objective_of_each_example() -> None:
    with pytest.raises(UnsupportedError, match=r"split=True pulls .* Scalar objective has one for the whole"):
        gradients(centred, objective=embgrad.Scalar(lambda logits: logits.column(0).sum(0)), split=True)
