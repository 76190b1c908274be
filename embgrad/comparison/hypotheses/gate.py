"""The hypothesis of a gated activation: the site's output is a known function of one tensor times another tensor."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from embgrad.comparison.hypotheses.activation import cause_of
from embgrad.comparison.hypotheses.functions import ACTIVATIONS, IDENTITY, Activation, of_no_kind
from embgrad.comparison.hypotheses.products import products
from embgrad.comparison.hypotheses.site import Explanation, Site, Values
from embgrad.comparison.hypotheses.sources import Source, first_that_explains, most_off, relative, sample_of, sources
from embgrad.model_points.points import INPUT

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

    @property
    def branches(self) -> tuple[Source, ...]:
        """The activated branch, and the other one if there is one."""
        return (self.active,) if self.other is None else (self.active, self.other)

    def apply(self, active: np.ndarray, other: np.ndarray | None = None) -> np.ndarray:
        """Return the product at these values of both branches."""
        value = self.function.apply(active)
        return value if other is None else np.asarray(value * other)

    @property
    def predicted(self) -> np.ndarray:
        """Its values, (example, position, feature)."""
        return self.apply(*(source.values for source in self.branches))

    def compute(self, at: Values) -> np.ndarray:
        """Return its values in a pass whose values at points a function returns."""
        return self.apply(*(source.read(at) for source in self.branches))

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the points that it reads."""
        return tuple(dict.fromkeys(source.name for source in self.branches))


class Gate:
    """An activation function of one branch, multiplied with another branch, as in SwiGLU."""

    def explain(self, site: Site) -> list[Explanation]:
        """Return how the gates of both models differ; an empty list where a computes none."""
        return first_that_explains(site, (self._explained(site, fit) for fit in self._fits(site)))

    def _fits(self, site: Site) -> Iterator[Gated]:
        """Yield the gates that reproduce the reference's output, of each pair of branches the best."""
        wanted, most = sample_of(site, site.a), most_off(site)
        activated: dict[Source, np.ndarray] = {}
        plain: list[Gated] = []
        for pair in _branches(site):
            for source in pair:
                if source not in activated:
                    few = sample_of(site, source.values)
                    activated[source] = np.stack([function.apply(few) for function in ACTIVATIONS])
            near = []
            for active, other in (pair, pair[::-1]):
                values = activated[active] * activated[other][-1]
                offs = np.linalg.norm(values - wanted, axis=1) / (np.linalg.norm(wanted) or 1.0)
                fitting = [ACTIVATIONS[number] for number in np.flatnonzero(offs <= ROUGHLY * most)]
                near += [Gated(function, active, other) for function in fitting]
            exact = [(site.off(gated.predicted, from_a=True), number) for number, gated in enumerate(near)]
            off, number = min(exact, default=(most + 1, 0))
            if off <= most and near[number].function is IDENTITY:
                plain.append(near[number])
            elif off <= most:
                yield near[number]
        yield from plain  # last: a branch may be what an activation returned

    def _explained(self, site: Site, first: Gated) -> list[Explanation]:
        assert first.other is not None, "the reference has both branches"
        both = ((first.active, first.other), (first.other, first.active))
        versions = [Gated(function, *branches) for branches in both for function in ACTIVATIONS]
        versions += [Gated(function, branch, None) for branch, _ in both for function in (first.function, IDENTITY)]
        if first.active.features is not None:
            splits = [pair for pair in _branches(site) if pair[0].name == first.active.name]
            versions += [Gated(first.function, *pair) for x, y in splits for pair in ((x, y), (y, x))]
        wanted = sample_of(site, site.b)
        samples = {source: sample_of(site, source.values) for gated in versions for source in gated.branches}
        offs = [relative(gated.apply(*(samples[source] for source in gated.branches)), wanted) for gated in versions]
        most = max(ROUGHLY * min(offs), site.floor)
        near = [versions[number] for number in np.argsort(offs, kind="stable")[:2] if offs[number] <= most]
        is_close = np.sort(offs)[1] <= site.floor
        if is_close and (either := of_no_kind(first.function, [it.function for it in near])) is not None:
            near = [replace(near[0], function=either)]
        return [explanation for second in near if (explanation := _explanation(first, second)) is not None]


def _branches(site: Site) -> Iterator[tuple[Source, Source]]:
    """Yield pairs of tensors of the site's width, and the halves of tensors that are twice as wide."""
    width = site.a.shape[-1]
    found = [_returned(site, source) for source in sources(site, 2 * MOST)]
    same = [source for source in found if source.values.shape == site.a.shape][:MOST]
    yield from itertools.combinations(same, 2)
    for made in products(site):
        yield from itertools.combinations([source for source in made if source.values.shape == site.a.shape], 2)
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


def _returned(site: Site, source: Source) -> Source:
    """Return what an activation is given by the name of the projection that returns it, which readers know."""
    if not source.name.endswith(f":{INPUT}"):
        return source
    returned = (it for it in site.before if it.shared and not it.name.endswith(f":{INPUT}"))
    names = (it.name for it in returned if np.array_equal(it.values, source.values))
    return replace(source, name=next(names, source.name))


def _explanation(first: Gated, second: Gated) -> Explanation | None:
    rest = (second.predicted, second.compute, second.inputs)
    if second.other is None:
        missing = first.other if second.active is first.active else first.active
        assert missing is not None, "the reference has both branches"
        return Explanation("missing-gate", f"the product with {missing.text} is", ("computed", "missing"), *rest)
    if first.active.text != second.active.text and first.function is not IDENTITY:
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
