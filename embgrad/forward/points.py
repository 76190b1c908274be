"""What can be named in `at`: lookups in tables, and the inputs and outputs of modules."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

__all__ = [
    "INPUT",
    "OUTPUT",
    "UNNAMED_TABLE",
    "WORD",
    "Layout",
    "Lookup",
    "ModuleCall",
    "Name",
    "Point",
    "layout_is_open",
    "layout_of",
    "split_name",
]

#: The role of the lookup whose indices are the batch's ids.
WORD: Final = "word"

#: The path of a table that is no parameter of the model, such as one computed in the forward pass.
UNNAMED_TABLE: Final = "lookup"

#: The sides of a module: what it was given, and what it gave.
INPUT: Final = "input"
OUTPUT: Final = "output"


class Name(NamedTuple):
    """A point's name in its parts: `path`, `path#occurrence`, `path:input#occurrence`.

    Attributes:
        path: an attribute path, or a role.
        side: "input" or "output" of a module; None where the name does not say.
        occurrence: how many lookups or calls of the same path came before; None where the name does not say.
    """

    path: str
    side: str | None
    occurrence: int | None


@functools.lru_cache(maxsize=1024)
def split_name(name: str) -> Name:
    """`"table#1"` as ("table", None, 1), and `"layer:input"` as ("layer", "input", None)."""
    path, mark, number = name.rpartition("#")
    counted = bool(mark) and number.isascii() and number.isdigit()
    rest, occurrence = (path, int(number)) if counted else (name, None)
    path, mark, side = rest.rpartition(":")
    return Name(path, side, occurrence) if mark and side in (INPUT, OUTPUT) else Name(rest, None, occurrence)


@dataclass(frozen=True)
class Layout:
    """How a lookup's indices lie in relation to the batch's ids.

    Attributes:
        shape: the ids' shape, (example, position).
        transposed: position comes before example, as in time-major recurrent nets.
    """

    shape: tuple[int, int]
    transposed: bool

    def indices(self, array: np.ndarray) -> np.ndarray:
        """The lookup's indices as (example, position)."""
        return self._example_first(array, ())

    def vectors(self, array: np.ndarray) -> np.ndarray:
        """The lookup's output, or its gradient, as (example, position, dim)."""
        return self._example_first(array, array.shape[-1:])

    def _example_first(self, array: np.ndarray, trailing: tuple[int, ...]) -> np.ndarray:
        examples, positions = self.shape
        first, second = (positions, examples) if self.transposed else (examples, positions)
        apart = np.reshape(array, (first, second, *trailing))
        return np.swapaxes(apart, 0, 1) if self.transposed else apart


def layout_of(indices: np.ndarray, ids: np.ndarray) -> Layout | None:
    """The layout under which the indices are the ids, or None where they are others.

    Takes the ids as they are or transposed, in any shape that keeps their order (flattened, say).
    """
    if indices.size != ids.size or (indices.size and indices.item(0) != ids.item(0)):
        return None
    straight = are_equal(indices.ravel(), ids.ravel())
    if straight and indices.shape == ids.shape:
        return Layout((ids.shape[0], ids.shape[1]), transposed=False)
    turned = are_equal(indices.ravel(), ids.T.ravel())
    if straight and turned:  # as with equal ids everywhere: the shape decides
        straight = indices.shape != ids.shape[::-1] or indices.shape == ids.shape
    if straight or turned:
        return Layout((ids.shape[0], ids.shape[1]), transposed=not straight)
    return None


def are_equal(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two arrays of whole numbers are the same. Most are of one type: their bytes are compared in a tenth of the time."""
    if one.dtype == other.dtype:
        return one.shape == other.shape and one.tobytes() == other.tobytes()
    return np.array_equal(one, other)


def layout_is_open(indices: np.ndarray, ids: np.ndarray) -> bool:
    """Whether the indices are the ids both as they are and transposed, and their shape does not decide between the two.

    So with equal ids everywhere, or any symmetric square of them: only other ids show which axis is the examples.
    """
    if 1 in ids.shape or indices.size != ids.size:
        return False
    decided = ids.shape[0] != ids.shape[1] and indices.shape in (ids.shape, ids.shape[::-1])
    flat = indices.ravel()
    return not decided and are_equal(flat, ids.ravel()) and are_equal(flat, ids.T.ravel())


@dataclass(frozen=True)
class Lookup:
    """One lookup in a table, as it was seen in a forward pass.

    Attributes:
        path: the table's attribute path in the model, or `UNNAMED_TABLE`.
        occurrence: how many lookups in the same table came before it.
        indices: the rows looked up, int64, in the framework's own shape.
        rows: the number of the table's rows.
        dim: the length of a row.
        layout: how the indices are the batch's ids; None where they are not.
        padding: the row that the model declares to be padding (`padding_idx`, `mask_zero`); None where it declares none.
        parent: the number of the module's call in which it was made; None for none.
        token: stands for the tensor that came out; None where that was not told.
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

    @property
    def key(self) -> str:
        """The name that means this lookup and nothing else: its path with its occurrence."""
        return f"{self.path}#{self.occurrence}"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of what was looked up."""
        return (*self.indices.shape, self.dim)

    def __str__(self) -> str:
        return f"{self.key} ({self.rows} rows × {self.dim}, indices of shape {self.indices.shape})"


@dataclass
class ModuleCall:
    """One call of a module, as it was seen in a forward pass.

    Attributes:
        path: the module's attribute path in the model.
        occurrence: how many calls of the same module came before it.
        kind: what modules of one sort have in common, such as their class's name.
        parent: the number of the call in which it was made; None for the outermost.
        also: further names of the module.
        source: stands for the first floating tensor that it was given; None for none.
        source_shape: that tensor's shape.
        token: stands for the first floating tensor in what it gave; None for none.
        token_shape: that tensor's shape.
        ended: how many calls ended before it; -1 where it has not ended.
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
        """The name that means this side of this call and nothing else."""
        return f"{self.path}:{side}#{self.occurrence}"


@dataclass(frozen=True)
class Point:
    """A point that can be named in `at`.

    Attributes:
        name: its native name, with the occurrence.
        roles: its roles, such as "word" or "layer.0", "layer.-1"; often none.
        shape: the shape of its tensor, in the model's own axes.
        lookup: the lookup that is made there; None at a module.
        key: the name that means this point and no other.
        also: further paths that lead there.
        listed: whether `embgrad.points` tells of it: inputs of modules are named in `at`, but hardly ever asked for.
        time: when its tensor was there, counted in beginnings and ends of calls: what is there later is not in its making.
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
        """The side of the module; None at a lookup."""
        return split_name(self.key).side

    def __str__(self) -> str:
        return str(self.lookup) if self.lookup is not None else f"{self.name} (shape {self.shape})"
