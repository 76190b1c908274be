"""By how much two embedding gradients differ, in figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from embgrad.errors import BatchError, EmbgradError
from embgrad.result import EmbeddingGradients, load

__all__ = ["Comparison", "Figures", "compare"]


@dataclass(frozen=True)
class Figures:
    """How far b is from a.

    Attributes:
        relative_l2: ‖b − a‖ / ‖a‖; 0 where both are zero, infinite where only a is.
        largest: the largest difference of two entries.
        cosine: of the angle between them; 1 where both are zero, 0 where one is.
    """

    relative_l2: float
    largest: float
    cosine: float

    def to_dict(self) -> dict[str, float]:
        """The figures by name."""
        return {"relative_l2": self.relative_l2, "largest": self.largest, "cosine": self.cosine}


@dataclass(frozen=True)
class Comparison:
    """Two results side by side.

    Attributes:
        figures: over all examples.
        per_example: of each example.
        labels: what a and b are.
    """

    figures: Figures
    per_example: tuple[Figures, ...]
    labels: tuple[str, str]

    def __repr__(self) -> str:
        lines = [f"b = {self.labels[1]} against a = {self.labels[0]}", f"{'':>10} relative L2     largest      cosine"]
        rows = [("all", self.figures), *((f"example {i}", one) for i, one in enumerate(self.per_example))]
        lines += [f"{name:>10} {one.relative_l2:11.3e} {one.largest:11.3e} {one.cosine:11.8f}" for name, one in rows]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """The figures as JSON can hold them."""
        return {
            "labels": list(self.labels),
            "figures": self.figures.to_dict(),
            "per_example": [one.to_dict() for one in self.per_example],
        }


def compare(a: Any, b: Any) -> Comparison:
    """How far the gradient b is from a, over all examples and in each of them. Computed in float64.

    Args:
        a: a result of `embgrad.gradients`, or the path of a saved one. What b is measured against.
        b: likewise, of the same ids.

    Raises:
        BatchError: the two are of other ids or dimensions.
        FileFormatError: a file is not embgrad's.
    """
    a, b = _result(a, "a"), _result(b, "b")
    if a.values.shape != b.values.shape:
        raise BatchError(
            f"a has shape {a.values.shape} and b {b.values.shape}: expected gradients of the same batch and table"
        )
    if not np.array_equal(a.ids, b.ids):
        example, position = (int(i) for i in np.argwhere(a.ids != b.ids)[0])
        raise BatchError(
            f"a and b are of other ids, first at example {example}, position {position}, where a has "
            f"{a.ids[example, position]} and b {b.ids[example, position]}: expected gradients of the same batch"
        )
    pairs = zip(a.values, b.values, strict=True)
    return Comparison(
        figures=figures_of(a.values, b.values),
        per_example=tuple(figures_of(one, other) for one, other in pairs),
        labels=(_label(a), _label(b)),
    )


def figures_of(a: np.ndarray, b: np.ndarray) -> Figures:
    """The figures of two arrays of the same shape."""
    a, b = a.astype(np.float64).ravel(), b.astype(np.float64).ravel()
    length, other = float(np.linalg.norm(a)), float(np.linalg.norm(b))
    difference = float(np.linalg.norm(b - a))
    relative = difference / length if length else float("inf") if difference else 0.0
    # Divided one by one: the product of two tiny lengths would underflow.
    cosine = float((a / length) @ (b / other)) if length and other else float(length == other)
    return Figures(relative, float(np.abs(b - a).max(initial=0.0)), cosine)


def _result(given: Any, name: str) -> EmbeddingGradients:
    if isinstance(given, EmbeddingGradients):
        return given
    if isinstance(given, (str, Path)):
        return load(given)
    raise EmbgradError(
        f"{name} is of type {type(given).__name__}: expected a result of embgrad.gradients, or the path of a saved one"
        + (f"; compare {name}[...] for each of {list(given)}" if isinstance(given, Mapping) else "")
    )


def _label(result: EmbeddingGradients) -> str:
    source = result.provenance
    return f"{source.get('backend', '?')} {source.get('model', '?')} at {source.get('point', '?')!r}"
