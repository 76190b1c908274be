"""For the modules of kept traces, until they are made anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from embgrad_torch import walk

__all__ = ["Structure", "structure"]


class Structure(walk.Structure):
    """The modules of a model, and how the tensors that they hold are arranged."""

    tables: Mapping[int, str | None] = {}

    def look(self) -> Structure:
        """Return the same."""
        return self

    @property
    def arrangement(self) -> tuple[Any, ...]:
        """What does not tell one tensor from another: how many there are of which names, and which of these hold the same."""
        held = [*(one._parameters for one in self.modules), *(one._buffers for one in self.modules)]
        tensors = [one for each in held for one in each.values()]
        first: dict[int, int | None] = {id(None): None}
        same = tuple([first.setdefault(id(one), place) for place, one in enumerate(tensors)])
        return tuple(map(len, held)), tuple([name for each in held for name in each]), same


def structure(parts: Sequence[Any]) -> Structure:
    """Return what a model is made of now."""
    return Structure(parts)
