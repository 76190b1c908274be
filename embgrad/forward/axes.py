"""Convert a point's tensor from the model's axes to those that users see, (example, position, dim) where possible, and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from embgrad.errors import UnsupportedError
from embgrad.forward.points import Layout, Lookup
from embgrad.inputs.batch import TokenBatch

__all__ = ["Arrangement", "Located", "axis_of_examples", "of_lookup", "of_module"]


@dataclass(frozen=True)
class Arrangement:
    """The relation between a point's tensor in the model's axes and the array that users see.

    Attributes:
        native: the tensor's shape in the model.
        shape: the shape that users see.
        ids: the ids that belong to the tensor, read-only: the lookup's own indices, or else the batch's ids.
        is_batch: whether the first two axes that users see are the batch's examples and positions.
        layout: the layout of a lookup's indices or of a sequence of hidden states; None where the axes stay as they are.
        shared: whether all examples share one tensor, which users see repeated for each example.
    """

    native: tuple[int, ...]
    shape: tuple[int, ...]
    ids: np.ndarray
    is_batch: bool
    layout: Layout | None = None
    shared: bool = False

    def to_user_axes(self, tensor: np.ndarray) -> np.ndarray:
        """Return the tensor in the axes that users see; a shared tensor is repeated (as a broadcast view) for each example."""
        if self.shared:
            return np.broadcast_to(tensor.reshape(self.shape[1:]), self.shape)
        if self.layout is None or (tensor.shape == self.shape and not self.layout.transposed):
            return tensor
        examples, positions = self.layout.shape
        first, second = (positions, examples) if self.layout.transposed else (examples, positions)
        separate = np.reshape(tensor, (first, second, *self.shape[2:]))
        return np.swapaxes(separate, 0, 1) if self.layout.transposed else separate

    def to_native_axes(self, array: np.ndarray) -> np.ndarray:
        """Return an array of the users' axes in the tensor's own axes: the inverse of `to_user_axes`."""
        if self.layout is None:
            return array.reshape(self.native)
        transposed = np.swapaxes(array, 0, 1) if self.layout.transposed else array
        return transposed.reshape(self.native)

    def for_batch(self, count: int, batch: TokenBatch) -> Arrangement | None:
        """Return the arrangement of the same tensor with more examples; None where this arrangement does not determine it.

        Args:
            count: the number of examples of this arrangement.
            batch: the batch with more examples and equally many positions.
        """
        examples, positions = batch.shape
        first, rest = self.native[:2], self.native[2:]
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
        by_batch = self.is_batch or layout is not None
        shape = (*batch.shape, *self.shape[2:]) if by_batch else native
        return Arrangement(native, shape, batch.ids, self.is_batch, layout, self.shared)

    @property
    def keeps_axes(self) -> bool:
        """Whether users see the tensor's own axes, whatever the number of examples."""
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
        arrangement: how the axes of its tensor are arranged.
        lookup: the lookup at the point; None at a module.
        by_role: whether the name is a role.
    """

    key: str
    arrangement: Arrangement
    lookup: Lookup | None
    by_role: bool


def of_lookup(
    name: str, lookup: Lookup, batch: TokenBatch, example_axis: int | None = None, *, by_role: bool
) -> Arrangement:
    """Return the arrangement of a lookup's output.

    Args:
        name: the point's name, for the message.
        lookup: the lookup.
        batch: the batch that the model was run on.
        example_axis: which of the indices' two axes holds the examples, where both axes are equally long; else None.
        by_role: whether users see the point as (example, position, dim), as they do for roles.

    Raises:
        UnsupportedError: the lookup has no index for each example and position.
    """
    if lookup.layout is not None:
        shape = (*lookup.layout.shape, lookup.dim)
        return Arrangement(lookup.shape, shape, batch.ids, is_batch=True, layout=lookup.layout)
    examples, positions = batch.shape
    direct = lookup.indices.shape == batch.shape and example_axis != 1
    if not by_role or direct:
        return Arrangement(lookup.shape, lookup.shape, lookup.indices, is_batch=direct)
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
    name: str, shape: Sequence[int], batch: TokenBatch, example_axis: int | None, *, by_role: bool
) -> Arrangement:
    """Return the arrangement of a module's input or output.

    Args:
        name: the point's name, for the message.
        shape: the tensor's shape in the model.
        batch: the batch that the model was run on.
        example_axis: which of the first two axes holds the examples, where both axes are equally long; else None.
        by_role: see `of_lookup`.

    Raises:
        UnsupportedError: the tensor has no entry for each example and position.
    """
    native = tuple(map(int, shape))
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


def axis_of_examples(shape: Sequence[int], examples: int, positions: int) -> int | None:
    """Return which of a tensor's first two axes is the examples, in a batch with other numbers of examples and positions.

    None is for a tensor whose first two axes are neither (example, position) nor (position, example).
    """
    pair = tuple(shape[:2])
    if pair == (examples, positions):
        return 0
    return 1 if pair == (positions, examples) else None
