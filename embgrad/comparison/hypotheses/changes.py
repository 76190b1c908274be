"""The search for the fewest changes of the reference's function that make it the port's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from embgrad.comparison.hypotheses.site import Explanation, Site, Values, together
from embgrad.comparison.hypotheses.sources import NEAR, most_off

__all__ = ["Change", "Places", "explained_by_changes"]

#: The most changes of a reference that are found at one site, and how many of the nearest have further ones added to them.
MOST_CHANGES: Final = 3
NEAREST: Final = 3

#: How many of the changes that leave least are tried as further ones.
FURTHER: Final = 60


class Change(NamedTuple):
    """A difference between two functions.

    Attributes:
        cause: its name.
        sentence: what b does.
        apply: returns b's function for a's.
    """

    cause: str
    sentence: str
    apply: Callable[[Any], Any]


class Places(Protocol):
    """What evaluates a function, whole or in a few places."""

    def off(self, function: Any, wanted: np.ndarray) -> float:
        """Return the relative L2 of a function's outputs against those of a site, in a few places."""
        ...

    def outputs(self, function: Any, at: Values) -> np.ndarray:
        """Return a function's outputs in a pass whose values at points a function returns."""
        ...

    def inputs(self, function: Any) -> tuple[str, ...]:
        """Return the names of the points that a function reads."""
        ...


class _Tried(NamedTuple):
    """Changes of the reference's function, and the relative L2 of the port's output against what they lead to."""

    off: float
    changes: tuple[Change, ...]
    function: Any


def explained_by_changes(
    site: Site, first: Any, changes: Sequence[Change], places: Places, setting: str
) -> list[Explanation]:
    """Return the fewest changes of the reference's function that predict the port's output, as explanations of a setting."""
    most = max(NEAR, most_off(site))
    values = {before.name: before.values for before in reversed(site.before)}
    nearest = [_Tried(places.off(first, site.b), (), first)]
    for _ in range(MOST_CHANGES):
        tried = []
        for off, earlier, function in nearest:
            for change in changes:
                changed = change.apply(function)
                left = places.off(changed, site.b)
                if left <= most and site.off(places.outputs(changed, values.__getitem__)) <= most:
                    return _explanations((*earlier, change), changed, places, values.__getitem__, setting)
                if left < off:
                    tried.append(_Tried(left, (*earlier, change), changed))
        tried.sort(key=lambda entry: entry.off)
        changes = list(dict.fromkeys(entry.changes[-1] for entry in tried))[:FURTHER]
        nearest = tried[:NEAREST]
    return []


def _explanations(
    changes: Sequence[Change], function: Any, places: Places, at: Values, setting: str
) -> list[Explanation]:
    def compute(at: Values) -> np.ndarray:
        return places.outputs(function, at)

    rest = (compute(at), compute, places.inputs(function))
    return together([Explanation(it.cause, setting, ("a's own", "b's"), *rest, it.sentence) for it in changes])
