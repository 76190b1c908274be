"""The course of a search, step by step."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

import numpy as np

__all__ = ["ARRAYS", "History"]


@dataclass(frozen=True, eq=False)
class History:
    """The course of a search: entry 0 is before the first step, entry k after step k.

    Attributes:
        objective: L of each example's best text so far, float64, shape (step + 1, example).
        ids: the best texts so far with their padding, int64, shape (step + 1, example, position), -1 beyond the width of a step.
        evaluations: how many texts of each example were evaluated so far, int64, shape (step + 1, example).
        gradients: how many gradients were taken of each example so far, likewise.
        seconds: the time since the beginning, float64, shape (step + 1,).
    """

    objective: np.ndarray
    ids: np.ndarray
    evaluations: np.ndarray
    gradients: np.ndarray
    seconds: np.ndarray

    def __repr__(self) -> str:
        steps, examples = self.objective.shape
        return f"History({steps - 1} steps, {examples} examples, {self.seconds[-1]:.4g} seconds)"


#: The names of a history's arrays.
ARRAYS: Final = tuple(entry.name for entry in fields(History))
