"""Select the rows of an output that count for an objective, and the entries, or classes, that its arguments choose in them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from embgrad.common.arrays import to_numpy, whole_numbers
from embgrad.errors import ObjectiveError, brief, did_you_mean, quote
from embgrad.inputs.batch import TokenBatch

__all__ = [
    "Rows",
    "alike",
    "choose_entries",
    "classes",
    "entries",
    "expect_inside",
    "expect_one_per_example",
    "expect_output_of",
    "holds_names",
    "index_of",
    "indices_of",
    "names_of_classes",
    "of_rows",
    "one_hot",
    "resolve_positions",
    "whole",
]


@dataclass(frozen=True)
class Rows:
    """The rows of an output that count for an objective, with the example and position of each.

    Attributes:
        values: float64, (row, classes).
        examples: (row,).
        positions: (row,), or None where the output has one row for each example.
        count: the number of examples in the batch.
        columns: the indices in the output's rows of the entries in `values`, (row, classes), where only some count: those at real
            positions. None where all count.
        width: the number of entries in the output's rows; None for that of `values`.
        output: the output's name as the objective gives it; None for the default.
    """

    values: np.ndarray
    examples: np.ndarray
    positions: np.ndarray | None
    count: int
    columns: np.ndarray | None = None
    width: int | None = None
    output: str | None = None

    @property
    def classes(self) -> int:
        """The number of entries in a row of the output, those that do not count included."""
        return self.values.shape[1] if self.width is None else self.width

    def location(self, row: int) -> str:
        """Return the example and position of a row as text, for messages."""
        where = f"example {self.examples[row]}"
        return where if self.positions is None else f"{where}, position {self.positions[row]}"


def alike(counted: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the rows of which equally many entries count, as (rows, columns), integers of shape (n,) and (n, entries).

    Args:
        counted: whether an entry counts, bool, (row, entry).
    """
    counts = counted.sum(1)
    for count in np.unique(counts):
        rows = np.flatnonzero(counts == count)
        yield rows, np.nonzero(counted[rows])[1].reshape(len(rows), int(count))


def resolve_positions(position: np.ndarray, batch: TokenBatch) -> np.ndarray:
    """Return the column that counts for each example, shape (example,).

    Args:
        position: one position, or one for each example; negative ones count back from the example's last real position.
    """
    if position.ndim and position.shape != (len(batch),):
        raise ObjectiveError(
            f"position has shape {position.shape}: expected one number, or {len(batch)}, one for each example"
        )
    wanted = np.broadcast_to(position, (len(batch),))
    real = batch.real
    last = batch.shape[1] - 1 - real[:, ::-1].argmax(1)
    columns = np.where(wanted < 0, last + 1 + wanted, wanted)
    for example, column in enumerate(columns):
        inside = 0 <= column < batch.shape[1]
        if not inside or not real[example, column]:
            why = "is padding" if inside else f"is outside the {batch.shape[1]} positions"
            raise ObjectiveError(
                f"position {wanted[example]} of example {example} {why}: its real positions are "
                f"{brief(np.flatnonzero(real[example]).tolist())}; expected one of them, or a negative number, which "
                "counts back from the last"
            )
    return columns


def choose_entries(index: np.ndarray, rows: Rows, name: str) -> np.ndarray:
    """Return the index of the entry that an argument chooses in each row: one number for all, or one for each example."""
    if index.ndim == 0:
        return expect_inside(np.broadcast_to(index, len(rows.values)), rows, name)
    if index.ndim > 1:
        raise ObjectiveError(
            f"{name} has shape {index.shape}: expected one number for all examples, or ({rows.count},), one for each example"
        )
    expect_one_per_example(index, rows.count, name)
    return expect_inside(index[rows.examples], rows, name)


def expect_inside(chosen: np.ndarray, rows: Rows, name: str) -> np.ndarray:
    """Return where the chosen entries stand in the rows' values, after checking that each is an entry that counts."""
    classes = rows.classes
    wrong = np.flatnonzero((chosen < 0) | (chosen >= classes))
    if wrong.size:
        row = int(wrong[0])
        output = "the output" if rows.output is None else f"the output {rows.output!r}"
        raise ObjectiveError(
            f"{name} {chosen[row]} at {rows.location(row)} is out of range: {output} has {classes} classes, expected 0 to "
            f"{classes - 1}, or another output with output=... where these are no classes"
        )
    if rows.columns is None:
        return chosen
    matches = rows.columns == chosen[:, None]
    wrong = np.flatnonzero(~matches.any(1))
    if wrong.size:
        row = int(wrong[0])
        raise ObjectiveError(
            f"{name} {chosen[row]} at {rows.location(row)} is padding: the output has an entry for each position, of which the "
            f"real ones count, {brief(rows.columns[row].tolist())}; expected one of them"
        )
    return np.asarray(matches.argmax(1))


