"""Repair pairs of points that do not hold the same tensor, since a module of one model does more than that of the other."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Final, NamedTuple

import numpy as np

from embgrad.comparison.floor import with_rounding
from embgrad.comparison.hypotheses.functions import ACTIVATIONS, Activation
from embgrad.comparison.led_pass import Led, lead
from embgrad.comparison.recording import FINAL, Recording, Tensor
from embgrad.comparison.sites import Pair, difference, in_order, name_of
from embgrad.comparison.weights import kind_of
from embgrad.model_points.points import INPUT, OUTPUT

__all__ = [
    "NEAR",
    "REPAIRED",
    "by_kind",
    "differences",
    "differing_pairs",
    "fixed_pairs",
    "misleading_pairs",
    "nearer",
    "repair_pairs",
    "without_unadded_biases",
]

#: The relative L2 from which a pair is looked at.
REPAIRED: Final = 1e-4

#: The share of a difference from which another one is far smaller.
NEAR: Final = 0.1

#: The most kinds of pairs, the same in each layer, that are looked at.
MOST_KINDS: Final = 8

#: The number of later points among which the tensor of a module that does more is looked for.
LATER: Final = 12

#: The share of the distance from its own tensor within which a module's output is that of a later point.
NEARER: Final = 0.3

#: The share of a tensor's entries in the range of a function from which it may be that function's output as well.
INSIDE: Final = 0.9

#: The numbers between which a function shows its range.
FAR: Final = 100.0


def repair_pairs(
    pairs: Sequence[Pair],
    differing: Sequence[int],
    arrived: dict[int, np.ndarray],
    leader: Recording,
    follower: Recording,
) -> list[Pair] | None:
    """Return better pairs of points; None where each pair is right, or nothing shows that it is not.

    Keras's dense layer applies the activation itself, for example, where PyTorch's does not. A pair of such modules' outputs is
    moved to the later point of the leader that holds what the follower computed, or of the follower that holds what the leader
    computed; where there is no such point, and one output is a known function of the other, the pair is dropped. An order of
    features that the weights show and the values do not is that of a permuted weight, and is left out.

    Args:
        pairs: the pairs, the leader's first.
        differing: the indices of those whose values differ.
        arrived: by index what the follower computed.
        leader: the side whose values were put in.
        follower: the side that was led.
    """
    real = leader.batch.real
    changed = list(pairs)
    dropped: set[int] = set()
    moved: dict[str, _Move] = {}
    for number in differing:
        pair, values = pairs[number], arrived[number]
        tensor = leader.tensors[pair.a]
        if pair.features_a is not None or pair.features_b is not None:
            changed[number] = _in_own_order(pair, tensor, values, real)
            continue
        if pair.b == FINAL or tensor.side == INPUT:
            continue
        own = _apart(tensor.values, values, real)
        later = _nearest(_later(leader, tensor), values, real, NEARER * own) or _in_range(leader, tensor, values)
        if later is not None and not any(other.a == later.key and other.b != pair.b for other in pairs):
            changed[number] = _moved_in_a(pair, later)
            moved[kind_of(pair.name)] = _Move(_steps(leader, tensor, later), 0)
            continue
        behind = _behind(pair, values, leader, follower, NEARER * own)
        if later is None and behind is not None and not any(other.b == behind.key for other in pairs):
            changed[number] = replace(pair, b=behind.key)
            moved[kind_of(pair.name)] = _Move(0, _steps(follower, follower.tensors[pair.b], behind))
        elif later is not None or _is_function(tensor.values, values, real, NEARER * own):
            dropped.add(number)
    for number in {*differing} - dropped:
        if (
            changed[number] == pairs[number] and kind_of(pairs[number].name) in moved
        ):  # a fault in some layers hides what it holds
            changed[number] = moved[kind_of(pairs[number].name)].apply(pairs[number], leader, follower) or pairs[number]
    if not dropped and changed == list(pairs):
        return None
    numbers = range(len(pairs))
    last = next((it for it in numbers if pairs[it].b == FINAL), max(numbers, key=lambda number: pairs[number].time))
    left = [pair for number, pair in enumerate(changed) if number not in dropped - {last}]
    return in_order(left, leader) if left != list(pairs) else None


class _Move(NamedTuple):
    """The numbers of tensors by which the points of a pair are moved."""

    in_a: int
    in_b: int

    def apply(self, pair: Pair, leader: Recording, follower: Recording) -> Pair | None:
        """Return a pair moved; None where a tensor there has another shape."""
        a, b = (
            _further(side, side.tensors[key], steps)
            for side, key, steps in ((leader, pair.a, self.in_a), (follower, pair.b, self.in_b))
        )
        if a is None or b is None:
            return None
        return _moved_in_a(pair, a) if self.in_a else replace(pair, b=b.key)


def _moved_in_a(pair: Pair, tensor: Tensor) -> Pair:
    return replace(pair, name=name_of(tensor), a=tensor.key, time=tensor.time)


def _steps(recording: Recording, first: Tensor, second: Tensor) -> int:
    keys = [*recording.tensors]
    return keys.index(second.key) - keys.index(first.key)


def _further(recording: Recording, tensor: Tensor, steps: int) -> Tensor | None:
    """Return the tensor of the same shape that is so many tensors further; None where there is none."""
    keys = [*recording.tensors]
    number = keys.index(tensor.key) + steps
    found = recording.tensors[keys[number]] if number < len(keys) else None
    return found if found is not None and found.values.shape == tensor.values.shape else None


def misleading_pairs(pairs: Sequence[Pair], led: Led, leader: Recording, follower: Recording) -> frozenset[int]:
    """Return the indices of pairs whose points hold different tensors, although modules with the same weights are there.

    A norm that first adds to the residual stream is given another tensor than a plain norm, for example, a projection with an
    adapter beside it returns another one, and a table may hold the sum of two of the other model. What the follower computes
    from the leader's tensor at such a point is wrong, and right where it keeps its own. At a fault, on the contrary, what
    follows is wrong where the follower keeps its own. Pairs of one kind, the same in each layer, are looked at together.

    Args:
        pairs: the pairs, the leader's first.
        led: the pass in which the leader's values were put in at all pairs.
        leader: the side whose values were put in.
        follower: the side that was led.
    """
    before = differences(pairs, led, leader)
    kinds = by_kind(pairs, (it for it, off in before.items() if off > REPAIRED and pairs[it].b != FINAL))
    if sum(off > REPAIRED for off in before.values()) < 2:
        return frozenset()

    def keeping(unchanged: Collection[int]) -> dict[int, float]:
        return differences(pairs, lead(pairs, leader, follower, led.follower, unchanged=unchanged), leader)

    kept: set[int] = set()
    now = before
    for kind in _crossing_first(kinds, pairs, leader, follower)[:MOST_KINDS]:
        following = keeping(kept | kind)
        if not nearer(following, before):
            kept, now = kept | kind, following
    solved = nearer(before, now)
    for kind in kinds if solved else ():
        if kind <= kept and solved <= nearer(before, keeping(kept - kind)):
            kept = kept - kind
    return frozenset(number for number in kept if now.get(number, 0.0) > REPAIRED) if solved else frozenset()


def by_kind(pairs: Sequence[Pair], numbers: Iterable[int]) -> list[set[int]]:
    """Return the indices of pairs by their kinds, the same in each layer."""
    kinds: dict[str, set[int]] = {}
    for number in numbers:
        kinds.setdefault(kind_of(pairs[number].name), set()).add(number)
    return [*kinds.values()]


def _crossing_first(
    kinds: Collection[set[int]], pairs: Sequence[Pair], leader: Recording, follower: Recording
) -> list[set[int]]:
    """Return kinds of pairs, first those that come later than others in one model and earlier in the other."""
    differing = [number for kind in kinds for number in kind]
    times = {it: (leader.tensors[pairs[it].a].time, follower.tensors[pairs[it].b].time) for it in differing}

    def crossings(kind: set[int]) -> int:
        return sum(
            (times[first][0] - times[second][0]) * (times[first][1] - times[second][1]) < 0
            for first in kind
            for second in differing
        )

    return sorted(kinds, key=crossings, reverse=True)


def fixed_pairs(
    pairs: Sequence[Pair], led: Led, leader: Recording, follower: Recording, roundoff: float
) -> frozenset[int]:
    """Return the indices of differing outputs that nothing before them changes, not even by rounding, and that are no lookup's.

    For a single text the cosines of positions look like a tensor of the text, and their module returns sines as well. The
    leader's cosines beside the follower's sines would be positions that neither model has.
    """
    tables = [f"{weight.module}." for side in (leader, follower) for weight in side.weights if len(weight.shape) > 1]

    def has_no_table(tensor: Tensor) -> bool:
        return tensor.side == OUTPUT and not any(table.startswith(f"{tensor.path}.") for table in tables)

    found = [
        number
        for number in differing_pairs(pairs, led, leader)
        if pairs[number].b != FINAL
        and has_no_table(leader.tensors[pairs[number].a])
        and has_no_table(follower.tensors[pairs[number].b])
    ]
    if not found:
        return frozenset()
    noisy = lead(pairs, with_rounding(leader, roundoff), follower, led.follower)
    return frozenset(number for number in found if np.array_equal(led.values[number], noisy.values[number]))


def without_unadded_biases(pairs: Sequence[Pair], led: Led, leader: Recording, follower: Recording) -> list[Pair]:
    """Return the pairs without the biases that a side holds and does not add behind a product, as what follows shows.

    Args:
        pairs: the pairs, the leader's first.
        led: the pass in which the leader's values were put in at all pairs.
        leader: the side whose values were put in.
        follower: the side that was led.
    """
    kinds: dict[str, list[int]] = {}
    for number, pair in enumerate(pairs):
        if pair.bias_a is not None or pair.bias_b is not None:
            kinds.setdefault(kind_of(pair.name), []).append(number)
    changed, offs = list(pairs), differences(pairs, led, leader)

    def is_better(numbers: Collection[int]) -> bool:
        """Leave these biases out if some of what follows then agrees, and nothing else differs; return whether it does."""
        nonlocal changed, offs
        without = [pair.gradients if number in numbers else pair for number, pair in enumerate(changed)]
        now = differences(without, lead(without, leader, follower, led.follower), leader)
        others = offs.keys() - {*numbers}
        is_solved = bool(nearer(offs, now) & others)
        if not is_solved or any(now.get(it, np.inf) > max(REPAIRED, offs[it]) for it in others):
            return False
        changed, offs = without, now
        return True

    def before_first(numbers: Sequence[int]) -> list[int]:
        """Return the last of these pairs before the first that differs, if its bias was not left out."""
        first = next((it for it, off in offs.items() if off > REPAIRED and changed[it] is pairs[it]), -1)
        return [it for it in numbers if it < first and changed[it] is pairs[it]][-1:]

    for numbers in kinds.values():
        if before_first(numbers) and not is_better(numbers):
            while (last := before_first(numbers)) and is_better(last):  # a fault in some layers
                pass
    return changed


def differing_pairs(pairs: Sequence[Pair], led: Led, leader: Recording) -> list[int]:
    """Return the indices of the pairs at which the follower computed other values than the leader."""
    return [number for number, off in differences(pairs, led, leader).items() if off > REPAIRED]


def differences(pairs: Sequence[Pair], led: Led, leader: Recording) -> dict[int, float]:
    """Return by index the relative L2 of what the follower computed."""
    real = leader.batch.real
    return {
        number: difference(pairs[number].in_a(leader.tensors[pairs[number].a].values), led.values[number], real)
        for number in sorted(led.values)
    }


def nearer(offs: Mapping[int, float], others: Mapping[int, float]) -> set[int]:
    """Return the indices at which others are far smaller; what is not finite is infinitely far, as is a point without values."""
    return {
        number
        for number, off in offs.items()
        if off > REPAIRED and (other := others.get(number, np.inf)) < off and other <= max(NEAR * off, REPAIRED)
    }


def _apart(reference: np.ndarray, values: np.ndarray, real: np.ndarray) -> float:
    """Return the relative L2 of values against those of the same point, or against the nearest multiple of them."""
    power = float((reference.astype(np.float64) ** 2).sum())
    factor = float((reference.astype(np.float64) * values).sum()) / (power or 1.0)
    return min(difference(reference, values, real), difference(factor * reference, values, real) * abs(factor))


def _in_own_order(pair: Pair, tensor: Tensor, arrived: np.ndarray, real: np.ndarray) -> Pair:
    """Return a pair without the order of features that weights have in another order, where the values themselves have none."""
    order, in_b = (pair.features_a, False) if pair.features_b is None else (pair.features_b, True)
    values = tensor.values
    assert order is not None, "the caller has checked"
    if (in_b and pair.features_a is not None) or len(order) != values.shape[-1]:
        return pair
    own = np.take(arrived, np.argsort(order), -1) if in_b else arrived
    apart = difference(pair.in_a(values), arrived, real)
    if own.shape != values.shape or difference(values, own, real) >= NEARER * apart:
        return pair
    return replace(pair, features_a=None, features_b=None)


def _later(recording: Recording, tensor: Tensor) -> Iterator[Tensor]:
    """Yield the tensors of the same shape at the next points."""
    following = [other for other in recording.tensors.values() if other.time > tensor.time]
    yield from (other for other in following[:LATER] if other.values.shape == tensor.values.shape)


def _nearest(tensors: Iterator[Tensor], values: np.ndarray, real: np.ndarray, most: float) -> Tensor | None:
    """Return the first of the tensors that are nearest to values; None where all are further than a relative L2."""
    measured = [(difference(tensor.values, values, real), tensor) for tensor in tensors]
    least = min((distance for distance, _ in measured), default=most)
    return next((tensor for distance, tensor in measured if distance <= least < most), None)


def _in_range(recording: Recording, tensor: Tensor, values: np.ndarray) -> Tensor | None:
    """Return the later tensor that an activation makes of one, where values lie in the range of its function alone.

    That holds although a fault makes them far from both tensors.
    """
    at = values.shape[:2]
    real = recording.batch.real if at == recording.batch.shape else np.ones(at, bool)
    own, reached = tensor.values[real].astype(np.float64), values[real]
    for function in ACTIVATIONS if np.isfinite(reached).all() and own.size else ():
        least, most = _range_of(function)
        inside = (own >= least) & (own <= most)
        if inside.mean() < INSIDE and least <= reached.min() and reached.max() <= most:
            made = function.apply(tensor.values.astype(np.float64))
            found = (it for it in _later(recording, tensor) if difference(made, it.values, real) <= REPAIRED)
            later = next(found, None)
            if later is not None:
                return later
    return None


@cache
def _range_of(function: Activation) -> tuple[float, float]:
    """Return the least and the largest value of a function, with a margin for rounding; infinite where it grows on."""
    values = function.apply(np.linspace(-FAR, FAR, 20001))
    least, most = float(values.min()) - REPAIRED, float(values.max()) + REPAIRED
    return (-np.inf if least < -FAR / 2 else least), (np.inf if most > FAR / 2 else most)


def _behind(pair: Pair, arrived: np.ndarray, leader: Recording, follower: Recording, most: float) -> Tensor | None:
    """Return the follower's later tensor that holds a known function, which the leader's module applies itself."""
    real, own = leader.batch.real, follower.tensors[pair.b]
    for activation in ACTIVATIONS:
        if difference(leader.tensors[pair.a].values, activation.apply(arrived), real) < most:
            wanted = activation.apply(own.values.astype(np.float64))
            changed = difference(own.values, wanted, real)
            return _nearest(_later(follower, own), wanted, real, NEARER * changed)
    return None


def _is_function(first: np.ndarray, second: np.ndarray, real: np.ndarray, most: float) -> bool:
    """Return whether one of two tensors is nearly a known activation function of the other."""
    x, y = (values.astype(np.float64) for values in (first, second))
    return any(
        difference(y, activation.apply(x), real) < most or difference(x, activation.apply(y), real) < most
        for activation in ACTIVATIONS
    )
