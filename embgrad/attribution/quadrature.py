"""Rules for the integral of a function over [0, 1]: nodes and weights, and the error on each stretch of it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

__all__ = ["RULES", "error_along", "integrals_up_to_nodes", "largest_gap", "nodes_and_weights"]


def _gauss_legendre(steps: int) -> tuple[np.ndarray, np.ndarray]:
    nodes, weights = np.polynomial.legendre.leggauss(steps)
    return (nodes + 1) / 2, weights / 2


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
    "riemann_left": lambda steps: (np.arange(steps) / steps, np.full(steps, 1 / steps)),
    "riemann_right": lambda steps: ((np.arange(steps) + 1) / steps, np.full(steps, 1 / steps)),
    "riemann_middle": _middle,
    "riemann_trapezoid": _trapezoid,
}


@functools.lru_cache(maxsize=16)
def nodes_and_weights(rule: str, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the nodes in [0, 1], increasing, and the weights of a rule, which sum to 1, float64, (step,) each, read-only."""
    nodes, weights = RULES[rule](steps)
    nodes.flags.writeable = weights.flags.writeable = False
    return nodes, weights


#: The share of the weight of a node that belongs to the part of [0, 1] before it, by the rules other than Gauss and Legendre's.
SHARES: Final = {"riemann_left": 0.0, "riemann_right": 1.0, "riemann_middle": 0.5, "riemann_trapezoid": 0.5}


def integrals_up_to_nodes(rule: str, values: np.ndarray) -> np.ndarray:
    """Return the integrals from 0 up to each node of what a rule integrates, float64, (step, …).

    A rule integrates a function that has the given values at its nodes: Gauss and Legendre's a polynomial, the trapezoid rule one
    that is linear between the nodes, the others one that is constant around each node.

    Args:
        values: the values at the nodes, (step, …).
    """
    steps = len(values)
    nodes, weights = nodes_and_weights(rule, steps)
    weighted = np.tensordot(np.diag(weights), values, 1)
    if rule == "gausslegendre":
        of_degrees = np.polynomial.legendre.legvander(2 * nodes - 1, steps)  # (node, degree)
        integrals = of_degrees[:, 1:].copy()  # of the polynomials of a degree below `steps`, times 2 × degree + 1
        integrals[:, 0] += 1
        integrals[:, 1:] -= of_degrees[:, : steps - 1]
        return np.asarray(np.tensordot(integrals, np.tensordot(of_degrees[:, :steps].T, weighted, 1), 1) / 2)
    shares = np.full(steps, SHARES[rule])
    if rule == "riemann_trapezoid" and steps > 1:
        shares[[0, -1]] = 0, 1  # the weight of an end lies on one side of it
    return np.asarray(np.cumsum(weighted, 0) - np.tensordot(np.diag(1 - shares), weighted, 1))


def error_along(
    rule: str, slopes: np.ndarray, objectives: np.ndarray, before: np.ndarray, delta: np.ndarray
) -> np.ndarray:
    """Return the largest error of the sum of contributions on any stretch of the line, at least the size of `delta`.

    The sum of the contributions up to a node is known, and so is what it should be, by how much L differs there from L at the
    baseline.

    Args:
        slopes: at each node how L changes along the line, (step, …).
        objectives: L at each node, likewise.
        before: L at the baseline, (…).
        delta: the error of the sum along the whole line, (…).
    """
    gaps = integrals_up_to_nodes(rule, slopes) - (objectives - before)
    return largest_gap(np.concatenate([gaps, delta[None]]))


def largest_gap(gaps: np.ndarray) -> np.ndarray:
    """Return the largest difference of two errors up to places on a line, (…), where that up to its beginning is 0.

    Args:
        gaps: the errors up to some places, (place, …).
    """
    return np.asarray(np.maximum(gaps.max(0), 0) - np.minimum(gaps.min(0), 0))
