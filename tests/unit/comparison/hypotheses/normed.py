"""Norms by hand, and sites at their outputs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from embgrad.comparison.hypotheses.norm import Norm
from embgrad.comparison.hypotheses.site import Explanation, Site
from tests.unit.comparison.hypotheses.modules import best, module_site

RANDOM = np.random.default_rng(0)
SIZE = 6
X = RANDOM.normal(size=(2, 5, SIZE)) * RANDOM.uniform(0.02, 1, size=(2, 5, 1)) + 0.3
GAIN = 1 + 0.4 * RANDOM.normal(size=SIZE)
SHIFT = 0.5 * RANDOM.normal(size=SIZE)
ZERO, ONE = np.zeros(SIZE), np.ones(SIZE)
WEIGHTS = {"norm.gain": GAIN, "norm.bias": SHIFT}


def norm(
    x: np.ndarray, epsilon: float, gain: np.ndarray = GAIN, shift: np.ndarray = SHIFT, *, centred: bool = True
) -> np.ndarray:
    """Return the norm of each vector, feature by feature."""
    result = np.empty_like(x)
    for at in np.ndindex(*x.shape[:-1]):
        vector = x[at].tolist()
        mean = sum(vector) / len(vector) if centred else 0.0
        power = sum((value - mean) ** 2 for value in vector) / len(vector)
        for feature, value in enumerate(vector):
            result[(*at, feature)] = (value - mean) / math.sqrt(power + epsilon) * gain[feature] + shift[feature]
    return result


def site(a: np.ndarray, b: np.ndarray, x: np.ndarray = X, **further: Any) -> Site:
    return module_site(a, b, {"norm:input": x}, **{"key": "norm:output#0", "held_a": WEIGHTS, **further})


def explained(at: Site) -> Explanation:
    return best(at, Norm().explain(at))
