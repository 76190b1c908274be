"""Finds the lookups of a forward pass by watching its operators, and keeps hold of their outputs."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from embgrad.arrays import whole_numbers
from embgrad.batch import TokenBatch
from embgrad.errors import BatchError, UnsupportedError
from embgrad.points import UNNAMED_TABLE, LookupWatch, layout_of
from embgrad_gluon.importing import import_mxnet
from embgrad_gluon.operators import Handler, Operation

__all__ = ["HINT", "Lookups"]

#: What is not seen, for messages.
HINT = (
    "In Gluon a lookup is Embedding, take along the first axis, or a table indexed by an array, in the thread of the call; "
    "a product with one-hot vectors is none."
)


class Lookups:
    """The lookups of one forward pass.

    Args:
        parts: the model's parts.
        batch: what the model is run on.
        names: the points that are asked for; none where no gradient is.

    Attributes:
        watch: what was seen.
        kept: by the lookup's number the array at which its gradient is taken, and the array that went on.
    """

    def __init__(self, parts: Sequence[Any], batch: TokenBatch, names: Sequence[str]) -> None:
        self.watch = LookupWatch(batch, names)
        self.kept: dict[int, tuple[Any, Any]] = {}
        self._tables = _Tables(parts)
        self._ids = batch.ids
        self._stopped = False
        self._before: dict[int, Any] = {}

    def handlers(self) -> dict[str, Handler]:
        """By the operators' names."""
        return {
            "Embedding": self._embedding,
            "_contrib_SparseEmbedding": self._embedding,
            "take": self._take,
            "gather_nd": self._gather,
        }

    def stop(self) -> None:
        """What is looked up from here on is not the model's."""
        self._stopped = True

    def expect_unwritten(self, number: int) -> None:
        """Refuse a lookup into whose output the model wrote: MXNet's graph knows nothing of what is written outside of it.

        Raises:
            UnsupportedError: its values are no longer what they were.
        """
        before, after = self._before[number].asnumpy(), self.kept[number][1].asnumpy()
        if not np.array_equal(before, after, equal_nan=True):
            raise UnsupportedError(
                f"the model writes into the output of the lookup {self.watch.lookups[number]} while it is not recorded, so "
                "that MXNet's gradient takes no notice of it: expected a new array, such as rows * mask or where(...)"
            )

    def _embedding(self, operation: Operation, proceed: Callable[[], Any]) -> Any:
        indices, table = operation.inputs[:2]
        return self._look_up(table, indices.asnumpy(), proceed)

    def _take(self, operation: Operation, proceed: Callable[[], Any]) -> Any:
        table, indices = operation.inputs
        if table.ndim != 2 or int(operation.attributes.get("axis", 0)) not in (0, -2):
            return proceed()
        read = indices.asnumpy()
        if operation.attributes.get("mode") == "wrap" and not self._are_ids(read):
            read = read % len(table)
        return self._index(table, read, proceed)

    def _gather(self, operation: Operation, proceed: Callable[[], Any]) -> Any:
        table, indices = operation.inputs
        if table.ndim != 2 or indices.shape[0] != 1:
            return proceed()
        return self._index(table, _counted_back(indices.asnumpy()[0], len(table)), proceed)

    def _index(self, table: Any, indices: np.ndarray, proceed: Callable[[], Any]) -> Any:
        """Taking rows is no lookup where it picks some of the activations."""
        if self._tables.path(table) == UNNAMED_TABLE and not self._are_ids(indices):
            return proceed()
        return self._look_up(table, indices, proceed)

    def _are_ids(self, indices: np.ndarray) -> bool:
        return layout_of(indices, self._ids) is not None

    def _look_up(self, table: Any, indices: np.ndarray, proceed: Callable[[], Any]) -> Any:
        if self._stopped:
            return proceed()
        path = self._tables.path(table)
        keep = self.watch.see(path, _whole(path, indices), *table.shape)
        rows = proceed()
        return self._keep(len(self.watch.lookups) - 1, rows, leaf=path != UNNAMED_TABLE) if keep else rows

    def _keep(self, number: int, rows: Any, leaf: bool) -> Any:
        """What goes on in place of the rows, with a gradient of its own.

        The rows of a parameter become a leaf, so that nothing below them is computed. Those of a table that the model
        computed may have another point below them: they keep their history, and a zero that is added is the leaf.
        """
        mx = import_mxnet()
        if leaf:
            with mx.autograd.pause():
                rows.attach_grad()
                self._before[number] = rows.copy()
            self.kept[number] = (rows, rows)
            return rows
        with mx.autograd.pause():
            zeros = mx.nd.zeros(rows.shape, ctx=rows.ctx, dtype=rows.dtype)
            zeros = zeros.as_np_ndarray() if isinstance(rows, mx.np.ndarray) else zeros
            zeros.attach_grad()
        gone_on = rows + zeros
        with mx.autograd.pause():
            self._before[number] = gone_on.copy()
        self.kept[number] = (zeros, gone_on)
        return gone_on


