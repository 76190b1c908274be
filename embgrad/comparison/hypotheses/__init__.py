"""The hypotheses about why a site differs, each a class in a module of its own, and their registry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from embgrad.comparison.hypotheses.site import Explanation, Site

__all__ = ["Explanation", "Hypothesis", "Site", "explain", "hypotheses", "register"]

#: The number of floors that an explanation may leave.
FLOORS: Final = 10.0

#: The share of a site's difference that an explanation may leave.
MOST_LEFT: Final = 0.1


class Hypothesis(Protocol):
    """A known function that a site may compute, with settings that two models may have in different ways."""

    @property
    def causes(self) -> tuple[str, ...]:
        """The keys of CAUSES that it can name."""
        ...

    def explain(self, site: Site) -> list[Explanation]:
        """Return explanations of a site, likeliest first; an empty list where the site does not compute this function.

        The function with the reference's setting must reproduce the reference's output; the caller checks that the
        predicted output is the port's.
        """
        ...


Class = TypeVar("Class", bound=Callable[[], Hypothesis])

_registered: list[Hypothesis] = []


def register(hypothesis: Class) -> Class:
    """Add a hypothesis to those that every site is tested for; used as a decorator of its class."""
    _registered.append(hypothesis())
    return hypothesis


def hypotheses() -> tuple[Hypothesis, ...]:
    """Return all hypotheses, in the order in which they are tested."""
    from embgrad.comparison.hypotheses import modules  # importing registers them

    assert modules is not None
    return tuple(_registered)


def explain(site: Site) -> Explanation | None:
    """Return the explanation that leaves least of a site's difference; None where none explains it."""
    best: tuple[float, Explanation] | None = None
    for hypothesis in hypotheses():
        for explanation in hypothesis.explain(site):
            left = site.off(explanation.predicted)
            most = min(max(MOST_LEFT * site.difference, FLOORS * site.floor), 0.5 * site.difference)
            if left <= most and (best is None or left < 0.5 * best[0]):
                best = (left, explanation)
    return None if best is None else best[1]
