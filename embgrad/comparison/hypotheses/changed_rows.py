"""Explanations that a norm is given looked-up rows that one model changes first, which another epsilon or kind looks like."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

import numpy as np

from embgrad.comparison.hypotheses.lookup import is_looked_up
from embgrad.comparison.hypotheses.norm_fit import ALIKE, ROUNDING, Parameters, with_best_epsilon
from embgrad.comparison.hypotheses.site import NEAR, SHARE, Before, Explanation, Site, Values, remember
from embgrad.comparison.hypotheses.sources import relative, unit

__all__ = ["with_changed_rows"]

#: The epsilons of a norm without weights that rows may be given to, beside that of the norm behind it.
EPSILONS: Final = (0.0, 1e-6, 1e-5)

#: The most digits of a factor that an epsilon shows.
MOST_DIGITS: Final = 3


class _Change(NamedTuple):
    """A function of looked-up rows, which b alone applies, or that a alone applies and b leaves out.

    Attributes:
        cause: the cause's name.
        values: the values of the cause's setting in both.
        given: returns what b gives to the norm, of the rows.
        sentence: the text; "" where it is that the rows are multiplied by numbers.
    """

    cause: str
    values: tuple[str, str]
    given: Callable[[np.ndarray], np.ndarray]
    sentence: str = ""


def with_changed_rows(
    site: Site, entry: Before, norm: Parameters, explanations: Sequence[Explanation]
) -> list[Explanation]:
    """Return explanations of a norm's output with those that it is given rows of a table that a or b alone changes first.

    A norm shows little more than the direction of what it is given, so that later sums, which hold the rows themselves, decide.

    Args:
        site: the site.
        entry: what a gives to the norm.
        norm: the norm that a computes.
        explanations: those by another norm.
    """
    before = next((it for it in site.before if it.values.shape == entry.values.shape and is_looked_up(site, it)), None)
    if before is None:
        return list(explanations)
    usual, others = (
        list(_explained(site, before, entry, norm, changes))
        for changes in (_by_usual_numbers(site, before, entry), _others(site, before, entry, norm))
    )
    every = [*usual, *explanations, *others]
    likely = [*usual, *explanations] or others
    return [replace(it, rivals=tuple(other for other in every if other is not it)) for it in likely]


def _explained(
    site: Site, before: Before, entry: Before, norm: Parameters, changes: Iterable[_Change]
) -> Iterator[Explanation]:
    """Yield the explanations by the changes that lead to b's output, which later sums are given as well."""
    setting = f"{before.name} is multiplied by"
    for change in changes:
        given = change.given(before.values)
        predicted = norm.apply(given)
        if site.off(predicted) <= SHARE * site.difference:
            compute, sentence = partial(_computed, norm, change, before.name), change.sentence.format(before.name)
            found = Explanation(change.cause, setting, change.values, predicted, compute, (before.name,), sentence)
            remember(site, found, given - entry.values)
            yield found


def _computed(norm: Parameters, change: _Change, name: str, at: Values) -> np.ndarray:
    return norm.apply(change.given(at(name)))


def _by_usual_numbers(site: Site, before: Before, entry: Before) -> Iterator[_Change]:
    """Yield the number that a alone multiplies the rows by; for none the root of their width, or its inverse."""
    rows, x, root = site.rows(before.values), site.rows(entry.values), math.sqrt(entry.values.shape[-1])
    scale = float((x * rows).sum() / ((rows**2).sum() or 1.0))
    if np.array_equal(before.values, entry.values):
        yield from (_multiplied(1.0, number) for number in (root, 1 / root))
    elif abs(scale - 1) > NEAR and relative(scale * rows, x) <= NEAR:
        yield _multiplied(scale, 1.0)


def _multiplied(own: float, other: float) -> _Change:
    return _Change("scaled-lookup", (f"{own:.6g}", f"{other:.6g}"), lambda rows: other * rows)


def _others(site: Site, before: Before, entry: Before, norm: Parameters) -> Iterator[_Change]:
    """Yield the number that another epsilon shows, and the norms that b alone may give the rows to."""
    if not np.array_equal(before.values, entry.values):
        return
    factor = _shown(norm, site.rows(entry.values), site.rows(site.b))
    if factor != 1:
        yield _multiplied(1.0, factor)
    ones, zeros = np.ones_like(norm.gain), np.zeros_like(norm.gain)
    for epsilon in dict.fromkeys((norm.epsilon, *EPSILONS)):
        squares, centred = (Parameters(it, epsilon, ones, zeros).apply for it in (False, True))
        yield _normed(squares, "divided by their root mean square", "divides the rows of {} by their root mean square")
        yield _normed(centred, "layer-normed", "applies a layer norm without weights to the rows of {}")
    yield _normed(unit, "of length 1", "scales the rows of {} to length 1")
    yield _normed(norm.apply, "normed", "applies the next norm to the rows of {} as well")


def _normed(given: Callable[[np.ndarray], np.ndarray], how: str, sentence: str) -> _Change:
    return _Change("missing-norm", ("as they are", how), given, f"b {sentence}, and a does not")


def _shown(norm: Parameters, x: np.ndarray, y: np.ndarray) -> float:
    """Return the number by which a norm's input is multiplied if its output shows another epsilon, with the fewest digits."""
    if not norm.epsilon:
        return 1.0
    best = with_best_epsilon(norm, x, y)
    enough = max(ALIKE * relative(best.apply(x), y), ROUNDING)
    factor = math.sqrt(norm.epsilon / best.epsilon)
    rounded = (float(f"{factor:.{digits}e}") for digits in range(MOST_DIGITS))
    return next((it for it in rounded if relative(norm.apply(it * x), y) <= enough), factor)
