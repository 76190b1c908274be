"""Match weights of two models by their values, whatever their names: up to transposition, reshaping, order and fusion."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

import numpy as np

from embgrad.comparison.weight_matches import (
    EQUAL,
    Match,
    Matching,
    NamedArray,
    Summary,
    described,
    kind_of,
    summaries_of,
)
from embgrad.comparison.weight_places import by_place, moved, partner_layers, parts_in_place, with_crossed_in_place
from embgrad.comparison.weight_rows import unequal_parts
from embgrad.comparison.weight_values import (
    ALIKE,
    LEAST_ROW,
    Part,
    distance_of,
    exact_distance,
    index_of_rows,
    is_distinct,
    layouts,
    order_of_rows,
    parts_of,
)

__all__ = ["Match", "Matching", "NamedArray", "Part", "kind_of", "match_weights"]

#: The relative difference of two sums of magnitudes up to which weights may be versions of one.
SUMS: Final = 0.02

#: The share of a weight's rows up to which they may differ, for the others to show that two weights belong together.
MOSTLY: Final = 0.5

#: The most candidates whose entries are compared with those of a weight.
MOST_CANDIDATES: Final = 64

#: The most pairs of vectors, each with a weight of b, that are compared with it.
MOST_MERGED: Final = 4096

Rule = Callable[[Summary, Summary, np.ndarray, np.ndarray], "Match | None"]


def match_weights(a: Sequence[NamedArray], b: Sequence[NamedArray]) -> Matching:
    """Return the weights of a with their partners in b, found by value.

    Equal weights come first, in any layout; then versions of one weight, scaled or shifted by a constant; then fused and split
    ones, by equal rows, and vectors of a that b adds or stacks. Others, and those whose entries are all the same, are paired by
    size and by their place in the pass.

    Args:
        a: the weights of the reference.
        b: the weights of the port.
    """
    summaries_a, summaries_b = summaries_of(a), summaries_of(b)
    matches: list[Match] = []
    left, others = _matched(summaries_a, summaries_b, _equal, matches)
    matches = with_crossed_in_place(matches, a, b)
    strays = moved(matches, a, b)
    if strays:
        matches = [match for match in matches if match.a not in strays]
        left = sorted([*left, *_only(summaries_a, strays)], key=lambda summary: summary.number)
        others = sorted([*others, *_only(summaries_b, strays.values())], key=lambda summary: summary.number)
        holder = {theirs: mine for mine, theirs in strays.items()}
        left, others = by_place(left, others, matches, a, b, {**_repeated(others, summaries_a), **holder})
    left, others = _matched(left, others, _version, matches)
    left, others = _matched(left, others, _mostly_equal, matches)
    parts, left, others = _by_rows(left, others)
    layers = partner_layers(matches, a, b)
    parts = parts_in_place(parts, layers, a, b) if strays else parts
    unequal = unequal_parts(left, parts, a, b, layers)
    left = [summary for summary in left if summary.weight.name not in unequal]
    others = [other for other in others if other.weight.name not in {part.name for (part,) in unequal.values()}]
    parts |= unequal
    left, others = _merged(left, others, matches)
    left, others = by_place(left, others, matches, a, b, _repeated(others, summaries_a))
    order = {weight.name: number for number, weight in enumerate(a)}
    matches.sort(key=lambda match: order[match.a])
    return Matching(
        tuple(matches),
        parts,
        tuple(summary.weight.name for summary in left),
        tuple(summary.weight.name for summary in others),
    )


def _only(summaries: Sequence[Summary], names: Iterable[str]) -> list[Summary]:
    wanted = set(names)
    return [summary for summary in summaries if summary.weight.name in wanted]


def _repeated(others: Sequence[Summary], summaries_a: Sequence[Summary]) -> dict[str, str]:
    """Return the weights of b that hold once more what a weight of a holds, such as those of a layer that was loaded twice."""
    pool = _pools(summaries_a)
    found = ((other, pool[other.size].first_match(other, _equal, take=False)) for other in others if other.size in pool)
    return {other.weight.name: match.b for other, match in found if match is not None and match.is_equal}


def _matched(
    left: Sequence[Summary], others: Sequence[Summary], rule: Rule, matches: list[Match]
) -> tuple[list[Summary], list[Summary]]:
    """Append the pairs that a rule accepts, closest sums first; return the summaries without a partner."""
    pools = _pools(others)
    rest: list[Summary] = []
    for summary in left:
        pool = pools.get(summary.size)
        found = None if pool is None else pool.first_match(summary, rule)
        if found is None:
            rest.append(summary)
        else:
            matches.append(found)
    free = {other.number for pool in pools.values() for other in pool.free}
    return rest, [other for other in others if other.number in free]


def _pools(summaries: Sequence[Summary]) -> dict[int, _Pool]:
    """Return weights by their size."""
    by_size: dict[int, list[Summary]] = defaultdict(list)
    for summary in summaries:
        by_size[summary.size].append(summary)
    return {size: _Pool(held) for size, held in by_size.items()}


class _Pool:
    """The weights of a model of one size, from which each is taken once.

    Args:
        summaries: the weights.
    """

    def __init__(self, summaries: Sequence[Summary]) -> None:
        self._summaries = summaries
        self._sums = np.array([(summary.magnitude, summary.power) for summary in summaries])
        self._times = np.array([summary.weight.time for summary in summaries])
        self._is_free = np.ones(len(summaries), bool)

    @property
    def free(self) -> list[Summary]:
        """The weights that were not taken."""
        return [self._summaries[index] for index in np.flatnonzero(self._is_free).tolist()]

    def first_match(self, summary: Summary, rule: Rule, *, take: bool = True) -> Match | None:
        """Take the first weight that a rule accepts, closest sums first, and return its match; None where there is none."""
        free = np.flatnonzero(self._is_free)
        own = np.array((summary.magnitude, summary.power))
        larger = np.maximum(np.maximum(np.abs(self._sums[free]), np.abs(own)), 1e-30)
        distances = (np.abs(self._sums[free] - own) / larger).max(-1)
        ranked = np.lexsort((np.abs(self._times[free] - summary.weight.time), distances.round(7)))
        values = summary.weight.get() if len(free) else np.zeros(0)
        for index in free[ranked[:MOST_CANDIDATES]]:
            other = self._summaries[index]
            match = rule(summary, other, values, other.weight.get())
            if match is not None:
                self._is_free[index] = not take
                return match
        return None


def _equal(summary: Summary, other: Summary, values: np.ndarray, theirs: np.ndarray) -> Match | None:
    """Return the match of two weights that hold the same numbers in any layout, or rounded ones."""
    if summary.distance(other) > SUMS or not is_distinct(values):
        return None
    match = partial(Match, summary.weight.name, other.weight.name)
    for transposed, mine, its in layouts(values, theirs):
        distance = distance_of(mine, its)
        if distance <= ALIKE:
            return described(match(distance, transposed=transposed), mine, its)
    for transposed, mine, its in layouts(values, theirs):
        for axis in (0, 1):
            order = order_of_rows(mine, its) if axis == 0 else order_of_rows(mine.T, its.T)
            if order is not None:
                moved = np.take(its, order, axis)
                return match(distance_of(mine, moved), transposed=transposed, order=order, axis=axis)
    return None


def _version(summary: Summary, other: Summary, values: np.ndarray, theirs: np.ndarray) -> Match | None:
    """Return the match of two weights one of which is the other times a number, or plus a number."""
    match = partial(Match, summary.weight.name, other.weight.name)
    for transposed, mine, its in layouts(values, theirs):
        if mine.size < LEAST_ROW or not is_distinct(mine):
            continue
        x, y = mine.astype(np.float64).ravel(), its.astype(np.float64).ravel()
        number = float(x @ y) / float(x @ x)
        if number and distance_of(number * x, y) <= EQUAL * 10:
            return match(distance_of(x, y), transposed=transposed, relation=f"times {number:.6g}")
        shift = float((y - x).mean())
        if shift and distance_of(x + shift, y) <= EQUAL * 10:
            return match(distance_of(x, y), transposed=transposed, relation=f"plus {shift:.6g}")
    return None


def _mostly_equal(summary: Summary, other: Summary, values: np.ndarray, theirs: np.ndarray) -> Match | None:
    """Return the match of two weights of which most rows are equal, at the same indices."""
    for transposed, mine, its in layouts(values, theirs):
        for x, y in ((mine, its), (mine.T, its.T)):
            if min(x.shape) < 2 or not is_distinct(x):
                continue
            off = np.linalg.norm(y.astype(np.float64) - x, axis=1)
            rows = ~(off <= EQUAL * (np.linalg.norm(x, axis=1) + 1e-30))  # so that rows with NaN count
            if 0 < rows.sum() < MOSTLY * len(rows):
                relation = f"different in {int(rows.sum())} of {len(rows)} rows"
                distance = exact_distance(mine, its)
                return Match(summary.weight.name, other.weight.name, distance, transposed, relation=relation)
    return None


def _by_rows(
    left: Sequence[Summary], others: Sequence[Summary]
) -> tuple[dict[str, tuple[Part, ...]], list[Summary], list[Summary]]:
    """Return the parts of fused and split weights, and the summaries whose rows are not found on the other side."""
    rows = index_of_rows((other.weight.name, other.weight.get()) for other in others)
    parts: dict[str, tuple[Part, ...]] = {}
    used: dict[str, int] = defaultdict(int)
    for summary in left:
        found = parts_of(summary.weight.get(), rows)
        if found:
            parts[summary.weight.name] = tuple(found)
            for part in found:
                used[part.name] += len(part.rows)
    return (
        parts,
        [summary for summary in left if summary.weight.name not in parts],
        [other for other in others if other.weight.name not in used],
    )


def _merged(
    left: Sequence[Summary], others: Sequence[Summary], matches: list[Match]
) -> tuple[list[Summary], list[Summary]]:
    """Append the pairs of two vectors of a module of a with a weight of b that holds their sum, or both as its rows.

    Frameworks add the two biases of a recurrent cell, or stack them, and hold the gates in other orders.
    """
    vectors = [summary for summary in left if len(summary.weight.shape) == 1 and summary.size >= LEAST_ROW]
    pairs = [
        (first, second)
        for first, second in itertools.combinations(vectors, 2)
        if first.weight.module == second.weight.module and first.size == second.size
    ]
    taken: set[int] = set()
    used: set[int] = set()
    for other in others if len(others) * len(pairs) <= MOST_MERGED else ():
        for first, second in pairs:
            if other.size not in (first.size, 2 * first.size) or {first.number, second.number} & taken:
                continue
            x, y, its = (np.asarray(it.weight.get(), np.float64).ravel() for it in (first, second, other))
            both = x + y if its.size == x.size else np.concatenate([x, y])
            if is_distinct(its) and exact_distance(np.sort(both), np.sort(its)) <= EQUAL:
                matches += [Match(it.weight.name, other.weight.name, 0.0) for it in (first, second)]
                taken |= {first.number, second.number}
                used.add(other.number)
                break
    return [it for it in left if it.number not in taken], [it for it in others if it.number not in used]
