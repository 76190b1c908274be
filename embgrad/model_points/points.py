"""The points that `at` can name: lookups in tables, and the inputs and outputs of modules."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

import numpy as np

__all__ = [
    "INPUT",
    "OUTPUT",
    "PRODUCT",
    "UNNAMED_TABLE",
    "WORD",
    "Layout",
    "Lookup",
    "ModuleCall",
    "Name",
    "OtherUse",
    "Point",
    "Way",
    "could_be_positions",
    "layout_is_open",
    "layout_of",
    "may_hold",
    "reads_both_ways",
    "split_name",
]

#: The role of the lookup whose indices are the batch's ids.
WORD: Final = "word"

#: The path of a table that is not a parameter of the model, such as one computed during the forward pass.
UNNAMED_TABLE: Final = "lookup"

#: The kind of a call that is a product with a weight of no module, recorded as a module's call by the weight's name.
PRODUCT: Final = "product"

#: The two sides of a module at which there are points: its first floating input and its first floating output.
INPUT: Final = "input"
OUTPUT: Final = "output"


#: The ways in which ids are used otherwise than in a lookup, see `OtherUse`.
Way = Literal["selection", "product", "function", "distinct"]


class Name(NamedTuple):
    """A point's name split into its fields: `path`, `path#occurrence` or `path:input#occurrence`.

    Attributes:
        path: an attribute path, or a role.
        side: "input" or "output" of a module; None where the name has no side.
        occurrence: how many lookups or calls of the same path came before; None where the name has no number.
    """

    path: str
    side: str | None
    occurrence: int | None


@functools.lru_cache(maxsize=1024)
def split_name(name: str) -> Name:
    """Split a point's name: `"table#1"` becomes ("table", None, 1), `"layer:input"` becomes ("layer", "input", None)."""
    path, mark, number = name.rpartition("#")
    counted = bool(mark) and number.isascii() and number.isdigit()
    rest, occurrence = (path, int(number)) if counted else (name, None)
    path, mark, side = rest.rpartition(":")
    return Name(path, side, occurrence) if mark and side in (INPUT, OUTPUT) else Name(rest, None, occurrence)


@dataclass(frozen=True)
class Layout:
    """The order in which a lookup's indices hold the batch's ids.

    Attributes:
        transposed: whether position comes before example, as in time-major recurrent nets.
        gather: for each example and position the number of its index, counted through the flat indices, and -1 where the ids'
            padding is not looked up; None where the indices are the ids or their transpose.
        determined: whether the order is known. The indices may hold the ids in another order, or more than the ids; a probe
            then shows the order, see `embgrad.model_points.gather`.
    """

    shape: tuple[int, int]
    transposed: bool
    gather: np.ndarray | None = field(default=None, compare=False, repr=False)
    determined: bool = True

    @property
    def is_in_order(self) -> bool:
        """Return whether the lookup takes the examples, and each example's positions, in the batch's order."""
        if self.gather is None:
            return self.determined
        example_first = self.gather[self.gather >= 0]
        position_first = self.gather.T[self.gather.T >= 0]
        return any(bool((np.diff(order) > 0).all()) for order in (example_first, position_first))

    def indices(self, array: np.ndarray) -> np.ndarray:
        """Return the lookup's indices rearranged as (example, position); 0 where padding is not looked up."""
        return self.example_first(array, ())

    def vectors(self, array: np.ndarray) -> np.ndarray:
        """Return the lookup's output, or its gradient, rearranged as (example, position, dim); 0 where nothing is looked up."""
        return self.example_first(array, array.shape[-1:])

    def example_first(self, array: np.ndarray, trailing: tuple[int, ...]) -> np.ndarray:
        """Return an array with an entry of the shape `trailing` for each index, rearranged as (example, position, …)."""
        if self.gather is not None:
            gathered: np.ndarray = np.reshape(array, (-1, *trailing))[self.gather]
            gathered[self.gather < 0] = 0
            return gathered
        examples, positions = self.shape
        first, second = (positions, examples) if self.transposed else (examples, positions)
        separate = np.reshape(array, (first, second, *trailing))
        return np.swapaxes(separate, 0, 1) if self.transposed else separate

    def native(self, array: np.ndarray, rest: np.ndarray) -> np.ndarray:
        """Return an array (example, position, …) in the indices' own order: the inverse of `example_first`.

        Args:
            rest: an array in the indices' own order, from which entries are taken that are not the batch's.
        """
        if self.gather is None:
            return np.reshape(np.swapaxes(array, 0, 1) if self.transposed else array, rest.shape)
        looked_up = self.gather >= 0
        filled = np.array(rest, dtype=np.result_type(array, rest))
        filled.reshape(-1, *array.shape[2:])[self.gather[looked_up]] = array[looked_up]
        return filled