class _Tables:
    """The paths of a model's tables, told by where their values lie: an array handed out is often not the parameter's own."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self._parts = parts
        self._known: dict[tuple[int, tuple[int, ...]], str] = {}

    def path(self, table: Any) -> str:
        """The path of the table's owner. Of several owners an embedding has it, or else the first."""
        if table.stype != "default":
            return UNNAMED_TABLE
        key = (_memory(table), table.shape)
        if key not in self._known:
            self._learn(table.shape)  # once more each time: parameters may be initialised by the forward pass itself
        return self._known.get(key, UNNAMED_TABLE)

    def _learn(self, shape: tuple[int, ...]) -> None:
        for embeddings_only in (True, False):
            for number, part in enumerate(self._parts):
                prefix = f"{number}." if len(self._parts) > 1 else ""
                for path, parameter in _parameters(part, prefix, embeddings_only):
                    if parameter.shape == shape and parameter._stype == "default":
                        for array in parameter._data or ():
                            self._known.setdefault((_memory(array), shape), path)


def _parameters(block: Any, prefix: str, embeddings_only: bool) -> Iterator[tuple[str, Any]]:
    """Each parameter with its path: that of its block where it is called `weight`."""
    gluon = import_mxnet().gluon
    if not embeddings_only or isinstance(block, (gluon.nn.Embedding, gluon.contrib.nn.SparseEmbedding)):
        owned = dict(block._reg_params)
        spelled = {id(parameter) for parameter in owned.values()}
        # Those that no attribute holds, as in a list of them, have their own name.
        owned |= {p.name.removeprefix(block.prefix): p for p in block.params.values() if id(p) not in spelled}
        for name, parameter in owned.items():
            yield (prefix.removesuffix(".") if name == "weight" and prefix else prefix + name), parameter
    for name, child in block._children.items():
        yield from _parameters(child, f"{prefix}{name}.", embeddings_only)


def _memory(array: Any) -> int:
    base = import_mxnet().base
    address = ctypes.c_void_p()
    base.check_call(base._LIB.MXNDArrayGetData(array.handle, ctypes.byref(address)))
    return int(address.value or 0)


def _whole(path: str, indices: np.ndarray) -> np.ndarray:
    """MXNet truncates indices that are no whole numbers, and takes NaN for 0."""
    whole = whole_numbers(indices)
    if whole is None:
        raise BatchError(
            f"the model looks up table {path!r} by indices of dtype {indices.dtype} that are not whole numbers, exactly "
            "represented, and MXNet would round them in silence: expected integers; cast the ids to int32"
        )
    return whole


def _counted_back(indices: np.ndarray, rows: int) -> np.ndarray:
    """Indexing counts negative indices from the end, as NumPy's."""
    return np.where((indices < 0) & (indices >= -rows), indices + rows, indices)
