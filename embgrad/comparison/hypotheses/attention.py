"""The hypothesis of an attention's core: its scale, mask, heads, rotary positions and biases."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

import numpy as np

from embgrad.comparison.hypotheses.core import Core
from embgrad.comparison.hypotheses.core_difference import differences
from embgrad.comparison.hypotheses.core_fit import fitted_core
from embgrad.comparison.hypotheses.core_search import Places, ported_core
from embgrad.comparison.hypotheses.core_variants import with_norms
from embgrad.comparison.hypotheses.dropping import is_dropped_in, left_on
from embgrad.comparison.hypotheses.norm import norms_of
from embgrad.comparison.hypotheses.output_gate import gated, other_gate, ungated
from embgrad.comparison.hypotheses.site import FAINT_MEMORY, Explanation, Site, together
from embgrad.comparison.hypotheses.sources import most_off
from embgrad.comparison.hypotheses.unprojected import projected, unprojected
from embgrad.model_points.points import INPUT

__all__ = ["AttentionCore"]

#: The most sites of one kind that are searched for several settings, and for one, in vain.
MOST_FAILURES: Final = 2
MOST_SHALLOW: Final = 6


class AttentionCore:
    """An attention from the projections of queries, keys and values to the input of the output's projection."""

    def explain(self, site: Site) -> list[Explanation]:
        """Return how the cores of both models differ; an empty list where a computes none that is known."""
        if site.a.shape[1] < 2 or not np.isfinite(site.b[site.real]).all():
            return []
        # What a norm returns is no attention, and the search for one is long.
        if next(norms_of(site), None) is not None:
            return []
        failures: dict[str, int] = site.memory.setdefault("attention failures", {})
        kind = re.sub(r"\d+", "N", site.name)
        if failures.get(kind, 0) >= MOST_SHALLOW:
            return []
        deep = failures.get(kind, 0) < MOST_FAILURES and FAINT_MEMORY not in site.memory
        with np.errstate(all="ignore"):
            found = self._gated(site, deep) or self._explained(site, deep)
            for inner, product in unprojected(site) if not found else ():
                found = [projected(explanation, product) for explanation in self._explained(inner, deep)]
                if found:
                    break
        failures[kind] = failures.get(kind, 0) + (not found)
        return found

    def _gated(self, site: Site, deep: bool) -> list[Explanation]:
        """Return how attentions whose outputs are multiplied by a gate differ, or their gates."""
        for inner, gate in ungated(site):
            a, b = self._cores(inner, deep)
            if a is None:
                continue
            if b is not None:
                return [gated(explanation, gate) for explanation in _explanations(a, b)]
            other = other_gate(site, a, gate)
            return [] if other is None else [other]
        return []

    def _explained(self, site: Site, deep: bool) -> list[Explanation]:
        a, b = self._cores(site, deep)
        if b is None and deep:
            if a is not None and is_dropped_in(a, site.b):
                return [left_on(site, "b", "a")]
            a, b = self._from_shared(site)
            if a is None and b is not None and is_dropped_in(b, site.a):
                return [left_on(site, "a", "b")]
        if a is not None and b is not None and _may_be_turned_before(site, a, b):
            a, b = self._from_shared(site)
        return [] if a is None or b is None else _explanations(a, b)

    def _from_shared(self, site: Site) -> tuple[Core | None, Core | None]:
        """Return the cores of both models from the tensors that both have, of which b's may be the one that is found first."""
        shared = replace(site, before=[before for before in site.before if before.shared], memory={})
        a, b = self._cores(shared, True) if len(shared.before) < len(site.before) else (None, None)
        if b is not None:
            return a, b
        b, other = self._cores(replace(shared, a=site.b, b=site.a, settings=site.settings[::-1]), True)
        return other, b

    def _cores(self, site: Site, deep: bool) -> tuple[Core | None, Core | None]:
        """Return the cores that reproduce the outputs of a and b; None for those that are not found."""
        known: list[tuple[Places, Places]] = site.memory.setdefault("attention cores", [])
        most = most_off(site)
        again = [core for places, _ in known if (core := places.at(site)) is not None]
        a = next((core for core in again if site.off(core.predicted, from_a=True) <= most), None)
        a = fitted_core(site) if a is None and deep else a
        if a is None:
            return None, None
        ported = [core for _, places in known if (core := places.at(site)) is not None]
        b = ported_core(site, a, ported, deep=deep)
        normed = with_norms(site, a) if deep and (b is None or b.norm is not None) else None
        # A norm of the queries is not missing in one model at one point, and in the other at another.
        if normed is not None and (b is None or _norm_the_same(normed, b)):
            a, b = normed, ported_core(site, normed)
        if b is not None and b not in ported:
            first, second = Places.of(site, a), Places.of(site, b)
            known += [(first, second)] if first is not None and second is not None else []
        return a, b


def _norm_the_same(a: Core, b: Core) -> bool:
    """Return whether two cores both apply norms to the queries, or to the keys."""
    if a.norm is None or b.norm is None:
        return False
    pairs = ((a.norm.query, b.norm.query), (a.norm.key, b.norm.key))
    return any(mine is not None and its is not None for mine, its in pairs)


def _may_be_turned_before(site: Site, a: Core, b: Core) -> bool:
    """Return whether a has no rotary positions and b has, of tensors that a module without weights of a alone returns.

    Such a module, as a norm without weights, may be given what a has turned already.
    """
    alone = {it.name for it in site.before if not it.shared and not site.held_by(it.name.removesuffix(f":{INPUT}"))}
    return a.rotary is None and b.rotary is not None and not alone.isdisjoint((*a.query.names, *a.key.names))


def _explanations(a: Core, b: Core) -> list[Explanation]:
    """Return the first setting that differs, with the others; an empty list where b would just hand on another tensor."""
    if b.mask.window == 1 and b.value.name not in a.inputs:
        return []
    return together(
        [
            Explanation(cause, setting, values, b.predicted, b.compute, b.inputs, sentence)
            for cause, setting, values, sentence in differences(a, b)
        ]
    )
