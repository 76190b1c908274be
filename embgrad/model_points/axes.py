"""Convert a point's tensor from the model's axes to those that users see, (example, position, dim) where possible, and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from embgrad.errors import UnsupportedError
from embgrad.inputs.batch import TokenBatch
from embgrad.model_points.points import Layout, Lookup

__all__ = ["Arrangement", "Located", "axis_of_examples", "axis_of_positions", "of_lookup", "of_module"]


@dataclass(frozen=True)
class Arrangement:
    """The relation between a point's tensor in the model's axes and the array that users see.

    Attributes:
        native: the tensor's shape in the model.
        ids: the ids that belong to the tensor, read-only: the lookup's own indices, or else the batch's ids.
        is_batch: whether the first two axes that users see are the batch's examples and positions.
        layout: the layout of a lookup's indices or of a sequence of hidden states; None where the axes stay as they are.
        shared: whether all examples share one tensor, which users see repeated for each example.
        in_order: False where the model takes the examples or positions in another order than the batch's, so that nothing shows
            which of them the tensor's entries belong to.
        positions: the tensor's axis that holds the positions, which are the second axis that users see.
    """

    native: tuple[int, ...]
    shape: tuple[int, ...]
    ids: np.ndarray
    is_batch: bool
    layout: Layout | None = None
    shared: bool = False
    in_order: bool = True
    positions: int = 1

    def to_user_axes(self, tensor: np.ndarray) -> np.ndarray:
        """Return the tensor in the axes that users see; a shared tensor is repeated (as a broadcast view) for each example."""
        if self.shared:
            return np.broadcast_to(tensor.reshape(self.shape[1:]), self.shape)
        if self.positions != 1:
            return np.moveaxis(tensor, self.positions, 1)
        if self.layout is None or (tensor.shape == self.shape and self.is_whole and not self.layout.transposed):
            return tensor
        return self.layout.example_first(tensor, self.shape[2:])

    def to_native_axes(self, array: np.ndarray, rest: np.ndarray | None = None) -> np.ndarray:
        """Return an array of the users' axes in the tensor's own axes: the inverse of `to_user_axes`.

        Args:
            rest: an array in the tensor's own axes, from which entries are taken that users do not see; None for zeros.
        """
        if self.positions != 1:
            return np.moveaxis(array, 1, self.positions).reshape(self.native)
        if self.layout is None:
            return array.reshape(self.native)
        if not self.is_whole:
            return self.layout.native(array, np.zeros(self.native, array.dtype) if rest is None else rest)
        transposed = np.swapaxes(array, 0, 1) if self.layout.transposed else array
        return transposed.reshape(self.native)

    @property
    def is_whole(self) -> bool:
        """Return whether users see all of the tensor, in an order that its shape shows."""
        return self.layout is None or self.layout.gather is None

    def for_batch(self, count: int, batch: TokenBatch) -> Arrangement | None:
        """Return the arrangement of the same tensor with more examples; None where this arrangement does not determine it.

        Args:
            batch: the batch with more examples and equally many positions.
        """
        examples, positions = batch.shape
        first, rest = self.native[:2], self.native[2:]
        if not self.is_whole or not self.in_order:
            return None
        if self.shared:
            native = self.native
        elif first == (count, positions):
            native = (examples, positions, *rest)
        elif first == (positions, count):
            native = (positions, examples, *rest)
        elif self.layout is not None and self.native[0] == count * positions:
            native = (examples * positions, *self.native[1:])
        else:
            return None
        layout = None if self.layout is None else Layout(batch.shape, self.layout.transposed)
        shape = (*batch.shape, *self.shape[2:]) if self.is_batch else native
        return Arrangement(native, shape, batch.ids, self.is_batch, layout, self.shared)

    def is_like(self, other: Arrangement) -> bool:
        """Return whether arrays for the other arrangement fit this one."""
        if not (self.is_whole and other.is_whole):
            return False
        mine, theirs = (
            (a.native, a.shape, a.shared, a.in_order, a.layout is not None and a.layout.transposed)
            for a in (self, other)
        )
        return mine == theirs

    @property
    def keeps_axes(self) -> bool:
        """Return whether users see the tensor's own axes, whatever the number of examples."""
        return self.layout is None and not self.shared

    @property
    def editable(self) -> tuple[int, ...]:
        """The shape in which users may give values: the shape that they see, or one example's for a shared tensor."""
        return self.shape[1:] if self.shared else self.shape


@dataclass(frozen=True)
class Located:
    """A point that a name means, as a forward pass reached it.

    Attributes:
        key: the key of the point, which no other point has.
        lookup: the lookup at the point; None at a module.
        by_role: whether the name is a role.
    """

    key: str
    arrangement: Arrangement
    lookup: Lookup | None
    by_role: bool


