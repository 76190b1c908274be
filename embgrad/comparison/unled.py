"""The comparison of two recordings neither of which can be run again: their own values, up to the first point that differs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from embgrad.comparison.floor import estimated_floors
from embgrad.comparison.led_pass import Led
from embgrad.comparison.recording import Recording
from embgrad.comparison.sites import Pair, difference

__all__ = ["NOTE", "follow"]

#: What a report says of such a comparison.
NOTE = (
    "neither side could be run again with the other's values, so that nothing is known behind the first point that differs, and "
    "what rounding causes is estimated"
)


def follow(
    pairs: Sequence[Pair], a: Recording, b: Recording, roundoff: float, beyond: float
) -> tuple[Led, list[float]]:
    """Return b's own values, as though it had been led by a, up to the first pair at which they differ; and the floors.

    Args:
        pairs: the pairs of points, in a's order.
        a: the reference.
        b: the port.
        roundoff: the unit roundoff of the computation.
        beyond: the number of floors beyond which a tensor differs.
    """
    floors = estimated_floors(pairs, roundoff)
    values: dict[int, np.ndarray] = {}
    for number, pair in enumerate(pairs):
        values[number] = pair.in_b(b.tensors[pair.b].values)
        first = pair.in_a(a.tensors[pair.a].values)
        if difference(first, values[number], a.batch.real) > beyond * floors[number]:
            break
    return Led(values, {}, "b"), floors
