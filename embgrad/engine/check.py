"""`check=True`: tests of a gradient by finite differences, by the table's own gradient and by examples that are run again."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from embgrad.common.metrics import length, lengths
from embgrad.engine.check_examples import rerun, warning_of
from embgrad.engine.finite_differences import Precision, differences, precision_of, tolerances
from embgrad.engine.question import Question
from embgrad.engine.run import locate_for, objective_with, run_question
from embgrad.engine.table_gradients import gradients_of_table, sum_tolerance
from embgrad.errors import CertificationError, EmbgradWarning, UnsupportedError, level_of_user
from embgrad.model_points.axes import Located
from embgrad.results.certificate import Certificate, Slope
from embgrad.results.gradients import EmbeddingGradients

__all__ = ["certify"]

#: The largest relative uncertainty of the slope in the gradient's own direction with which it still counts as a test.
ROUGH: Final = 0.2

#: The largest relative tolerance: a test that accepts half the gradient, or twice the gradient, is no test.
HALF: Final = 0.5

#: The smallest activation by which a step is scaled: smaller steps would be lost among larger numbers.
LEAST: Final = 1e-2

#: The relative difference of a gradient that is another, as a multiple of the tolerance.
FAR: Final = 5.0

#: The number of random directions beside the gradient's own.
RANDOM: Final = 2

#: With `split=True` the most examples that are changed one by one, where changing them together does not test them all.
MOST_EXAMPLES: Final = 8

#: The largest accepted error at a kink, as a multiple of the kink in random directions: several pieces may meet in it, and a
#: framework may return the gradient of any of them, or their sum.
KINKS: Final = 10.0


def certify(question: Question, results: Mapping[str, EmbeddingGradients]) -> dict[str, EmbeddingGradients]:
    """Return the results with their certificates."""
    _expect_testable(question)
    located = locate_for(question)
    _expect_whole(question, located)
    whole = {name: precision_of(result.provenance["compute_dtype"]) for name, result in results.items()}
    sums = {name: sum_tolerance(result.provenance["compute_dtype"]) for name, result in results.items()}
    tables = _scatter(question, located)
    checked, warning = {}, None
    for name, result in results.items():
        slopes, untested, excused = _Trial(question, located, name, result, whole[name]).slopes()
        far = FAR * whole[name].tolerance
        made = rerun(question, located[name], name, result, far, run_question)
        certificate = Certificate(
            tuple(slopes),
            tables.get(name),
            made.figures.pop("independence", None),
            untested,
            **made.figures,
            unrun=made.unrun,
        )
        _expect_right(name, certificate, sums[name], excused)
        made.expect_placed(name, certificate)
        checked[name] = replace(result, certificate=certificate)
        warning = warning or warning_of(name, made, certificate, far, split=question.options.split)
    if warning is not None:
        warnings.warn(warning, EmbgradWarning, stacklevel=level_of_user() + 1)
    return checked


def _expect_testable(question: Question) -> None:
    if question.options.changes.get("edit"):
        raise UnsupportedError(
            "check=True tests that a gradient is the objective's, and edit=... replaces it by another: omit one of them"
        )
    if question.options.training:
        raise UnsupportedError(
            "check=True compares forward passes with each other, and training=True draws random numbers in each: omit one of them"
        )
    question.bound.expect_ability("add")


def _expect_whole(question: Question, located: Mapping[str, Located]) -> None:
    """Refuse a tensor that all examples share, of whose gradient the part from padding was set to zero."""
    shared = [name for name in question.options.names if located[name].arrangement.shared]
    if shared and question.options.pads == "zero" and question.batch.padded:
        raise UnsupportedError(
            f"check=True tests the gradient at {shared[0]!r} as a whole, since all examples share the point's tensor, and "
            "pads='zero' sets the part of it from padding to zero: omit one of them"
        )


def _expect_right(name: str, certificate: Certificate, tolerance: float, excused: Sequence[Slope] = ()) -> None:
    """Refuse a gradient that is wrong, or that could not be tested.

    Args:
        tolerance: the tolerance for the table's own gradient.
        excused: for a gradient of zeros the slopes that a kink has excused.
    """
    wrong = [slope for slope in certificate.slopes if not slope.holds]
    if wrong:
        slope = wrong[0]
        raise CertificationError(
            f"the gradient at {name!r} is wrong: in the direction {slope.direction!r} it makes the objective change by "
            f"{slope.expected:.6g}, and finite differences by {slope.found:.6g} (± {slope.uncertainty:.2g}); {len(wrong)} of "
            f"{len(certificate.slopes)} directions differ. Expected a backward pass that is the derivative of the forward pass: "
            "look for custom gradients, straight-through estimators and detached parts behind the point",
            certificate,
        )
    along = [slope for slope in certificate.slopes if slope.direction.startswith("gradient")] or list(excused)
    if along and all(map(_is_rough, along)):
        raise CertificationError(
            f"the gradient at {name!r} could not be tested: in its own direction the objective changes by "
            f"{along[0].expected:.3g}, and finite differences are uncertain by {along[0].uncertainty:.2g}. The change is within "
            "rounding, or there is a kink (a ReLU at zero, a tied maximum); pass the model in float64, or a larger objective",
            certificate,
        )
    if certificate.scatter is not None and certificate.scatter > tolerance:
        raise CertificationError(
            f"the gradient at {name!r} and the framework's own gradient of the table differ by {certificate.scatter:.2g} "
            "(relative): expected the sum over its lookups and its other uses. Check whether the table rescales its gradient "
            "(scale_grad_by_freq), is detached from a lookup, or has a hook",
            certificate,
        )


# Finite differences


@dataclass(frozen=True)
class _Line:
    """The slope in one direction; `kink` and `stairs` as in `Slopes`. A direction in which nothing `moves` is no test."""

    slope: Slope
    moves: bool
    kink: float
    stairs: bool

    @property
    def is_own(self) -> bool:
        """Return whether the direction is the gradient's own."""
        return self.slope.direction.startswith("gradient")


