"""One direction of a comparison: what a prediction explains, by hand, and what two results have in common."""

from __future__ import annotations

from dataclasses import astuple, replace
from typing import Any

import numpy as np
import pytest

from embgrad.common.tolerance import tolerance_for
from embgrad.comparison.align import aligned
from embgrad.comparison.diagnosis.case import Case, Match, Measure, Reference, half_of, objective_of
from embgrad.results.gradients import EmbeddingGradients
from tests.unit.comparison.test_factors import IDS, MASK, result

VALUES = np.arange(48.0).reshape(3, 4, 4) + 1


def case(values: np.ndarray = VALUES, wanted: np.ndarray = 2 * VALUES, **further: Any) -> Case:
    source, target = (replace(result(), values=array) for array in (values, wanted))
    return Case(source, target, aligned(source, target), 1e-6, **further)


def test_a_prediction_explains_the_squared_difference_that_it_removes() -> None:
    at = case(np.ones((3, 4, 4)), np.full((3, 4, 4), 3.0))
    found = at.measured(np.full((3, 4, 4), 2.5))
    assert found is not None
    assert astuple(found) == pytest.approx((1 - 0.25**2, 0.5 / 3, 1.2))
    assert at.measured(np.full((3, 4, 4), 3.0)) == Measure(1.0, 0.0, 1.0)
    plain = at.measured(at.values)
    assert plain is not None
    assert astuple(plain) == pytest.approx((0.0, 2 / 3, 3.0))
    away = at.measured(-at.values)
    assert away is not None
    assert away.explained == pytest.approx(-3)


def test_nearly_equal_predictions_are_measured_entry_by_entry() -> None:
    at = case(np.ones((3, 4, 4)), np.full((3, 4, 4), 3.0))
    off = 3.0 * (1 + 1e-9)
    found = at.measured(np.full((3, 4, 4), off))
    assert found is not None
    assert found.remaining == pytest.approx(1e-9, rel=1e-5)


def test_numbers_are_fitted_by_least_squares() -> None:
    wanted = VALUES * np.array([2.0, 3.0, 4.0])[:, None, None]
    at = case(VALUES, wanted)
    match = at.match(VALUES)
    assert match is not None
    whole, each = match.best_numbers()
    assert whole == pytest.approx((VALUES * wanted).sum() / (VALUES**2).sum())
    np.testing.assert_allclose(each, [2, 3, 4])
    np.testing.assert_allclose(match.explained(np.array([[2.0, 3.0, 4.0], [1.0, 1.0, 1.0]])), [1, 0], atol=1e-12)
    assert match.least_count() == 16
    zero = VALUES * np.array([1.0, 0.0, 1.0])[:, None, None]
    empty = at.match(zero)
    assert empty is not None
    assert empty.best_numbers()[1] is None


@pytest.mark.parametrize(("broken", "usable"), [(6, True), (7, False)])
def test_a_prediction_must_be_finite_at_half_of_the_positions(broken: int, usable: bool) -> None:
    predicted = np.array(2 * VALUES)
    predicted.reshape(12, 4)[:broken, 0] = np.nan
    assert (case().match(predicted) is not None) is usable


def test_what_is_zero_or_equal_has_no_match() -> None:
    assert case().match(0 * VALUES) is None
    assert case(VALUES, VALUES).match(VALUES) is None
    assert case(VALUES, 0 * VALUES).match(VALUES) is None
    assert Match(Reference(case(), np.ones((3, 4), bool)), VALUES).usable


def test_tiny_and_huge_numbers_are_measured_in_their_own_units() -> None:
    at = case(VALUES * 1e-200, 2e-200 * VALUES)
    assert at.measured(2e-200 * VALUES) == Measure(1.0, 0.0, 1.0)
    huge = case(VALUES, 2 * VALUES).match(VALUES)
    assert huge is not None
    assert huge.explained(np.array([[1e300] * 3]))[0] < 0


def test_other_texts_are_other_ids_or_other_places() -> None:
    base = result()

    def against(target: EmbeddingGradients) -> Case:
        return Case(base, target, aligned(base, target), 1e-6)

    assert not against(base).has_other_texts
    other = IDS.copy()
    other[0, 1] = 6
    assert against(replace(base, ids=other)).has_other_texts
    assert against(replace(base, ids=np.where(MASK, IDS + 20, IDS))).has_other_texts  # aligned by index
    moved = np.array([[1, 5, 9, 2], [0, 1, 7, 2], [0, 0, 1, 2]])
    left = against(replace(base, ids=moved, mask=(moved > 0).astype(int)))
    assert left.has_other_texts
    assert left.differs_only_in_padding
    assert not against(replace(base, ids=other)).differs_only_in_padding
    longer = moved.copy()
    longer[2, 1] = 9
    assert not against(replace(base, ids=longer, mask=(longer > 0).astype(int))).differs_only_in_padding


def test_the_side_names_the_source_and_the_target() -> None:
    assert case().names == ("a", "b")
    assert case(side="a").names == ("b", "a")


def test_a_cut_has_some_of_the_examples() -> None:
    part = case(VALUES, 2 * VALUES).cut(slice(1, 3))
    np.testing.assert_array_equal(part.values, VALUES[1:])
    np.testing.assert_array_equal(part.wanted, 2 * VALUES[1:])
    np.testing.assert_array_equal(part.real, MASK[1:].astype(bool))
    objective = replace(result(), objective=np.arange(3.0))
    cut = Case(objective, objective, aligned(objective, objective), 1e-6).cut(slice(0, 2)).source
    assert np.asarray(cut.objective).tolist() == [0, 1]


def half(values: np.ndarray, dtype: str | None = None) -> EmbeddingGradients:
    base = result()
    return replace(base, values=values, provenance={**base.provenance, "compute_dtype": dtype})


COARSE = (VALUES / 3).astype(np.float16).astype(np.float32)


def test_half_precision_is_recorded_or_shown_by_the_numbers() -> None:
    assert half_of(half(VALUES, "float16")) == "float16"
    assert half_of(half(COARSE)) == "float16"
    assert half_of(half(COARSE.astype(np.float64))) is None
    assert half_of(half((VALUES / 3).astype(np.float32))) is None
    assert half_of(half(np.exp2(np.arange(48.0) % 9).astype(np.float32).reshape(3, 4, 4))) == "bfloat16"
    few = np.zeros((3, 4, 4), np.float32)
    few.ravel()[:7] = 1 + 2.0**-9
    assert half_of(half(few)) is None
    few.ravel()[7] = 1 + 2.0**-9
    assert half_of(half(few)) == "float16"
    large = COARSE.copy()
    large[0, 0, 0] = 65504
    assert half_of(half(large)) is None


def test_half_precision_widens_what_is_exact() -> None:
    fine, coarse = half(VALUES.astype(np.float32), "float32"), half(VALUES.astype(np.float32), "float16")
    at = Case(fine, coarse, aligned(fine, coarse), 1e-6)
    assert at.half == "float16"
    assert at.exact == pytest.approx(0.25 * tolerance_for("float16", None))
    assert Case(coarse, coarse, aligned(coarse, coarse), 1e-6).half is None
    assert case().exact == pytest.approx(5e-6)


def test_an_objective_that_cannot_be_read_is_empty() -> None:
    assert objective_of(result({"class": "Sum"})) == {"class": "Sum"}
    assert objective_of(result(None)) == {}
