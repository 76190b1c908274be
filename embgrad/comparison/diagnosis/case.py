"""One direction of a comparison: the prediction of one gradient, the target, from the other, the source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np

from embgrad.backend.protocol import Call
from embgrad.common.metrics import figures_of, length
from embgrad.common.tolerance import HALVES, remembered_depth, tolerance_for
from embgrad.comparison.align import Alignment
from embgrad.results.gradients import EmbeddingGradients

__all__ = ["EXACT", "Case", "Match", "Measure", "half_of", "objective_of"]

#: The number of tolerances within which a prediction equals the target up to rounding.
EXACT: Final = 5.0

#: The error to expect from half precision, as a share of half precision's tolerance: small BERTs are off by a fortieth to a
#: twelfth of it, and hardly any by a sixth. A wider bound would attribute other faults to rounding.
OF_HALF: Final = 0.25

#: The share of the target's positions that a prediction must cover.
LEAST_COVERED: Final = 0.5


@dataclass(frozen=True)
class Measure:
    """The accuracy of a prediction.

    Attributes:
        explained: the share of the squared difference between target and source that the prediction removes.
        remaining: the relative L2 of the target against the prediction.
        scale: the factor by which the prediction would fit best; 1 if it has the right size.
    """

    explained: float
    remaining: float
    scale: float


@dataclass(frozen=True, eq=False)
class Case:
    """One direction of a comparison.

    Attributes:
        source: the result that predictions start from.
        target: the result that is predicted.
        alignment: the partner in the target of each position of the source.
        tolerance: the relative L2 up to which the two agree.
        model: the source's model; None if it is not available.
        call: a function that calls the source's model; None for the usual call.
        side: "a" or "b": which of the two the target is.
    """

    source: EmbeddingGradients
    target: EmbeddingGradients
    alignment: Alignment
    tolerance: float
    model: Any = None
    call: Call | None = None
    side: str = "b"

    @cached_property
    def values(self) -> np.ndarray:
        """The source's gradient, float64, (example, position, dim)."""
        return _three_axes(self.source.values)

    @cached_property
    def wanted(self) -> np.ndarray:
        """The target's gradient, arranged as the source's; zeros where it has no partner."""
        return self.alignment.arrange(_three_axes(self.target.values))

    @property
    def matched(self) -> np.ndarray:
        """The positions at which the two can be compared, bool, (example, position)."""
        return self.alignment.matched

    @cached_property
    def real(self) -> np.ndarray:
        """The source's real positions, bool, (example, position)."""
        return self.source.real

    @cached_property
    def half(self) -> str | None:
        """The dtype of half precision in which the target, but not the source, was computed; None if there is none."""
        dtypes = [half_of(result) for result in (self.target, self.source)]
        return dtypes[0] if dtypes[0] != dtypes[1] else None

    @cached_property
    def exact(self) -> float:
        """The remaining relative L2 up to which a prediction equals the target up to rounding."""
        depth = remembered_depth(self.target)
        return max(EXACT * self.tolerance, OF_HALF * tolerance_for(self.half, depth) if self.half else 0.0)

    @property
    def has_other_texts(self) -> bool:
        """True if the target's ids differ from the source's, or are at other positions."""
        positions = np.arange(self.source.ids.shape[1])
        straight = (self.alignment.position == positions).all()
        return not straight or bool((self.alignment.arrange(self.target.ids) != self.source.ids).any())

    @property
    def differs_only_in_padding(self) -> bool:
        """True if the target's texts equal the source's, at other positions."""
        lengths = self.target.real.sum(1)[self.alignment.examples()]
        same = (self.alignment.arrange(self.target.ids) == self.source.ids)[self.matched].all()
        return bool(same and self.matched[self.real].all() and (lengths == self.real.sum(1)).all())

    @property
    def names(self) -> tuple[str, str]:
        """The names of the source and the target: "a" and "b", or "b" and "a"."""
        return ("a", "b") if self.side == "b" else ("b", "a")

    def cut(self, examples: slice) -> Case:
        """Return the case for some of the source's examples."""
        alignment = Alignment(self.alignment.example[examples], self.alignment.position[examples], ())
        return replace(self, source=_cut(self.source, examples), alignment=alignment)

    def off(self, predicted: np.ndarray) -> float:
        """Return the relative L2 of a prediction, (example, position, dim), against the target."""
        return figures_of(self.wanted[self.matched], predicted[self.matched]).relative_l2

    def measured(self, predicted: np.ndarray) -> Measure | None:
        """Return the accuracy of a prediction, (example, position, dim), where it is finite; None if that is hardly anywhere."""
        match = self.match(predicted)
        return None if match is None else match.measured(np.ones(len(predicted)))

    @cached_property
    def reference(self) -> Reference:
        """The reference for predictions that are finite at all positions that can be compared."""
        return Reference(self, self.matched)

    def match(self, predicted: np.ndarray) -> Match | None:
        """Return a match that measures multiples of the prediction; None if the prediction is hardly finite anywhere, or zero."""
        counted = self.matched & np.isfinite(predicted).all(-1)
        if counted.sum() < max(1.0, LEAST_COVERED * self.matched.sum()):
            return None
        reference = self.reference if np.array_equal(counted, self.matched) else Reference(self, counted)
        match = Match(reference, predicted)
        return match if match.usable else None


