"""Match weights of two models by their values, whatever their names: up to transposition, reshaping, order and fusion."""

from __future__ import annotations

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Protocol

import numpy as np

from embgrad.comparison.weight_values import (
    ALIKE,
    LEAST_ROW,
    Part,
    bits_of,
    distance_of,
    exact_distance,
    index_of_rows,
    is_distinct,
    layouts,
    order_of_rows,
    parts_of,
    rounded,
)

__all__ = ["Match", "Matching", "NamedArray", "Part", "kind_of", "match_weights"]

#: The number of a layer in a name, not that of one of its parts such as "norm1".
NUMBER: Final = re.compile(r"(?<![A-Za-z\d])\d+")

#: The relative L2 up to which two weights are equal: the rounding error of storing them in single precision.
EQUAL: Final = 1e-6

#: The relative difference of two sums of magnitudes up to which weights may be versions of one.
SUMS: Final = 0.02

#: The last parts of the names of what is added and of what is multiplied, which are never partners by their places.
KINDS: Final = {"bias": ("bias", "beta", "b"), "weight": ("weight", "gamma", "gain", "scale", "kernel", "w")}

#: The share of a weight's rows up to which they may differ, for the others to show that two weights belong together.
MOSTLY: Final = 0.5

#: The relative L2 up to which one weight may be another that is quantised, to as few as two bits.
QUANTISED: Final = 0.5

#: The most candidates whose entries are compared with those of a weight.
MOST_CANDIDATES: Final = 64


