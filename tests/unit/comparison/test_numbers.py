"""The numbers of two results that are compared, and how far apart they may be."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import embgrad
from embgrad.common.tolerance import tolerance_of
from embgrad.comparison.numbers import name_of, numbers_of, usual_tolerance
from embgrad.errors import EmbgradError
from tests.unit.attribution.models import BATCH, curved

LOGIT = embgrad.Logit(0)
GRADIENT = embgrad.gradients(curved(), BATCH, LOGIT)
PRODUCT = embgrad.attribute(curved(), BATCH, LOGIT, "input_x_gradient")
REMOVAL = embgrad.attribute(curved(), BATCH, LOGIT, embgrad.methods.Occlusion(0))


def test_values_are_compared_and_scores_where_there_are_none() -> None:
    assert numbers_of(GRADIENT, GRADIENT)[0] is GRADIENT.values
    assert numbers_of(PRODUCT, PRODUCT)[1] is PRODUCT.values
    first, second = numbers_of(REMOVAL, PRODUCT)
    np.testing.assert_array_equal(first, REMOVAL.scores[..., None])
    np.testing.assert_array_equal(second, PRODUCT.scores[..., None])
    with pytest.raises(EmbgradError, match="a is a gradient and b an attribution: expected two results"):
        numbers_of(GRADIENT, PRODUCT)


def test_names_have_their_articles() -> None:
    assert [name_of(result) for result in (GRADIENT, PRODUCT)] == ["gradient", "attribution"]
    assert [name_of(result, article=True) for result in (GRADIENT, PRODUCT)] == ["a gradient", "an attribution"]


def test_values_have_one_tolerance() -> None:
    assert usual_tolerance(GRADIENT, GRADIENT) == (tolerance_of(GRADIENT, GRADIENT),) * 2
    assert usual_tolerance(PRODUCT, PRODUCT) == (tolerance_of(PRODUCT, PRODUCT),) * 2
    assert np.shape(usual_tolerance(REMOVAL, PRODUCT)[1]) == (len(REMOVAL.scores),)


def test_scores_without_values_have_the_rounding_of_the_objectives() -> None:
    small = replace(REMOVAL, scores=REMOVAL.scores * 1e-6)
    base = tolerance_of(small, small)
    whole, each = usual_tolerance(small, small)
    levels = np.abs(small.objective) * np.sqrt(small.real.sum(1))
    sizes = np.linalg.norm(small.scores, axis=1)
    np.testing.assert_allclose(each, base * levels / sizes)
    assert whole == pytest.approx(base * np.linalg.norm(levels) / np.linalg.norm(sizes))
    large = replace(REMOVAL, scores=REMOVAL.scores * 1e6)
    whole, each = usual_tolerance(large, large)
    assert whole == base
    np.testing.assert_allclose(each, base)
    none = replace(REMOVAL, scores=REMOVAL.scores * 0)
    whole, each = usual_tolerance(none, none)
    assert whole == base
    np.testing.assert_allclose(each, base)