class Reference:
    """The target and the source, at the positions where some predictions are measured.

    Args:
        case: the direction of the comparison.
        counted: the positions at which the two are compared, bool, (example, position).

    Attributes:
        target: the target, float64, (example, position, dim).
        counted: the positions at which the two are compared, bool, (example, position).
        unit: the target's largest absolute number there, by which it is divided: the products of tiny numbers would underflow.
        differs: whether the target is not zero, and differs from the source.
        wanted: the target in that unit; zeros elsewhere.
        squares: the sums of its squares, (example,).
        before: the length of the difference between target and source, in that unit.
    """

    def __init__(self, case: Case, counted: np.ndarray) -> None:
        self.target, self.counted = case.wanted, counted
        wanted, source = (np.where(counted[..., None], values, 0.0) for values in (case.wanted, case.values))
        self.unit = float(np.abs(wanted).max())
        self.wanted = wanted / (self.unit or 1.0)
        self.squares = np.einsum("epd,epd->e", self.wanted, self.wanted)
        self.before = length(self.wanted - source / (self.unit or 1.0))
        self.differs = bool(self.unit) and bool(self.before)


class Match:
    """The sums that give the accuracy of a prediction, times one number per example, without a pass over all entries.

    Args:
        reference: the reference, and the positions at which it is compared.
        predicted: the prediction, float64, (example, position, dim).

    Attributes:
        usable: whether the target differs from the source and the prediction is not zero.
    """

    def __init__(self, reference: Reference, predicted: np.ndarray) -> None:
        self._reference, self._predicted = reference, predicted
        guess = np.where(reference.counted[..., None], predicted, 0.0)
        self._unit = float(np.abs(guess).max())
        self.usable = reference.differs and bool(self._unit)
        if self.usable:
            guess = guess / self._unit
            self._squares = np.einsum("epd,epd->e", guess, guess)
            self._products = np.einsum("epd,epd->e", guess, reference.wanted)

    def best_numbers(self) -> tuple[float, np.ndarray | None]:
        """Return the number that fits best, and one for each example; None for the latter if an example's prediction is zero."""
        ratio = self._reference.unit / self._unit
        each = self._products / self._squares * ratio if self._squares.all() else None
        return float(self._products.sum()) / float(self._squares.sum()) * ratio, each

    def least_count(self) -> int:
        """Return the smallest count of numbers that are compared in an example."""
        return int(self._reference.counted.sum(1).min()) * int(self._predicted.shape[-1])

    def explained(self, numbers: np.ndarray) -> np.ndarray:
        """Return the share that the prediction times each row of numbers, (row, example), explains, (row,).

        It is computed from sums of squares, to as many digits as they have.
        """
        scaled, reference = self._scaled(numbers), self._reference
        # A prediction so large that its square overflows explains nothing.
        with np.errstate(over="ignore", invalid="ignore"):
            remaining = (reference.squares - 2 * scaled * self._products + scaled**2 * self._squares).sum(-1)
            return np.asarray(1 - remaining / np.square(reference.before))

    def measured(self, numbers: np.ndarray) -> Measure:
        """Return the accuracy of the prediction times these numbers, (example,)."""
        scaled, reference = self._scaled(numbers), self._reference
        guess = (self._predicted * numbers[:, None, None])[reference.counted]
        # Entry by entry: of nearly equal sums too many digits cancel.
        after = length((reference.target[reference.counted] - guess) / reference.unit)
        size = float((scaled**2 * self._squares).sum())
        scale = float((scaled * self._products).sum()) / size if size else 0.0
        return Measure(1 - (after / reference.before) ** 2, after / float(np.sqrt(reference.squares.sum())), scale)

    def _scaled(self, numbers: np.ndarray) -> np.ndarray:
        """Return the numbers in units of the prediction and the target."""
        return numbers * (self._unit / self._reference.unit)


def objective_of(result: EmbeddingGradients) -> Mapping[str, Any]:
    """Return the recorded description of a result's objective; an empty mapping if there is none, or none that can be read."""
    described = result.provenance.get("objective")
    return described if isinstance(described, Mapping) else {}


def half_of(result: EmbeddingGradients) -> str | None:
    """Return the dtype of half precision in which a result was computed, as recorded or shown by its numbers; None if none."""
    remembered = str(result.provenance.get("compute_dtype"))
    if remembered in HALVES:
        return remembered
    if result.values.dtype == np.float64:
        return None
    values = result.values[result.values != 0].astype(np.float32)
    if values.size < 8:
        return None
    # One in 2**16 numbers in float32 is also a number in bfloat16, and one in 2**13 a number in float16.
    if not (values.view(np.uint32) & 0xFFFF).any():
        return "bfloat16"
    largest = float(np.abs(values).max())
    with np.errstate(over="ignore", under="ignore"):
        rounded = values.astype(np.float16).astype(np.float32)
    return "float16" if largest < 65504 and np.array_equal(rounded, values) else None


def _three_axes(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float64).reshape(*values.shape[:2], -1)


def _cut(result: EmbeddingGradients, examples: slice) -> EmbeddingGradients:
    def cut(array: Any) -> Any:
        return None if array is None else array[examples]

    names = ("values", "activations", "ids", "mask", "types", "tokens", "words_of", "before")
    objective = result.objective if np.ndim(result.objective) == 0 else cut(result.objective)
    return replace(result, objective=objective, tables=None, **{name: cut(getattr(result, name)) for name in names})
