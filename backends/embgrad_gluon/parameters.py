"""Find the arrays at which the gradients of parameters and tables are taken, and the weights that can be read and written."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

import numpy as np

from embgrad.backend import ParameterValues, TableRest, Weight, table_rests
from embgrad.errors import UnsupportedError, quote
from embgrad.toolkit import as_parts, copy_owned, model_lock
from embgrad_gluon import bert
from embgrad_gluon.importing import import_mxnet
from embgrad_gluon.scopes import scope_paths
from embgrad_gluon.walk import (
    all_blocks,
    all_parameters,
    arrays_of,
    block_names,
    contexts_of,
    memory,
    named_blocks,
    named_parameters,
    table_path,
    unique_names,
)

__all__ = [
    "TableParameters",
    "alone",
    "array_of",
    "device_meter",
    "record_frozen_tables",
    "trainable",
    "values_of",
    "weights",
]


def trainable(parts: Sequence[Any]) -> dict[str, Any]:
    """Return the parameters that have a gradient, each once, by name."""
    return {name: p for name, p in unique_names(parts).items() if p.grad_req != "null"}


def array_of(parameter: Any) -> Any:
    """Return the array with which the parameter's uses are recorded; None where it has none yet."""
    return next(iter(arrays_of(parameter)), None)


def values_of(parameter: Any, gradient: np.ndarray | None) -> ParameterValues:
    """Return a parameter's gradient with its shape and dtype, which in a SymbolBlock its array alone may know."""
    array = array_of(parameter)
    known = parameter if array is None else array
    return ParameterValues(tuple(map(int, known.shape or ())), gradient, np.dtype(known.dtype).name)


@contextlib.contextmanager
def record_frozen_tables(parts: Sequence[Any]) -> Iterator[None]:
    """Replace the arrays of frozen parameters that may be tables by others of the same memory, which can have a gradient.

    A frozen parameter has no gradient, and unfreezing it would give it new memory.
    """
    frozen = [p for p in all_parameters(parts) if p.grad_req == "null" and any(map(_is_table, arrays_of(p)))]
    arrays_before = [(parameter, parameter._data) for parameter in frozen]
    try:
        for parameter, arrays in arrays_before:
            parameter._data = [array.detach() for array in arrays]
            for array in parameter._data:
                array.attach_grad()
        yield
    finally:
        for parameter, arrays in arrays_before:
            parameter._data = arrays


def _is_table(array: Any) -> bool:
    return bool(array.ndim == 2 and array.stype == "default" and np.dtype(array.dtype).kind == "f")


class TableParameters:
    """The parameters behind the tables of some lookups.

    Attributes:
        arrays: by name the arrays at which the tables' gradients are taken, each once.
    """

    def __init__(self, parts: Sequence[Any], tables: Mapping[str, Any]) -> None:
        self.arrays: dict[str, Any] = {}
        self._names: dict[str, tuple[str, ...]] = {}
        named = named_parameters(parts)
        for key, table in tables.items():
            sharing = [(name, p) for name, p in named if any(_is_same(array, table) for array in arrays_of(p))]
            if sharing:
                self._names[key] = _primary_first(key, [name for name, _ in sharing], trainable(parts))
            for name, parameter in sharing:
                array = array_of(parameter)
                if array is not None and not any(array is known for known in self.arrays.values()):
                    self.arrays[name] = array

    def rests(self, gradients: Mapping[str, np.ndarray | None]) -> dict[str, TableRest]:
        """Return by the lookups' keys what else reaches their tables, from the gradients at `arrays`."""
        return table_rests(self._names, gradients)


