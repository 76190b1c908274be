"""The search for the fewest changes of the reference's function that make it the port's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from embgrad.comparison.hypotheses.site import NEAR, Explanation, Site, Values, together
from embgrad.comparison.hypotheses.sources import most_off

__all__ = ["Change", "Places", "explained_by_changes", "with_fields"]

#: The most changes of a reference that are found at one site, and how many of the nearest have further ones added to them.
MOST_CHANGES: Final = 3
NEAREST: Final = 3

#: How many of the changes that leave least are tried as further ones.
FURTHER: Final = 60

#: The number of floors, and the share of the difference, within which changes are exact, so that no others are looked for.
FLOORS: Final = 10.0
EXACT: Final = 1e-3


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


def with_fields(**fields: Any) -> Callable[[Any], Any]:
    """Return the function that returns a dataclass with other values of some fields."""
    return lambda own: replace(own, **fields)


class Places(Protocol):
    """The places in which functions are evaluated: all, or a few."""

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
    site: Site, first: Any, changes: Sequence[Change], places: Places, setting: str, further: int = FURTHER
) -> list[Explanation]:
    """Return the fewest changes of the reference's function that predict the port's output, as explanations of a setting.

    Of several that do, such as two approximations of one activation, those are returned that leave least. Where there are more
    than `further` changes, so many of those that are nearer by themselves are tried as further ones.
    """
    most = max(NEAR, most_off(site))
    values = {before.name: before.values for before in reversed(site.before)}
    nearest = [_Tried(places.off(first, site.b), (), first)]
    exact = min(FLOORS * site.floor, EXACT * nearest[0].off)
    for _ in range(MOST_CHANGES):
        tried: list[_Tried] = []
        found: list[_Tried] = []
        for off, earlier, function in nearest:
            for change in changes:
                changed = change.apply(function)
                entry = _Tried(places.off(changed, site.b), (*earlier, change), changed)
                if entry.off <= most and site.off(places.outputs(changed, values.__getitem__)) <= most:
                    found.append(entry)
                    if entry.off <= exact:
                        return _explanations(entry, places, values.__getitem__, setting)
                elif entry.off < off:
                    tried.append(entry)
        if found:
            return _explanations(min(found, key=lambda entry: entry.off), places, values.__getitem__, setting)
        tried.sort(key=lambda entry: entry.off)
        if len(changes) > further:
            kept = list(dict.fromkeys(entry.changes[-1] for entry in tried))[:further]
            changes = [change for change in changes if change in kept]
        nearest = tried[:NEAREST]
    return []


def _explanations(tried: _Tried, places: Places, at: Values, setting: str) -> list[Explanation]:
    def compute(at: Values) -> np.ndarray:
        return places.outputs(tried.function, at)

    rest = (compute(at), compute, places.inputs(tried.function))
    return together([Explanation(it.cause, setting, ("a's own", "b's"), *rest, it.sentence) for it in tried.changes])
