"""The hypothesis of rotary positions whose result is a point: that of a module, or what a norm behind them is given."""

from __future__ import annotations

from dataclasses import dataclass
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

__all__ = ["TurnedFeatures"]

#: The relative range of the ratios of vectors' lengths up to which one tensor may be the other one turned.
LONGER: Final = 1e-3


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
        """Return how the positions of both models differ; an empty list where a turns no tensor."""
        if not np.isfinite(site.b[site.real]).all():
            return []
        for source in sources(site):
            a = _fitted(site, source) if source.values.shape == site.a.shape and _is_as_long(site, source) else None
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


def _explanations(a: Core, b: Core) -> list[Explanation]:
    found = []
    for cause, setting, values, sentence in differences(a, b):
        named = "the first rotary position is" if cause == "rotary-offset" else setting
        found.append(Explanation(cause, named, values, b.predicted, b.compute, b.inputs, sentence))
    return together(found)
