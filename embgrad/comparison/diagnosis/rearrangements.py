"""Hypotheses that one gradient is the other rearranged: shifted, without signs, times the embedding, or summed over repeats."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from embgrad.comparison.diagnosis.case import Case

__all__ = ["STRUCTURES", "Prediction", "order_padded_on", "rearrangements"]

#: Rearrangements of a gradient, each with a description.
Rearranged: TypeAlias = Iterator[tuple[str, np.ndarray]]

#: The longest shift that is tested, in positions.
FARTHEST_SHIFT: Final = 3


@dataclass(frozen=True, eq=False)
class Prediction:
    """A predicted value of the target.

    Attributes:
        causes: keys of `embgrad.comparison.findings.CAUSES`; empty for the source itself.
        text: a description of the rearrangement.
        values: float64, (example, position, dim) as the source's; NaN where nothing is predicted.
    """

    causes: tuple[str, ...]
    text: str
    values: np.ndarray


def rearrangements(case: Case, first: Prediction) -> Iterator[Prediction]:
    """Yield the rearrangements of a prediction, by each cause that it does not have already."""
    for cause, rearranged in STRUCTURES.items():
        for text, values in rearranged(case, first.values) if cause not in first.causes else ():
            together = f"{first.text}, and {text}" if first.causes else text
            yield Prediction((*first.causes, cause), together, values)


def order_padded_on(real: np.ndarray, side: str) -> np.ndarray:
    """Return the order of positions, (example, position), that moves the padding to one side.

    Args:
        real: the real positions, bool, (example, position).
        side: "left" or "right".
    """
    return np.argsort(real if side == "left" else ~real, axis=1, kind="stable")


def _pads_zeroed(case: Case, values: np.ndarray) -> Rearranged:
    """Yield the gradient with zeros at padding."""
    if not case.real.all():
        zeroed = np.where(case.real[..., None], values, 0)
        yield f"that {case.names[1]} was set to zero at padding", zeroed


def _shifted(case: Case, values: np.ndarray) -> Rearranged:
    """Yield shifts by up to three positions to each side, as when a special token was dropped."""
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
            yield text, moved


def _padded_on_a_side(case: Case, values: np.ndarray) -> Rearranged:
    """Yield the layout with each example's text at the left end, and at the right end."""
    for side in ("left", "right"):
        order = order_padded_on(case.real, side)
        if (order != np.arange(order.shape[1])).any():
            text = f"that {case.names[1]} is laid out with the padding on the {side}"
            yield text, np.take_along_axis(values, order[..., None], axis=1)


def _absolute(case: Case, values: np.ndarray) -> Rearranged:
    """Yield the absolute values, as saliency tools return them."""
    if (case.wanted[case.matched] >= 0).all():
        yield f"that {case.names[1]} holds magnitudes without a sign", np.abs(values)


def _normalised(case: Case, values: np.ndarray) -> Rearranged:
    """Yield the gradient scaled to length 1: per position, per example, and as a whole."""
    ways = {"each position": (2,), "each example": (1, 2), "the whole": (0, 1, 2)}
    values = values / (np.nanmax(np.abs(values), initial=0.0) or 1.0)  # squares of huge numbers overflow
    for what, axes in ways.items():
        length = np.sqrt(np.nansum(values**2, axis=axes, keepdims=True))
        scaled = np.divide(values, length, out=np.zeros_like(values), where=length > 0)
        yield f"that {what} of {case.names[1]} was scaled to length 1", scaled


def _times_input(case: Case, values: np.ndarray) -> Rearranged:
    """Yield the gradient times the embedding, entry by entry, which some tools call a gradient."""
    activations = case.source.activations.astype(np.float64).reshape(values.shape)
    yield f"that {case.names[1]} is the gradient times the embedding", values * activations


def _summed_repeats(case: Case, values: np.ndarray) -> Rearranged:
    """Yield the table's gradient at each repeat of a token: the sums over each id, with padding and without."""
    present, numbers = np.unique(case.source.ids, return_inverse=True)
    numbers = numbers.reshape(case.source.ids.shape)
    counted = [values] if case.real.all() else [values, np.where(case.real[..., None], values, 0)]
    for gradient in counted:
        rows = np.zeros((len(present), values.shape[-1]))
        np.add.at(rows, numbers, np.nan_to_num(gradient))
        text = f"that {case.names[1]} holds the table's gradient, summed over a token's repeats, at each of them"
        yield text, rows[numbers]


#: The functions that rearrange a gradient, by cause.
STRUCTURES: Final[Mapping[str, Callable[[Case, np.ndarray], Rearranged]]] = {
    "pads-zeroed": _pads_zeroed,
    "position-shift": _shifted,
    "padding-side": _padded_on_a_side,
    "absolute-value": _absolute,
    "normalised": _normalised,
    "gradient-times-input": _times_input,
    "summed-repeats": _summed_repeats,
}
