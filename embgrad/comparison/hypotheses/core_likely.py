"""The settings that the reference's attention may have: those that it declares, and those that models have."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, cast

import numpy as np

from embgrad.comparison.hypotheses.core_parts import (
    HALVES,
    INTERLEAVED,
    ROUNDINGS,
    Layout,
    PositionBias,
    Rotary,
    Scaling,
)
from embgrad.comparison.hypotheses.declared import declared_by, number_in
from embgrad.comparison.hypotheses.projections import Projections
from embgrad.comparison.hypotheses.site import Site

__all__ = ["BASES", "CAPS", "SCALINGS", "SHARES", "biases", "likely_rotaries", "likely_sizes", "scales", "turned_size"]

#: The bases, shares of the head, soft caps and scalings that models have.
BASES: Final = (10000.0, 1000000.0, 500000.0, 100000.0, 150000.0, 160000.0, 5000000.0, 1000.0)
SHARES: Final = (1.0, 0.25, 0.5, 0.4, 0.75)
CAPS: Final = (50.0, 30.0, 20.0, 10.0)
SCALINGS: Final = (
    *(Scaling("linear", factor) for factor in (2.0, 4.0, 8.0, 16.0, 0.5, 0.25)),
    *(Scaling("llama3", factor) for factor in (8.0, 32.0, 16.0)),
    *(
        Scaling("yarn", factor, 1.0, 32.0, original)
        for factor, original in ((4.0, 32768.0), (4.0, 2048.0), (40.0, 4096.0))
    ),
)

#: The distance of the last buckets that models have where they declare none.
USUAL_DISTANCE: Final = 128


def biases(site: Site, heads: int) -> list[PositionBias]:
    """Return the biases by distance that the reference may add: ALiBi, and its tables with a number for each head.

    The last buckets are those of the declared distance, or else of the usual one.
    """
    longest = round(number_in(declared_by(site, 0), "bias_distance") or USUAL_DISTANCE)
    tables = [weight for weight in site.recordings[0].weights if len(weight.shape) == 2 and weight.shape[1] == heads]
    return [
        PositionBias(),
        *(
            PositionBias(weight.get().astype(np.float64), causal, longest)
            for weight in tables
            for causal in (False, True)
            if 8 <= weight.shape[0] <= 512 and weight.shape[0] % 4 == 0
        ),
    ]


def likely_rotaries(declared: Mapping[str, Any], candidate: Projections) -> Iterator[Rotary | None]:
    """Yield rotary positions, those that are declared first."""
    size = candidate.size
    base, share = number_in(declared, "rotary_base"), number_in(declared, "rotary_share")
    scaling = declared.get("rotary_scaling")
    layout = declared.get("rotary_layout")
    bases = [*([] if base is None else [base]), *BASES]
    shares = [*([] if share is None else [share]), *SHARES]
    if candidate.turned is not None:
        size, shares = candidate.turned, [1.0]
    layouts = (HALVES, INTERLEAVED) if layout != INTERLEAVED else (INTERLEAVED, HALVES)
    plain: list[Rotary] = []
    for kept, number, kind, part in itertools.product([scaling] if scaling else [None], bases, layouts, shares):
        plain.append(Rotary(number, turned_size(size, part), cast("Layout", kind), kept))
    plain += [
        Rotary(number, size, HALVES, pairs=round(size * part) // 2)
        for number in bases[:2]
        for part in shares
        if part < 1 and round(size * part) >= 2  # fewer are no pair to rotate
    ]
    if scaling is not None:
        plain += [replace(rotary, scaling=None) for rotary in plain]
    plain += [Rotary(number, size, HALVES, other) for number in bases[:4] for other in SCALINGS]
    if plain[0].size <= candidate.value_size:
        plain.append(replace(plain[0], values=True))
    plain.append(replace(plain[0], sense=-1))
    plain += [replace(plain[0], rounded=rounded) for rounded in ROUNDINGS]
    yield from dict.fromkeys([plain[0], None, *plain])


def turned_size(size: int, share: float) -> int:
    """Return the number of features that are turned in a head of a size."""
    return max(2, 2 * int(size * share / 2))


def scales(declared: Mapping[str, Any], heads: int, size: int) -> list[float]:
    """Return the scales that heads of a size may have, the likeliest first."""
    usual = 1 / math.sqrt(size)
    scale = number_in(declared, "attention_scale")
    numbers = [usual, 1.0, 1 / size, 1 / math.sqrt(heads * size), 1 / math.sqrt(2 * size)]
    return list(dict.fromkeys([*([] if scale is None else [scale]), *numbers]))


def likely_sizes(declared: Mapping[str, Any], width: int) -> list[int]:
    """Return the sizes of heads that the reference declares, for outputs of a width."""
    size, heads = number_in(declared, "head_dim"), number_in(declared, "heads")
    return [round(number) for number in (size, width / heads if heads else None) if number]
