"""The weights of two models as a report on a port holds them."""

from __future__ import annotations

from embgrad.comparison.weights import Matching
from embgrad.results.port_records import PortWeights, WeightPair

__all__ = ["port_weights"]


def port_weights(matching: Matching) -> PortWeights:
    """Return the partners of weights without their arrays, for a report; parts whose values differ are among the pairs."""
    unequal = [
        WeightPair(name, part.name, part.distance, part.relation, False, False, False, True)
        for name, parts in matching.parts.items()
        for part in parts
        if part.relation != "equal"
    ]
    names = {pair.a for pair in unequal}
    return PortWeights(
        matches=tuple(
            WeightPair(
                match.a,
                match.b,
                match.distance,
                match.relation,
                match.is_equal,
                match.transposed,
                match.order is not None,
                match.by_value,
            )
            for match in matching.matches
        )
        + tuple(unequal),
        parts={name: tuple(part.name for part in parts) for name, parts in matching.parts.items() if name not in names},
        alone_a=matching.alone_a,
        alone_b=matching.alone_b,
    )
