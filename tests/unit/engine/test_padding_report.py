"""What padding does, on paper: a masked mean whose pads carry nothing, a plain mean whose pads do; and batches without any."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.testing.reference import ReferenceModel, Tensor, lookup

DIM = 4
TABLE = np.random.default_rng(0).normal(size=(12, DIM))
IDS = np.array([[3, 5, 7], [2, 9, 0]])
MASK = np.array([[1, 1, 1], [1, 1, 0]])
SLOPE = np.array([1.0, -2.0, 0.5, 3.0])
OBJECTIVE = embgrad.Projection(SLOPE)


def forward(model: Any, input_ids: np.ndarray, attention_mask: np.ndarray) -> Tensor:
    share = attention_mask / attention_mask.sum(1, keepdims=True)
    rows = model.module("rows", lambda ids: lookup(model["E"], ids), input_ids)
    return model.module("pool", lambda x: x.sum(1), rows * Tensor(share[..., None]))


def report(ids: Any = IDS, mask: Any = MASK, **options: Any) -> embgrad.results.PaddingReport:
    model = ReferenceModel(forward, {"E": TABLE.copy()}, ["rows", "pool"])
    return embgrad.metrics.padding_report(model, embgrad.TokenBatch(ids, mask), OBJECTIVE, **options)


def test_a_masked_mean_gives_padding_nothing() -> None:
    actual = report()
    assert (actual.pad_id, actual.pads, actual.positions, actual.mask_taken, actual.doors) == (0, 1, 6, True, ())
    assert actual.row_norm == pytest.approx(np.linalg.norm(TABLE[0]), rel=1e-12)
    # Each real position has the slope over its example's length: three thirds and two halves, of six positions or five.
    assert actual.average_off == pytest.approx(1 / 6, rel=1e-12)
    assert actual.saliency_off == pytest.approx(-1 / 6, rel=1e-12)


def test_the_pad_id_as_a_real_token_is_reported() -> None:
    actual = report([[0, 5, 7], [2, 9, 0]])
    assert actual.doors == ("lookup at real positions",)
    assert actual.at_real == pytest.approx(np.linalg.norm(SLOPE) / 3, rel=1e-12)


@pytest.mark.parametrize(
    ("ids", "mask", "message"),
    [
        (IDS, None, "the batch has no mask, and the report .*pass texts of different lengths, or a mask with zeros"),
        (IDS, np.ones_like(IDS), "the batch has a mask without zeros, and the report is about padding"),
        (IDS, np.zeros_like(IDS), "the mask is zero at all 6 positions: expected 1 at real positions"),
        (IDS, [[1, 1, 0], [1, 1, 0]], r"the batch has 2 different ids at masked positions, \[0, 7\]: expected one"),
    ],
)
def test_batches_without_padding_of_one_id(ids: Any, mask: Any, message: str) -> None:
    with pytest.raises(embgrad.errors.BatchError, match=message):
        report(ids, mask)


@pytest.mark.parametrize("at", ["pool", "rows"])
def test_a_point_other_than_a_lookup_is_refused(at: str) -> None:
    message = rf"the point '{at}' is no lookup of the batch's ids: expected one, such as at='word'"
    with pytest.raises(embgrad.errors.PointError, match=message):
        report(at=at)


@pytest.mark.parametrize("at", [["word"], None, ""])
def test_anything_but_one_point_name_is_refused(at: Any) -> None:
    with pytest.raises(
        embgrad.errors.PointError, match=r"at is .*: expected the name of a point, .*one call for each lookup"
    ):
        report(at=at)


@pytest.mark.parametrize("ids", [[[3, 5, 7], [2, 9, 0]], [[3, 5, 7], [2, 9, 1]]])
def test_a_lookup_of_other_indices_is_refused(ids: Any) -> None:
    def with_positions(model: Any, input_ids: np.ndarray, attention_mask: np.ndarray) -> Tensor:
        rows = lookup(model["E"], input_ids) + lookup(model["places"], np.arange(3)[None])
        return (rows * Tensor((attention_mask / 3)[..., None])).sum(1)

    model = ReferenceModel(with_positions, {"E": TABLE.copy(), "places": TABLE[:3].copy()})
    with pytest.raises(embgrad.errors.PointError, match="the point 'position' is no lookup of the batch's ids"):
        embgrad.metrics.padding_report(model, embgrad.TokenBatch(ids, MASK), OBJECTIVE, at="position")


def test_a_list_of_objectives_is_refused() -> None:
    model = ReferenceModel(forward, {"E": TABLE.copy()}, ["rows", "pool"])
    with pytest.raises(embgrad.errors.ObjectiveError, match="objective"):
        embgrad.metrics.padding_report(model, embgrad.TokenBatch(IDS, MASK), [OBJECTIVE])
