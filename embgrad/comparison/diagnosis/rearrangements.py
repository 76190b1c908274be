"""Hypotheses that one gradient is the other rearranged: shifted, without signs, times the embedding, or summed over repeats."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final, Protocol

import numpy as np

from embgrad.comparison.diagnosis.case import Case

__all__ = ["STRUCTURES", "Prediction", "StructureHypothesis", "order_padded_on"]

#: The longest shift that is tested, in positions.
FARTHEST_SHIFT: Final = 3


@dataclass(frozen=True, eq=False)
class Prediction:
    """A predicted value of the target.

    Attributes:
        causes: keys of `embgrad.comparison.diagnosis.findings.CAUSES`; empty for the source itself.
        text: a description of the rearrangement.
        values: float64, (example, position, dim) as the source's; NaN where nothing is predicted.
        fitted: whether something in it was fitted to the target.
    """

    causes: tuple[str, ...]
    text: str
    values: np.ndarray
    fitted: bool = False


class StructureHypothesis(Protocol):
    """A way to predict the target by rearranging a gradient."""

    cause: ClassVar[str]

    def predictions(self, case: Case, values: np.ndarray) -> Iterator[Prediction]:
        """Yield predictions of the target, with `values` as the source's gradient."""
        ...


class PositionShift:
    """The value of each position stored at one further left or right, as when a special token was dropped."""

    cause: ClassVar[str] = "position-shift"

    def predictions(self, case: Case, values: np.ndarray) -> Iterator[Prediction]:
        """Yield shifts by up to three positions to each side."""
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
    """A layout with the padding on the other side than in the ids."""

    cause: ClassVar[str] = "padding-side"

    def predictions(self, case: Case, values: np.ndarray) -> Iterator[Prediction]:
        """Yield the layout with each example's text at the left end, and at the right end."""
        for side in ("left", "right"):
            order = order_padded_on(case.real, side)
            if (order != np.arange(order.shape[1])).any():
                text = f"that {case.names[1]} is laid out with the padding on the {side}"
                yield Prediction((self.cause,), text, np.take_along_axis(values, order[..., None], axis=1))


def order_padded_on(real: np.ndarray, side: str) -> np.ndarray:
    """Return the order of positions, (example, position), that moves the padding to one side.

    Args:
        real: the real positions, bool, (example, position).
        side: "left" or "right".
    """
    return np.argsort(real if side == "left" else ~real, axis=1, kind="stable")


class AbsoluteValue:
    """Absolute values, as saliency tools return them."""

    cause: ClassVar[str] = "absolute-value"

    def predictions(self, case: Case, values: np.ndarray) -> Iterator[Prediction]:
        """Yield the absolute values."""
        if (case.wanted[case.matched] >= 0).all():
            yield Prediction((self.cause,), f"that {case.names[1]} holds magnitudes without a sign", np.abs(values))


class Normalised:
    """A gradient scaled to length 1: per position, per example, or as a whole."""

    cause: ClassVar[str] = "normalised"

    def predictions(self, case: Case, values: np.ndarray) -> Iterator[Prediction]:
        """Yield the gradient scaled in each of the three ways."""
        ways = {"each position": (2,), "each example": (1, 2), "the whole": (0, 1, 2)}
        values = values / (np.nanmax(np.abs(values), initial=0.0) or 1.0)  # squares of huge numbers overflow
        for what, axes in ways.items():
            length = np.sqrt(np.nansum(values**2, axis=axes, keepdims=True))
            scaled = np.divide(values, length, out=np.zeros_like(values), where=length > 0)
            yield Prediction((self.cause,), f"that {what} of {case.names[1]} was scaled to length 1", scaled)


class GradientTimesInput:
    """The gradient times the embedding, entry by entry, which some tools call a gradient."""

    cause: ClassVar[str] = "gradient-times-input"

    def predictions(self, case: Case, values: np.ndarray) -> Iterator[Prediction]:
        """Yield the product."""
        activations = case.source.activations.astype(np.float64).reshape(values.shape)
        yield Prediction(
            (self.cause,), f"that {case.names[1]} is the gradient times the embedding", values * activations
        )


class SummedRepeats:
    """The table's gradient instead of the position's: the same at each repeat of a token, and the sum over them."""

    cause: ClassVar[str] = "summed-repeats"

    def predictions(self, case: Case, values: np.ndarray) -> Iterator[Prediction]:
        """Yield the sums over each id, with padding and without."""
        _, numbers = np.unique(case.source.ids, return_inverse=True)
        numbers = numbers.reshape(case.source.ids.shape)
        counted = [values] if case.real.all() else [values, np.where(case.real[..., None], values, 0)]
        for gradient in counted:
            rows = np.zeros((numbers.max() + 1, values.shape[-1]))
            np.add.at(rows, numbers, np.nan_to_num(gradient))
            text = f"that {case.names[1]} holds the table's gradient, summed over a token's repeats, at each of them"
            yield Prediction((self.cause,), text, rows[numbers])


class PadsZeroed:
    """A gradient set to zero at padding, where the model's gradient is not zero."""

    cause: ClassVar[str] = "pads-zeroed"

    def predictions(self, case: Case, values: np.ndarray) -> Iterator[Prediction]:
        """Yield the gradient with zeros at padding."""
        if not case.real.all():
            zeroed = np.where(case.real[..., None], values, 0)
            yield Prediction((self.cause,), f"that {case.names[1]} was set to zero at padding", zeroed)


STRUCTURES: Final[tuple[StructureHypothesis, ...]] = (
    PadsZeroed(),
    PositionShift(),
    PaddingSide(),
    AbsoluteValue(),
    Normalised(),
    GradientTimesInput(),
    SummedRepeats(),
)
