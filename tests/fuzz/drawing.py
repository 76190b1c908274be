"""Random choices of one call, which depend on the seed and the call's number alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")


class Draw:
    def __init__(self, seed: int, number: int) -> None:
        self.random = np.random.default_rng([seed, number])

    def choice(self, choices: Sequence[T]) -> T:
        return choices[int(self.random.integers(len(choices)))]

    def weighted(self, choices: Mapping[T, float]) -> T:
        weights = np.array(list(choices.values()), np.float64)
        return list(choices)[int(self.random.choice(len(weights), p=weights / weights.sum()))]

    def chance(self, share: float) -> bool:
        return bool(self.random.random() < share)

    def integer(self, least: int, most: int) -> int:
        return int(self.random.integers(least, most + 1))

    def subset(self, choices: Sequence[T], least: int = 1, most: int | None = None) -> list[T]:
        count = self.integer(least, min(len(choices), len(choices) if most is None else most))
        return [choices[int(index)] for index in self.random.permutation(len(choices))[:count]]

    def normal(self, *shape: int, scale: float = 1.0) -> np.ndarray:
        return np.asarray(self.random.normal(scale=scale, size=shape))

    def integers(self, least: int, most: int, shape: Any) -> np.ndarray:
        return self.random.integers(least, most + 1, size=shape)
