"""Differences inside two models that what follows makes up for, so that the models compute the same."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from embgrad.comparison.led_pass import Led, lead
from embgrad.comparison.recording import FINAL, Recording
from embgrad.comparison.repair import NEAR, REPAIRED, by_kind, differences, nearer
from embgrad.comparison.sites import Pair, difference

__all__ = ["are_compensated", "compensated_pairs"]

#: The number of times that an equally large random change of a tensor has to change the output more than the models are apart.
VISIBLE: Final = 100.0


def compensated_pairs(pairs: Sequence[Pair], led: Led, leader: Recording, follower: Recording) -> frozenset[int]:
    """Return the indices of pairs at which the models hold different tensors by themselves, and after which they agree again.

    A model may scale what it gives to the projections of queries and keys, for example, where the other one scales their scores.
    What the follower computes from the leader's tensor at such a point is wrong behind it, although it is right by itself.

    Args:
        pairs: the pairs, the leader's first.
        led: the pass in which the leader's values were put in at all pairs.
        leader: the side whose values were put in.
        follower: the side that was led.
    """
    before = differences(pairs, led, leader)
    by_itself = {number: _apart(pairs[number], leader, follower) for number in before}
    right = nearer(before, by_itself)
    if not right:
        return frozenset()
    dropped = {number for number, off in by_itself.items() if off > REPAIRED}

    def keeping(numbers: Collection[int]) -> dict[int, float]:
        return differences(pairs, lead(pairs, leader, follower, led.follower, unchanged=numbers), leader)

    solved = right & nearer(before, keeping(dropped))
    if not solved:
        return frozenset()
    for kind in by_kind(pairs, dropped):
        if solved <= nearer(before, keeping(dropped - kind)):
            dropped -= kind
    harmed = nearer(keeping(dropped), before) - dropped
    return frozenset() if harmed else frozenset(dropped)


def are_compensated(
    pairs: Sequence[Pair], differing: Collection[str], follower: str, sides: tuple[Recording, Recording]
) -> bool:
    """Return whether all of the pairs that differ hold tensors whose difference what follows makes up for.

    The factors of queries and of keys may cancel, for example, and a norm hides what is added to all features. The outputs then
    agree, though a random change of a tensor, as large as its difference, changes the output far more than that. Of a tensor that
    leads to no output, no change is seen, and nothing is known.

    Args:
        pairs: the pairs, a's first.
        differing: the names of those that differ.
        follower: "a" or "b", the side that can be run with values put in.
        sides: the recordings, a's first.
    """
    leader, run = sides if follower == "b" else sides[::-1]
    turned = pairs if follower == "b" else [pair.reversed for pair in pairs]
    final = next((pair for pair in turned if pair.b == FINAL), None)
    kinds = by_kind(turned, (number for number, pair in enumerate(turned) if pair.name in differing))
    if final is None or FINAL in differing or run.live is None:
        return False
    apart = _apart(final, leader, run)
    if apart > NEAR * REPAIRED:
        return False
    own, number = final.in_b(run.tensors[FINAL].values), turned.index(final)
    changed = _changed([pair for pair in turned if pair.name in differing], leader, run)
    different = [numbers for numbers in kinds if any(_apart(turned[it], leader, run) > REPAIRED for it in numbers)]
    for numbers in different:
        arrived = lead(turned, changed, run, follower, unchanged={*range(len(turned))} - numbers).values.get(number)
        if arrived is None or difference(own, arrived, leader.batch.real) <= max(VISIBLE * apart, REPAIRED):
            return False
    return bool(different)


def _apart(pair: Pair, leader: Recording, follower: Recording) -> float:
    """Return the relative L2 of what the two models hold at a pair by themselves."""
    values = pair.in_b(follower.tensors[pair.b].values)
    return difference(pair.in_a(leader.tensors[pair.a].values), values, leader.batch.real)


def _changed(pairs: Sequence[Pair], leader: Recording, follower: Recording) -> Recording:
    """Return the leader with the follower's own values at these pairs, changed at random by as much as the two are apart."""
    random = np.random.default_rng(0)
    tensors = dict(leader.tensors)
    for pair in pairs:
        own, its = pair.in_a(leader.tensors[pair.a].values), pair.in_b(follower.tensors[pair.b].values)
        noise = random.normal(size=its.shape)
        noise *= float(np.linalg.norm(its - own)) / float(np.linalg.norm(noise))
        new = pair.reversed.put_in_b(tensors[pair.a].values, its + noise.astype(its.dtype))
        tensors[pair.a] = replace(tensors[pair.a], values=new, gradient=None)
    return replace(leader, tensors=tensors)
