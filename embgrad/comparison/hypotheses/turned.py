"""The hypothesis of rotary positions whose result is a point: that of a module, or what a norm behind them is given."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from embgrad.comparison.hypotheses.core import Core, Part
from embgrad.comparison.hypotheses.core_difference import differences
from embgrad.comparison.hypotheses.core_fit import part_of
from embgrad.comparison.hypotheses.core_likely import likely_rotaries, likely_sizes
from embgrad.comparison.hypotheses.core_parts import places_of
from embgrad.comparison.hypotheses.core_search import ported_core
from embgrad.comparison.hypotheses.declared import declared_by
from embgrad.comparison.hypotheses.projections import SIZES, Projections
from embgrad.comparison.hypotheses.site import Explanation, Site, together
from embgrad.comparison.hypotheses.sources import Source, most_off, relative, sources

__all__ = ["TurnedFeatures", "moved_positions"]

#: The cause of positions that one model lacks.
MISSING: Final = "missing-rotary"

#: The relative range of the ratios of vectors' lengths up to which one tensor may be the other one turned.
LONGER: Final = 1e-3


def moved_positions(explained: Sequence[tuple[Site, Explanation | None]]) -> list[tuple[Site, Explanation | None]]:
    """Return the sites with their explanations, where positions that one model applies before norms of queries and keys, and the
    other behind them, are one explanation.

    They are missing in one model at what the norms are given, and in the other one at the attention behind the norms.
    """
    found: dict[int | None, list[tuple[str, str]]] = defaultdict(list)
    for site, it in explained:
        if it is not None and it.cause == MISSING and "missing" in it.values:
            found[site.layer].append(it.values)
    moved = {layer: values[0][0] for layer, values in found.items() if values[0] == values[-1][::-1]}

    def named(site: Site, it: Explanation | None) -> Explanation | None:
        if it is None or it.cause != MISSING or site.layer not in moved:
            return it
        order = ("before rotary positions", "after rotary positions")
        values = order if moved[site.layer] == "missing" else order[::-1]
        return replace(it, cause="norm-order", setting="the norms of queries and keys come", values=values)

    return [(site, named(site, it)) for site, it in explained]


@dataclass(frozen=True, eq=False)
class Turned(Core):
    """The queries of a core at their rotary positions."""

    def part(self, part: Part) -> np.ndarray:
        """Return some of them, (example, query, head, feature)."""
        heads = self._split(self.query, self.heads, part.examples, part.rows, part.heads)
        return part.counted(
            heads if self.rotary is None else self.rotary.turn_queries(heads, self._places(part, part.rows))
        )


class TurnedFeatures:
    """Rotary positions of the heads of a tensor."""

    def explain(self, site: Site) -> list[Explanation]:
        """Return how the positions of both models differ; an empty list where neither turns a tensor."""
        if not np.isfinite(site.b[site.real]).all():
            return []
        for source in sources(site):
            if source.values.shape != site.a.shape or not _is_as_long(site, source):
                continue
            if site.off(source.values, from_a=True) <= site.floor:
                return _explanations_of_b_alone(site, source)
            a = _fitted(site, source)
            b = None if a is None else ported_core(site, a, deep=False)
            if a is not None and b is not None:
                return _explanations(a, b)
        return []


def _is_as_long(site: Site, source: Source) -> bool:
    """Return whether all vectors of a tensor are as long as a's, but for one factor: turns keep lengths."""
    lengths, own = (np.linalg.norm(site.rows(values), axis=-1) for values in (site.a, source.values))
    return bool(own.all()) and bool(np.ptp(lengths / own) <= LONGER * (lengths / own).mean())


def _fitted(site: Site, source: Source) -> Core | None:
    """Return the heads and rotary positions with which a tensor is a's output; None where it is not."""
    most, declared, width = most_off(site), declared_by(site, 0), site.a.shape[-1]
    for size in dict.fromkeys([*likely_sizes(declared, width), *SIZES]):
        if width % size or size % 2:
            continue
        part = part_of(site, width // size, alone=True)
        for rotary in likely_rotaries(declared, Projections(source, source, source, size)):
            core = Turned(source, source, source, width // size, 1.0, site.real, rotary=rotary, places=places_of(site))
            is_near = rotary is not None and relative(core.part(part), part.of(site.a, size)) <= most
            if is_near and site.off(core.predicted, from_a=True) <= most:
                return core
    return None


def _explanations_of_b_alone(site: Site, source: Source) -> list[Explanation]:
    """Return that b turns a tensor that a hands on as it is; an empty list where it does not."""
    turned = replace(site, a=site.b, b=site.a)
    b = _fitted(turned, source) if _is_as_long(turned, source) else None
    return [] if b is None else _explanations(replace(b, rotary=None), b)


def _explanations(a: Core, b: Core) -> list[Explanation]:
    found = []
    for cause, setting, values, sentence in differences(a, b):
        named = "the first rotary position is" if cause == "rotary-offset" else setting
        found.append(Explanation(cause, named, values, b.predicted, b.compute, b.inputs, sentence))
    return together(found)
