"""Rotary positions: queries and keys whose pairs of features are turned by angles in proportion to their positions."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, Literal

import numpy as np

__all__ = ["HALVES", "INTERLEAVED", "Rotary", "Scaling"]

Layout = Literal["halves", "interleaved"]
HALVES: Final = "halves"
INTERLEAVED: Final = "interleaved"


@dataclass(frozen=True)
class Scaling:
    """A change of the frequencies, for texts longer than those of the training.

    Attributes:
        kind: "linear", "llama3" or "yarn".
        factor: the number that frequencies are divided by; in llama3 and yarn only low ones.
        low: llama3's `low_freq_factor`; yarn's `beta_slow`.
        high: llama3's `high_freq_factor`; yarn's `beta_fast`.
        original: the length of the training's texts.
    """

    kind: str
    factor: float
    low: float = 1.0
    high: float = 4.0
    original: float = 8192.0

    def apply(self, frequencies: np.ndarray, base: float, size: int) -> np.ndarray:
        """Return the changed frequencies, from the highest to the lowest."""
        if self.kind == "linear":
            return frequencies / self.factor
        if self.kind == "llama3":
            turns = self.original * frequencies / (2 * math.pi)
            kept = np.clip((turns - self.low) / (self.high - self.low), 0, 1)
        else:
            first, last = (
                size * math.log(self.original / (turns * 2 * math.pi)) / (2 * math.log(base))
                for turns in (self.high, self.low)
            )
            start, end = max(math.floor(first), 0), min(math.ceil(last), size - 1)
            kept = 1 - np.clip((np.arange(len(frequencies)) - start) / max(end - start, 1e-3), 0, 1)
        return np.asarray(kept * frequencies + (1 - kept) * frequencies / self.factor)

    @property
    def length(self) -> float:
        """The number that cosines and sines are multiplied by."""
        return 0.1 * math.log(self.factor) + 1 if self.kind == "yarn" and self.factor > 1 else 1.0

    @property
    def text(self) -> str:
        """A readable description."""
        if self.kind == "linear":
            return f"linear with factor {self.factor:g}"
        return f"{self.kind} with factor {self.factor:g}, {self.low:g}, {self.high:g} and length {self.original:g}"


@dataclass(frozen=True)
class Rotary:
    """The settings of rotary positions.

    Attributes:
        base: the base of the frequencies.
        size: the number of features of a head that are turned, the first ones.
        layout: "halves" if feature i is paired with i + size / 2, "interleaved" if with its neighbour.
        scaling: a change of the frequencies; None for none.
        queries: whether queries are turned.
        keys: whether keys are turned.
        ahead: how much further the queries' positions are than the keys'.
        sense: 1, or -1 where angles have the opposite sign.
    """

    base: float
    size: int
    layout: Layout = "halves"
    scaling: Scaling | None = None
    queries: bool = True
    keys: bool = True
    ahead: int = 0
    sense: int = 1

    def turn_queries(self, values: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Return turned queries, (example, position, head, feature)."""
        return self._turn(values, positions + self.ahead) if self.queries else values

    def turn_keys(self, values: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Return turned keys, (example, position, head, feature)."""
        return self._turn(values, positions) if self.keys else values

    def _turn(self, values: np.ndarray, positions: np.ndarray) -> np.ndarray:
        cosine, sine = _angles(self.base, self.size, self.scaling, tuple(positions.tolist()))
        half = self.size // 2
        turned = np.array(values)
        if self.layout == INTERLEAVED:
            first, second = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
        else:
            first, second = slice(0, half), slice(half, 2 * half)
        x, y = values[..., first], values[..., second]
        turned[..., first] = x * cosine - self.sense * y * sine
        turned[..., second] = y * cosine + self.sense * x * sine
        return turned

    def of_head(self, old: int, new: int) -> Rotary:
        """Return the settings with the same share of heads of another size."""
        return replace(self, size=max(2, 2 * round(self.size * new / old / 2)))


@lru_cache(maxsize=512)
def _angles(
    base: float, size: int, scaling: Scaling | None, positions: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the cosines and sines, (position, 1, pair)."""
    half = size // 2
    frequencies = base ** (-np.arange(half) * 2.0 / (2 * half))
    length = 1.0
    if scaling is not None:
        frequencies, length = scaling.apply(frequencies, base, size), scaling.length
    angles = np.array(positions, np.float64)[:, None, None] * frequencies
    return length * np.cos(angles), length * np.sin(angles)
