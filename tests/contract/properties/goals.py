"""Objectives of a generated case, with their values by hand."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

import embgrad

KINDS: Final = {"projection": embgrad.Projection, "logit": embgrad.Logit, "cross-entropy": embgrad.CrossEntropy}

#: The label of a position that does not count.
IGNORED: Final = -100


@dataclass(frozen=True)
class Goal:
    """An objective.

    Attributes:
        kind: one of KINDS.
        numbers: the vectors of a projection, (example, entries); else labels, (example,), or (example, position) for the
            cross-entropy of an output per position.
        position: -1 if only each example's last real position counts; None for all.
    """

    kind: str
    numbers: np.ndarray
    position: int | None = None

    def take(self, examples: Any) -> Goal:
        return replace(self, numbers=self.numbers[examples])

    def objective(self) -> embgrad.Objective:
        return KINDS[self.kind](self.numbers, position=self.position)

    def values(self, output: np.ndarray, real: np.ndarray) -> np.ndarray:
        """Return L, (direction, example), of an output, (direction, example, ..., entries)."""
        rows = output if output.ndim == 4 else output[:, :, None]
        counts = self._counted(real) if output.ndim == 4 else np.ones((len(real), 1))
        if self.kind == "projection":
            return np.asarray(((rows * self.numbers[:, None]).sum(-1) * counts).sum(-1))
        labels = self.numbers if self.numbers.ndim == 2 else self.numbers[:, None]
        chosen = np.eye(rows.shape[-1])[np.maximum(labels, 0)]
        own = (rows * chosen).sum(-1)
        if self.kind == "logit":
            return np.asarray((own * counts).sum(-1))
        # A logarithm of the softmax near 1 would keep none of its digits.
        losses = np.log1p((np.exp(rows - own[..., None]) * (1 - chosen)).sum(-1))
        return np.asarray((losses * counts * (labels != IGNORED)).sum(-1))

    def _counted(self, real: np.ndarray) -> np.ndarray:
        if self.position is None:
            return real
        last = real.shape[1] - 1 - np.argmax(real[:, ::-1] > 0, axis=1)
        return np.asarray(np.arange(real.shape[1]) == last[:, None], np.float64)
