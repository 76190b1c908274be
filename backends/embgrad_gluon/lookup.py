"""Intercept the operators that MXNet runs imperatively in this thread, and recognise the lookups among them."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from embgrad.backend import UNNAMED_TABLE, Way, layout_of
from embgrad.errors import BatchError
from embgrad.toolkit import Interception, ModuleCalls, whole_numbers
from embgrad_gluon.importing import import_mxnet
from embgrad_gluon.inputs import is_floating
from embgrad_gluon.tap import Taps
from embgrad_gluon.walk import arrays_of, is_recorded, loose_parameters, memory, table_path, tables

__all__ = [
    *("HINT", "LOOKUPS", "PRODUCTS", "Handler", "Lookups", "Operation", "Tables", "ignore_operators"),
    *("compose", "intercept_operators", "invoke"),
]

# Every generated function of mx.nd, mx.sym's imperative twin F, mx.np and mx.npx, and every method of an array, ends in
# this global of `mxnet.ndarray.register`: nn.Embedding, F.Embedding, take, x.take and W[ids] alike.
_invoke = Interception(lambda: import_mxnet().ndarray.register, "_imperative_invoke")


@dataclass
class Operation:
    """An operator that is about to run. A handler may change its inputs and attributes.

    Attributes:
        name: the operator's own name, whatever the alias under which it was called.
        out: the array for the output; None for a new one.
    """

    name: str
    inputs: list[Any]
    attributes: dict[str, Any]
    out: Any


#: Takes an operation and the function that runs it; returns the output.
Handler = Callable[[Operation, Callable[[], Any]], Any]


@contextlib.contextmanager
def intercept_operators(handlers: Mapping[str, Handler]) -> Iterator[None]:
    """Run this thread's operators of these names by their handlers while it is open."""
    by_address = {_address(name): (name, handler) for name, handler in handlers.items()}

    def handle(original: Any, operator: int, inputs: Any, keys: Any, values: Any, out: Any, *kind: Any) -> Any:
        intercepted = by_address.get(operator)
        if intercepted is None:
            return original(operator, inputs, keys, values, out, *kind)
        name, handler = intercepted
        operation = Operation(name, list(inputs), dict(zip(keys, values, strict=True)), out)

        def proceed() -> Any:
            attributes = operation.attributes
            return original(operator, operation.inputs, list(attributes), list(attributes.values()), out, *kind)

        return handler(operation, proceed)

    with _invoke.by(handle):
        yield


def compose(first: Mapping[str, Handler], others: Mapping[str, Handler]) -> dict[str, Handler]:
    """Return handlers of which the first ones run around the others of the same names."""

    def around(handler: Handler, other: Handler) -> Handler:
        return lambda operation, proceed: handler(operation, lambda: other(operation, proceed))

    both = {name: around(handler, others[name]) for name, handler in first.items() if name in others}
    return {**first, **others, **both}


def ignore_operators() -> AbstractContextManager[None]:
    """Keep the handlers from seeing this thread's operators while it is open."""
    return _invoke.by(lambda original, *given: original(*given)) if _invoke.heard else contextlib.nullcontext()


def invoke(name: str, inputs: list[Any], attributes: dict[str, Any], as_numpy: bool) -> list[Any]:
    """Run an operator as the generated function of its name does, and return its outputs."""
    mx = import_mxnet()
    as_numpy = as_numpy or mx.base._is_np_op(name)
    keys, values = list(attributes), list(attributes.values())
    outputs = mx.ndarray.register._imperative_invoke(_address(name), inputs, keys, values, None, as_numpy, False)
    return list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]


@functools.cache
def _address(name: str) -> int:
    """Return the operator's handle, by which the generated functions call it; aliases share it."""
    base = import_mxnet().base
    handle = ctypes.c_void_p()
    base.check_call(base._LIB.NNGetOpHandle(base.c_str(name), ctypes.byref(handle)))
    return int(handle.value or 0)


# Lookups among the operators

#: The operators that may be lookups, in the order of `Lookups.handlers`.
LOOKUPS: Final = ("Embedding", "_contrib_SparseEmbedding", "take", "gather_nd")

#: The operators that multiply two matrices, and look rows up where one of them holds one-hot rows.
PRODUCTS: Final = (
    *("dot", "batch_dot", "FullyConnected", "linalg_gemm2"),
    *(f"_npi_{name}" for name in ("matmul", "einsum", "tensordot_int_axes")),
)

#: The lookups that are recognised, for messages.
HINT = (
    "In Gluon a lookup is Embedding, take along the first axis, or a table indexed by an array, in the thread of the call; "
    "a product with one-hot vectors is not."
)