class NamedArray(Protocol):
    """A weight of a model or of a folder."""

    @property
    def name(self) -> str:
        """Its name in the framework's spelling."""
        ...

    @property
    def module(self) -> str:
        """The path of the module that owns it."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        ...

    @property
    def get(self) -> Callable[[], np.ndarray]:
        """A function that returns its values, float32 or float64."""
        ...

    @property
    def time(self) -> float:
        """When its module ended, as a share of the forward pass."""
        ...

    @property
    def layer(self) -> int | None:
        """The index of the layer that contains it; None outside of the layers."""
        ...


@dataclass(frozen=True, eq=False)
class Match:
    """A weight of a with its partner in b.

    Attributes:
        a: the weight's name in a.
        b: the partner's name in b.
        distance: the relative L2 of b's values against a's, in the same layout.
        transposed: whether the partner's matrix is the transpose of a's.
        order: the permutation under which b's rows or columns are a's; None for the same order.
        axis: the axis of a's matrix that is permuted.
        relation: how the values relate, as a short text: "equal", "times 8", "plus 1", "rounded to bfloat16", "with the same
            numbers in another order", "different".
        by_value: whether the values show that the two belong together; otherwise only shape and order do.
    """

    a: str
    b: str
    distance: float
    transposed: bool = False
    order: np.ndarray | None = None
    axis: int = 0
    relation: str = "equal"
    by_value: bool = True

    @property
    def as_object(self) -> str:
        """The relation as the end of a sentence such as "b has NAME …"."""
        if self.relation == "different":
            return f"with other values (relative L2 {self.distance:.1e})"
        return self.relation.removesuffix(" in b").replace("equal to", "equal to a's")

    @property
    def is_equal(self) -> bool:
        """Return whether the two hold the same numbers, in any layout."""
        return self.distance <= EQUAL


@dataclass(frozen=True, eq=False)
class Matching:
    """The weights of two models by their partners.

    Attributes:
        matches: the pairs, in a's order.
        parts: for weights of a that are fused or split in b, their rows in b's weights, by name.
        alone_a: the names of a's weights without a partner.
        alone_b: the names of b's weights without a partner.
    """

    matches: tuple[Match, ...]
    parts: Mapping[str, tuple[Part, ...]]
    alone_a: tuple[str, ...]
    alone_b: tuple[str, ...]

    @property
    def different(self) -> tuple[Match, ...]:
        """The pairs whose values differ."""
        return tuple(match for match in self.matches if not match.is_equal)


@dataclass(frozen=True, eq=False)
class _Summary:
    """A weight with numbers that do not depend on the order of its entries."""

    weight: NamedArray
    number: int
    size: int
    magnitude: float
    power: float

    def distance(self, other: _Summary) -> float:
        """Return the larger relative difference of the two sums."""
        pairs = ((self.magnitude, other.magnitude), (self.power, other.power))
        return max(abs(x - y) / max(abs(x), abs(y), 1e-30) for x, y in pairs)


def match_weights(a: Sequence[NamedArray], b: Sequence[NamedArray]) -> Matching:
    """Return the weights of a with their partners in b, found by value.

    Equal weights come first, in any layout; then versions of one weight, scaled or shifted by a constant; then fused and split
    ones, by equal rows. Others, and those whose entries are all the same, are paired by size and by their place in the pass.

    Args:
        a: the weights of the reference.
        b: the weights of the port.
    """
    summaries_a, summaries_b = _summaries(a), _summaries(b)
    matches: list[Match] = []
    left, others = _matched(summaries_a, summaries_b, _equal, matches)
    matches = _with_crossed_in_place(matches, a, b)
    moved = _moved(matches, a, b)
    if moved:
        matches = [match for match in matches if match.a not in moved]
        left = sorted([*left, *_only(summaries_a, moved)], key=lambda summary: summary.number)
        others = sorted([*others, *_only(summaries_b, moved.values())], key=lambda summary: summary.number)
        holder = {theirs: mine for mine, theirs in moved.items()}
        left, others = _by_place(left, others, matches, a, b, {**_repeated(others, summaries_a), **holder})
    left, others = _matched(left, others, _version, matches)
    left, others = _matched(left, others, _mostly_equal, matches)
    parts, left, others = _by_rows(left, others)
    left, others = _by_place(left, others, matches, a, b, _repeated(others, summaries_a))
    order = {weight.name: number for number, weight in enumerate(a)}
    matches.sort(key=lambda match: order[match.a])
    return Matching(
        tuple(matches),
        parts,
        tuple(summary.weight.name for summary in left),
        tuple(summary.weight.name for summary in others),
    )


def _summaries(weights: Sequence[NamedArray]) -> list[_Summary]:
    summaries = []
    for number, weight in enumerate(weights):
        values = weight.get().ravel()
        magnitude = float(np.abs(values).sum(dtype=np.float64))
        summaries.append(_Summary(weight, number, values.size, magnitude, float(np.vdot(values, values))))
    return summaries


def _only(summaries: Sequence[_Summary], names: Iterable[str]) -> list[_Summary]:
    wanted = set(names)
    return [summary for summary in summaries if summary.weight.name in wanted]


def _moved(matches: Sequence[Match], a: Sequence[NamedArray], b: Sequence[NamedArray]) -> dict[str, str]:
    """Return the weights of a whose equal lies in another layer of b, with its name; none where most do and layers are in order.

    None are moved where one model has more layers. Outside of layers it is one with another name, where all names of the two
    models are the same.
    """
    layers_a, layers_b = ({weight.name: weight.layer for weight in side} for side in (a, b))
    pairs = [(match, layers_a[match.a], layers_b[match.b]) for match in matches]
    known = [(match, first, second) for match, first, second in pairs if first is not None and second is not None]
    moved = {match.a: match.b for match, first, second in known if first != second}
    outside = [match for match, first, second in pairs if first is None and second is None]
    renamed = {match.a: match.b for match in outside if match.a != match.b and layers_a.keys() == layers_b.keys()}
    places = _most_frequent((first, second) for _, first, second in known)
    exchanged = [places[first] for first in sorted(places)] != sorted(places.values())
    numbers = {*layers_a.values()}, {*layers_b.values()}
    as_many, alike = len(numbers[0]) == len(numbers[1]), numbers[0] == numbers[1]  # not counted from 0 and from 1
    by_layer = moved if as_many and (exchanged or alike or 2 * len(moved) <= len(known)) else {}
    return {**by_layer, **renamed, **_strayed(matches, a, b)}


def _most_frequent(pairs: Iterable[tuple[int, int]]) -> dict[int, int]:
    """Return by each layer of a the layer of b that it is paired with most often."""
    votes: dict[int, Counter[int]] = defaultdict(Counter)
    for mine, its in pairs:
        votes[mine][its] += 1
    return {layer: count.most_common(1)[0][0] for layer, count in votes.items()}


def _strayed(matches: Sequence[Match], a: Sequence[NamedArray], b: Sequence[NamedArray]) -> dict[str, str]:
    """Return the weights that two modules exchange while each keeps its largest, with the names of their equals in b."""
    held_a, held_b = ({weight.name: weight for weight in side} for side in (a, b))
    sizes = {weight.name: int(np.prod(weight.shape)) for weight in a}
    largest: dict[str, tuple[int, str]] = {}
    for match in matches:
        own, module = held_a[match.a].module, held_b[match.b].module
        largest[own] = max(largest.get(own, (0, "")), (sizes[match.a], module), key=lambda entry: entry[0])
    partners = {own: module for own, (_, module) in largest.items()}
    owners = {module: own for own, module in partners.items()}
    strayed = {
        (own, owners[module], sizes[match.a]): match
        for match in matches
        for own, module in [(held_a[match.a].module, held_b[match.b].module)]
        if own != module and module in owners and partners[own] != module and own == owners[partners[own]]
    }
    return {match.a: match.b for (own, other, size), match in strayed.items() if (other, own, size) in strayed}


def _with_crossed_in_place(matches: Sequence[Match], a: Sequence[NamedArray], b: Sequence[NamedArray]) -> list[Match]:
    """Return the matches, those of vectors of a layer that b applies in each other's place with the vectors at that place.

    Those are such vectors, as of two norms, of which a applies the first before a matrix and the second behind it, and b the
    second before that matrix and the first behind it.
    """
    held_a, held_b = ({weight.name: weight for weight in side} for side in (a, b))
    layers: dict[int, list[Match]] = defaultdict(list)
    for match in matches:
        layer = held_a[match.a].layer
        if layer is not None and held_b[match.b].layer in (None, layer):
            layers[layer].append(match)
    changed: dict[str, Match] = {}
    for found in layers.values():
        names = _crossed({match.a: (held_a[match.a].time, held_b[match.b].time) for match in found}, held_a)
        crossed = [match for match in found if match.a in names]
        mine = sorted(crossed, key=lambda match: held_a[match.a].time)
        its = sorted(crossed, key=lambda match: held_b[match.b].time)
        if [_end_of(held_a[it.a]) for it in mine] == [_end_of(held_a[it.a]) for it in its]:
            pairs = zip(mine, its, strict=True)
            changed |= {it.a: _at_one_place(held_a[it.a], held_b[other.b], {other.b: other.a}) for it, other in pairs}
    return [changed.get(match.a, match) for match in matches]


def _crossed(times: Mapping[str, tuple[float, float]], held: Mapping[str, NamedArray]) -> set[str]:
    """Return the names of the vectors that two models apply in each other's place, by when both apply each weight."""
    vectors = [name for name in times if len(held[name].shape) == 1]
    matrices = [times[name] for name in times if len(held[name].shape) > 1]
    crossed: set[str] = set()
    for first, second in itertools.permutations(vectors, 2):
        (early, late), (later, earlier) = times[first], times[second]
        if held[first].shape == held[second].shape and any(
            early < mine < later and earlier < its < late for mine, its in matrices
        ):
            crossed |= {first, second}
    return crossed


