"""Finds the lookups of a forward pass by watching its operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from embgrad.arrays import whole_numbers
from embgrad.errors import BatchError
from embgrad.points import UNNAMED_TABLE, layout_of
from embgrad_gluon.importing import import_mxnet
from embgrad_gluon.operators import Handler, Operation
from embgrad_gluon.tap import Taps
from embgrad_gluon.walk import is_recorded, memory, tables

__all__ = ["HINT", "Lookups", "Tables"]

#: What is not seen, for messages.
HINT = (
    "In Gluon a lookup is Embedding, take along the first axis, or a table indexed by an array, in the thread of the call; "
    "a product with one-hot vectors is none."
)


class Lookups:
    """The lookups of one forward pass.

    Args:
        tables: the model's tables.
        taps: where they are taken down, and what goes on in place of what was looked up.
        cut: cut what is kept hold of off its table, so that nothing below it is differentiated.

    Attributes:
        tables: by the key of each lookup that is kept hold of the table.
    """

    def __init__(self, tables: Tables, taps: Taps, *, cut: bool) -> None:
        self.tables: dict[str, Any] = {}
        self._known = tables
        self._taps = taps
        self._ids = taps.watch.batch.ids
        self._cut = cut

    def handlers(self) -> dict[str, Handler]:
        """By the operators' names."""
        return {
            "Embedding": self._embedding,
            "_contrib_SparseEmbedding": self._embedding,
            "take": self._take,
            "gather_nd": self._gather,
        }

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
        if self._known.path(table, table.shape) == UNNAMED_TABLE and not self._are_ids(indices):
            return proceed()
        return self._look_up(table, indices, proceed)

    def _are_ids(self, indices: np.ndarray) -> bool:
        return layout_of(indices, self._ids) is not None

    def _look_up(self, table: Any, indices: np.ndarray, proceed: Callable[[], Any]) -> Any:
        shape = table.shape
        path, watch = self._known.path(table, shape), self._taps.watch
        key = watch.see(path, _whole(path, indices), *shape)
        rows = proceed()
        watch.gave(rows)
        if key is None:
            return self._as_activations(rows)
        self.tables[key] = table
        # The rows of a table that the model computed may have another point below them: they keep their history.
        return self._taps.at(key, rows, cut=self._cut and path != UNNAMED_TABLE)

    def _as_activations(self, rows: Any) -> Any:
        """What a frozen table gave, marked where blocks are watched: a SymbolBlock's points are what has a gradient there."""
        watch = self._taps.watch
        if self._cut and (watch.everything or watch.modules) and not is_recorded(rows):
            with import_mxnet().autograd.pause():
                rows.attach_grad()
        return rows


class Tables:
    """The paths of a model's tables, told by where their values lie: an array handed out is often not the parameter's own."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self._parts = parts
        self._known: dict[tuple[int, tuple[int, ...]], str] = {}
        self._parameters: list[tuple[str, Any]] | None = None

    def path(self, table: Any, shape: tuple[int, ...]) -> str:
        """The path of the table's owner. Of several owners an embedding has it, or else the first."""
        if table.stype != "default":
            return UNNAMED_TABLE
        key = (memory(table), shape)
        if key not in self._known:
            self._learn(shape)  # once more each time: parameters may be initialised by the forward pass itself
        return self._known.get(key, UNNAMED_TABLE)

    def _learn(self, shape: tuple[int, ...]) -> None:
        if self._parameters is None:  # not before: a model may make its blocks when it is first called
            self._parameters = tables(self._parts)
        for path, parameter in self._parameters:
            for array in parameter._data or ():
                if array.shape == shape and array.stype == "default":
                    self._known.setdefault((memory(array), shape), path)


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
