"""The comparison of a row's results alone with those beside other rows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from embgrad.ray.alone import NOISE, _least


def test_gradients_whose_rounding_would_exceed_the_limit_are_compared_by_a_larger_norm() -> None:
    result: Any = SimpleNamespace(objective=np.array([8.0, -20.0]), activations=np.array([[[3.0, 4.0]], [[0.0, 0.0]]]))
    assert _least(result, 0, 0.5) == pytest.approx(NOISE * 20 / (0.5 * 5))
    assert _least(result, 1, 0.5) == 0.0
