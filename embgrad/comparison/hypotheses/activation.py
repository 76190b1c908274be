"""The hypothesis of an activation function: the site's output is a known function of each feature of an earlier tensor."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from embgrad.comparison.hypotheses.functions import ACTIVATIONS, GELUS, IDENTITY, Activation, of_no_kind
from embgrad.comparison.hypotheses.products import products
from embgrad.comparison.hypotheses.site import NEAR, Explanation, Site, Values
from embgrad.comparison.hypotheses.sources import (
    Source,
    first_that_explains,
    most_off,
    relative,
    sample_of,
    sources,
    sums_of_two,
    unit,
)

__all__ = ["ActivationFunction", "cause_of"]

#: How much further than wanted a function may be off at a few entries.
ROUGHLY: Final = 5.0

#: The most tensors before a site whose sums are looked at.
MOST_SUMMED: Final = 6


class ActivationFunction:
    """A function of each feature, such as GELU."""

    def explain(self, site: Site) -> list[Explanation]:
        """Return how the functions of both models differ; an empty list where a computes no known one."""
        candidates = itertools.chain(
            sources(site), itertools.chain.from_iterable(products(site)), sums_of_two(site, MOST_SUMMED)
        )
        fits = ((source, self._fitted(site, source)) for source in candidates)
        found = first_that_explains(
            site, (self._explained(site, source, first) for source, first in fits if first is not None)
        )
        return found or list(self._of_length_1(site))

    def _fitted(self, site: Site, source: Source) -> Activation | None:
        if source.values.shape != site.a.shape:
            return None
        few, wanted = sample_of(site, source.values), sample_of(site, site.a)
        most = most_off(site)
        near = [
            (site.off(function.apply(source.values), from_a=True), number)
            for number, function in enumerate(ACTIVATIONS)
            if relative(function.apply(few), wanted) <= ROUGHLY * most
        ]
        off, number = min(near, default=(most + 1, 0))
        return ACTIVATIONS[number] if off <= most and ACTIVATIONS[number] is not IDENTITY else None

    def _explained(self, site: Site, source: Source, first: Activation) -> list[Explanation]:
        few, wanted = sample_of(site, source.values), sample_of(site, site.b)
        offs = {function.name: relative(function.apply(few), wanted) for function in ACTIVATIONS}
        near = sorted(ACTIVATIONS, key=lambda function: offs[function.name])[:2]
        is_close = max(offs[it.name] for it in near) <= site.floor
        if is_close and (either := of_no_kind(first, near)) is not None:
            return [self._explanation(source, first, either)]
        return [
            self._explanation(source, first, second)
            for second in near
            if first not in (near[0], second) and offs[second.name] <= max(ROUGHLY * offs[near[0].name], site.floor)
        ]

    def _of_length_1(self, site: Site) -> Iterator[Explanation]:
        """Yield the explanations of outputs that are scaled to length 1 behind the function, as sentence vectors are."""
        if not all(np.allclose(np.linalg.norm(site.rows(it), axis=-1), 1, atol=NEAR) for it in (site.a, site.b)):
            return
        most = most_off(site)
        for source in (source for source in sources(site) if source.values.shape == site.a.shape):
            values = {function.name: unit(function.apply(source.values)) for function in ACTIVATIONS}
            first = [function for function in ACTIVATIONS if site.off(values[function.name], from_a=True) <= most]
            second = [function for function in ACTIVATIONS if site.off(values[function.name]) <= most]
            if first and second:
                yield self._explanation(source, first[0], second[0], unit)
                return

    def _explanation(
        self,
        source: Source,
        first: Activation,
        second: Activation,
        behind: Callable[[np.ndarray], np.ndarray] = np.asarray,
    ) -> Explanation:
        def compute(at: Values) -> np.ndarray:
            return behind(second.apply(source.read(at)))

        return Explanation(
            cause_of(first, second),
            "the activation is",
            (first.name, second.name),
            behind(second.apply(source.values)),
            compute,
            source.names,
        )


def cause_of(first: Activation, second: Activation) -> str:
    """Return the cause of a difference between two functions."""
    return "gelu" if first in GELUS and second in GELUS else "activation"
