"""Integrals along lines that are refined where a line bends: parts whose error is too large are halved."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from embgrad.attribution.quadrature import largest_gap, nodes_and_weights
from embgrad.errors import NoGradientError

__all__ = ["Line", "Part", "Refined", "refine"]

#: The most steps of a part: with more, a place where the line has a corner costs too many.
MOST_STEPS: Final = 7

#: Each part may have this share of the whole error, or more if it is longer: at a corner the error falls as the length does.
LEAST_SHARE: Final = 1 / 16

#: The shortest part that is halved. Near a baseline of zeros the gradient of a deep model may be too large for a number.
SHORTEST: Final = 2.0**-11


@dataclass(frozen=True)
class Part:
    """A part of one example's line, from `start` to `end`, both between 0 and 1.

    Attributes:
        counts: whether it is a part that is to be integrated; otherwise it fills up a pass that has to run the whole batch.
    """

    example: int
    start: float
    end: float
    counts: bool = True


class Line(Protocol):
    """The lines of a batch's examples, along which a method integrates."""

    @property
    def examples(self) -> int:
        """The number of examples."""

    @property
    def is_free(self) -> bool:
        """Return whether a pass may run any examples, each as often as is needed; otherwise it runs the batch."""

    @property
    def at_once(self) -> int:
        """The most rows of a pass."""

    def objectives_at(self, examples: np.ndarray, places: np.ndarray) -> np.ndarray:
        """Return L at one place on the line of each of some examples, (row, output), from forward passes."""

    def integrals(
        self, examples: np.ndarray, places: np.ndarray, weights: np.ndarray
    ) -> tuple[list[np.ndarray], np.ndarray]:
        """Return the contributions, arrays of shape (row, …), and their sums, (row, output).

        Args:
            examples: the examples, (row,).
            places: the places of the steps, (step, row).
        """


@dataclass
class Refined:
    """The contributions of the examples whose lines were refined.

    Attributes:
        contributions: arrays of shape (example, …).
        error: the largest error of the sum on any stretch of the line, (example, output).
    """

    examples: np.ndarray
    contributions: list[np.ndarray]
    error: np.ndarray
    taken: np.ndarray


def refine(
    line: Line,
    examples: np.ndarray,
    ends: tuple[np.ndarray, np.ndarray],
    allowed: np.ndarray,
    rounding: np.ndarray,
    rule: str,
    steps: int,
    most: int,
) -> Refined | None:
    """Return the contributions from parts of the lines, halved where the sum of a part's contributions misses its share of L.

    What the contributions of a part should sum to is known, L at its end minus L at its start. A part is taken when it misses
    that by little, is short, or when its example could take more than `most` steps if the others were halved once more.

    Args:
        examples: the examples to refine, which have taken `steps` steps before.
        ends: L at the beginning and at the end of each line, (example, output).
        allowed: how large the error of the whole line may be, (example, output).
        rounding: how much of the error of a part may be rounding, likewise.
        steps: the number of steps that were taken.
        most: the largest number of steps of an example.

    Returns:
        None where there is no room for further steps, or a gradient is not finite.
    """
    size = min(steps, MOST_STEPS)
    count = max(2, steps // size)
    if steps + count * size > most:
        return None
    try:
        return _refine(line, examples, ends, allowed, rounding, (rule, size, count), steps, most)
    except NoGradientError:
        return None


def _refine(
    line: Line,
    examples: np.ndarray,
    ends: tuple[np.ndarray, np.ndarray],
    allowed: np.ndarray,
    rounding: np.ndarray,
    parted: tuple[str, int, int],
    steps: int,
    most: int,
) -> Refined:
    """Return what `refine` does, with `parted` the rule of a part, the number of its steps, and the number of the first parts."""
    rule, size, count = parted
    nodes, weights = nodes_and_weights(rule, size)
    edges = np.linspace(0, 1, count + 1).tolist()
    at = {
        (example, place): value[example] for place, value in zip((0.0, 1.0), ends, strict=True) for example in examples
    }
    parts = [Part(int(example), *pair) for example in examples for pair in itertools.pairwise(edges)]
    taken = np.full(line.examples, steps)
    gaps: dict[int, list[tuple[float, np.ndarray]]] = {int(example): [] for example in examples}
    totals: list[np.ndarray] = []
    while parts:
        _evaluate_ends(line, parts, at)
        numbers = np.bincount([part.example for part in parts], minlength=line.examples)
        taken += numbers * size
        is_last = taken + 2 * numbers * size > most
        halves = []
        for group in _groups(line, parts, max(1, line.at_once // size)):
            starts, lengths = (np.array([pick(part) for part in group]) for pick in (_start, _length))
            members = np.array([part.example for part in group])
            made, sums = line.integrals(members, starts + nodes[:, None] * lengths, weights[:, None] * lengths)
            totals = totals or [np.zeros((line.examples, *array.shape[1:])) for array in made]
            for row, part in enumerate(group):
                if not part.counts:
                    continue
                gap = sums[row] - (at[part.example, part.end] - at[part.example, part.start])
                share = max(lengths[row], LEAST_SHARE)
                if (
                    is_last[part.example]
                    or lengths[row] < SHORTEST
                    or (np.abs(gap) <= share * allowed[part.example] + rounding[part.example]).all()
                ):
                    gaps[part.example].append((part.start, gap))
                    for total, array in zip(totals, made, strict=True):
                        total[part.example] += array[row]
                else:
                    middle = (part.start + part.end) / 2
                    halves += [Part(part.example, part.start, middle), Part(part.example, middle, part.end)]
        parts = sorted(halves, key=lambda part: part.example)
    errors = [
        largest_gap(np.cumsum([gap for _, gap in sorted(gaps[int(example)], key=lambda entry: entry[0])], axis=0))
        for example in examples
    ]
    return Refined(examples, [total[examples] for total in totals], np.stack(errors), taken[examples])


def _start(part: Part) -> float:
    return part.start


def _length(part: Part) -> float:
    return part.end - part.start


def _evaluate_ends(line: Line, parts: Sequence[Part], at: dict[tuple[int, float], np.ndarray]) -> None:
    """Add L at the ends of parts where it is not known."""
    wanted = dict.fromkeys((part.example, place) for part in parts for place in (part.start, part.end))
    points = [Part(example, place, place) for example, place in wanted if (example, place) not in at]
    for group in _groups(line, points, line.at_once):
        found = line.objectives_at(np.array([part.example for part in group]), np.array([part.start for part in group]))
        at.update({(part.example, part.start): value for part, value in zip(group, found, strict=True) if part.counts})


def _groups(line: Line, parts: Sequence[Part], most: int) -> Iterator[list[Part]]:
    """Yield the parts in groups of which each is run at once; one of each example, in order, where a pass runs the batch."""
    if line.is_free:
        for start in range(0, len(parts), most):
            yield list(parts[start : start + most])
        return
    of_examples: list[list[Part]] = [[] for _ in range(line.examples)]
    for part in parts:
        of_examples[part.example].append(part)
    for number in range(max(map(len, of_examples), default=0)):
        yield [
            own[number] if number < len(own) else Part(example, 1.0, 1.0, counts=False)
            for example, own in enumerate(of_examples)
        ]
