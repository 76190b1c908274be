"""The attention core that reproduces the port's output, found from the reference's by changes of its settings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from embgrad.comparison.hypotheses.core import Core, Part
from embgrad.comparison.hypotheses.core_difference import differences
from embgrad.comparison.hypotheses.core_fit import fitted_numbers, number_of, part_of, settled
from embgrad.comparison.hypotheses.core_parts import HeadNorm, gains_of
from embgrad.comparison.hypotheses.core_variants import late_variants, variants, with_settings_of
from embgrad.comparison.hypotheses.other_weights import OtherWeights
from embgrad.comparison.hypotheses.site import Site
from embgrad.comparison.hypotheses.sources import FLOORS, last_part, relative

__all__ = ["Places", "ported_core", "reordered"]

#: How many cores are changed further, by the number of settings that have changed already.
BEAM: Final = (12, 4)

#: How many of the nearest cores are compared with the whole output.
NEAREST: Final = 5

#: How many of the nearest cores have their numbers fitted, by the number of settings that have changed already.
FITTED: Final = (3, 2, 0)

#: The number of the reference's own remainders that a core may leave.
REMAINDERS: Final = 5.0

#: The ratio of remainders up to which a simpler core reproduces the output as well.
ALIKE: Final = 2.0

#: The share of the difference that a core with one changed setting may leave where none leaves less.
SHARE: Final = 0.01

Tried = tuple[float, Core]


def ported_core(site: Site, a: Core, likely: Iterable[Core] = (), *, deep: bool = True) -> Core | None:
    """Return the core that reproduces the port's output; None where none does.

    Args:
        site: the site.
        a: the core that reproduces the reference's output.
        likely: cores that are tried first.
        deep: whether changes of several settings are tried.
    """
    return _Search(site, a).found(likely, deep)


class _Search:
    """A search at one site.

    Args:
        site: the site.
        a: the reference's core.
    """

    def __init__(self, site: Site, a: Core) -> None:
        self._site, self._a = site, a
        remainder = site.off(a.predicted, from_a=True)
        self._most = min(max(FLOORS * site.floor, REMAINDERS * remainder), 0.25 * site.difference)
        self._parts: dict[int, tuple[Part, np.ndarray]] = {}

    def found(self, likely: Iterable[Core], deep: bool) -> Core | None:
        """Return the core; None where none reproduces the output."""
        for core in likely:
            if self._whole(core) <= self._most:
                return core
        found = self._searched(deep)
        return None if found is None else self._simplified(found)

    def _simplified(self, core: Core) -> Core:
        """Return the core with as many of the reference's settings as reproduce the output as well."""
        most = max(ALIKE * self._whole(core), 2 * self._site.floor)
        for simpler in with_settings_of(core, self._a):
            changed = simpler(core)
            if self._whole(changed) <= most:
                core = changed
        return core

    def _searched(self, deep: bool) -> Core | None:
        beam = [self._a]
        first: list[Tried] = []
        for width, fitted in zip((*BEAM, 0), FITTED, strict=True):
            tried = self._tried(beam, rare=not first)
            near = [core for _, core in tried[:fitted]]
            found = (
                self._best(tried)
                or (None if first else self._reordered())
                or self._with_numbers([*([] if first else beam), *near])
                or (None if first else self._late())
            )
            if found is not None:
                return found
            first = first or tried
            if not deep:
                break
            beam = [core for _, core in tried[:width] if core.joined == self._a.joined]
        for _, core in first[:NEAREST]:
            if self._whole(core) <= SHARE * self._site.difference:
                return core
        return None

    def _tried(self, beam: Sequence[Core], *, rare: bool) -> list[Tried]:
        cores = (variant for core in beam for variant in variants(self._site, core, rare=rare))
        return sorted(((self._off(core), core) for core in cores), key=lambda entry: entry[0])

    def _best(self, tried: Sequence[Tried]) -> Core | None:
        """Return the best of the nearest cores, if it reproduces the output."""
        near = [(self._whole(core), core) for off, core in tried[:NEAREST] if off <= 3 * self._most]
        off, core = min(near, key=lambda entry: entry[0], default=(math.inf, self._a))
        return core if off <= self._most else None

    def _reordered(self) -> Core | None:
        """Return the reference's core with another order of heads, if that reproduces the output."""
        part = part_of(self._site, self._a.heads)._replace(heads=np.arange(self._a.heads))
        found = reordered(self._a, part, part.of(self._site.b, self._a.value_size), 3 * self._most)
        return found if found is not None and self._whole(found) <= self._most else None

    def _with_numbers(self, cores: Sequence[Core]) -> Core | None:
        """Return a core with fitted numbers that reproduces the output."""
        for core in cores:
            part, wanted = self._part(core)
            for names in self._names(core):
                fitted = fitted_numbers(core, part, wanted, names)
                if self._whole(fitted) > self._most:
                    continue
                found = self._simplified(settled(fitted, self._whole, self._most, [self._a]))
                if differences(self._a, found):  # otherwise its numbers are what another cause leaves
                    return found
        return None

    def _late(self) -> Core | None:
        """Return the reference's core with a rare change that reproduces the output, if need be with a number of its mask."""
        part, wanted = self._part(self._a)
        for core, names in late_variants(self._a):
            fitted = fitted_numbers(core, part, wanted, names) if names else core
            if self._whole(fitted) <= self._most:
                return settled(fitted, self._whole, self._most, [self._a]) if names else fitted
        return None

    def _names(self, core: Core) -> list[tuple[str, ...]]:
        """Return the numbers that are fitted, one at a time and then together."""
        turned = [] if core.rotary is None else ["base", "factor"]
        together = tuple(name for name in ("scale", "base", "cap") if number_of(core, name) is not None)
        normed = [] if core.norm is None else ["epsilon"]
        return [*((name,) for name in ("scale", *turned, "cap", *normed)), *([together] if len(together) > 1 else [])]

    def _whole(self, core: Core) -> float:
        return self._site.off(core.predicted)

    def _off(self, core: Core) -> float:
        """Return the relative L2 at a part of the outputs."""
        if core.joined != "by head":
            return self._whole(core)
        part, wanted = self._part(core)
        return relative(core.part(part), wanted)

    def _part(self, core: Core) -> tuple[Part, np.ndarray]:
        if core.heads not in self._parts:
            part = part_of(self._site, core.heads)
            self._parts[core.heads] = (part, part.of(self._site.b, core.value_size))
        return self._parts[core.heads]


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


