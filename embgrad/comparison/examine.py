"""The examination of two models: the pass of one that is led by the other's values, and the sites at which they differ."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Final

import numpy as np

from embgrad.comparison.compensation import compensated_pairs
from embgrad.comparison.floor import local_floors
from embgrad.comparison.hypotheses.site import Before, Site, real_of
from embgrad.comparison.led_pass import Led, can_be_led, lead
from embgrad.comparison.recording import FINAL, Recording, Tensor, layer_at, layer_spans
from embgrad.comparison.repair import (
    differing_pairs,
    fixed_pairs,
    misleading_pairs,
    repair_pairs,
    without_unadded_biases,
)
from embgrad.comparison.sites import Pair, count_layers, difference, name_of
from embgrad.comparison.unled import follow
from embgrad.comparison.weights import Matching
from embgrad.model_points.points import INPUT, OUTPUT, WORD
from embgrad.model_points.roles import LAYER

__all__ = [
    "Examination",
    "as_stored",
    "differing_sites",
    "examine",
    "examine_gradients",
    "gradient_limit",
    "layers_of",
    "permuted_before",
    "unreached_points",
    "without_sites",
]

#: The number of floors beyond which a tensor differs.
BEYOND: Final = 8.0

#: The number of times that pairs of points are repaired.
MOST_REPAIRS: Final = 3

#: The number of tensors before a site among which its inputs are looked for.
NEAR: Final = 8

#: The most tensors before a site that hypotheses are given.
MOST_BEFORE: Final = 40

#: The relative L2 up to which two gradients agree, at least, and in unit roundoffs.
GRADIENTS_AGREE: Final = 1e-5
GRADIENT_ROUNDOFFS: Final = 50.0

#: The number of roots of the unit roundoff beyond which gradients differ where neither side is led by the other's.
UNLED_GRADIENTS: Final = 4.0

#: The ratio of a change of the output to rounding errors of the inputs beyond which the output is random.
MOST_AMPLIFIED: Final = 1e5


@dataclass(frozen=True, eq=False)
class Examination:
    """The pass of one side that was led by the other, and the sites at which the two differ.

    Attributes:
        pairs: the pairs of points, a's first.
        led: the pass.
        floors: by pair the relative L2 that rounding may cause there.
        sites: the sites, in a's order.
        random: the names of the sites at which the led side gives other values when it is run again.
        compensated: the names of further pairs at which the models hold different tensors, for which what follows makes up.
    """

    pairs: Sequence[Pair]
    led: Led
    floors: Sequence[float]
    sites: Sequence[Site]
    random: frozenset[str] = frozenset()
    compensated: tuple[str, ...] = ()

    @cached_property
    def differing(self) -> frozenset[str]:
        """The names of the pairs that differ, all parts where a site is an input that b holds in parts."""
        names = {site.name for site in self.sites}
        joined = {site.pair.a for site in self.sites} - {pair.a for pair in self.pairs if pair.name in names}
        return frozenset(names | {pair.name for pair in self.pairs if pair.a in joined})


def examine(
    pairs: Sequence[Pair], recordings: tuple[Recording, Recording], matching: Matching, roundoff: float
) -> Examination:
    """Return the sites at which two models differ, from a pass of one that is led by the other."""
    a, b = recordings
    if not can_be_led(a) and not can_be_led(b):
        led, floors = follow(pairs, a, b, roundoff, BEYOND)
        return Examination(pairs, led, floors, differing_sites(pairs, recordings, led, floors, matching))
    leader, follower, turned = (a, b, pairs) if can_be_led(b) else (b, a, [pair.reversed for pair in pairs])
    name = "b" if leader is a else "a"
    between = a.tensors.keys() - {FINAL} if follower is a else ()  # a led side b is seen by its outputs alone

    def led_by(pairs: Sequence[Pair]) -> Led:
        return lead(pairs, leader, follower, name, between=between)

    led = led_by(turned)
    fixed = fixed_pairs(turned, led, leader, follower, roundoff)
    if fixed:
        turned = _without(turned, fixed)
        led = led_by(turned)
    added = without_unadded_biases(turned, led, leader, follower)
    if added != list(turned):
        turned, led = added, led_by(added)
    compensated: list[str] = []
    for _ in range(MOST_REPAIRS):
        differing = differing_pairs(turned, led, leader)
        repaired = repair_pairs(turned, differing, led.values, leader, follower)
        if repaired is None:
            made_up = compensated_pairs(turned, led, leader, follower)
            compensated += [turned[number].name for number in sorted(made_up)]
            misleading = made_up or misleading_pairs(turned, led, leader, follower)
            if not misleading:
                break
            repaired = _without(turned, misleading)
        turned = repaired
        led = led_by(turned)
    floors = local_floors(turned, leader, follower, led, roundoff)
    random = [MOST_AMPLIFIED * roundoff < floor < float("inf") for floor in floors]
    floors = [floor if floor <= MOST_AMPLIFIED * roundoff else 0.0 for floor in floors]
    pairs = turned if leader is a else [pair.reversed for pair in turned]
    sites = differing_sites(pairs, recordings, led, floors, matching)
    drawn = {pair.name for pair, is_random in zip(pairs, random, strict=True) if is_random}
    return Examination(pairs, led, floors, sites, frozenset(drawn), tuple(compensated))


def _without(pairs: Sequence[Pair], numbers: Container[int]) -> list[Pair]:
    """Return the pairs but for those with these indices."""
    return [pair for number, pair in enumerate(pairs) if number not in numbers]


def without_sites(
    examined: Examination, recordings: tuple[Recording, Recording], unknown: Sequence[str]
) -> Examination:
    """Return an examination without the pairs that differ, for which what follows makes up.

    Args:
        examined: the examination.
        recordings: a and b.
        unknown: the names of the sites of which no more than their difference is known.
    """
    kept = [number for number, pair in enumerate(examined.pairs) if pair.name not in examined.differing]
    pairs = [examined.pairs[number] for number in kept]
    leader, follower = recordings if examined.led.follower == "b" else recordings[::-1]
    turned = pairs if examined.led.follower == "b" else [pair.reversed for pair in pairs]
    led = lead(turned, leader, follower, examined.led.follower)
    floors = [examined.floors[number] for number in kept]
    return Examination(pairs, led, floors, [], compensated=(*examined.compensated, *unknown))


def examine_gradients(
    examination: Examination, recordings: tuple[Recording, Recording], roundoff: float
) -> tuple[Examination, list[str]]:
    """Return the examination with what one side computes from the other's gradients, and the names of the points that differ.

    The points are in the order of the backward pass. The pass is made only where both sides have gradients that differ although
    all values agree. Where it cannot be made, the first point alone at which the gradients clearly differ is known.
    """
    a, b = recordings
    most = gradient_limit(roundoff)
    tensors = [(pair, a.tensors[pair.a].whole_gradient, b.tensors[pair.b].whole_gradient) for pair in examination.pairs]
    offs = [
        (pair.name, difference(pair.in_a(first), pair.in_b(second), a.batch.real))
        for pair, first, second in reversed(tensors)
        if first is not None and second is not None
    ]
    unreached = unreached_points(examination.pairs, a, b)
    leader, follower = (a, b) if examination.led.follower == "b" else (b, a)
    if examination.sites:
        return examination, []
    if all(off <= most for _, off in offs):
        return examination, unreached
    if follower.live is None or not follower.live.bound.supports("add", "edit"):
        most = max(most, UNLED_GRADIENTS * roundoff**0.5)
        return examination, unreached or [name for name, off in offs if off > most][:1]
    turned = examination.pairs if leader is a else [pair.reversed for pair in examination.pairs]
    led = lead(turned, leader, follower, examination.led.follower, gradients=True)
    names = [
        pair.name
        for number, pair in reversed([*enumerate(turned)])
        if pair.name in unreached
        or (
            number in led.gradients
            and (own := leader.tensors[pair.a].whole_gradient) is not None
            and difference(pair.in_a(own), led.gradients[number], a.batch.real) > most
        )
    ]
    return replace(examination, led=replace(examination.led, gradients=led.gradients)), names


def gradient_limit(roundoff: float) -> float:
    """Return the relative L2 up to which two gradients agree."""
    return max(GRADIENTS_AGREE, BEYOND * GRADIENT_ROUNDOFFS * roundoff)


def unreached_points(pairs: Sequence[Pair], a: Recording, b: Recording) -> list[str]:
    """Return the names of the points with gradients in one model alone, though both pulled the objective back, last first.

    Only the ids' rows and the layers' outputs count: of a tensor that examples share there is no gradient of each.
    """
    if a.objective is None or b.objective is None:
        return []
    sides = [(pair, a.tensors[pair.a], b.tensors[pair.b]) for pair in reversed(pairs)]
    return [
        pair.name
        for pair, first, second in sides
        if (first.whole_gradient is None) != (second.whole_gradient is None)
        and any(role == WORD or role.startswith(f"{LAYER}.") for role in first.roles)
    ]


def permuted_before(examined: Examination, sites: Sequence[Site]) -> set[str]:
    """Return the names of pairs shortly before unexplained sites whose features b holds in another order than a."""
    near = {before.name for site in sites for before in site.before[:NEAR]}
    return {
        pair.name
        for pair in examined.pairs
        if pair.name in near and pair.features_a is None and pair.features_b is not None
        # a part of a fused tensor has no features in another order
        if len(pair.features_b) == sites[0].recordings[1].tensors[pair.b].features
    }


def as_stored(pairs: Sequence[Pair], names: set[str]) -> list[Pair]:
    """Return the pairs; those with these names with b's features in the order in which b holds them."""
    return [replace(pair, features_b=None) if pair.name in names else pair for pair in pairs]