def _repeated(others: Sequence[_Summary], summaries_a: Sequence[_Summary]) -> dict[str, str]:
    """Return the weights of b that hold once more what a weight of a holds, such as those of a layer that was loaded twice."""
    pool = _pools(summaries_a)
    found = ((other, pool[other.size].first_match(other, _equal, take=False)) for other in others if other.size in pool)
    return {other.weight.name: match.b for other, match in found if match is not None and match.is_equal}


def _by_place(
    left: Sequence[_Summary],
    others: Sequence[_Summary],
    matches: list[Match],
    a: Sequence[NamedArray],
    b: Sequence[NamedArray],
    holder: Mapping[str, str],
) -> tuple[list[_Summary], list[_Summary]]:
    """Append the pairs of equally large weights at the same place of both passes; return the summaries without a partner.

    The largest come first, so that the vectors of a module are paired with those of its partner; and a weight that holds what
    another layer's should, with the one of the same name in its own layer.

    Args:
        left: the weights of a without a partner.
        others: those of b.
        matches: the pairs so far, which are extended.
        a: all weights of a.
        b: all weights of b.
        holder: for weights of b the name of the equal weight of a, which stands at another place.
    """
    taken: tuple[set[int], set[int]] = (set(), set())
    by_number = {summary.number: summary for summary in left}, {other.number: other for other in others}
    for size in sorted({summary.size for summary in left}, reverse=True):
        place = _Places(matches, a, b)
        costs = sorted(
            (not _is_alike(summary, holder.get(other.weight.name)), cost, summary.number, other.number)
            for summary in left
            for other in others
            if summary.size == other.size == size and (cost := place.distance(summary.weight, other.weight)) is not None
        )
        for *_, first, second in costs:
            if first not in taken[0] and second not in taken[1]:
                taken[0].add(first)
                taken[1].add(second)
                matches.append(_at_one_place(by_number[0][first].weight, by_number[1][second].weight, holder))
    return (
        [summary for summary in left if summary.number not in taken[0]],
        [other for other in others if other.number not in taken[1]],
    )


