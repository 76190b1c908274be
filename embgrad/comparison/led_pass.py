"""Runs of a model that is led by the values of another."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from embgrad.backend.protocol import Change
from embgrad.comparison.recording import FINAL, Recording, Tensor
from embgrad.comparison.sites import Pair

__all__ = ["Led", "can_be_led", "lead"]


@dataclass(frozen=True, eq=False)
class Led:
    """The values that a side computes from the values of the other side.

    Attributes:
        values: by the pairs' indices the values that arrived at the led side's point, in a's order of features.
        gradients: likewise the gradients that arrived.
        follower: "a" or "b", the side that was led.
        final: the led side's output; None where it has none.
        between: by the keys of further points of the led side the values that arrived there.
    """

    values: dict[int, np.ndarray]
    gradients: Mapping[int, np.ndarray]
    follower: str
    final: np.ndarray | None = None
    between: Mapping[str, np.ndarray] = field(default_factory=dict)


def can_be_led(recording: Recording) -> bool:
    """Return whether a side can be run with values put in at its points."""
    return recording.live is not None and recording.live.can_be_led


def lead(
    pairs: Sequence[Pair],
    leader: Recording,
    follower: Recording,
    name: str,
    *,
    gradients: bool = False,
    between: Iterable[str] = (),
    unchanged: Container[int] = (),
) -> Led:
    """Return what the follower computes at each pair from the leader's values at all pairs before it.

    Args:
        pairs: the pairs, with the leader as their a.
        leader: the side whose values are put in.
        follower: the side that is run.
        name: "a" or "b", the follower.
        gradients: whether the leader's gradients are put in on the way back, too.
        between: the keys of the follower's further points whose values are wanted.
        unchanged: the indices of the pairs at which the follower keeps its own values.
    """
    assert follower.live is not None, "the caller has checked that it can be run"
    values: dict[int, np.ndarray] = {}
    arrived_gradients: dict[int, np.ndarray] = {}
    by_key: dict[str, list[int]] = defaultdict(list)
    for number, pair in enumerate(pairs):
        if pair.b != FINAL:
            by_key[pair.b].append(number)

    def change(key: str, store: dict[int, np.ndarray], wanted: Callable[[Tensor], np.ndarray | None]) -> Change:
        def function(arrived: np.ndarray) -> np.ndarray:
            new = arrived
            for number in by_key[key]:
                pair = pairs[number] if store is values else pairs[number].gradients
                store[number] = np.array(pair.in_b(arrived))
                lead_values = wanted(leader.tensors[pair.a])
                if lead_values is not None and number not in unchanged:
                    new = pair.put_in_b(new, pair.in_a(lead_values))
            return new

        return function

    arrived_between: dict[str, np.ndarray] = {}

    def read(key: str) -> Change:
        def function(arrived: np.ndarray) -> np.ndarray:
            arrived_between[key] = np.array(arrived)
            return arrived

        return function

    changes = {key: change(key, values, lambda tensor: tensor.values) for key in by_key}
    final = follower.live.led(
        {**{key: read(key) for key in between if key not in by_key}, **changes},
        {
            key: change(key, arrived_gradients, lambda tensor: tensor.whole_gradient)
            for key, numbers in by_key.items()
            if gradients and any(leader.tensors[pairs[number].a].whole_gradient is not None for number in numbers)
        },
    )
    for number, pair in enumerate(pairs):
        if pair.b == FINAL and FINAL in final:
            values[number] = pair.in_b(final[FINAL])
    return Led(values, arrived_gradients, name, final.get(FINAL), arrived_between)
