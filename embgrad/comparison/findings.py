"""The causes of differences, and findings: which of them explain how much of the difference between two gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

__all__ = ["CAUSES", "Finding"]

#: Every cause that a comparison or the check of a port can name, with a description.
CAUSES: Final[dict[str, str]] = {
    # of a result
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
    # of a request
    "probability-objective": "one side is the gradient of a probability",
    "label-shift": "one side has shifted labels",
    "sum-objective": "one side is the gradient of the sum of the output",
    "other-objective": "the two are gradients of different objectives",
    "pads-counted": "one side's objective counts padding",
    "padding-side": "one side was padded on the other side",
    "other-point": "the two were taken at different points",
    "after-norm": "one side was taken after the embedding block instead of at the raw lookup",
    "head-share": "one side holds the head's share of a tied table",
    # of a request, or inside a model
    "mask-ignored": "one side ran without the mask",
    "types-ignored": "one side ran without the segment ids",
    "position-ids-offset": "one side's position ids are offset",
    "other-ids": "one side looked up other ids",
    "scaled-lookup": "one side scales what it looks up",
    "different-table": "the tables differ",
    "dropout": "one side ran with dropout on",
    # norms
    "layer-norm-epsilon": "the two have different epsilons in their norms",
    "norm-kind": "the two's norms are of different kinds, or take other features together",
    "norm-offset": "one side's norm multiplies by its weight, the other's by one more",
    "norm-order": "one side's norm comes before a part, the other's behind it",
    "norm-in-half": "one side's norm computes in half precision",
    "missing-norm": "one side lacks a norm",
    # activations
    "gelu": "the two compute GELU differently",
    "activation": "the two compute different activations",
    "gate-swapped": "one side applies the activation to the other branch of a gate",
    "missing-gate": "one side's gate does not multiply",
    "expert-routing": "the two choose or weigh experts differently",
    # rotary positions
    "rotary-base": "the two have different bases of their rotary positions",
    "rotary-scaling": "the two scale their rotary positions differently",
    "rotary-layout": "one side rotates neighbouring features, the other the two halves of a head",
    "rotary-partial": "the two rotate different shares of a head",
    "rotary-offset": "one side's rotary positions are offset",
    "missing-rotary": "one side lacks rotary positions",
    "rotary-in-half": "one side computes rotary positions in half precision",
    # recurrent layers
    "recurrence": "the two run a recurrent layer differently, such as from the other end of the text",
    # convolutions
    "convolution": "the two pad texts for a convolution differently, or dilate its kernel differently",
    # attention
    "attention-scale": "the two scale attention scores differently",
    "attention-cap": "the two cap attention scores differently",
    "attention-causal": "one side attends to later positions",
    "attention-window": "the two attend to windows of different sizes",
    "attention-shift": "one side's mask is shifted by one position",
    "attention-softmax": "one side's softmax of attention scores is over queries",
    "attention-heads": "the two divide the features into other heads",
    "attention-groups": "the two share keys and values among other heads",
    "attention-bias": "the two add other biases to attention scores",
    # weights
    "transposed-weight": "a weight is transposed",
    "swapped-weights": "weights are swapped",
    "permuted-weight": "a weight has its rows or columns in another order",
    "missing-bias": "one side lacks a bias, or has zeros in it",
    "half-weights": "one side's weights are rounded, to half precision or to a few bits",
    "different-weight": "a weight differs",
    # tables
    "missing-positions": "one side adds no positions",
    "padding-row": "the row of the padding token differs",
    # residuals and the head
    "residual-scale": "the two scale a residual connection differently",
    "missing-residual": "one side lacks a residual connection",
    "layer-order": "one side runs its layers in another order, or one of them again",
    "missing-part": "one side skips a part of the other, such as a layer",
    "head-untied": "one side's head holds another matrix than the table",
    "logit-cap": "the two cap the logits differently",
    "logit-scale": "the two scale the logits differently",
    # the vector of a text
    "pooling": "the two make the vector of a text from its hidden states in different ways",
}


@dataclass(frozen=True)
class Finding:
    """A cause, or several together, and how much of the difference they explain.

    Attributes:
        causes: keys of `CAUSES`.
        text: a description of the causes with their numbers; `str` adds the share that they explain.
        explained: the share of the squared difference ‖b − a‖² that is removed when one side is predicted from the other, from 0
            to 1; None if it was not measured: if the cause is recorded in the results, or if the models differ further on without
            a known cause, too.
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
            return f"not measured: {self.text}"
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