def _is_alike(summary: _Summary, name: str | None) -> bool:
    """Return whether a weight has this name in another layer."""
    return name is not None and kind_of(name) == kind_of(summary.weight.name)


def kind_of(name: str) -> str:
    """Return a name without the numbers of layers, which is the same in each."""
    return NUMBER.sub("N", name)


def _end_of(weight: NamedArray) -> str:
    """Return what the end of a weight's name says: "bias", "weight" for what is multiplied, or "" for neither."""
    end = re.split(r"[._/]", re.sub(r"[:#]?\d+$", "", weight.name))[-1].lower()
    return next((kind for kind, names in KINDS.items() if end in names), "")


class _Places:
    """A measure of the distance of two weights in the forward passes of both models, from the known pairs.

    Args:
        matches: the known pairs.
        a: the weights of a.
        b: the weights of b.
    """

    def __init__(self, matches: Sequence[Match], a: Sequence[NamedArray], b: Sequence[NamedArray]) -> None:
        held_a, held_b = ({weight.name: weight for weight in side} for side in (a, b))
        known = [(held_a[match.a], held_b[match.b]) for match in matches]
        times = sorted((first.time, second.time) for first, second in known)
        self._times = [0.0, *(first for first, _ in times), 1.0], [0.0, *(second for _, second in times), 1.0]
        self._modules = {first.module: second.module for first, second in known}
        layers = ((first.layer, second.layer) for first, second in known)
        self._layers = _most_frequent((mine, its) for mine, its in layers if mine is not None and its is not None)
        self._others: dict[str, set[str]] = defaultdict(set)
        for mine, its in known:
            self._others[its.module].add(mine.module)

    def distance(self, first: NamedArray, second: NamedArray) -> float | None:
        """Return how far apart two weights are, as a share of a pass; None where they cannot belong together."""
        if {_end_of(first), _end_of(second)} == {"bias", "weight"}:
            return None
        partner = self._modules.get(first.module)
        # A bias that a function adds belongs to no module.
        owned = bool(first.module and second.module)
        if owned and partner is not None and partner.startswith(f"{second.module}."):  # of several products of a module
            return abs(first.time - second.time)
        if owned and (partner is not None or len(self._others.get(second.module, ())) == 1):
            return -1.0 + abs(first.time - second.time) if partner == second.module else None
        if first.layer is not None and second.layer is not None and self._partner_of(first.layer) != second.layer:
            return None
        return abs(float(np.interp(first.time, *self._times)) - second.time)

    def _partner_of(self, layer: int) -> int | None:
        """Return the layer of b with the weights of a layer of a, or else the same number, if no other layer has its weights."""
        return self._layers.get(layer, None if layer in self._layers.values() else layer)


def _at_one_place(weight: NamedArray, other: NamedArray, holder: Mapping[str, str]) -> Match:
    """Return the match of two weights at the same place, with a text for how their values relate."""
    mine, its = weight.get(), other.get()
    versions = list(layouts(mine, its))
    if not versions:
        return Match(weight.name, other.name, float("inf"), relation="of another shape", by_value=False)
    transposed, x, y = min(versions, key=lambda version: distance_of(version[1], version[2]))
    distance = distance_of(x, y)
    base = Match(weight.name, other.name, distance, transposed=transposed, by_value=distance <= EQUAL)
    if distance <= EQUAL:
        return base
    if other.name in holder:
        return replace(base, relation=f"equal to {holder[other.name]}")
    if not its.any():
        return replace(base, relation="zeros in b")
    if not mine.any():
        return replace(base, relation="zeros in a")
    return _described(base, x, y)


