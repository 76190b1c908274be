"""Hypotheses that one gradient is the other rearranged: shifted, without signs, times the embedding, summed over repeats."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final, Protocol

import numpy as np

from embgrad.comparison.diagnosis.case import Case

__all__ = ["STRUCTURES", "Prediction", "StructureHypothesis", "order_padded_on"]

#: By how many positions a shift is tried.
FARTHEST_SHIFT: Final = 3


@dataclass(frozen=True, eq=False)
class Prediction:
    """What the target would be.

    Attributes:
        causes: keys of `embgrad.comparison.diagnosis.findings.CAUSES`; none for the source as it is.
        text: what was done.
        values: float64, (example, position, dim) as the source's; NaN where nothing is predicted.
        fitted: whether something in it was made to fit.
    """

    causes: tuple[str, ...]
    text: str
    values: np.ndarray
    fitted: bool = False


class StructureHypothesis(Protocol):
    """Predicts the target by rearranging a gradient."""

    cause: ClassVar[str]

    def predictions(self, case: Case, values: np.ndarray) -> Iterator[Prediction]:
        """What the target would be, where `values` were the source's."""
        ...


class PositionShift:
    """Each position holds what belongs to one further left or right, as where a special token was dropped."""

    cause: ClassVar[str] = "position-shift"

    def predictions(self, case: Case, values: np.ndarray) -> Iterator[Prediction]:
        """By up to three positions to each side."""
        positions = values.shape[1]
        for distance in range(1, min(FARTHEST_SHIFT, positions - 1) + 1):
            for shift in (distance, -distance):
                moved = np.full_like(values, np.nan)
                if shift > 0:
                    moved[:, shift:] = values[:, :-shift]
                else:
                    moved[:, :shift] = values[:, -shift:]
                where = "right" if shift > 0 else "left"
                text = f"a shift by {distance} position{'s' if distance > 1 else ''} to the {where} in {case.names[1]}"
                yield Prediction((self.cause,), text, moved)


class PaddingSide:
    """Laid out with the padding on the other side than the ids say."""

    cause: ClassVar[str] = "padding-side"

    def predictions(self, case: Case, values: np.ndarray) -> Iterator[Prediction]:
        """Each example's text moved to the left end, and to the right."""
        for side in ("left", "right"):
            order = order_padded_on(case.real, side)
            if (order != np.arange(order.shape[1])).any():
                text = f"that {case.names[1]} is laid out with the padding on the {side}"
                yield Prediction((self.cause,), text, np.take_along_axis(values, order[..., None], axis=1))


def order_padded_on(real: np.ndarray, side: str) -> np.ndarray:
    """For each position where its token comes from, (example, position), where the padding goes to one side.

    Args:
        real: the real positions, bool, (example, position).
        side: "left" or "right".
    """
    return np.argsort(real if side == "left" else ~real, axis=1, kind="stable")


class AbsoluteValue:
    """Magnitudes, as saliency tools give them."""

    cause: ClassVar[str] = "absolute-value"

    def predictions(self, case: Case, values: np.ndarray) -> Iterator[Prediction]:
        """The magnitudes."""
        if (case.wanted[case.matched] >= 0).all():
            yield Prediction((self.cause,), f"that {case.names[1]} holds magnitudes without a sign", np.abs(values))


class Normalised:
    """Scaled to length 1: each position, each example, or the whole."""

    cause: ClassVar[str] = "normalised"

    def predictions(self, case: Case, values: np.ndarray) -> Iterator[Prediction]:
        """Over each of the three."""
        ways = {"each position": (2,), "each example": (1, 2), "the whole": (0, 1, 2)}
        values = values / (np.nanmax(np.abs(values), initial=0.0) or 1.0)  # the squares of huge numbers would overflow
        for what, axes in ways.items():
            length = np.sqrt(np.nansum(values**2, axis=axes, keepdims=True))
            scaled = np.divide(values, length, out=np.zeros_like(values), where=length > 0)
            yield Prediction((self.cause,), f"that {what} of {case.names[1]} was scaled to length 1", scaled)


class GradientTimesInput:
    """The gradient times the embedding, entry by entry, as some tools call a gradient."""

    cause: ClassVar[str] = "gradient-times-input"

    def predictions(self, case: Case, values: np.ndarray) -> Iterator[Prediction]:
        """The product."""
        activations = case.source.activations.astype(np.float64).reshape(values.shape)
        yield Prediction(
            (self.cause,), f"that {case.names[1]} is the gradient times the embedding", values * activations
        )


class SummedRepeats:
    """The table's gradient in the place of the position's: the same for each repeat of a token, and their sum."""

    cause: ClassVar[str] = "summed-repeats"

    def predictions(self, case: Case, values: np.ndarray) -> Iterator[Prediction]:
        """Summed over each id, with padding and without."""
        _, numbers = np.unique(case.source.ids, return_inverse=True)
        numbers = numbers.reshape(case.source.ids.shape)
        counted = [values] if case.real.all() else [values, np.where(case.real[..., None], values, 0)]
        for given in counted:
            rows = np.zeros((numbers.max() + 1, values.shape[-1]))
            np.add.at(rows, numbers, np.nan_to_num(given))
            text = f"that {case.names[1]} holds the table's gradient, summed over a token's repeats, at each of them"
            yield Prediction((self.cause,), text, rows[numbers])


class PadsZeroed:
    """Zero at padding, where the model computes something."""

    cause: ClassVar[str] = "pads-zeroed"

    def predictions(self, case: Case, values: np.ndarray) -> Iterator[Prediction]:
        """Without what is at padding."""
        if not case.real.all():
            kept = np.where(case.real[..., None], values, 0)
            yield Prediction((self.cause,), f"that {case.names[1]} was set to zero at padding", kept)


STRUCTURES: Final[tuple[StructureHypothesis, ...]] = (
    PadsZeroed(),
    PositionShift(),
    PaddingSide(),
    AbsoluteValue(),
    Normalised(),
    GradientTimesInput(),
    SummedRepeats(),
)