def differing_sites(
    pairs: Sequence[Pair],
    recordings: tuple[Recording, Recording],
    led: Led,
    floors: Sequence[float],
    matching: Matching,
    beyond: float = BEYOND,
    memory: dict[str, Any] | None = None,
) -> list[Site]:
    """Return the sites at which the led model's output differs from the other's by so many floors, in a's order.

    Args:
        pairs: the pairs of points.
        recordings: a and b.
        led: the led pass.
        floors: by pair the relative L2 that rounding may cause there.
        matching: the weights by their partners.
        beyond: the number of floors.
        memory: what the hypotheses remember; None for nothing yet.
    """
    a = recordings[0]
    layer_of = layers_of(a)
    sites = []
    memory = {} if memory is None else memory
    first, second = ({name: held.value for name, held in side.settings.items()} for side in recordings)
    settings = first, second
    joined: set[str] = set()
    for number, pair in enumerate(pairs):
        if number not in led.values or pair.a in joined:
            continue
        values_a, values_b = _sides(recordings, led, pair, number)
        if difference(values_a, values_b, a.batch.real) <= beyond * floors[number]:
            continue
        floor, parts = floors[number], _parts_of_input(pairs, recordings, led, pair)
        if parts:
            joined.add(pair.a)
            pair = Pair(name_of(a.tensors[pair.a]), pair.a, pair.b, time=pair.time)
            values_a, values_b = _together(recordings, led, pairs, parts)
            floor = max(floors[part] for part in parts)
        sites.append(
            Site(
                pair,
                _layer_before(a, a.tensors[pair.a], layer_of),
                np.asarray(values_a, np.float64),
                np.asarray(values_b, np.float64),
                real_of(a.batch, values_a),
                a.batch.ids,
                _before(pairs[: min(parts, default=number)], recordings, led, pair, values_a),
                recordings,
                matching,
                floor,
                settings,
                pairs,
                memory,
            )
        )
    return sites


