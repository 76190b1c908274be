"""The attention core that reproduces the port's output, found from the reference's by changes of its settings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from embgrad.comparison.hypotheses.core import Core, Part
from embgrad.comparison.hypotheses.core_fit import part_of
from embgrad.comparison.hypotheses.core_numbers import fitted_numbers, number_of, settled
from embgrad.comparison.hypotheses.core_orders import reordered
from embgrad.comparison.hypotheses.core_variants import variants, with_settings_of
from embgrad.comparison.hypotheses.site import Site
from embgrad.comparison.hypotheses.sources import relative

__all__ = ["ported_core"]

#: How many cores are changed further, by the number of settings that have changed already.
BEAM: Final = (12, 4)

#: How many of the nearest cores are compared with the whole output.
NEAREST: Final = 5

#: How many of the nearest cores have their numbers fitted, by the number of settings that have changed already.
FITTED: Final = (3, 2, 0)

#: The floors and the reference's own remainders that a core may leave.
FLOORS: Final = 10.0
REMAINDERS: Final = 5.0

#: The ratio of remainders up to which a simpler core reproduces the output as well.
ALIKE: Final = 2.0

#: The share of the difference that a core with one changed setting may leave where none leaves less.
SHARE: Final = 0.01

Tried = tuple[float, int, Core]


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
            near = [core for _, _, core in tried[:fitted]]
            found = (
                self._best(tried)
                or (None if first else self._reordered())
                or self._with_numbers([*([] if first else beam), *near])
            )
            if found is not None:
                return found
            first = first or tried
            if not deep:
                break
            beam = [core for _, _, core in tried[:width] if core.joined == self._a.joined]
        for _, _, core in first[:NEAREST]:
            if self._whole(core) <= SHARE * self._site.difference:
                return core
        return None

    def _tried(self, beam: Sequence[Core], *, rare: bool) -> list[Tried]:
        cores = (variant for core in beam for variant in variants(self._site, core, rare=rare))
        return sorted(
            ((self._off(core), number, core) for number, core in enumerate(cores)), key=lambda entry: entry[:2]
        )

    def _best(self, tried: Sequence[Tried]) -> Core | None:
        """Return the best of the nearest cores, if it reproduces the output."""
        near: list[Tried] = [
            (self._whole(core), number, core) for off, number, core in tried[:NEAREST] if off <= 3 * self._most
        ]
        off, _, core = min(near, key=lambda entry: entry[:2], default=(math.inf, 0, self._a))
        return core if off <= self._most else None

    def _reordered(self) -> Core | None:
        """Return the reference's core with another order of heads, if that reproduces the output."""
        part = part_of(self._site, self._a.heads)._replace(heads=np.arange(self._a.heads))
        found = reordered(self._a, part, part.of(self._site.b, self._a.size), 3 * self._most)
        return found if found is not None and self._whole(found) <= self._most else None

    def _with_numbers(self, cores: Sequence[Core]) -> Core | None:
        """Return a core with fitted numbers that reproduces the output."""
        for core in cores:
            part, wanted = self._part(core)
            for names in self._names(core):
                fitted = fitted_numbers(core, part, wanted, names)
                if self._whole(fitted) <= self._most:
                    return settled(fitted, self._whole, self._most, [self._a])
        return None

    def _names(self, core: Core) -> list[tuple[str, ...]]:
        """Return the numbers that are fitted, one at a time and then together."""
        turned = [] if core.rotary is None else ["base", "factor"]
        together = tuple(name for name in ("scale", "base", "cap") if number_of(core, name) is not None)
        return [*((name,) for name in ("scale", *turned, "cap")), *([together] if len(together) > 1 else [])]

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
            self._parts[core.heads] = (part, part.of(self._site.b, core.size))
        return self._parts[core.heads]