class Lookups:
    """The lookups of one forward pass.

    Args:
        tables: the model's tables.
        taps: records the lookups, and returns the arrays that replace the rows.
        cut: cut the requested rows off their table, so that nothing below them is differentiated.

    Attributes:
        tables: the tables of the requested lookups, by key.
    """

    def __init__(self, tables: Tables, taps: Taps, *, cut: bool) -> None:
        self.tables: dict[str, Any] = {}
        self._tables = tables
        self._taps = taps
        self._ids = taps.watch.batch.ids
        self._cut = cut
        self._calls = ModuleCalls(taps.watch, is_floating, taps.at)

    def handlers(self) -> dict[str, Handler]:
        """Return the handlers by the operators' names."""
        handlers = (self._embedding, self._embedding, self._take, self._gather)
        return dict(zip(LOOKUPS, handlers, strict=True)) | dict.fromkeys(PRODUCTS, self._multiply)

    def _embedding(self, operation: Operation, proceed: Callable[[], Any]) -> Any:
        indices, table = operation.inputs[:2]
        numbers = indices.asnumpy()
        if not is_floating(table):
            self._report(operation.name, table, numbers)
            return proceed()
        return self._look_up(table, numbers, proceed)

    def _take(self, operation: Operation, proceed: Callable[[], Any]) -> Any:
        table, indices = operation.inputs
        axis = int(operation.attributes.get("axis", 0)) % max(table.ndim, 1)
        if table.ndim != 2 or axis != 0 or not is_floating(table):
            if indices.size == self._ids.size:
                self._report(operation.name, table, indices.asnumpy(), axis)
            return proceed()
        indices_read = indices.asnumpy()
        if operation.attributes.get("mode") == "wrap" and not self._are_ids(indices_read):
            indices_read = indices_read % len(table)
        return self._index(table, indices_read, proceed)

    def _gather(self, operation: Operation, proceed: Callable[[], Any]) -> Any:
        table, indices = operation.inputs
        if table.ndim != 2 or indices.shape[0] != 1 or not is_floating(table):
            self._report_gather(operation.name, table, indices)
            return proceed()
        return self._index(table, _from_the_end(indices.asnumpy()[0], len(table)), proceed)

    def _report_gather(self, name: str, table: Any, indices: Any) -> None:
        """Report a gather by the ids along one axis, whose indices along the axes before it are those of slices."""
        axes = indices.shape[0]
        taken = indices.size // axes * math.prod(table.shape[axes:])
        if taken <= self._ids.size:  # one number for each id
            return
        for axis, numbers in enumerate(indices.asnumpy()):
            self._report(name, table, _from_the_end(numbers, table.shape[axis]), axis)

    def _multiply(self, operation: Operation, proceed: Callable[[], Any]) -> Any:
        """Report a product of one-hot rows of the ids with a matrix."""
        factors = operation.inputs[:2]
        for rows, matrix in (factors, factors[::-1]) if len(factors) == 2 else ():
            count = rows.shape[-1] if rows.ndim else 0
            if matrix.ndim != 2 or count not in matrix.shape or count <= int(self._ids.max()):
                continue
            if math.prod(rows.shape) != self._ids.size * count or is_recorded(rows):
                continue
            places = _ones_of(rows, int(self._ids.item(0)))
            if places is not None:
                self._report(operation.name, matrix, places, matrix.shape.index(count), "product")
        return self._weigh(operation, proceed) if self._taps.watch.needs_modules else proceed()

    def _weigh(self, operation: Operation, proceed: Callable[[], Any]) -> Any:
        """Return a product, recorded as a call of a module of the weight's name where one factor is a weight of no block."""
        looked_up = {lookup.path for lookup in self._taps.watch.lookups}
        factors = operation.inputs[:2]
        paths = [self._tables.loose(factor) for factor in factors]
        paths = [None if path is None or table_path(path) in looked_up else path for path in paths]

        def product(factors: list[Any]) -> Any:
            operation.inputs[: len(factors)] = factors
            return proceed()

        equation = operation.attributes.get("subscripts")
        return self._calls.multiply(product, factors, paths, equation, lambda array, order: array.transpose(order))

    def _report(self, name: str, array: Any, indices: np.ndarray, axis: int = 0, way: Way = "selection") -> None:
        """Report that the ids select entries of an array in a way that is no lookup with a gradient.

        A recorded array of no parameter with an entry for each example is such as logits, of which those of the ids are taken.
        """
        path = self._tables.path(array, array.shape)
        if path == UNNAMED_TABLE and len(array) == len(self._ids) and is_floating(array) and is_recorded(array):
            return
        numbers = whole_numbers(indices)
        if numbers is not None:
            dtype = np.dtype(array.dtype).name
            self._taps.watch.see_other(name, path, numbers, array.shape, dtype, axis=axis, way=way)

    def _index(self, table: Any, indices: np.ndarray, proceed: Callable[[], Any]) -> Any:
        """Run `take` or indexing as a lookup, unless it picks rows of the activations."""
        if self._tables.path(table, table.shape) == UNNAMED_TABLE and not self._are_ids(indices):
            return proceed()
        return self._look_up(table, indices, proceed)

    def _are_ids(self, indices: np.ndarray) -> bool:
        return layout_of(indices, self._ids) is not None

    def _look_up(self, table: Any, indices: np.ndarray, proceed: Callable[[], Any]) -> Any:
        shape = table.shape
        path, watch = self._tables.path(table, shape), self._taps.watch
        key = watch.see(path, _whole_indices(path, indices), *shape)
        rows = proceed()
        watch.record_output(rows)
        if key is None:
            return self._as_activations(rows)
        self.tables[key] = table
        # The rows of a table that the model computed may have another point below them: they keep their history.
        new = self._taps.at(key, rows, cut=self._cut and path != UNNAMED_TABLE)
        watch.replace_tensor(rows, new)
        return new

    def _as_activations(self, rows: Any) -> Any:
        """Mark the rows of a frozen table where blocks are watched: in a SymbolBlock only values with a gradient are points."""
        watch = self._taps.watch
        if self._cut and (watch.everything or watch.modules) and not is_recorded(rows):
            with import_mxnet().autograd.pause():
                rows.attach_grad()
        return rows


