"""The hypothesis of an activation function: the site's output is a known function of each feature of an earlier tensor."""

from __future__ import annotations

from typing import Final

import numpy as np

from embgrad.comparison.hypotheses.functions import ACTIVATIONS, GELUS, IDENTITY, Activation
from embgrad.comparison.hypotheses.site import Explanation, Site, Values
from embgrad.comparison.hypotheses.sources import Source, most_off, relative, samples, sources

__all__ = ["ActivationFunction", "cause_of"]

#: The most tensors before a site that may be the argument.
MOST: Final = 12

#: How much further than wanted a function may be off at a few entries.
ROUGHLY: Final = 5.0


class ActivationFunction:
    """A function of each feature, such as GELU."""

    causes = ("gelu", "activation")

    def explain(self, site: Site) -> list[Explanation]:
        """Return how the functions of both models differ; an empty list where a computes no known one."""
        for source in sources(site, MOST):
            first = self._fitted(site, source)
            if first is not None:
                return self._explained(site, source, first)
        return []

    def _fitted(self, site: Site, source: Source) -> Activation | None:
        if source.values.shape != site.a.shape:
            return None
        x, a = site.rows(source.values), site.rows(site.a)
        few, wanted = samples([x, a])
        most = most_off(site)
        near = [
            (relative(function.apply(x), a), number)
            for number, function in enumerate(ACTIVATIONS)
            if relative(function.apply(few), wanted) <= ROUGHLY * most
        ]
        off, number = min(near, default=(most + 1, 0))
        return ACTIVATIONS[number] if off <= most and ACTIVATIONS[number] is not IDENTITY else None

    def _explained(self, site: Site, source: Source, first: Activation) -> list[Explanation]:
        few, wanted = samples([site.rows(source.values), site.rows(site.b)])
        rough = sorted(ACTIVATIONS, key=lambda function: relative(function.apply(few), wanted))
        return [
            self._explanation(source, first, second)
            for second in rough[:3]
            if second is not first and relative(second.apply(few), wanted) < site.difference
        ]

    def _explanation(self, source: Source, first: Activation, second: Activation) -> Explanation:
        def compute(at: Values) -> np.ndarray:
            return second.apply(source.read(at))

        return Explanation(
            cause_of(first, second),
            "the activation is",
            (first.name, second.name),
            second.apply(source.values),
            compute,
            (source.name,),
        )


def cause_of(first: Activation, second: Activation) -> str:
    """Return the cause of a difference between two functions."""
    return "gelu" if first in GELUS and second in GELUS else "activation"
