"""Objectives of a generated case: as embgrad has them, and their values and cotangents by hand."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

import embgrad

KINDS: Final = ("projection", "logit", "cross-entropy")

#: The label of a position that does not count.
IGNORED: Final = -100


@dataclass(frozen=True)
class Goal:
    """An objective.

    Attributes:
        kind: one of KINDS.
        numbers: of a projection the vectors, (example, entries); else the labels, (example,), or (example, position) for the
            cross-entropy of an output per position.
        position: -1 where each example's last real position alone counts, of an output per position; None for all.
    """

    kind: str
    numbers: np.ndarray
    position: int | None = None

    def take(self, examples: Any) -> Goal:
        """That of some of the examples, by a slice or an order."""
        return replace(self, numbers=self.numbers[examples])

    def given(self) -> embgrad.Objective:
        kinds = {"projection": embgrad.Projection, "logit": embgrad.Logit, "cross-entropy": embgrad.CrossEntropy}
        return kinds[self.kind](self.numbers, position=self.position)

    def evaluate(self, output: np.ndarray, real: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """L of each example, (example,), and the cotangent of the output.

        Args:
            output: (example, entries), or (example, position, entries).
            real: 1 at real positions, (example, position).
        """
        rows = output if output.ndim == 3 else output[:, None]
        counts = self._counted(real) if output.ndim == 3 else np.ones((len(output), 1))
        values, slopes = self._of_rows(rows)
        if self.kind == "cross-entropy" and self.numbers.ndim == 2:
            counts = counts * (self.numbers != IGNORED)
        return (values * counts).sum(1), (slopes * counts[..., None]).reshape(output.shape)

    def _counted(self, real: np.ndarray) -> np.ndarray:
        if self.position is None:
            return real
        last = real.shape[1] - 1 - np.argmax(real[:, ::-1] > 0, axis=1)
        return np.asarray(np.arange(real.shape[1]) == last[:, None], np.float64)

    def _of_rows(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The value of each row, (example, position), and its slopes."""
        if self.kind == "projection":
            slopes = np.broadcast_to(self.numbers[:, None], rows.shape)
            return (rows * slopes).sum(-1), slopes
        labels = self.numbers if self.numbers.ndim == 2 else self.numbers[:, None]
        chosen = np.broadcast_to(np.eye(rows.shape[-1])[np.maximum(labels, 0)], rows.shape)
        if self.kind == "logit":
            return (rows * chosen).sum(-1), chosen
        powers = np.exp(rows - rows.max(-1, keepdims=True))
        own, others = powers * chosen, powers * (1 - chosen)  # 1 less a share near 1 would keep none of its digits
        apart = others.sum(-1, keepdims=True)
        slopes = (others - chosen * apart) / powers.sum(-1, keepdims=True)
        return np.log1p(apart[..., 0] / own.sum(-1)), slopes
