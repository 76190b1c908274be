"""The hypothesis of a norm within a sum, and of a norm of that sum, with the weights of other norms of their layer."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import numpy as np

from embgrad.comparison.hypotheses.combination import distinct, terms_of
from embgrad.comparison.hypotheses.norm import NUMBER, norm_of, norms_of, with_weights_of_layer
from embgrad.comparison.hypotheses.norm_fit import Parameters
from embgrad.comparison.hypotheses.site import NEAR, Before, Explanation, Site, Values, known_changes, remember
from embgrad.comparison.hypotheses.sources import skipped_norms
from embgrad.model_points.points import INPUT

__all__ = ["ExchangedNorms"]

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


class ExchangedNorms:
    """A layer with norms before and behind its parts, of which b applies one with the weights of another.

    A norm whose input and output both models have is found by its own site, see `Norm`.
    """

    def explain(self, site: Site) -> list[Explanation]:
        """Return which weights b's norms have; an empty list where a computes no norm within a sum."""
        changes = [change for _, change in reversed(known_changes(site)) if change.shape == site.a.shape]
        at = {before.name: before.values for before in site.before}.__getitem__
        for found in _sums(site):
            given = found.given.values
            inners = with_weights_of_layer(site, *found.inner)
            outers = [None] if found.outer is None else [found.outer, *with_weights_of_layer(site, *found.outer)]
            for inner, outer, before in itertools.product(inners, outers, [np.zeros_like(site.a), *changes]):
                change = before + found.multiplier * (inner[1].apply(given) - found.inner[1].apply(given))
                if site.off(_value(found, inner, outer, before, at)) <= NEAR:
                    explanation = _explanation(site, found, inner, outer, before, at)
                    remember(site, (explanation, change))
                    return [explanation]
        return []


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


def _value(found: _Sum, inner: Weighted, outer: Weighted | None, before: np.ndarray, at: Values) -> np.ndarray:
    """Return the sum, or its norm, with other norms.

    Args:
        found: a's sum.
        inner: the norm of the term.
        outer: that of the sum.
        before: what earlier sites add to the sum in b, where no point stops it.
        at: returns the values at points.
    """
    rest = sum(by * at(it.name) for it, by in found.rest)
    whole = np.asarray(before + rest + found.multiplier * inner[1].apply(at(found.given.name)))
    return whole if outer is None else outer[1].apply(whole)


def _explanation(
    site: Site, found: _Sum, inner: Weighted, outer: Weighted | None, before: np.ndarray, at: Values
) -> Explanation:
    changed = [(found.inner, inner)]
    if found.outer is not None and outer is not None and outer is not found.outer:
        changed.append((found.outer, outer))
    sentence = ", and ".join(
        f"b applies the norm {_named(site, mine)} with the weights of {NUMBER.sub('N', its)}"
        for (mine, _), (its, _) in changed
    )
    compute = partial(_value, found, inner, outer, before)
    names = (found.given.name, *(it.name for it, _ in found.rest))
    setting, values = _named(site, found.inner[0]), ("a's own", NUMBER.sub("N", inner[0]))
    return Explanation("swapped-weights", setting, values, compute(at), compute, names, sentence)


def _named(site: Site, path: str) -> str:
    """Return the name of a norm, the same in each layer, and that it is of the layer before if the site is behind that."""
    layer = next(weight.layer for weight in site.recordings[0].weights if weight.module == path)
    name = NUMBER.sub("N", path)
    return name if layer in (None, site.layer) else f"{name} of the layer before"
