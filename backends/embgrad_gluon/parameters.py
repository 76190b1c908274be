"""The trainable parameters of a model and the arrays at which their gradients are taken, the frozen tables' included."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from embgrad.backend import ParameterValues, TableRest
from embgrad_gluon.importing import import_mxnet
from embgrad_gluon.walk import memory, named_parameters, table_path, unique_names

__all__ = ["FrozenTwins", "TableParameters", "array_of", "trainable", "values_of"]


def trainable(parts: Sequence[Any]) -> dict[str, Any]:
    """The parameters that have a gradient, each once, by name."""
    return {name: p for name, p in unique_names(parts).items() if p.grad_req != "null"}


def array_of(parameter: Any) -> Any:
    """The array that the parameter's uses are recorded with; None where it has none yet."""
    return parameter._data[0] if parameter._data else None  # not `data()`, which may drop out, or ask a trainer


def values_of(parameter: Any, gradient: np.ndarray | None) -> ParameterValues:
    """What was read at a parameter. That of a SymbolBlock may not know its own shape and dtype, and its array does."""
    array = array_of(parameter)
    known = parameter if array is None else array
    return ParameterValues(tuple(map(int, known.shape or ())), gradient, np.dtype(known.dtype).name)


class FrozenTwins:
    """Arrays of the same memory as frozen parameters that take their places in the operators, and have a gradient.

    A frozen parameter has none, and to unfreeze it would give it new arrays.
    """

    def __init__(self, parts: Sequence[Any]) -> None:
        frozen = (p for p in unique_names(parts).values() if p.grad_req == "null" and p._stype == "default")
        self._frozen = {memory(array): array for p in frozen for array in p._data or ()}
        self._shapes = {array.shape for array in self._frozen.values()}
        self._twins: dict[int, Any] = {}

    def of(self, array: Any) -> Any:
        """The array's twin, or the array itself where it is no frozen parameter."""
        if array.shape not in self._shapes or array.stype != "default":
            return array
        key = memory(array)
        known = self._frozen.get(key)
        if known is None or known.shape != array.shape or known.dtype != array.dtype:
            return array
        if key not in self._twins:
            with import_mxnet().autograd.pause():
                self._twins[key] = twin = array.detach()
                twin.attach_grad()  # by an operator on the twin itself, which has no twin
        twin = self._twins[key]
        return twin if type(twin) is type(array) else _as_kind(twin, array)

    def used(self, address: int) -> Any:
        """The twin of the parameter that lies there; None where the parameter was not used."""
        return self._twins.get(address)


def _as_kind(twin: Any, array: Any) -> Any:
    return twin.as_np_ndarray() if isinstance(array, import_mxnet().np.ndarray) else twin.as_nd_ndarray()


class TableParameters:
    """The parameters behind the tables of some lookups.

    Args:
        parts: the model's parts.
        tables: by the lookups' keys the tables.
        twins: of those that are frozen.

    Attributes:
        arrays: the arrays at which the tables' gradients are taken, each once.
    """

    def __init__(self, parts: Sequence[Any], tables: Mapping[str, Any], twins: FrozenTwins) -> None:
        self.arrays: list[Any] = []
        self._places: dict[str, list[int]] = {}
        self._names: dict[str, tuple[str, ...]] = {}
        named = [(name, p) for name, p in named_parameters(parts) if p._stype == "default" and p._data]
        for key, table in tables.items():
            sharing = [(name, p) for name, p in named if any(_is_same(one, table) for one in p._data)]
            if sharing:
                self._names[key] = _own_first(key, [name for name, _ in sharing], trainable(parts))
                arrays = [array_of(p) for _, p in sharing if p.grad_req != "null"]
                twin = twins.used(memory(table))
                self._places[key] = [self._place(array) for array in (*arrays, *([] if twin is None else [twin]))]

    def rests(self, gradients: Sequence[np.ndarray | None]) -> dict[str, TableRest]:
        """By key what reaches the tables, of the gradients of `arrays`."""
        rests = {}
        for key, names in self._names.items():
            found = [gradients[place] for place in dict.fromkeys(self._places[key])]
            there = [one for one in found if one is not None]
            rests[key] = TableRest(np.sum(there, axis=0) if there else None, names)
        return rests

    def _place(self, array: Any) -> int:
        known = next((place for place, one in enumerate(self.arrays) if one is array), None)
        if known is None:
            self.arrays.append(array)
        return len(self.arrays) - 1 if known is None else known


def _own_first(key: str, names: Sequence[str], known: Mapping[str, Any]) -> tuple[str, ...]:
    """The names with that first under which the parameter's gradient goes; else that of the table."""
    own = next((name for name in names if name in known), None)
    own = own or next((name for name in names if key.startswith(f"{table_path(name)}#")), names[0])
    return (own, *(name for name in names if name != own))


def _is_same(array: Any, table: Any) -> bool:
    return bool(array.shape == table.shape and memory(array) == memory(table))
