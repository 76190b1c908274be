"""Which lookup a name means: lookups are told apart by the indices that they look up, never by their names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from embgrad.batch import TokenBatch
from embgrad.errors import (
    AmbiguousPointError,
    BatchError,
    PointNotReachedError,
    UnknownPointError,
    did_you_mean,
    listed,
)

__all__ = [
    "UNNAMED_TABLE",
    "WORD",
    "Layout",
    "Lookup",
    "LookupWatch",
    "Point",
    "layout_is_open",
    "layout_of",
    "split_occurrence",
]

#: The role of the lookup whose indices are the batch's ids.
WORD = "word"

#: The path of a table that is no parameter of the model, such as one computed in the forward pass.
UNNAMED_TABLE = "lookup"


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
    if indices.size != ids.size:
        return None
    straight = np.array_equal(indices.ravel(), ids.ravel())
    turned = np.array_equal(indices.ravel(), ids.T.ravel())
    if straight and turned:  # as with equal ids everywhere: the shape decides
        straight = indices.shape != ids.shape[::-1] or indices.shape == ids.shape
    if straight or turned:
        return Layout((ids.shape[0], ids.shape[1]), transposed=not straight)
    return None


def layout_is_open(indices: np.ndarray, ids: np.ndarray) -> bool:
    """Whether the indices are the ids both as they are and transposed, and their shape does not decide between the two.

    So with equal ids everywhere, or any symmetric square of them: only other ids show which axis is the examples.
    """
    if 1 in ids.shape or indices.size != ids.size:
        return False
    decided = ids.shape[0] != ids.shape[1] and indices.shape in (ids.shape, ids.shape[::-1])
    flat = indices.ravel()
    return not decided and np.array_equal(flat, ids.ravel()) and np.array_equal(flat, ids.T.ravel())


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
    """

    path: str
    occurrence: int
    indices: np.ndarray
    rows: int
    dim: int
    layout: Layout | None

    @property
    def name(self) -> str:
        """The name that means this lookup and no other: its path with its occurrence."""
        return f"{self.path}#{self.occurrence}"

    def __str__(self) -> str:
        return f"{self.name} ({self.rows} rows × {self.dim}, indices of shape {self.indices.shape})"


@dataclass(frozen=True)
class Point:
    """A point that can be named in `at`.

    Attributes:
        name: its native name, with the occurrence.
        role: its role, such as "word"; None where it has none.
        lookup: the lookup that is made there.
    """

    name: str
    role: str | None
    lookup: Lookup = field(repr=False)


def split_occurrence(name: str) -> tuple[str, int | None]:
    """`"table#1"` as ("table", 1), and `"table"` as ("table", None)."""
    path, mark, number = name.rpartition("#")
    return (path, int(number)) if mark and number.isascii() and number.isdigit() else (name, None)