@dataclass(frozen=True)
class _Trial:
    """The tests of the gradient at one point by finite differences, in its own direction and in random ones."""

    question: Question
    located: Mapping[str, Located]
    point: str
    result: EmbeddingGradients
    precision: Precision

    def slopes(self) -> tuple[list[Slope], tuple[int, ...], list[Slope]]:
        """Return the slopes; with `split` the examples that could not be tested; and the slopes that a kink has excused."""
        shared, count = self.located[self.point].arrangement.shared, len(self.question.batch)
        if not self.question.options.split or len(self.result.values) != count:
            lines = [line for name, change in self._directions() for line in self._along(name, change, None)]
            judged = _judge(lines, self.result.values.size, self.precision)
            return judged, (), _excuse(lines, judged)
        lines_of = dict(
            enumerate(zip(*(self._along(*direction, range(count)) for direction in self._directions()), strict=True))
        )
        # Where examples depend on one another, changing all at once shows another slope, so these are changed one by one.
        failing = [example for example, lines in lines_of.items() if not all(line.slope.holds for line in lines)]
        skipped: list[int] = []
        if failing and count > 1 and not shared:
            chosen = np.random.default_rng(0).permutation(failing)[:MOST_EXAMPLES].tolist()
            skipped = [example for example in failing if example not in chosen]
            lines_of |= {example: tuple(self._alone(example)) for example in chosen}
        tested, untested = [], list(skipped)
        for example in sorted(lines_of.keys() - set(skipped)):
            slopes = _judge(lines_of[example], self.result.values[0].size, self.precision)
            tested += slopes
            if any(map(_is_rough_own, slopes)) or _excuse(lines_of[example], slopes):
                untested.append(example)
        start = self.question.examples.start or 0
        return tested, tuple(start + example for example in sorted(untested)), []

    def _alone(self, example: int) -> list[_Line]:
        lines = []
        for name, direction in self._directions():
            change = np.zeros_like(direction)
            change[example] = direction[example]
            lines += self._along(name, change, [example])
        return lines

    def _directions(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yield names and directions, scaled to the norm of the activations; with `split` for each example by itself."""
        arrangement = self.located[self.point].arrangement
        random = np.random.default_rng(0)
        values = self.result.values.astype(np.float64)
        counted = values != 0 if self.result.provenance["pads"] == "zero" else np.ones(values.shape, bool)
        drawn = {f"random {number + 1}": random.normal(size=values.shape) * counted for number in range(RANDOM)}
        each = self.question.options.split and not arrangement.shared and len(values) == len(self.question.batch)
        size = values[0].size if each else values.size
        activations = _length(self.result.activations, each=each)
        for name, direction in {"gradient": values, **drawn}.items():
            norm = _length(direction, each=each)
            if not norm.any():
                continue
            scale = np.maximum(activations, LEAST * size**0.5) / np.where(norm > 0, norm, 1.0)
            scaled = direction * scale
            yield name, np.broadcast_to(scaled.mean(0), scaled.shape) if arrangement.shared else scaled

    def _along(self, name: str, change: np.ndarray, examples: Sequence[int] | None) -> list[_Line]:
        """Return the slopes in a direction: of the sum over all examples, or of each of these examples."""
        located, count = self.located[self.point], len(self.question.batch)
        products = self.result.values.astype(np.float64) * change
        chosen = None if examples is None else list(examples)
        gradient = self.result.values if chosen is None else self.result.values[chosen]
        moved_by = change if chosen is None else change[chosen]
        each = chosen is not None
        axes = tuple(range(1, change.ndim)) if each else None
        expected = products.sum(axes) if chosen is None else products[chosen].sum(axes)
        entries = moved_by.size / len(expected.reshape(-1))
        share = _length(gradient, each=each) * _length(moved_by, each=each) / entries**0.5

        def value(step: float) -> tuple[np.ndarray, np.ndarray]:
            moved = _in_native_axes(located, change * step)
            values, size = objective_with(self.question, self.located, located.key, lambda _: moved)
            if chosen is None:
                return np.reshape(values.sum(), 1), np.reshape(size, 1)
            # The size of a single example's numbers is not known: assume up to twice their average.
            sizes = np.minimum(size, 2 * size / count + np.abs(values))
            return values[chosen], sizes[chosen]

        expected, share = expected.reshape(-1), share.reshape(-1)
        slopes = differences(value, self.precision, expected, share)
        allowed = tolerances(slopes, self.precision, expected, share)
        large = self.precision.tolerance * np.maximum(np.abs(slopes.found), share)
        start = self.question.examples.start or 0
        names = [name] if chosen is None else [f"{name}, example {start + example}" for example in chosen]
        figures = zip(names, expected, slopes.found, slopes.uncertainty, allowed, strict=True)
        moving = np.reshape(moved_by.any(axes), -1)
        kinks = np.where(slopes.kink > large, slopes.kink, 0.0)
        return [
            _Line(Slope(label, *map(float, rest)), bool(moves), float(kink), bool(stairs))
            for (label, *rest), moves, kink, stairs in zip(figures, moving, kinks, slopes.stairs, strict=True)
        ]


def _judge(lines: Sequence[_Line], entries: int, precision: Precision) -> list[Slope]:
    """Return the slopes; a slope that does not hold counts as uncertain where any direction shows a kink or stairs.

    A random direction of many entries lies across a kink only slightly; the gradient's own may lie across it wholly.
    """
    kink, stairs = max((line.kink for line in lines), default=0.0), any(line.stairs for line in lines)
    judged = []
    for line in filter(lambda line: line.moves, lines):
        slope, more = line.slope, 0.0
        if not slope.holds and stairs:
            more = abs(slope.found - slope.expected)
        elif not slope.holds and kink:
            more = KINKS * kink * (entries**0.5 if line.is_own else 1.0) / precision.wide
        wider = slope.tolerance + precision.wide * more
        judged.append(replace(slope, uncertainty=slope.uncertainty + more, tolerance=wider) if more else slope)
    return judged


def _excuse(lines: Sequence[_Line], judged: Sequence[Slope]) -> list[Slope]:
    """Return the slopes that a kink or stairs has excused, for a gradient of zeros, which has no direction of its own."""
    measured = [line for line in lines if line.moves]
    if any(line.is_own for line in measured):
        return []
    return [after for line, after in zip(measured, judged, strict=True) if after is not line.slope]


def _length(array: np.ndarray, *, each: bool) -> np.ndarray:
    """Return the length of the whole array; or of each example, with axes of length 1 for the others."""
    if not each:
        return np.asarray(length(array))
    norms = lengths(array.astype(np.float64).reshape(len(array), -1))
    return norms.reshape(-1, *[1] * (array.ndim - 1))


def _is_rough(slope: Slope) -> bool:
    small, large = sorted((abs(slope.expected), abs(slope.found)))
    return slope.uncertainty > ROUGH * small or (slope.tolerance >= HALF * large > 0)


def _is_rough_own(slope: Slope) -> bool:
    return slope.direction.startswith("gradient") and _is_rough(slope)


def _in_native_axes(located: Located, change: np.ndarray) -> np.ndarray:
    return (
        change[0].reshape(located.arrangement.native)
        if located.arrangement.shared
        else located.arrangement.to_native_axes(change)
    )


# The table's own gradient


def _scatter(question: Question, located: Mapping[str, Located]) -> dict[str, float]:
    """Return for each lookup the difference of the framework's own gradient of its table from the sum over the table's uses."""
    if question.options.changed or not question.bound.supports("parameters", "tables"):
        return {}
    paths = {name: point.lookup.path for name, point in located.items() if point.lookup is not None}
    reached = question.bound.points(question.batch) if paths else ()
    figures: dict[str, float] = {}
    for path in dict.fromkeys(paths.values()):
        ledger = gradients_of_table(question, path, reached)
        if ledger is not None and ledger.apart is not None:
            figures[path] = ledger.apart
    return {name: figures[path] for name, path in paths.items() if path in figures}
