"""The slopes of distances are fitted for each head, where all have one sign."""

from __future__ import annotations

import numpy as np
import pytest

from embgrad.comparison.hypotheses.core import Core
from embgrad.comparison.hypotheses.core_parts import Mask, PositionBias
from embgrad.comparison.hypotheses.core_slopes import fitted_slopes
from embgrad.comparison.hypotheses.sources import Source
from tests.unit.comparison.hypotheses.attended import BEFORE, HEADS, KEY, QUERY, REAL, SIZE, VALUE, attended
from tests.unit.comparison.hypotheses.planted import site_of

CORE = Core(
    *(Source("q", QUERY), Source("k", KEY), Source("v", VALUE), HEADS, SIZE**-0.5, REAL),
    mask=Mask(causal=True),
    bias=PositionBias(),
)


@pytest.mark.parametrize(
    ("slopes", "found"),
    [([0.3, 0.2, 1.0, 0.05], True), ([-0.3, -0.2, -1.0, -0.05], True), ([0.3, -0.2, 1.0, 0.05], False),
        ([-0.3, 0.2, -1.0, -0.05], False)],
)  # fmt: skip
def test_slopes_of_one_sign_are_fitted_and_no_others(slopes: list[float], found: bool) -> None:
    b = attended(bias=lambda head, distance: slopes[head] * distance)
    core = fitted_slopes(site_of(attended(), b, BEFORE, real=REAL), CORE)
    assert (core is not None) is found
    if core is not None and core.bias is not None:
        np.testing.assert_allclose(core.bias.slopes, slopes, rtol=1e-4)
