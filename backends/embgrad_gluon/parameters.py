"""The parameters of a model: the arrays at which their gradients are taken, and the weights that can be read and written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

import numpy as np

from embgrad.arrays import owned
from embgrad.backend import ParameterValues, TableRest, Weight
from embgrad.calling import as_parts
from embgrad.locks import model_lock
from embgrad_gluon import bert
from embgrad_gluon.graphs import scope_paths
from embgrad_gluon.importing import import_mxnet
from embgrad_gluon.walk import all_blocks, block_names, memory, named_blocks, named_parameters, table_path, unique_names

__all__ = ["FrozenTwins", "TableParameters", "alone", "array_of", "trainable", "values_of", "weights"]


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


# Weights

#: The dtypes with values between the whole numbers.
FLOATING: Final = ("float16", "bfloat16", "float32", "float64")


def weights(model: Any) -> list[Weight]:
    """The floating parameters that have arrays, those without a gradient too, by attribute path, each once."""
    parts = as_parts(model)
    owners, canonical = _owners(parts), _canonical(parts)
    return [
        _weight(name, parameter, owners.get(id(parameter), ""), canonical.get(id(parameter)))
        for name, parameter in unique_names(parts).items()
        if array_of(parameter) is not None and _dtype(array_of(parameter)) in FLOATING
    ]


def alone(model: Any) -> AbstractContextManager[None]:
    """Meanwhile no other thread runs the model, or a part of it."""
    return model_lock(all_blocks(as_parts(model)))


def _weight(name: str, parameter: Any, owner: str, canonical: str | None) -> Weight:
    array = array_of(parameter)

    def get() -> np.ndarray:
        with import_mxnet().autograd.pause():
            held = array_of(parameter)
            return owned((held.astype("float32") if _dtype(held) == "bfloat16" else held).asnumpy())

    return Weight(name, owner, tuple(map(int, array.shape)), _dtype(array), get, bert.putter(parameter), canonical)


def _dtype(array: Any) -> str:
    return str(np.dtype(array.dtype).name)


def _owners(parts: Sequence[Any]) -> dict[int, str]:
    """Return by a parameter's identity the path of the innermost block that holds it; a block around that may have made it.

    In a SymbolBlock that is the scope of its graph in whose name its own begins.
    """
    names = block_names(parts)
    held = [
        (len(path.split(".")) if path else 0, path, parameter)
        for path, block in ((names[id(block)][0], block) for _, block in named_blocks(parts))
        for parameter in (*block._reg_params.values(), *block.params.values())
    ]
    owners: dict[int, str] = {}
    for _, path, parameter in sorted(held, key=lambda one: -one[0]):
        owners.setdefault(id(parameter), path)
    scopes = sorted(scope_paths(parts), key=len, reverse=True)
    for _, _, parameter in held if scopes else ():
        scope = next((one for one in scopes if parameter.name.startswith(f"{one}_")), None)
        owners[id(parameter)] = owners[id(parameter)] if scope is None else scope
    return owners


def _canonical(parts: Sequence[Any]) -> dict[int, str]:
    """By a parameter's identity what a checkpoint calls it, where the model holds one BERT."""
    encoders = {id(block): block for _, block in named_blocks(parts) if bert.is_stack(block)}
    if len(encoders) != 1:
        return {}
    (encoder,) = encoders.values()
    sources = bert.sources(len(encoder.encoder.transformer_cells))
    return {id(one): sources[name] for name, one in unique_names([encoder]).items() if name in sources}
