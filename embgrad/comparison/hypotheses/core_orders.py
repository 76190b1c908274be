"""Attention cores whose heads stand in another order, or take other keys and values."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from embgrad.comparison.hypotheses.core import Core, Part
from embgrad.comparison.hypotheses.sources import relative

__all__ = ["reordered"]

#: The most pairs of a head's queries with keys and values that are tried.
MOST_PAIRS: Final = 1024


def reordered(core: Core, part: Part, wanted: np.ndarray, most: float) -> Core | None:
    """Return the core with the order of heads that reproduces outputs; None where no other order does.

    Args:
        core: the core.
        part: the part of the outputs, with all heads.
        wanted: their values, (example, query, head, feature).
        most: the relative L2 up to which a head's output is another's.
    """
    if core.heads * core.pairs > MOST_PAIRS:
        return None
    found = []
    outputs = {
        (head, pair): replace(core, order=((head, pair),) * core.heads).part(part._replace(heads=part.heads[:1]))[
            :, :, 0
        ]
        for head in range(core.heads)
        for pair in range(core.pairs)
    }
    for number in range(core.heads):
        offs = {places: relative(values, wanted[:, :, number]) for places, values in outputs.items()}
        best = min(offs, key=offs.__getitem__)
        if offs[best] > most:
            return None
        found.append(best)
    order = tuple(found)
    return None if order == core.usual_order else replace(core, order=order)
