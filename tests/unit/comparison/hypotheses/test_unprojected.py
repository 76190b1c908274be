"""An attention that multiplies with its own output matrix is explained like one before that product."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from embgrad.comparison.hypotheses.attention import AttentionCore
from embgrad.comparison.hypotheses.site import Site
from embgrad.comparison.hypotheses.unprojected import unprojected
from embgrad.comparison.recording import HeldWeight
from embgrad.comparison.sites import Pair
from tests.unit.comparison.hypotheses.attended import BEFORE, REAL, attended
from tests.unit.comparison.hypotheses.planted import expect_exact, site_of

RANDOM = np.random.default_rng(1)
OUTPUT, BIAS = RANDOM.normal(size=(32, 32)), RANDOM.normal(size=32)
MODULE = "layers.0.attention"
WEIGHTS = {"inner": RANDOM.normal(size=(96, 32)), "out.weight": OUTPUT, "out.bias": BIAS}


def site_behind(a: np.ndarray, b: np.ndarray, weights: dict[str, np.ndarray]) -> Site:
    """Return the site at the output of a module with weights."""
    site = site_of(a, b, BEFORE, real=REAL)
    key = f"{MODULE}:output#0"
    tensor = replace(next(iter(site.recordings[0].tensors.values())), key=key, path=MODULE, side="output")
    held = tuple(
        HeldWeight(f"{MODULE}.{name}", MODULE, values.shape, lambda values=values: values, layer=0)  # type: ignore[misc]
        for name, values in weights.items()
    )
    recording = replace(site.recordings[0], tensors={key: tensor}, weights=held)
    return replace(site, pair=Pair(MODULE, key, key), recordings=(recording, recording))


@pytest.mark.parametrize("matrix", [OUTPUT, OUTPUT.T], ids=["input by output", "output by input"])
def test_a_setting_is_named(matrix: np.ndarray) -> None:
    a, b = (attended(scale=scale) @ matrix + BIAS for scale in (None, 1.0))
    site = site_behind(a, b, WEIGHTS)
    (found,) = AttentionCore().explain(site)
    expect_exact(site, found)
    assert found.text == "attention scale 0.353553 in a and 1 in b"


def test_both_outputs_are_before_the_product() -> None:
    a, b = (attended(scale=scale) @ OUTPUT + BIAS for scale in (None, 1.0))
    inner = [found for found, _ in unprojected(site_behind(a, b, WEIGHTS)) if np.allclose(found.a, attended())]
    assert len(inner) == 1
    np.testing.assert_allclose(inner[0].b, attended(scale=1.0))
    assert inner[0].floor > 1e-9


def test_modules_with_one_matrix_and_singular_ones_have_no_such_site() -> None:
    a = attended() @ OUTPUT
    assert not list(unprojected(site_behind(a, 2 * a, {"out.weight": OUTPUT, "out.bias": BIAS})))
    assert not list(unprojected(site_behind(a, 2 * a, {**WEIGHTS, "out.weight": np.ones((32, 32))})))
    assert not list(unprojected(site_of(a, 2 * a, BEFORE, real=REAL)))
