"""A point that a name means, with the arrangement of its tensor."""

from __future__ import annotations

from dataclasses import dataclass

from embgrad.forward.axes import Arrangement
from embgrad.forward.points import Lookup

__all__ = ["Located"]


@dataclass(frozen=True)
class Located:
    """A point that a name means, as a forward pass reached it.

    Attributes:
        key: the key of the point, which no other point has.
        arrangement: how the axes of its tensor are arranged.
        lookup: the lookup at the point; None at a module.
        by_role: whether the name is a role.
    """

    key: str
    arrangement: Arrangement
    lookup: Lookup | None
    by_role: bool
