"""The gradients that reach a lookup's table by other ways than the requested lookups, such as through a tied head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from embgrad.backend.protocol import TableRest

__all__ = ["table_rests"]


def table_rests(names: Mapping[str, Sequence[str]], gradients: Mapping[str, np.ndarray | None]) -> dict[str, TableRest]:
    """Return, by the keys of lookups, the gradient that reaches their tables by other ways.

    A requested lookup is detached from its table, so the gradient that the framework computes for the table contains everything
    but that lookup. It is summed over the parameters that share the table's memory.

    Args:
        names: for each lookup's key the names of the parameters that share its table's memory, the table's own name first.
            Lookups in a table that is not a parameter are absent.
        gradients: the gradients of these parameters by name, None if no gradient reaches one. A parameter with several names
            occurs once, under any of them.
    """
    rests = {}
    for key, table_names in names.items():
        reached = [gradient for name in table_names if (gradient := gradients.get(name)) is not None]
        rests[key] = TableRest(np.sum(reached, axis=0) if reached else None, tuple(table_names))
    return rests
