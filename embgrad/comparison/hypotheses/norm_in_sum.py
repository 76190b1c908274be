"""The hypothesis of a norm within a sum with other settings, or with the weights of another norm of its layer."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from embgrad.comparison.hypotheses.combination import distinct, terms_of
from embgrad.comparison.hypotheses.norm import NUMBER, norm_of, norms_of, with_weights_of_layer
from embgrad.comparison.hypotheses.norm_fit import EPSILONS, Parameters, changed_norm, what_differs
from embgrad.comparison.hypotheses.site import (
    NEAR,
    Before,
    Changed,
    Explanation,
    Site,
    Values,
    kept,
    known_changes,
    remember,
    unset,
)
from embgrad.comparison.hypotheses.sources import skipped_norms
from embgrad.model_points.points import INPUT

__all__ = ["NormInSum"]

#: A module of a that is a norm, and the norm with its weights or those of another module.
Weighted = tuple[str, Parameters]


class _Sum(NamedTuple):
    """A sum, one of whose terms is what a norm returns, and which may be given to another norm.

    Attributes:
        rest: the other terms, each with what it is multiplied by.
        given: what the norm is given.
        inner: the norm.
        multiplier: what its output is multiplied by.
        outer: the norm of the sum; None for none.
    """

    rest: tuple[tuple[Before, float], ...]
    given: Before
    inner: Weighted
    multiplier: float
    outer: Weighted | None

    def whole(self, inner: Weighted, at: Values, of_rest: Values | None = None) -> np.ndarray:
        """Return the sum with another norm of the term, in a pass whose values at points a function returns.

        Args:
            inner: the norm.
            at: the function.
            of_rest: that of the other terms, where it is another.
        """
        rest = sum(by * (of_rest or at)(it.name) for it, by in self.rest)
        return np.asarray(rest + self.multiplier * inner[1].apply(at(self.given.name)))


class NormInSum:
    """A layer with norms before and behind its parts, of which b applies one otherwise.

    A norm whose input and output both models have is found by its own site, see `Norm`.
    """

    def explain(self, site: Site) -> list[Explanation]:
        """Return how b's norm differs; an empty list where a computes no norm within a sum."""
        changes = [None, *(it for it in reversed(known_changes(site)) if it.values.shape == site.a.shape)]
        at = {before.name: before.values for before in site.before}.__getitem__
        for found in _sums(site):
            for before in changes:
                change = np.zeros_like(site.a) if before is None else before.values
                ways = _exchanged(site, found), _with_other_settings(site, found, change, at)
                for inner, outer in itertools.chain(*ways):
                    whole = found.whole(inner, at) + change
                    predicted = whole if outer is None else outer[1].apply(whole)
                    if site.off(predicted) <= min(NEAR, site.most_left):
                        explanation = _explanation(site, found, inner, outer, before, predicted)
                        remember(site, explanation, whole - found.whole(found.inner, at))
                        return [explanation]
        return []


def _exchanged(site: Site, found: _Sum) -> Iterator[tuple[Weighted, Weighted | None]]:
    """Yield the norm within a sum with the weights of others of its layer, and that of the sum with its own or theirs."""
    outers = [None] if found.outer is None else [found.outer, *with_weights_of_layer(site, *found.outer)]
    yield from itertools.product(with_weights_of_layer(site, *found.inner), outers)


def _with_other_settings(
    site: Site, found: _Sum, change: np.ndarray, at: Values
) -> Iterator[tuple[Weighted, Weighted | None]]:
    """Yield the norm within a sum with another setting, and that of the sum; b's sum differs by a change beside."""
    path, norm = found.inner
    declared = site.declared("epsilon", of_a=False)
    if found.outer is None:  # what b's norm returns is what is left of its sum
        given = site.rows(at(found.given.name))
        left = site.rows(site.b - change - found.whole(found.inner, at)) / found.multiplier + norm.apply(given)
        other = changed_norm(norm, given, left, declared)
        if what_differs(norm, other)[0]:
            yield (path, other), None
        return
    outer, own = found.outer
    for epsilon in dict.fromkeys(filter(None, (declared, *EPSILONS))):
        other = replace(norm, epsilon=epsilon)
        if epsilon != norm.epsilon:
            yield (path, other), found.outer
            yield (path, other), (outer, replace(own, epsilon=epsilon))
    yield (path, replace(norm, centred=not norm.centred)), found.outer
    yield from (((path, replace(norm, gain=norm.gain + offset)), found.outer) for offset in (-1.0, 1.0))


def _sums(site: Site) -> Iterator[_Sum]:
    """Yield the sums with a norm's output that a may compute: what it gives to a norm, and its own output."""
    tensors = [*distinct(site), *distinct(site, shared=False)]
    normed = [(entry.values, (entry.name.removesuffix(f":{INPUT}"), norm)) for entry, norm in norms_of(site)]
    for whole, outer in (*normed, (site.a, None)):
        parts = [tensor for tensor in tensors if not np.array_equal(tensor.values, whole)]
        found = terms_of(site, parts, site.rows(whole))
        if found is None or len(found[0]) < 2:
            continue
        for number, multiplier in zip(*found, strict=True):
            term = parts[number].values
            for path, given in skipped_norms(site, term):
                inner = norm_of(site, path, given.values, term)
                if inner is not None:
                    others = ((parts[it], by) for it, by in zip(*found, strict=True) if it != number)
                    yield _Sum(tuple(others), given, (path, inner), float(multiplier), outer)


def _explanation(
    site: Site, found: _Sum, inner: Weighted, outer: Weighted | None, before: Changed | None, predicted: np.ndarray
) -> Explanation:
    """Return the explanation by other norms within a's sum and of it, which has what earlier sites add to it in b."""

    def whole(at: Values) -> np.ndarray:
        return found.whole(inner, at) if before is None else found.whole(inner, at, unset(at)) + before.read(at)

    def compute(at: Values) -> np.ndarray:
        return whole(at) if outer is None else outer[1].apply(whole(at))

    def change(at: Values) -> np.ndarray:
        return np.asarray(whole(at) - found.whole(found.inner, at, unset(at)))

    names = (found.given.name, *(it.name for it, _ in found.rest), *(() if before is None else before.inputs))
    inputs = tuple(dict.fromkeys(names))
    further, added = (predicted, compute, inputs), kept(change, inputs)
    if inner[0] == found.inner[0]:
        return Explanation(*what_differs(found.inner[1], inner[1]), *further, change=added)
    changed = [(found.inner, inner)]
    if found.outer is not None and outer is not None and outer is not found.outer:
        changed.append((found.outer, outer))
    sentence = ", and ".join(
        f"b applies the norm {_named(site, mine)} with the weights of {NUMBER.sub('N', its)}"
        for (mine, _), (its, _) in changed
    )
    setting, values = _named(site, found.inner[0]), ("a's own", NUMBER.sub("N", inner[0]))
    return Explanation("swapped-weights", setting, values, *further, sentence, change=added)


def _named(site: Site, path: str) -> str:
    """Return the name of a norm, the same in each layer, and that it is of the layer before if the site is behind that."""
    layer = next(weight.layer for weight in site.recordings[0].weights if weight.module == path)
    name = NUMBER.sub("N", path)
    return name if layer in (None, site.layer) else f"{name} of the layer before"
