"""The steps of a model in NumPy, each with its pullback by hand: nothing here is embgrad's or a framework's.

Every intermediate result goes through `kept`, which gives it back as it is, or disturbed as rounding would: see `rounding`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from tests.contract.properties.specs import EPSILON

#: What an intermediate result becomes.
Kept = Callable[[np.ndarray], np.ndarray]

#: The cotangent of what a step was given, from that of what it made.
Pullback = Callable[[np.ndarray], np.ndarray]

#: What a step made, and its pullback.
Step = tuple[np.ndarray, Pullback]


def linear(x: np.ndarray, weight: np.ndarray, bias: np.ndarray | float, kept: Kept) -> Step:
    return kept(kept(x @ weight) + bias), lambda g: kept(g @ weight.T)


def tanh(x: np.ndarray, kept: Kept) -> Step:
    y = kept(np.tanh(x))
    return y, lambda g: kept(g * kept(1 - y**2))


def mix(x: np.ndarray, kept: Kept) -> Step:
    """Less half the mean over the examples, which is its own pullback."""

    def apply(value: np.ndarray) -> np.ndarray:
        return kept(value - kept(value.mean(0, keepdims=True)) / 2)

    return apply(x), apply


def mean(x: np.ndarray, real: np.ndarray, kept: Kept) -> Step:
    """The mean over real positions, (example, dim); `real` is (example, position), 1 or 0."""
    share = (real / real.sum(1, keepdims=True))[..., None]
    return kept((x * share).sum(1)), lambda g: kept(g[:, None] * share)


def norm(x: np.ndarray, gain: np.ndarray, shift: np.ndarray, kept: Kept) -> Step:
    """Each row less its mean, over its standard deviation."""
    centred = kept(x - kept(x.mean(-1, keepdims=True)))
    deviation = kept(np.sqrt(kept((centred**2).mean(-1, keepdims=True)) + EPSILON))
    unit = kept(centred / deviation)

    def back(g: np.ndarray) -> np.ndarray:
        g = kept(g * gain)
        along = kept(unit * kept((g * unit).mean(-1, keepdims=True)))
        return kept(kept(kept(g - kept(g.mean(-1, keepdims=True))) - along) / deviation)

    return kept(kept(unit * gain) + shift), back


def attention(x: np.ndarray, real: np.ndarray, weights: Mapping[str, np.ndarray], kept: Kept) -> Step:
    """One head of softmax attention to the real positions of the example."""
    query, key, value = (kept(x @ weights[name]) for name in ("query", "key", "value"))
    root = np.sqrt(x.shape[-1])
    scores = np.where(real[:, None, :] > 0, kept(query @ _turned(key)) / root, -np.inf)
    powers = kept(np.exp(kept(scores - scores.max(-1, keepdims=True))))
    shares = kept(powers / powers.sum(-1, keepdims=True))

    def back(g: np.ndarray) -> np.ndarray:
        to_shares = kept(g @ _turned(value))
        to_scores = kept(shares * kept(to_shares - kept((to_shares * shares).sum(-1, keepdims=True)))) / root
        ways = {"query": to_scores @ key, "key": _turned(to_scores) @ query, "value": _turned(shares) @ g}
        return kept(np.sum([kept(kept(way) @ weights[name].T) for name, way in ways.items()], axis=0))

    return kept(shares @ value), back


def _turned(matrices: np.ndarray) -> np.ndarray:
    return np.swapaxes(matrices, -1, -2)
