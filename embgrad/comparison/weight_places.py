"""Match weights of two models by their places in both forward passes."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from embgrad.comparison.weight_matches import EQUAL, NUMBER, Match, NamedArray, Summary, described, kind_of
from embgrad.comparison.weight_values import Part, distance_of, layouts

__all__ = ["at_one_place", "by_place", "moved", "partner_layers", "parts_in_place", "with_crossed_in_place"]

#: The last parts of the names of what is added and of what is multiplied, which are never partners by their places.
KINDS: Final = {"bias": ("bias", "beta", "b"), "weight": ("weight", "gamma", "gain", "scale", "kernel", "w")}


def with_crossed_in_place(matches: Sequence[Match], a: Sequence[NamedArray], b: Sequence[NamedArray]) -> list[Match]:
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
            changed |= {it.a: at_one_place(held_a[it.a], held_b[other.b], {other.b: other.a}) for it, other in pairs}
    return [changed.get(match.a, match) for match in matches]


def _crossed(times: Mapping[str, tuple[float, float]], held: Mapping[str, NamedArray]) -> set[str]:
    """Return the names of the vectors that two models apply in each other's place, by when both apply each weight.

    Those are behind as many matrices as the other in the other model. Norms that b applies before the parts that a applies them
    behind are not in each other's place: they are all moved.
    """
    vectors = [name for name in times if len(held[name].shape) == 1]
    matrices = [times[name] for name in times if len(held[name].shape) > 1]
    places = {name: tuple(sum(it[side] < times[name][side] for it in matrices) for side in (0, 1)) for name in vectors}
    crossed: set[str] = set()
    for first, second in itertools.permutations(vectors, 2):
        (early, late), (later, earlier) = places[first], places[second]
        if held[first].shape == held[second].shape and early == earlier < late == later:
            crossed |= {first, second}
    return crossed


def moved(matches: Sequence[Match], a: Sequence[NamedArray], b: Sequence[NamedArray]) -> dict[str, str]:
    """Return the weights of a whose equal lies in another layer of b, with its name; none where most do and layers are in order.

    None are moved where one model has more layers. Outside of layers it is one with another name, where all names of the two
    models are the same.
    """
    layers_a, layers_b = ({weight.name: weight.layer for weight in side} for side in (a, b))
    pairs = [(match, layers_a[match.a], layers_b[match.b]) for match in matches]
    known = [(match, first, second) for match, first, second in pairs if first is not None and second is not None]
    others = {match.a: match.b for match, first, second in known if first != second}
    outside = [match for match, first, second in pairs if first is None and second is None]
    renamed = {match.a: match.b for match in outside if match.a != match.b and layers_a.keys() == layers_b.keys()}
    places = partner_layers(matches, a, b)
    exchanged = [places[first] for first in sorted(places)] != sorted(places.values())
    numbers = {*layers_a.values()}, {*layers_b.values()}
    as_many, alike = len(numbers[0]) == len(numbers[1]), numbers[0] == numbers[1]  # not counted from 0 and from 1
    by_layer = others if as_many and (exchanged or alike or 2 * len(others) <= len(known)) else {}
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


def by_place(
    left: Sequence[Summary],
    others: Sequence[Summary],
    matches: list[Match],
    a: Sequence[NamedArray],
    b: Sequence[NamedArray],
    holder: Mapping[str, str],
) -> tuple[list[Summary], list[Summary]]:
    """Append the pairs of equally large weights at the same place of both passes; return the summaries without a partner.

    The largest come first, so that the vectors of a module are paired with those of its partner; a weight that holds what
    another layer's should, with the one of the same name in its own layer; and names that are partners in other layers.

    Args:
        left: the weights of a without a partner.
        others: those of b.
        matches: the pairs so far, which are extended.
        a: all weights of a.
        b: all weights of b.
        holder: for weights of b the name of the equal weight of a, which stands at another place.
    """
    taken: tuple[set[int], set[int]] = (set(), set())
    kinds = {(kind_of(match.a), kind_of(match.b)) for match in matches}
    by_number = {summary.number: summary for summary in left}, {other.number: other for other in others}
    for size in sorted({summary.size for summary in left}, reverse=True):
        place = _Places(matches, a, b)
        costs = sorted(
            (
                _unlikeness(summary.weight.name, holder.get(other.weight.name)),
                (kind_of(summary.weight.name), kind_of(other.weight.name)) not in kinds,
                cost,
                summary.number,
                other.number,
            )
            for summary in left
            for other in others
            if summary.size == other.size == size and (cost := place.distance(summary.weight, other.weight)) is not None
        )
        for *_, first, second in costs:
            if first not in taken[0] and second not in taken[1]:
                taken[0].add(first)
                taken[1].add(second)
                matches.append(at_one_place(by_number[0][first].weight, by_number[1][second].weight, holder))
    return (
        [summary for summary in left if summary.number not in taken[0]],
        [other for other in others if other.number not in taken[1]],
    )


def _unlikeness(name: str, other: str | None) -> float:
    """Return how many numbers differ of a name and of one that differs in numbers alone; infinity for any other.

    Names differ in one number where they are those of one weight in two layers, and in two for another part of the module too.
    """
    if other is None or kind_of(name) != kind_of(other):
        return math.inf
    return float(sum(mine != its for mine, its in zip(NUMBER.findall(name), NUMBER.findall(other), strict=True)))


def partner_layers(matches: Sequence[Match], a: Sequence[NamedArray], b: Sequence[NamedArray]) -> dict[int, int]:
    """Return by each layer of a the layer of b with most of its weights."""
    layers_a, layers_b = ({weight.name: weight.layer for weight in side} for side in (a, b))
    pairs = ((layers_a[match.a], layers_b[match.b]) for match in matches)
    return _most_frequent((mine, its) for mine, its in pairs if mine is not None and its is not None)


def parts_in_place(
    parts: Mapping[str, tuple[Part, ...]], partners: Mapping[int, int], a: Sequence[NamedArray], b: Sequence[NamedArray]
) -> dict[str, tuple[Part, ...]]:
    """Return the parts of fused and split weights, those that lie in another layer of b with the parts at their place.

    Those are the parts of the weight of the same name in the layer of a whose weights b has there.

    Args:
        parts: by weight of a, found by value.
        partners: the layers of b at the places of the layers of a.
        a: the weights of a.
        b: the weights of b.
    """
    layers_a, layers_b = ({weight.name: weight.layer for weight in side} for side in (a, b))
    holders = {name: {layers_b[part.name] for part in found} for name, found in parts.items()}
    placed = dict(parts)
    for name in parts:
        own = partners.get(-1 if (layer := layers_a[name]) is None else layer)
        if own is not None and own not in holders[name]:
            there = (other for other in parts if holders[other] == {own} and _unlikeness(name, other) == 1)
            placed[name] = parts[next(there, name)]
    return placed


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
        self._layers = partner_layers(matches, a, b)
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


def at_one_place(weight: NamedArray, other: NamedArray, holder: Mapping[str, str]) -> Match:
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
    return described(base, x, y)
