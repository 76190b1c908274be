"""Findings of a diagnosis: causes, and how much of the difference between two gradients they explain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

__all__ = ["CAUSES", "Finding"]

#: Every cause that a finding can name, with a description.
CAUSES: Final[dict[str, str]] = {
    "mean-over-batch": "one side took the mean over the examples, the other the sum",
    "mean-over-tokens": "one side took the mean over tokens, the other the sum",
    "mean-over-batch-and-classes": "one side took the mean over examples and classes, the other the sum",
    "constant-factor": "one side is the other times a number",
    "sign": "one side has the other sign",
    "absolute-value": "one side holds magnitudes without a sign",
    "normalised": "one side was scaled to length 1",
    "gradient-times-input": "one side is multiplied by the embedding",
    "summed-repeats": "one side holds the table's gradient, summed over a token's repeats, instead of each position's",
    "position-shift": "one side is shifted by positions",
    "pads-zeroed": "one side was set to zero at padding",
    "half-precision": "one side was computed in half precision",
    "probability-objective": "one side is the gradient of a probability",
    "label-shift": "one side has shifted labels",
    "sum-objective": "one side is the gradient of the sum of the output",
    "other-objective": "the two are gradients of different objectives",
    "pads-counted": "one side's objective counts padding",
    "mask-ignored": "one side ran without the mask",
    "padding-side": "one side was padded on the other side",
    "types-ignored": "one side ran without the segment ids",
    "position-ids-offset": "one side's position ids are offset",
    "other-ids": "one side looked up other ids",
    "other-point": "the two were taken at different points",
    "after-norm": "one side was taken after the embedding block instead of at the raw lookup",
    "head-share": "one side holds the head's share of a tied table",
    "scaled-lookup": "one side scales what it looks up",
    "gelu": "the two compute GELU differently",
    "activation": "the two compute different activations",
    "layer-norm-epsilon": "the two have different epsilons in their layer norms",
    "attention-scale": "the two scale attention scores differently",
    "dropout": "one side ran with dropout on",
    "transposed-weight": "a weight is transposed",
    "swapped-weights": "weights are swapped",
    "missing-bias": "one side lacks a bias, or has zeros in it",
    "half-weights": "one side's weights are rounded to half precision",
    "different-weight": "a weight differs",
    "different-table": "the tables differ",
}


@dataclass(frozen=True)
class Finding:
    """A cause, or two together, and how much of the difference they explain.

    Attributes:
        causes: keys of `CAUSES`, one or two.
        text: a description of the causes with their numbers; `str` adds the share that they explain.
        explained: the share of the squared difference ‖b − a‖² that is removed when one side is predicted from the other, from 0
            to 1; None if the cause is recorded in the results, and was not measured.
        remaining: the relative L2 between that side and its prediction; None if the cause was not measured.
        side: "a" or "b", the side that departs from the usual, for example by a sum instead of a mean; "" if neither does.
    """

    causes: tuple[str, ...]
    text: str
    explained: float | None
    remaining: float | None
    side: str = ""

    @property
    def left(self) -> float:
        """The value of `remaining` for sorting: infinite if it was not measured."""
        return float("inf") if self.remaining is None else self.remaining

    def __str__(self) -> str:
        if self.explained is None:
            return f"recorded in the results, not measured: {self.text}"
        percent = 100 * self.explained
        digits = 1 if percent < 99.9 else 3  # "100 %" appears only for an explanation that is right up to rounding
        figure = "100" if percent > 99.9995 else f"{round(percent, digits):g}"
        return f"{figure} % of the difference is {self.text}"

    def to_dict(self) -> dict[str, Any]:
        """Return the fields in a form that JSON can hold."""
        return {
            "causes": list(self.causes),
            "text": str(self),
            "explained": self.explained,
            "remaining": self.remaining,
            "side": self.side,
        }