def entries(values: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Return the chosen entry of each row without reading the others, which may be infinite, as masked classes are."""
    return np.asarray(values[np.arange(len(chosen)), chosen])


def one_hot(values: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Return an array that is 1 at the chosen entry of each row, else 0."""
    hot = np.zeros_like(values)
    hot[np.arange(len(chosen)), chosen] = 1
    return hot


def of_rows(argument: np.ndarray, rows: Rows) -> np.ndarray:
    """Return an argument's numbers for each row, (row, entry): (entry,) for all, or (example, entry)."""
    shape = (len(rows.values), rows.classes)
    chosen = argument[rows.examples] if argument.ndim == 2 else np.broadcast_to(argument, shape)
    return chosen if rows.columns is None else np.take_along_axis(chosen, rows.columns, 1)


def expect_one_per_example(argument: np.ndarray, count: int, name: str) -> None:
    """Raise an error if an argument's first axis does not have the number of examples."""
    if argument.shape[0] != count:
        raise ObjectiveError(f"{name} has {len(argument)} entries: expected {count}, one for each example")


def expect_output_of(of: Any) -> str:
    """Return the content of an output, "logits" or "probabilities"."""
    if not isinstance(of, str) or of not in ("logits", "probabilities"):
        hint = did_you_mean(str(of), ("logits", "probabilities"))
        raise ObjectiveError(f"of is {of!r}: expected 'logits' or 'probabilities'.{hint}")
    return of


def whole(value: Any, name: str) -> np.ndarray:
    """Return an argument of whole numbers as int64."""
    try:
        array = to_numpy(value)
    except ValueError:
        array = np.empty(0, object)
    whole = whole_numbers(array)
    if whole is None or (whole.size == 0 and whole.ndim):
        raise ObjectiveError(f"{name} is {brief(value)}: expected whole numbers")
    return whole


def classes(value: Any, name: str) -> np.ndarray:
    """Return an argument of classes: whole numbers as int64, or an array of objects where some of them are names.

    Raises:
        ObjectiveError: it holds something else.
    """
    if not _has_text(value):
        return whole(value, name)
    try:
        array = np.array(value, object)
    except ValueError:  # lists of different lengths
        array = np.array([None], object)
    if not all(isinstance(entry, str) or _is_whole(entry) for entry in array.flat):
        raise ObjectiveError(f"{name} is {brief(value)}: expected whole numbers, or names of classes, in an array")
    return array


def _has_text(value: Any) -> bool:
    """Return whether an argument is a name, or a list or array that holds one."""
    if isinstance(value, np.ndarray):
        return value.dtype.kind == "U" or (value.dtype == object and _has_text(value.ravel().tolist()))
    return isinstance(value, str) or (isinstance(value, (list, tuple)) and any(map(_has_text, value)))


def _is_whole(entry: Any) -> bool:
    return isinstance(entry, (int, np.integer)) and not isinstance(entry, bool)


def holds_names(value: Any) -> bool:
    """Return whether an objective's argument holds names of classes, as `classes` returns them."""
    return isinstance(value, np.ndarray) and value.dtype == object


def names_of_classes(parts: Iterable[Any]) -> dict[str, list[int]]:
    """Return the indices of classes by name, of the first part of a model whose config has an `id2label`; empty without one."""
    for part in parts:
        names = getattr(getattr(part, "config", None), "id2label", None)
        if isinstance(names, Mapping) and names:
            found: dict[str, list[int]] = {}
            for index, name in names.items():
                found.setdefault(str(name), []).append(int(index))
            return found
    return {}


def index_of(entry: Any, name: str, known: Mapping[str, list[int]]) -> int:
    """Return the index of a class by its name; whole numbers are returned as they are.

    Args:
        known: see `names_of_classes`.
    """
    if not isinstance(entry, str):
        return int(entry)
    if not known:
        raise ObjectiveError(
            f"{name} names the class {entry!r}, but the model has no config.id2label with the names of its classes: expected the "
            "index of the class, a whole number"
        )
    indices = known.get(entry, [])
    if len(indices) > 1:
        raise ObjectiveError(
            f"{name} names the class {entry!r}, but several classes of the model have that name, {quote(indices)}: expected one "
            "of these numbers"
        )
    if not indices:
        raise ObjectiveError(
            f"{name} names the class {entry!r}, which is not in the model's config.id2label: expected one of {quote(known)}."
            f"{did_you_mean(entry, known)}"
        )
    return indices[0]


def indices_of(array: np.ndarray, name: str, known: Mapping[str, list[int]]) -> np.ndarray:
    """Return the classes of an argument as their indices, int64, see `index_of`."""
    return np.array([index_of(entry, name, known) for entry in array.flat], np.int64).reshape(array.shape)
