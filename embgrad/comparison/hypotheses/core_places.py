"""The places of an attention core's tensors among those before its site."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from embgrad.comparison.hypotheses.core import Core
from embgrad.comparison.hypotheses.head_norm import HeadNorm, gains_of
from embgrad.comparison.hypotheses.site import Site
from embgrad.comparison.hypotheses.sources import Source, last_part

__all__ = ["Places"]


@dataclass(frozen=True, eq=False)
class Places:
    """The places of a core's tensors among those before its site, so that another layer's are found.

    Attributes:
        core: the core at another site.
        places: for queries, keys and values the index among the tensors before the site.
        gains: for the norms of queries and keys the index among the gains of the site's layer; None for none of them.
    """

    core: Core
    places: tuple[int, int, int] = field(repr=False)
    gains: tuple[int | None, int | None] = field(default=(None, None), repr=False)

    @classmethod
    def of(cls, site: Site, core: Core) -> Places | None:
        """Return the places of a core's tensors at its site; None where it has further weights of the layer."""
        if core.sink is not None or any(source.matrix is not None for source in (core.query, core.key, core.value)):
            return None
        names = [before.name for before in site.before]
        query, key, value = (names.index(source.name) for source in (core.query, core.key, core.value))
        if core.norm is None:
            return cls(core, (query, key, value))
        gains = gains_of(site, core.size)
        found = [
            next((number for number, gain in enumerate(gains) if np.array_equal(gain, wanted)), None)
            for wanted in (core.norm.query, core.norm.key)
        ]
        return cls(core, (query, key, value), (found[0], found[1]))

    def at(self, site: Site) -> Core | None:
        """Return the core with the same places at another site; None where the tensors there are others."""
        found = []
        for place, source in zip(self.places, (self.core.query, self.core.key, self.core.value), strict=True):
            before = site.before[place] if place < len(site.before) else None
            if before is None or last_part(before.name) != last_part(source.name):
                return None
            whole = Source(before.name, before.values)
            found.append(whole if source.features is None else whole.part(source.features, source.label))
            if found[-1].values.shape != source.values.shape:
                return None
        return replace(
            self.core,
            query=found[0],
            key=found[1],
            value=found[2],
            real=site.real_of(found[1].values),
            norm=self._norm(site),
        )

    def _norm(self, site: Site) -> HeadNorm | None:
        norm, (query, key) = self.core.norm, self.gains
        if norm is None or query is None or key is None:
            return norm
        gains = gains_of(site, self.core.size)
        if max(query, key) >= len(gains):
            return norm
        return replace(norm, query=gains[query], key=gains[key])
