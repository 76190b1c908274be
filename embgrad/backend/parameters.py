"""The gradients at parameters, and those that reach a lookup's table by other ways than the requested lookups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["ParameterValues", "TableRest", "table_rests"]


@dataclass(frozen=True)
class ParameterValues:
    """The gradient at a parameter.

    Attributes:
        shape: the parameter's shape.
        gradient: its gradient, of that shape, or None if no gradient reaches it.
        dtype: the parameter's dtype, such as "float32".
    """

    shape: tuple[int, ...]
    gradient: np.ndarray | None
    dtype: str

    def fill(self) -> np.ndarray:
        """Return the gradient, or zeros if no gradient reaches the parameter."""
        dtype = np.float64 if self.dtype == "float64" else np.float32
        return np.zeros(self.shape, dtype) if self.gradient is None else self.gradient


@dataclass(frozen=True)
class TableRest:
    """The gradient that reaches a table by other ways than the requested lookups, such as through a head that shares it.

    Attributes:
        gradient: the gradient, of shape (rows, dim); None if the table is not reached in any other way.
        names: the parameters that share the table's memory, named as in `parameters`, the table itself first.
    """

    gradient: np.ndarray | None
    names: tuple[str, ...]


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
