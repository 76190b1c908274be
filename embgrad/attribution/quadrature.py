"""Rules for the integral of a function over [0, 1]: nodes and weights."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

__all__ = ["RULES", "nodes_and_weights"]


def _gauss_legendre(steps: int) -> tuple[np.ndarray, np.ndarray]:
    nodes, weights = np.polynomial.legendre.leggauss(steps)
    return (nodes + 1) / 2, weights / 2


def _left_ends(steps: int) -> tuple[np.ndarray, np.ndarray]:
    return np.arange(steps) / steps, np.full(steps, 1 / steps)


def _right_ends(steps: int) -> tuple[np.ndarray, np.ndarray]:
    return (np.arange(steps) + 1) / steps, np.full(steps, 1 / steps)


def _middle(steps: int) -> tuple[np.ndarray, np.ndarray]:
    return (np.arange(steps) + 0.5) / steps, np.full(steps, 1 / steps)


def _trapezoid(steps: int) -> tuple[np.ndarray, np.ndarray]:
    if steps == 1:
        return _middle(1)
    weights = np.full(steps, 1 / (steps - 1))
    weights[[0, -1]] /= 2
    return np.linspace(0, 1, steps), weights


RULES: Final[Mapping[str, Callable[[int], tuple[np.ndarray, np.ndarray]]]] = {
    "gausslegendre": _gauss_legendre,
    "riemann_left": _left_ends,
    "riemann_right": _right_ends,
    "riemann_middle": _middle,
    "riemann_trapezoid": _trapezoid,
}


@functools.lru_cache(maxsize=16)
def nodes_and_weights(rule: str, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the nodes in [0, 1], increasing, and the weights of a rule, which sum to 1, float64, (step,) each, read-only."""
    nodes, weights = RULES[rule](steps)
    nodes.flags.writeable = weights.flags.writeable = False
    return nodes, weights
