"""Finds the table behind an assertion of a model's own on its ids, which fails before the lookup would."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import tensorflow as tf

from embgrad_tensorflow.walk import Tables, handle_of, kind_of, walk

__all__ = ["COMPARISONS", "Comparisons", "Failed"]

#: The operations that compare numbers, with the place of what is to be smaller, and what is to be added to the other so that
#: it is a number of rows.
COMPARISONS: Final = {"Less": (0, 0), "LessEqual": (0, 1), "Greater": (1, 0), "GreaterEqual": (1, 1)}

#: The files in which TensorFlow keeps its assertions, and the operation that they are in a graph.
CHECKS: Final = ("check_ops.py", "control_flow_assert.py")
ASSERTION: Final = ("Assert", b"Assert")


class Failed(NamedTuple):
    """A lookup that was not made.

    Attributes:
        handle: the variable of the table; None where several have as many rows.
        indices: what was to be looked up.
        shape: the table's.
    """

    handle: Any
    indices: np.ndarray
    shape: tuple[int, ...]


class Comparisons:
    """The comparisons of whole numbers with a single one that a forward pass makes, as assertions on ids do."""

    def __init__(self) -> None:
        self._made: list[tuple[Any, Any, int]] = []

    def take_down(self, name: str, inputs: Sequence[Any]) -> None:
        """Take one down."""
        place, more = COMPARISONS[name]
        smaller, larger = inputs[place], inputs[1 - place]
        if smaller.dtype.is_integer and larger.shape.rank == 0:
            self._made.append((smaller, larger, more))

    def failed(self, error: BaseException | None, tables: Tables, ids: np.ndarray) -> Iterator[Failed]:
        """The lookups that an assertion has kept the model from, because an index is outside a table.

        Args:
            error: what was raised.
            tables: the model's.
            ids: the batch's.
        """
        running = _running(error)
        for smaller, larger, more in reversed(self._made if running is not None else ()):
            indices, rows = np.asarray(smaller), int(larger) + more
            fitting = tables.with_rows(rows)
            if not fitting or not (indices >= rows).any():
                continue
            if indices.size == 1 and indices.max() == ids.max():  # the largest one stands for all
                indices = ids
            found = _nearest(fitting, running or ())
            handle = handle_of(found[0]) if len(found) == 1 else None
            yield Failed(handle, indices, tuple(map(int, found[0].shape)))


def _running(error: BaseException | None) -> list[Any] | None:
    """The objects whose methods ran when an assertion failed, the innermost first; None where none did."""
    while error is not None:
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        if isinstance(error, tf.errors.InvalidArgumentError) and any(map(_asserts, frames)):
            return [frame.f_locals["self"] for frame in reversed(frames) if "self" in frame.f_locals]
        error = error.__cause__ or error.__context__
    return None


def _asserts(frame: Any) -> bool:
    operation = frame.f_locals.get("op_name") if frame.f_code.co_name == "quick_execute" else None
    return os.path.basename(frame.f_code.co_filename) in CHECKS or operation in ASSERTION


def _nearest(tables: Sequence[Any], running: Sequence[Any]) -> Sequence[Any]:
    """Those of the tables that the innermost object holds that holds any; of several objects none may."""
    for module in running:
        if kind_of(type(module)) == "module":
            held = {id(handle_of(node.value)) for node in walk([module]) if node.kind == "variable"}
            found = [table for table in tables if id(handle_of(table)) in held]
            if found:
                return found
    return tables