class Tables:
    """The paths of a model's tables by the address of their values: an array in use is often not the parameter's own."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self._parts = parts
        self._paths: dict[tuple[int, tuple[int, ...]], str] = {}
        self._parameters: list[tuple[str, Any]] | None = None
        self._loose: dict[tuple[int, tuple[int, ...]], str] | None = None

    def loose(self, array: Any) -> str | None:
        """Return the path of a parameter that is a matrix of no block of its own; None for another array."""
        if self._loose is None:
            self._loose = {
                (memory(held), held.shape): path
                for path, parameter in loose_parameters(self._parts)
                for held in arrays_of(parameter)
                if held.stype == "default"
            }
        known = array.stype == "default" and any(shape == array.shape for _, shape in self._loose)
        return self._loose.get((memory(array), array.shape)) if known else None

    def path(self, table: Any, shape: tuple[int, ...]) -> str:
        """Return the path of the table's owner: an embedding if several own it, or else the first."""
        if table.stype != "default":
            return UNNAMED_TABLE
        key = (memory(table), shape)
        if key not in self._paths:
            self._learn(shape)  # each time: the forward pass itself may initialize parameters
        return self._paths.get(key, UNNAMED_TABLE)

    def _learn(self, shape: tuple[int, ...]) -> None:
        if self._parameters is None:  # not earlier: a model may create its blocks when it is first called
            self._parameters = tables(self._parts)
        for path, parameter in self._parameters:
            for array in arrays_of(parameter):
                if array.shape == shape and array.stype == "default":
                    self._paths.setdefault((memory(array), shape), path)


def _whole_indices(path: str, indices: np.ndarray) -> np.ndarray:
    """Return the indices as whole numbers; refuse others, which MXNet would truncate, and NaN, which it reads as 0."""
    whole = whole_numbers(indices)
    if whole is None:
        raise BatchError(
            f"the model looks up table {path!r} by indices of dtype {indices.dtype} that are not exact whole numbers, which "
            "MXNet would round silently. Cast the ids to int32"
        )
    return whole


def _ones_of(rows: Any, first: int) -> np.ndarray | None:
    """Return the places of the ones in one-hot rows; None where the rows are not one-hot, or the first has another place."""
    if rows.stype == "csr":
        single = bool((np.diff(rows.indptr.asnumpy()) == 1).all() and (rows.data.asnumpy() == 1).all())
        return rows.indices.asnumpy() if single else None
    if rows.stype != "default" or first >= rows.shape[-1]:
        return None
    values = rows.asnumpy().reshape(-1, rows.shape[-1])
    is_one_hot = values[0, first] == 1 and ((values != 0).sum(1) == 1).all() and (values.sum(1) == 1).all()
    return np.asarray(values.argmax(1)) if is_one_hot else None


def _from_the_end(indices: np.ndarray, rows: int) -> np.ndarray:
    """Return the indices with negative ones counted from the end, as NumPy does."""
    return np.where((indices < 0) & (indices >= -rows), indices + rows, indices)