def may_hold(indices: np.ndarray, ids: np.ndarray, real: np.ndarray) -> bool:
    """Return whether the indices hold each of the ids at real positions, as often as it occurs there, in any order."""
    needed = ids[real]
    if not needed.size or indices.size < needed.size or indices.max() < needed.max():
        return False
    values, counts = np.unique(needed, return_counts=True)
    ordered = np.sort(indices, axis=None)
    return bool((np.searchsorted(ordered, values, "right") - np.searchsorted(ordered, values) >= counts).all())


def layout_of(indices: np.ndarray, ids: np.ndarray) -> Layout | None:
    """Return the layout under which the indices equal the ids, or None where they differ.

    The indices may be the ids or their transpose, in any shape that keeps their order (flattened, for example).
    """
    if indices.size != ids.size or (indices.size and indices.item(0) != ids.item(0)):
        return None
    direct = are_equal(indices.ravel(), ids.ravel())
    if direct and indices.shape == ids.shape:
        return Layout((ids.shape[0], ids.shape[1]), transposed=False)
    transposed = are_equal(indices.ravel(), ids.T.ravel())
    if direct and transposed:  # for example, all ids are equal: the shape decides
        direct = indices.shape != ids.shape[::-1] or indices.shape == ids.shape
    if direct or transposed:
        return Layout((ids.shape[0], ids.shape[1]), transposed=not direct)
    return None


def are_equal(left: np.ndarray, right: np.ndarray) -> bool:
    """Return whether two integer arrays are equal.

    Most arrays here share a dtype; comparing their bytes then takes a tenth of the time that `np.array_equal` takes.
    """
    if left.dtype == right.dtype:
        return left.shape == right.shape and left.tobytes() == right.tobytes()
    return np.array_equal(left, right)


def layout_is_open(indices: np.ndarray, ids: np.ndarray) -> bool:
    """Return whether the indices equal both the ids and their transpose, and their shape does not decide between the two.

    This is the case when all ids are equal, or when they form a symmetric matrix. Only a run on other ids shows then which
    axis holds the examples.
    """
    if 1 in ids.shape or indices.size != ids.size:
        return False
    decided = ids.shape[0] != ids.shape[1] and indices.shape in (ids.shape, ids.shape[::-1])
    flat = indices.ravel()
    return not decided and are_equal(flat, ids.ravel()) and are_equal(flat, ids.T.ravel())


def reads_both_ways(ids: np.ndarray, real: np.ndarray) -> bool:
    """Return whether ids stay the same if the examples, or each example's positions or real positions, are reversed.

    Only a run on other ids shows then whether a model reverses them.
    """
    examples, positions = ids.shape
    if examples > 1 and are_equal(ids, ids[::-1]):
        return True
    if positions < 2 or ids.item(0) not in (ids.item(positions - 1), ids.item(max(int(real[0].sum()) - 1, 0))):
        return False
    if are_equal(ids, ids[:, ::-1]):
        return True
    rows = [row[where] for row, where in zip(ids, real, strict=True)]
    return max(map(len, rows)) > 1 and all(are_equal(row, row[::-1]) for row in rows)


def could_be_positions(ids: np.ndarray) -> bool:
    """Return whether ids are small and increase by steps of 0 or 1, as positions and types do."""
    most = ids.shape[1] + 8
    return bool(ids.max() < most and np.isin(np.diff(ids, axis=1), (0, 1)).all())


@dataclass(frozen=True)
class OtherUse:
    """A use of the batch's ids that selects entries of an array, and that is no lookup at which a gradient can be taken.

    Attributes:
        operation: the framework's operation.
        path: the array's attribute path in the model, or `UNNAMED_TABLE`.
        way: "selection" where the ids are indices along the axis, "product" where they are one-hot rows that are multiplied by
            the array, "function" where only the operation knows how it uses both, "distinct" where rows are looked up, but not
            one for each position.
    """

    operation: str
    path: str
    shape: tuple[int, ...]
    dtype: str
    axis: int
    way: Way = "selection"

    @property
    def entries(self) -> int:
        """The number of entries that an id selects."""
        return math.prod(self.shape) // max(self.shape[self.axis], 1)

    @property
    def floating(self) -> bool:
        """Return whether the array holds real or complex numbers, and not whole ones."""
        return "float" in self.dtype or "complex" in self.dtype

    def __str__(self) -> str:
        if self.way == "distinct":
            return (
                f"the rows of the ids in {self.path!r}, of shape {self.shape}, are looked up in another order or number"
            )
        array = f"{self.path!r}, of shape {self.shape} and dtype {self.dtype}"
        how = f" ({self.operation})"
        if self.way == "function":
            return f"they are used inside {self.operation} with {array}, where embgrad sees no lookup"
        if self.way == "product":
            return f"they are one-hot rows of a product{how} with {array}, where embgrad expects a lookup of rows"
        if self.axis != 0:
            return (
                f"they look up entries along axis {self.axis} of {array}, where embgrad expects rows, along axis 0{how}"
            )
        if "float" not in self.dtype:
            return f"they look up rows of {array}, which is not floating point and has no gradient{how}"
        return f"they look up entries of {array}, where embgrad expects rows of a matrix{how}"