def _primary_first(key: str, names: Sequence[str], known: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names, first the one under which the parameter's gradient is returned, or else that of the table."""
    primary = next((name for name in names if name in known), None)
    primary = primary or next((name for name in names if key.startswith(f"{table_path(name)}#")), names[0])
    return (primary, *(name for name in names if name != primary))


def _is_same(array: Any, table: Any) -> bool:
    return bool(array.stype == "default" and array.shape == table.shape and memory(array) == memory(table))


# Weights

#: The dtypes with values between the whole numbers.
FLOATING: Final = ("float16", "bfloat16", "float32", "float64")


def weights(model: Any) -> list[Weight]:
    """Return the floating parameters that have arrays, trainable or not, by attribute path, each once."""
    parts = as_parts(model)
    owners, canonical = _owners(parts), _canonical(parts)
    return [
        _weight(name, parameter, owners.get(id(parameter), ""), canonical.get(id(parameter)))
        for name, parameter in unique_names(parts).items()
        if array_of(parameter) is not None and _dtype(array_of(parameter)) in FLOATING
    ]


def alone(model: Any) -> AbstractContextManager[None]:
    """Keep other threads from running the model, or a part of it, while it is open."""
    return model_lock(all_blocks(as_parts(model)))


def device_meter(model: Any) -> None:
    """Return None for a model on the CPU."""
    contexts = {
        str(context) for parameter in unique_names(as_parts(model)).values() for context in contexts_of(parameter)
    }
    others = sorted(context for context in contexts if not context.startswith("cpu"))
    if others:
        raise UnsupportedError(
            f"the model is on {quote(others)}, and MXNet records no peak of the memory there: expected a model on the CPU"
        )


def _weight(name: str, parameter: Any, owner: str, canonical: str | None) -> Weight:
    array = array_of(parameter)

    def get() -> np.ndarray:
        with import_mxnet().autograd.pause():
            return _values(array_of(parameter))

    def rows(indices: np.ndarray) -> np.ndarray:
        mx = import_mxnet()
        with mx.autograd.pause():
            held = array_of(parameter)
            plain = held.as_nd_ndarray() if isinstance(held, mx.np.ndarray) else held
            return _values(mx.nd.take(plain, mx.nd.array(indices, ctx=plain.context, dtype="int64")))

    shape, put = tuple(map(int, array.shape)), bert.setter_of(parameter)
    return Weight(name, owner, shape, _dtype(array), get, rows, put, canonical)


def _values(array: Any) -> np.ndarray:
    return copy_owned((array.astype("float32") if _dtype(array) == "bfloat16" else array).asnumpy())


def _dtype(array: Any) -> str:
    return str(np.dtype(array.dtype).name)


def _owners(parts: Sequence[Any]) -> dict[int, str]:
    """Return by a parameter's identity the path of the innermost block that holds it; a block around that may have made it.

    In a SymbolBlock that is the scope of its graph with whose name its own begins.
    """
    names = block_names(parts)
    held = [
        (len(path.split(".")) if path else 0, path, parameter)
        for path, block in ((names[id(block)][0], block) for _, block in named_blocks(parts))
        for parameter in (*block._reg_params.values(), *block.params.values())
    ]
    owners: dict[int, str] = {}
    for _, path, parameter in sorted(held, key=lambda entry: -entry[0]):
        owners.setdefault(id(parameter), path)
    scopes = sorted(scope_paths(parts), key=len, reverse=True)
    for _, _, parameter in held if scopes else ():
        scope = next((path for path in scopes if parameter.name.startswith(f"{path}_")), None)
        owners[id(parameter)] = owners[id(parameter)] if scope is None else scope
    return owners


def _canonical(parts: Sequence[Any]) -> dict[int, str]:
    """Return by a parameter's identity its name in a checkpoint, where the model holds a single BERT."""
    encoders = {id(block): block for _, block in named_blocks(parts) if bert.is_stack(block)}
    if len(encoders) != 1:
        return {}
    (encoder,) = encoders.values()
    sources = bert.sources(len(encoder.encoder.transformer_cells))
    return {id(parameter): sources[name] for name, parameter in unique_names([encoder]).items() if name in sources}