def of_lookup(
    name: str,
    lookup: Lookup,
    batch: TokenBatch,
    example_axis: int | None = None,
    *,
    by_role: bool,
    in_order: bool = True,
) -> Arrangement:
    """Return the arrangement of a lookup's output.

    Args:
        example_axis: which of the indices' two axes holds the examples, where both axes are equally long; else None.
        by_role: whether users see the point as (example, position, dim), as they do for roles.
        in_order: whether the model takes the examples and positions in the batch's order.
    """
    if lookup.layout is not None:
        shape = (*lookup.layout.shape, lookup.dim)
        return Arrangement(lookup.shape, shape, batch.ids, is_batch=True, layout=lookup.layout)
    examples, positions = batch.shape
    if by_role and not in_order and lookup.indices.size != positions:
        raise UnsupportedError(_in_other_order(name, str(lookup)))
    direct = lookup.indices.shape == batch.shape and example_axis != 1
    if not by_role or direct:
        return Arrangement(lookup.shape, lookup.shape, lookup.indices, is_batch=direct and in_order, in_order=in_order)
    if lookup.indices.size == positions:
        ids = np.broadcast_to(lookup.indices.reshape(1, positions), batch.shape)
        return Arrangement(lookup.shape, (*batch.shape, lookup.dim), ids, is_batch=True, shared=True)
    if lookup.indices.shape == (positions, examples):
        layout = Layout(batch.shape, transposed=True)
        return Arrangement(lookup.shape, (*batch.shape, lookup.dim), lookup.indices.T, is_batch=True, layout=layout)
    if lookup.indices.shape == (batch.ids.size,):  # flat indices, one example after another
        layout = Layout(batch.shape, transposed=False)
        return Arrangement(lookup.shape, (*batch.shape, lookup.dim), layout.indices(lookup.indices), True, layout)
    raise UnsupportedError(
        f"the point {name!r} is {lookup}: expected an index for each of {examples} examples and {positions} positions; name "
        f"the table by its path, {lookup.path!r}, to have its gradient in the lookup's own axes"
    )


def of_module(
    name: str,
    shape: Sequence[int],
    batch: TokenBatch,
    example_axis: int | None,
    *,
    by_role: bool,
    in_order: bool = True,
) -> Arrangement:
    """Return the arrangement of a module's input or output.

    Args:
        shape: the tensor's shape in the model.
        example_axis: which of the first two axes holds the examples, where both axes are equally long; else None.
    """
    native = tuple(map(int, shape))
    if not in_order and by_role:
        raise UnsupportedError(_in_other_order(name, f"of shape {native}"))
    if not in_order:
        return Arrangement(native, native, batch.ids, is_batch=False, in_order=False)
    examples, positions = batch.shape
    direct = native[:2] == (examples, positions) and example_axis != 1
    transposed = native[:2] == (positions, examples) and not direct and len(native) > 2
    if by_role and (len(native) != 3 or not (direct or transposed)):
        raise UnsupportedError(
            f"the point {name!r} has the shape {native}: expected (example, position, dim) with {examples} examples and "
            f"{positions} positions; name it by its path, to have its gradient in the tensor's own axes"
        )
    if not transposed:
        # In (example, head, position, position) the number of heads can equal the number of positions by chance.
        determined = len(native) == 3 or (len(native) > 3 and positions not in native[2:])
        return Arrangement(native, native, batch.ids, is_batch=direct and determined)
    layout = Layout(batch.shape, transposed=True)
    return Arrangement(native, (*batch.shape, *native[2:]), batch.ids, is_batch=True, layout=layout)


def _in_other_order(name: str, what: str) -> str:
    return (
        f"the point {name!r} is {what}, and the model takes the batch's examples or positions in an order of its own, so that "
        "nothing shows which of them each row belongs to. Pass the batch in the model's order, use 'word' where the model has "
        "it, or name the point by its path, to have its gradient in the model's order"
    )


def axis_of_examples(shape: Sequence[int], examples: int, positions: int) -> int | None:
    """Return which of a tensor's first two axes is the examples, in a batch with other numbers of examples and positions.

    None is for a tensor whose first two axes are neither (example, position) nor (position, example).
    """
    pair = tuple(shape[:2])
    if pair == (examples, positions):
        return 0
    return 1 if pair == (positions, examples) else None


def axis_of_positions(shape: Sequence[int], examples: int, positions: int) -> int | None:
    """Return the axis of positions that are not the second axis of a module's tensor; None for all others.

    Convolutions have (example, feature, …, position), and heads may stand before positions.
    """
    if len(shape) < 3 or shape[0] != examples or list(shape[1:]).count(positions) != 1:
        return None
    return next((axis for axis in {2, len(shape) - 1} if shape[axis] == positions), None)