@dataclass(frozen=True, eq=False)
class Places:
    """The places of a core's tensors among those before its site, so that another layer's are found.

    Attributes:
        core: the core at another site.
        places: the index of each point that it reads among the tensors before the site.
        gains: for the norms of queries and keys the index among the gains of the site's layer; None for none of them.
    """

    core: Core
    places: Mapping[str, int]
    gains: tuple[int | None, int | None] = (None, None)

    @classmethod
    def of(cls, site: Site, core: Core) -> Places | None:
        """Return the places of a core's tensors at its site; None where it has further weights of the layer."""
        made = [isinstance(it, OtherWeights) or it.matrix is not None for it in (core.query, core.key, core.value)]
        if core.sink is not None or core.distances is not None or any(made):
            return None
        names = [before.name for before in site.before]
        places = {name: names.index(name) for name in core.inputs}
        if core.norm is None:
            return cls(core, places)
        gains = gains_of(site, core.size)
        found = [
            None if wanted is None else next((n for n, gain in enumerate(gains) if np.array_equal(gain, wanted)), None)
            for wanted in (core.norm.query, core.norm.key)
        ]
        return cls(core, places, (found[0], found[1]))

    def at(self, site: Site) -> Core | None:
        """Return the core with the same places at another site; None where the tensors there are others."""
        held = {name: site.before[place] for name, place in self.places.items() if place < len(site.before)}
        if any(name not in held or last_part(held[name].name) != last_part(name) for name in self.places):
            return None
        roles = (self.core.query, self.core.key, self.core.value)
        query, key, value = (source.of_others(held) for source in roles)
        if any(
            found.values.shape != source.values.shape for found, source in zip((query, key, value), roles, strict=True)
        ):
            return None
        real = site.real_of(key.values)
        return replace(self.core, query=query, key=key, value=value, real=real, norm=self._norm(site))

    def _norm(self, site: Site) -> HeadNorm | None:
        norm, gains = self.core.norm, gains_of(site, self.core.size)
        if norm is None or max((place for place in self.gains if place is not None), default=0) >= len(gains):
            return norm
        query, key = (None if place is None else gains[place] for place in self.gains)
        return replace(norm, query=norm.query if query is None else query, key=norm.key if key is None else key)