class LookupWatch:
    """Takes down the lookups of one forward pass, checks their indices, and says which of them are asked for.

    A backend calls `see` at each lookup, before the lookup is made where it can, and `resolve` after the
    forward pass. One watch serves one forward pass.
    """

    def __init__(self, batch: TokenBatch, names: Sequence[str]) -> None:
        self.lookups: list[Lookup] = []
        self._ids = batch.ids
        self._names = tuple(names)
        self._paths = {split_occurrence(name)[0] for name in names}

    def see(self, path: str, indices: np.ndarray, rows: int, dim: int) -> bool:
        """Take down a lookup; True where its output may be asked for, so that the backend keeps hold of it.

        Raises:
            BatchError: an index outside the table.
        """
        whole = np.asarray(indices)
        _check_inside(path, whole, rows, self._ids)
        lookup = Lookup(
            path=path,
            occurrence=sum(seen.path == path for seen in self.lookups),
            indices=whole.astype(np.int64),
            rows=int(rows),
            dim=int(dim),
            layout=layout_of(whole, self._ids),
        )
        self.lookups.append(lookup)
        return path in self._paths or (WORD in self._paths and lookup.layout is not None)

    def points(self) -> list[Point]:
        """The lookups seen so far as points, in the order in which they were made."""
        return [Point(one.name, WORD if one.layout is not None else None, one) for one in self.lookups]

    def resolve(self, hint: str = "") -> dict[str, int]:
        """For each name asked for the number of its lookup in `lookups`.

        Args:
            hint: what the backend knows of why a lookup may not have been seen, for the message.

        Raises:
            PointNotReachedError: no lookup's indices are the batch's ids.
            UnknownPointError: no lookup was made in a table of that name.
            AmbiguousPointError: the name fits several lookups.
        """
        return {name: self._one(name, hint) for name in self._names}

    def _one(self, name: str, hint: str) -> int:
        path, occurrence = split_occurrence(name)
        fitting = self._fitting(path)
        if not fitting:
            raise self._missing(name, path, hint)
        if occurrence is not None:
            if occurrence >= len(fitting):
                raise UnknownPointError(
                    f"there is no point {name!r}: {path!r} was reached {len(fitting)} time(s) in the forward pass; expected "
                    f"a number from 0 to {len(fitting) - 1}"
                )
            return fitting[occurrence]
        if len(fitting) > 1 and path != WORD:
            fitting = [i for i in fitting if self.lookups[i].layout is not None] or fitting
        if len(fitting) > 1:
            raise AmbiguousPointError(
                f"{name!r} fits {len(fitting)} lookups: {self._several(path)}; name one of them, or give a list of names "
                "to get each",
                [self.lookups[i] for i in fitting],
            )
        return fitting[0]

    def _fitting(self, path: str) -> list[int]:
        if path == WORD:
            words = [i for i, lookup in enumerate(self.lookups) if lookup.layout is not None]
            if words or not any(lookup.path == WORD for lookup in self.lookups):
                return words
        return [i for i, lookup in enumerate(self.lookups) if lookup.path == path]

    def _several(self, path: str) -> str:
        numbered = (f"{path}#{k} = {self.lookups[i]}" for k, i in enumerate(self._fitting(path)))
        return ", ".join(numbered) if path == WORD else ", ".join(str(self.lookups[i]) for i in self._fitting(path))

    def _missing(self, name: str, path: str, hint: str) -> PointNotReachedError | UnknownPointError:
        seen = "; ".join(str(lookup) for lookup in self.lookups) or "none"
        hint = f" {hint}" if hint else ""
        if path == WORD:
            return PointNotReachedError(
                f"the model made no lookup whose indices are the batch's ids, of shape {self._ids.shape}; lookups seen: "
                f"{seen}. Expected the model to look up the ids that it is given: if it changes them first, give it the "
                f"changed ones, or name the table with at=...{hint}"
            )
        known = [WORD, *dict.fromkeys(lookup.path for lookup in self.lookups)]
        return UnknownPointError(
            f"there is no point {name!r}: expected {WORD!r} or a table that is looked up, one of {listed(known[1:])}."
            f"{did_you_mean(path, known)}{hint}"
        )


def _check_inside(path: str, indices: np.ndarray, rows: int, ids: np.ndarray) -> None:
    if not indices.size or (indices.min() >= 0 and indices.max() < rows):
        return
    layout = layout_of(indices, ids)
    arranged = indices if layout is None else layout.indices(indices)
    wrong = np.argwhere(~((arranged >= 0) & (arranged < rows)))  # so that NaN is wrong too
    first = tuple(int(i) for i in wrong[0])
    expected = f"table {path!r} has {rows} rows: expected 0 to {rows - 1}"
    more = f" ({len(wrong)} such in all)" if len(wrong) > 1 else ""
    if layout is not None:
        raise BatchError(
            f"id {arranged[first]} at example {first[0]}, position {first[1]} is outside the table{more}: {expected}; use "
            "the tokenizer that belongs to this model"
        )
    raise BatchError(
        f"the model looks up index {arranged[first]} (at {first} of indices of shape {indices.shape}), which is outside "
        f"the table{more}: {expected}; is the batch longer than the model's positions, or a type beyond its types?"
    )