Rule = Callable[[_Summary, _Summary, np.ndarray, np.ndarray], "Match | None"]


def _matched(
    left: Sequence[_Summary], others: Sequence[_Summary], rule: Rule, matches: list[Match]
) -> tuple[list[_Summary], list[_Summary]]:
    """Append the pairs that a rule accepts, closest sums first; return the summaries without a partner."""
    pools = _pools(others)
    rest: list[_Summary] = []
    for summary in left:
        pool = pools.get(summary.size)
        found = None if pool is None else pool.first_match(summary, rule)
        if found is None:
            rest.append(summary)
        else:
            matches.append(found)
    free = {other.number for pool in pools.values() for other in pool.free}
    return rest, [other for other in others if other.number in free]


def _pools(summaries: Sequence[_Summary]) -> dict[int, _Pool]:
    """Return weights by their size."""
    by_size: dict[int, list[_Summary]] = defaultdict(list)
    for summary in summaries:
        by_size[summary.size].append(summary)
    return {size: _Pool(held) for size, held in by_size.items()}


class _Pool:
    """The weights of a model of one size, from which each is taken once.

    Args:
        summaries: the weights.
    """

    def __init__(self, summaries: Sequence[_Summary]) -> None:
        self._summaries = summaries
        self._sums = np.array([(summary.magnitude, summary.power) for summary in summaries])
        self._times = np.array([summary.weight.time for summary in summaries])
        self._is_free = np.ones(len(summaries), bool)

    @property
    def free(self) -> list[_Summary]:
        """The weights that were not taken."""
        return [self._summaries[index] for index in np.flatnonzero(self._is_free).tolist()]

    def first_match(self, summary: _Summary, rule: Rule, *, take: bool = True) -> Match | None:
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


def _equal(summary: _Summary, other: _Summary, values: np.ndarray, theirs: np.ndarray) -> Match | None:
    """Return the match of two weights that hold the same numbers in any layout, or rounded ones."""
    if summary.distance(other) > SUMS or not is_distinct(values):
        return None
    match = partial(Match, summary.weight.name, other.weight.name)
    for transposed, mine, its in layouts(values, theirs):
        distance = distance_of(mine, its)
        if distance <= ALIKE:
            return _described(match(distance, transposed=transposed), mine, its)
    for transposed, mine, its in layouts(values, theirs):
        for axis in (0, 1):
            order = order_of_rows(mine, its) if axis == 0 else order_of_rows(mine.T, its.T)
            if order is not None:
                moved = np.take(its, order, axis)
                return match(distance_of(mine, moved), transposed=transposed, order=order, axis=axis)
    return None


def _version(summary: _Summary, other: _Summary, values: np.ndarray, theirs: np.ndarray) -> Match | None:
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


def _mostly_equal(summary: _Summary, other: _Summary, values: np.ndarray, theirs: np.ndarray) -> Match | None:
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


def _described(match: Match, mine: np.ndarray, its: np.ndarray) -> Match:
    """Return the match with a text for how rounded values relate."""
    if match.is_equal:
        return match
    for dtype in ("bfloat16", "float16"):
        for exact, coarse, whose in ((mine, its, "b"), (its, mine, "a")):
            if distance_of(rounded(exact, dtype), coarse) <= EQUAL:
                return replace(match, relation=f"rounded to {dtype} in {whose}")
    if match.distance <= QUANTISED:
        for exact, coarse, whose in ((mine, its, "b"), (its, mine, "a")):
            bits = bits_of(coarse)
            if bits is not None and bits_of(exact) is None:
                return replace(match, relation=f"rounded to {bits} bits in {whose}")
    same = mine.size == its.size and np.array_equal(np.sort(mine, axis=None), np.sort(its, axis=None))
    return replace(match, relation="with the same numbers in another order" if same else "different")


def _by_rows(
    left: Sequence[_Summary], others: Sequence[_Summary]
) -> tuple[dict[str, tuple[Part, ...]], list[_Summary], list[_Summary]]:
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
