"""Says what reaches a lookup's table past the lookups asked for, such as by a head that shares the table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from embgrad.backend.protocol import TableRest

__all__ = ["table_rests"]


def table_rests(names: Mapping[str, Sequence[str]], gradients: Mapping[str, np.ndarray | None]) -> dict[str, TableRest]:
    """Return by the keys of lookups what else reaches their tables, the sum over the parameters that share a table.

    A lookup asked for is cut off its table, so the gradient that the framework computes for the table holds all but that lookup.

    Args:
        names: by a lookup's key the names of the parameters that share its table's memory, the table's own name first; without
            the lookups in a table that is no parameter.
        gradients: by name the gradients of these parameters, None where no gradient reaches one. A parameter of several names
            is there once, under any of them.
    """
    rests = {}
    for key, own in names.items():
        reached = [gradient for name in own if (gradient := gradients.get(name)) is not None]
        rests[key] = TableRest(np.sum(reached, axis=0) if reached else None, tuple(own))
    return rests
