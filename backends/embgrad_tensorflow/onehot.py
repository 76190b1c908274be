"""Follow one-hot rows through a forward pass to the product with a table, which looks those rows up."""

from __future__ import annotations

import re
import weakref
from typing import Any, Final, Generic, TypeVar

import numpy as np

from embgrad_tensorflow.operations import MAKING, PRODUCTS

__all__ = ["ByTensor", "OneHots", "attribute", "is_identity"]

#: The equations of a product of rows and a table, by whether the table comes first.
EINSUMS: Final = {
    False: re.compile(
        r"(?P<rows>(\.\.\.)?[a-zA-Z]*)(?P<depth>[a-zA-Z]),(?P=depth)(?P<dim>[a-zA-Z])->(?P=rows)(?P=dim)"
    ),
    True: re.compile(r"(?P<depth>[a-zA-Z])(?P<dim>[a-zA-Z]),(?P<rows>(\.\.\.)?[a-zA-Z]*)(?P=depth)->(?P=rows)(?P=dim)"),
}


Known = TypeVar("Known")


class ByTensor(Generic[Known]):
    """A mapping by tensor. A tensor that takes the memory of a freed one is another key."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Any], Known]] = {}

    def __setitem__(self, tensor: Any, known: Known) -> None:
        self._known[id(tensor)] = (weakref.ref(tensor), known)

    def get(self, tensor: Any) -> Known | None:
        """Return the value of a tensor; None where there is none."""
        entry = self._known.get(id(tensor))
        return entry[1] if entry is not None and entry[0]() is tensor else None

    def forget(self, tensor: Any) -> None:
        """Remove the value of a tensor."""
        self._known.pop(id(tensor), None)


class OneHots:
    """The tensors of a forward pass that hold one-hot rows, with the indices of the ones."""

    def __init__(self) -> None:
        self._known: ByTensor[Any] = ByTensor()

    def follow(self, operation: str, inputs: Any, attrs: Any, outputs: Any) -> None:
        """Record an operation that creates one-hot rows, or preserves them."""
        if operation in MAKING:
            indices = _one_hot_indices(inputs, attrs) if operation == "OneHot" else _compare_indices(inputs)
        else:
            indices = self.indices(inputs[0])
            if indices is not None and operation.startswith("Select"):
                indices = indices if _all_equal(inputs[1], 1) and _all_equal(inputs[2], 0) else None
            if indices is not None and operation == "Reshape":
                shape = tuple(outputs[0].shape)
                indices = indices.reshape(shape[:-1]) if shape[-1:] == tuple(inputs[0].shape)[-1:] else None
            if indices is not None and operation == "Transpose":
                indices = indices if np.array_equal(inputs[1], range(indices.ndim + 1)) else None
        if indices is not None:
            self.record(outputs[0], indices)

    def look_up(self, operation: str, inputs: Any, attrs: Any) -> tuple[Any, Any] | None:
        """Return the table and the rows that a product looks up in it, in the order of its result's; None where it is none."""
        if len(inputs) != 2 or any(attribute(attrs, name) for name in PRODUCTS[operation]):
            return None
        rows, table = inputs
        if operation == "Einsum":
            swapped = _einsum(attribute(attrs, "equation"))
            if swapped is None:
                return None
            rows, table = (table, rows) if swapped else (rows, table)
        indices = self.indices(rows)
        if indices is None or len(table.shape) != 2 or not table.dtype.is_floating:
            return None
        return table, indices

    def record(self, tensor: Any, indices: Any) -> None:
        """Record a tensor of one-hot rows, with the places of the ones."""
        self._known[tensor] = indices

    def indices(self, tensor: Any) -> Any:
        """Return the places of the ones in a tensor of one-hot rows, or None."""
        return self._known.get(tensor)


def _one_hot_indices(inputs: Any, attrs: Any) -> np.ndarray | None:
    """Return the places of the ones, where each row of the result is of zeros and a single one."""
    indices, _, on, off = inputs
    axis = attribute(attrs, "axis")
    if (
        (axis is not None and int(axis) not in (-1, len(indices.shape)))
        or not _all_equal(on, 1)
        or not _all_equal(off, 0)
    ):
        return None
    positions = np.asarray(indices)
    # a negative index makes a row of zeros, by which an author omits a row
    return None if (positions < 0).any() else positions


def _compare_indices(inputs: Any) -> np.ndarray | None:
    """Return the places of the ones in a comparison of whole numbers with 0, 1, 2, … on the last axis."""
    for column, numbers in (inputs, inputs[::-1]):
        depth = numbers.shape[-1] if numbers.shape.rank else 0
        if not (
            column.dtype.is_integer
            and column.shape.rank
            and column.shape[-1] == 1
            and 1 < depth == numbers.shape.num_elements()
        ):
            continue
        positions = np.asarray(column)[..., 0]
        if numbers.shape.rank > column.shape.rank or not np.array_equal(np.ravel(numbers), np.arange(depth)):
            continue
        return positions if bool(((positions >= 0) & (positions < depth)).all()) else None
    return None


def _all_equal(tensor: Any, value: int) -> bool:
    return bool((np.asarray(tensor) == value).all())


def is_identity(table: Any) -> bool:
    """Return whether a matrix is the identity, whose rows are one-hot."""
    rows, columns = table.shape
    return bool(rows == columns > 1 and np.array_equal(np.asarray(table), np.eye(rows)))


def _einsum(equation: Any) -> bool | None:
    """Return whether the table comes first in a product of rows and a table; None for another product."""
    text = (equation.decode() if isinstance(equation, bytes) else str(equation)).replace(" ", "")
    for swapped, pattern in EINSUMS.items():
        match = pattern.fullmatch(text)
        if match is not None:
            labels = "".join(match.group("rows", "depth", "dim")).replace("...", "")
            return swapped if len(set(labels)) == len(labels) else None
    return None


def attribute(attrs: Any, name: str) -> Any:
    """Return an operation's attribute, from the names and values in turn that op callbacks receive; None if it is absent."""
    return attrs[attrs.index(name) + 1] if name in attrs else None