def _sides(recordings: tuple[Recording, Recording], led: Led, pair: Pair, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the values of a and b at a pair, of which one side was led by the other."""
    a, b = recordings
    if led.follower == "a":
        return led.values[number], pair.in_b(b.tensors[pair.b].values)
    return pair.in_a(a.tensors[pair.a].values), led.values[number]


def _parts_of_input(pairs: Sequence[Pair], recordings: tuple[Recording, Recording], led: Led, pair: Pair) -> list[int]:
    """Return the indices of the pairs that hold one input of a in parts; an empty list where b has it in one piece.

    Several devices may each compute some heads, for example, whose order is seen in all of them alone.
    """
    tensor = recordings[0].tensors[pair.a]
    if tensor.side != INPUT or pair.features_a is None:
        return []
    parts = [number for number, other in enumerate(pairs) if other.a == pair.a and number in led.values]
    features = [pairs[number].features_a for number in parts]
    held = np.concatenate([np.arange(tensor.features) if part is None else part for part in features])
    return parts if np.array_equal(np.sort(held), np.arange(tensor.features)) else []


def _together(
    recordings: tuple[Recording, Recording], led: Led, pairs: Sequence[Pair], parts: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the values of a and b at an input of a that pairs hold in parts."""
    whole = recordings[0].tensors[pairs[parts[0]].a].values
    both = np.zeros((2, *whole.shape))
    for number in parts:
        for side, values in zip(both, _sides(recordings, led, pairs[number], number), strict=True):
            side[..., pairs[number].features_a] = values
    return both[0], both[1]


def _layer_before(recording: Recording, end: Tensor, layer_of: Callable[[float], int | None]) -> int | None:
    """Return the layer that computes a tensor: the one before, where the tensor is what a layer is given.

    Behind the first output in a layer its input is a part of the layer, such as what an MLP beside an attention is given.
    """
    layer = layer_of(end.time)
    last = count_layers(recording) - 1 if layer is None else layer - 1
    before = recording.by_role(f"{LAYER}.{last}") if last >= 0 and end.side == INPUT else None
    if before is None or not _equal(before.values, end.values):
        return layer
    outputs = (it for it in recording.tensors.values() if it.side == OUTPUT and before.time < it.time < end.time)
    return layer if any(layer_of(it.time) == layer for it in outputs) else last


def _before(
    pairs: Sequence[Pair], recordings: tuple[Recording, Recording], led: Led, end: Pair, value: np.ndarray
) -> list[Before]:
    """Return the tensors at the points before a site, the nearest first.

    Lookups are shared as well as pairs: they depend on the batch alone. What a computes on the way to the site's output is added,
    where it is not that output itself.

    Args:
        pairs: the pairs before the site.
        recordings: a and b.
        led: the led pass.
        end: the pair at which the site ends.
        value: the reference's output.
    """
    a, b = recordings
    is_led = led.follower == "a"
    whole = {pair.a for pair in pairs if pair.features_a is None}
    entries: list[tuple[float, Before]] = []
    for pair in pairs[-MOST_BEFORE:]:
        values = pair.in_b(b.tensors[pair.b].values) if is_led else pair.in_a(a.tensors[pair.a].values)
        entries.append((pair.time, Before(pair.name, np.asarray(values, np.float64))))
    start = entries[0][0] if entries else 0.0
    for tensor in a.tensors.values():
        near = start <= tensor.time < a.tensors[end.a].time
        computed = led.between.get(tensor.key) if is_led else tensor.values
        is_between = tensor.key not in whole and (near or tensor.side is None)
        if is_between and computed is not None and not _equal(computed, value):
            found = Before(name_of(tensor), np.asarray(computed, np.float64), tensor.side is None)
            entries.append((tensor.time, found))
    entries.sort(key=lambda entry: -entry[0])
    return [before for _, before in entries]


def _equal(first: np.ndarray, second: np.ndarray) -> bool:
    return first.shape == second.shape and np.array_equal(first, second)


def layers_of(recording: Recording) -> Callable[[float], int | None]:
    """Return a function that returns the layer in which a time lies."""
    return partial(layer_at, layer_spans(recording.tensors))
