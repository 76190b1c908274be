"""The check of a port: whether a model computes what another one computes, and if not, at which points and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from embgrad.common.tolerance import unit_roundoff
from embgrad.comparison.hypotheses import explain
from embgrad.comparison.hypotheses.site import Before, Explanation, Site
from embgrad.comparison.recording import Recording, Tensor
from embgrad.comparison.sites import Led, Pair, difference, lead
from embgrad.comparison.weights import Matching

__all__ = ["differing_sites"]

#: The number of floors beyond which a tensor differs.
BEYOND: Final = 8.0

#: The rounding error of one operation that is assumed at least, in unit roundoffs.
LEAST_FLOOR: Final = 4.0

#: The most tensors before a site that hypotheses are given.
MOST_BEFORE: Final = 40


def local_floors(
    pairs: Sequence[Pair], leader: Recording, follower: Recording, led: Led, roundoff: float
) -> list[float]:
    """Return by pair the relative L2 that rounding its inputs causes at its output, measured by a pass with rounded inputs."""
    noisy = lead(pairs, with_rounding(leader, roundoff), follower, led.follower)
    real = leader.batch.real
    return [
        max(difference(led.values[number], noisy.values[number], real), LEAST_FLOOR * roundoff)
        if number in led.values
        else 0.0
        for number in range(len(pairs))
    ]


def with_rounding(recording: Recording, roundoff: float, seed: int = 0) -> Recording:
    """Return the recording with each value changed by a random rounding error."""
    random = np.random.default_rng(seed)

    def changed(tensor: Tensor) -> Tensor:
        noise = random.uniform(-roundoff, roundoff, tensor.values.shape)
        return replace(tensor, values=tensor.values * (1 + noise).astype(tensor.values.dtype))

    return replace(recording, tensors={key: changed(tensor) for key, tensor in recording.tensors.items()})


def differing_sites(
    pairs: Sequence[Pair],
    recordings: tuple[Recording, Recording],
    led: Led,
    floors: Sequence[float],
    matching: Matching,
) -> list[Site]:
    """Return the sites at which the led model's output differs from the other's, in a's order.

    Args:
        pairs: the pairs of points, a's first.
        recordings: a and b.
        led: the pass of one side that was led by the other.
        floors: by pair the relative L2 that rounding may cause.
        matching: the weights of both sides by their partners.
    """
    a, b = recordings
    layers = _layers(a)
    sites = []
    for number, pair in enumerate(pairs):
        if number not in led.values:
            continue
        values_a, values_b = pair.in_a(a.tensors[pair.a].values), led.values[number]
        if led.follower == "a":
            values_a, values_b = led.values[number], pair.in_b(b.tensors[pair.b].values)
        if difference(values_a, values_b, a.batch.real) <= BEYOND * floors[number]:
            continue
        sites.append(
            Site(
                pair,
                layers(a.tensors[pair.a].time),
                np.asarray(values_a, np.float64),
                np.asarray(values_b, np.float64),
                a.batch.real,
                a.batch.ids,
                _before(pairs[:number], recordings, led),
                recordings,
                matching,
                floors[number],
            )
        )
    return sites


def _before(pairs: Sequence[Pair], recordings: tuple[Recording, Recording], led: Led) -> list[Before]:
    """Return the tensors at earlier pairs, the nearest first, each once."""
    a, b = recordings
    found: list[Before] = []
    for pair in reversed(pairs):
        values = pair.in_b(b.tensors[pair.b].values) if led.follower == "a" else pair.in_a(a.tensors[pair.a].values)
        found.append(Before(pair.name, np.asarray(values, np.float64)))
        if len(found) == MOST_BEFORE:
            break
    return found


def _layers(recording: Recording) -> Callable[[float], int | None]:
    """Return a function that returns the layer in which a time lies."""
    ends: dict[int, float] = {}
    for tensor in recording.tensors.values():
        for role in tensor.roles:
            number = role.removeprefix("layer.")
            if number != role and number.isdigit():
                ends[int(number)] = tensor.time
    starts = [tensor.time for tensor in recording.tensors.values() if "embeddings" in tensor.roles]

    def layer(time: float) -> int | None:
        if starts and time <= starts[0]:
            return None
        return next((number for number, end in sorted(ends.items()) if time <= end), None)

    return layer


def explained(sites: Sequence[Site]) -> list[tuple[Site, Explanation | None]]:
    """Return each site with its explanation, or None."""
    return [(site, explain(site)) for site in sites]


def roundoff_of(recordings: tuple[Recording, Recording], floor: str | None) -> float:
    """Return the rounding error of the coarser side, at least of single precision unless both compute in double precision."""
    names = {recording.dtype for recording in recordings}
    plain = unit_roundoff("float64") if names == {"float64"} else unit_roundoff("float32")
    return plain if floor is None else max(plain, unit_roundoff(floor))


Lines = Mapping[str, Any]