@dataclass(frozen=True)
class Lookup:
    """One lookup in a table, as it was recorded in a forward pass.

    Attributes:
        path: the table's attribute path in the model, or `UNNAMED_TABLE`.
        occurrence: how many lookups in the same table came before it.
        indices: the rows looked up, int64, in the framework's own shape.
        rows: the number of rows in the table.
        dim: the length of a row.
        layout: the layout under which the indices are the batch's ids; None where they are not the ids.
        padding: the row that the model declares as padding (`padding_idx`, `mask_zero`); None where it declares none.
        parent: the index of the module call during which the lookup was made; None outside all calls.
        token: a number that identifies the output tensor; None where it was not recorded.
        sliced: whether consecutive rows were sliced off the table, one for each position. Vectors of positions are looked up
            by that, but parts of other matrices may be, too.
        rival: another use of the ids, because of which this lookup is not `word` although its indices are the ids; else None.
    """

    path: str
    occurrence: int
    indices: np.ndarray
    rows: int
    dim: int
    layout: Layout | None
    padding: int | None = None
    parent: int | None = None
    token: int | None = None
    sliced: bool = False
    rival: OtherUse | None = None

    @property
    def key(self) -> str:
        """The name that identifies this lookup uniquely: its path with its occurrence."""
        return f"{self.path}#{self.occurrence}"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the lookup's output."""
        return (*self.indices.shape, self.dim)

    def __str__(self) -> str:
        return f"{self.key} ({self.rows} rows × {self.dim}, indices of shape {self.indices.shape})"


@dataclass
class ModuleCall:
    """One call of a module, as it was recorded in a forward pass.

    Attributes:
        path: the module's attribute path in the model.
        occurrence: how many calls of the same module came before it.
        kind: a name that modules of the same type share, such as their class's name.
        parent: the index of the call during which this one was made; None for the outermost.
        also: further names of the module.
        source: a number that identifies the first floating tensor among its arguments; None where there is none.
        source_shape: that tensor's shape.
        token: a number that identifies the first floating tensor in its result; None where there is none.
        token_shape: that tensor's shape.
        ended: how many calls ended before it; -1 while it has not ended.
    """

    path: str
    occurrence: int
    kind: str
    parent: int | None
    also: tuple[str, ...] = ()
    source: int | None = None
    source_shape: tuple[int, ...] = ()
    token: int | None = None
    token_shape: tuple[int, ...] = ()
    ended: int = -1

    def key(self, side: str) -> str:
        """Return the name that identifies this side of this call uniquely."""
        return f"{self.path}:{side}#{self.occurrence}"


@dataclass(frozen=True)
class Point:
    """A point that can be named in `at`.

    Attributes:
        name: its native name, with the occurrence.
        roles: its roles, such as "word" or "layer.0", "layer.-1"; often empty.
        shape: the shape of its tensor, in the model's own axes.
        lookup: the lookup made at the point; None at a module.
        key: the name that identifies this point uniquely.
        also: further paths of the same point.
        listed: whether `embgrad.points` lists it. Inputs of modules can be named in `at`, but are rarely used.
        time: when its tensor existed, counted in starts and ends of calls. A tensor does not depend on those of later points.
    """

    name: str
    roles: tuple[str, ...]
    shape: tuple[int, ...]
    lookup: Lookup | None = field(default=None, repr=False)
    key: str = field(default="", repr=False)
    also: tuple[str, ...] = field(default=(), repr=False)
    listed: bool = field(default=True, repr=False)
    time: int = field(default=0, repr=False, compare=False)

    @property
    def path(self) -> str:
        """The attribute path of the table's owner, or of the module."""
        return split_name(self.key).path

    @property
    def side(self) -> str | None:
        """The side of the module, "input" or "output"; None at a lookup."""
        return split_name(self.key).side

    def __str__(self) -> str:
        return str(self.lookup) if self.lookup is not None else f"{self.name} (shape {self.shape})"
