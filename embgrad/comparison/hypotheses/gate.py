"""The hypothesis of a gated activation: the site's output is a known function of one tensor times another tensor."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from embgrad.comparison.hypotheses.activation import cause_of
from embgrad.comparison.hypotheses.functions import ACTIVATIONS, IDENTITY, Activation
from embgrad.comparison.hypotheses.site import Explanation, Site, Values
from embgrad.comparison.hypotheses.sources import Source, most_off, relative, samples, sources

__all__ = ["Gate"]

#: The most tensors before a site that may be its branches.
MOST: Final = 10

#: How much further than wanted a function may be off at a few entries.
ROUGHLY: Final = 5.0


@dataclass(frozen=True, eq=False)
class Gated:
    """A product of an activated branch with another one.

    Attributes:
        function: the activation function.
        active: the branch that it is applied to.
        other: the branch that it is multiplied with; None where it is not multiplied.
    """

    function: Activation
    active: Source
    other: Source | None

    def apply(self, active: np.ndarray, other: np.ndarray | None) -> np.ndarray:
        """Return the product at these values of both branches."""
        value = self.function.apply(active)
        return value if other is None else np.asarray(value * other)

    @property
    def predicted(self) -> np.ndarray:
        """Its values, (example, position, feature)."""
        return self.apply(self.active.values, None if self.other is None else self.other.values)

    def compute(self, at: Values) -> np.ndarray:
        """Return its values in a pass whose values at points a function returns."""
        return self.apply(self.active.read(at), None if self.other is None else self.other.read(at))

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the points that it reads."""
        read = (self.active,) if self.other is None else (self.active, self.other)
        return tuple(dict.fromkeys(source.name for source in read))


class Gate:
    """An activation function of one branch, multiplied with another branch, as in SwiGLU."""

    causes = ("gelu", "activation", "gate-swapped", "missing-gate", "permuted-weight")

    def explain(self, site: Site) -> list[Explanation]:
        """Return how the gates of both models differ; an empty list where a computes none."""
        for first, second in _branches(site):
            fit = self._fitted(site, first, second)
            if fit is not None:
                return self._explained(site, fit)
        return []

    def _fitted(self, site: Site, first: Source, second: Source) -> Gated | None:
        a = site.rows(site.a)
        x, y = site.rows(first.values), site.rows(second.values)
        few_x, few_y, wanted = samples([x, y, a])
        most = most_off(site)
        near = [
            (relative(function.apply(active) * other, a), number, swapped)
            for number, function in enumerate(ACTIVATIONS)
            for active, other, few, few_other, swapped in ((x, y, few_x, few_y, False), (y, x, few_y, few_x, True))
            if relative(function.apply(few) * few_other, wanted) <= ROUGHLY * most
        ]
        off, number, swapped = min(near, default=(most + 1, 0, False))
        return Gated(ACTIVATIONS[number], *((second, first) if swapped else (first, second))) if off <= most else None

    def _explained(self, site: Site, first: Gated) -> list[Explanation]:
        assert first.other is not None, "the reference has both branches"
        both = ((first.active, first.other), (first.other, first.active))
        versions = [Gated(function, *branches) for branches in both for function in ACTIVATIONS]
        versions += [Gated(function, branch, None) for branch, _ in both for function in (first.function, IDENTITY)]
        if first.active.features is not None:
            splits = [pair for pair in _branches(site) if pair[0].label and pair[0].name == first.active.name]
            versions += [Gated(first.function, *pair) for x, y in splits for pair in ((x, y), (y, x))]
        wanted = samples([site.rows(site.b)])[0]

        def off(version: Gated) -> float:
            read = [version.active] if version.other is None else [version.active, version.other]
            few = samples([site.rows(source.values) for source in read])
            return relative(version.apply(few[0], few[1] if len(few) > 1 else None), wanted)

        near = [version for version in sorted(versions, key=off)[:3] if off(version) < site.difference]
        return [explanation for second in near if (explanation := _explanation(first, second)) is not None]


def _branches(site: Site) -> Iterator[tuple[Source, Source]]:
    """Yield pairs of tensors of the site's width, and the halves of tensors that are twice as wide."""
    width = site.a.shape[-1]
    found = list(sources(site, 2 * MOST))
    same = [source for source in found if source.values.shape == site.a.shape][:MOST]
    yield from sorted(itertools.combinations(same, 2), key=lambda pair: same.index(pair[0]) + same.index(pair[1]))
    for source in found:
        if source.values.shape == (*site.a.shape[:-1], 2 * width):
            yield (
                source.part(np.arange(width), "the first half"),
                source.part(np.arange(width, 2 * width), "the second half"),
            )
            yield (
                source.part(np.arange(0, 2 * width, 2), "the even features"),
                source.part(np.arange(1, 2 * width, 2), "the odd features"),
            )


def _explanation(first: Gated, second: Gated) -> Explanation | None:
    rest = (second.predicted, second.compute, second.inputs)
    if second.other is None:
        missing = first.other if second.active is first.active else first.active
        assert missing is not None, "the reference has both branches"
        return Explanation("missing-gate", f"the product with {missing.text} is", ("computed", "missing"), *rest)
    if first.active.text != second.active.text:
        names = (first.function.name, second.function.name) if first.function is not second.function else ("", "")
        values = tuple(
            f"{name} of {version.active.text}" if name else version.active.text
            for name, version in zip(names, (first, second), strict=True)
        )
        labels = {first.active.label, first.other.label if first.other is not None else ""}
        cause = "gate-swapped" if second.active.label in labels else "permuted-weight"
        return Explanation(cause, "the activation is applied to", (values[0], values[1]), *rest)
    if first.function is second.function:
        return None
    return Explanation(
        cause_of(first.function, second.function),
        "the activation is",
        (first.function.name, second.function.name),
        *rest,
    )
