"""The base class of objectives."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np

from embgrad.errors import ObjectiveError, brief
from embgrad.inputs.batch import TokenBatch
from embgrad.inputs.decoder import positions_of
from embgrad.objectives.selection import Rows, expect_one_per_example, resolve_positions, whole

__all__ = ["Objective"]


class Objective(ABC):
    """Base class of objectives: computes the value L of each example from one output of the model, and its cotangent.

    Args:
        output: the output's role (`logits`, `pooled`, `sequence`) or native name; None for the logits, or else
            the only output.
        position: for a per-position output, the position to use: p ≥ 0 is a column, p < 0 counts back from each
            example's last real position, an array of shape (example,) has one position for each example. None uses all
            real positions.

    Raises:
        ObjectiveError: an argument has the wrong type. Arguments are checked against the output and the batch by
            `evaluate`.
    """

    #: Whether outputs of other shapes than (example, classes) and (example, position, classes) are accepted.
    any_shape: ClassVar[bool] = False

    # Defaults for user-defined subclasses that do not call this class's __init__.
    output: str | None = None
    position: Any = None

    def __init__(self, *, output: str | None = None, position: Any = None) -> None:
        if output is not None and not isinstance(output, str):
            raise ObjectiveError(
                f"output is {output!r}: expected the name of an output, such as 'logits' or '{output}'"
            )
        self.output = output
        self.position = None if position is None else whole(position, "position")

    def places(self, shape: tuple[int, ...], batch: TokenBatch) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the rows of a per-position output of this shape that count, as (examples, positions); None for other outputs.

        Args:
            shape: the shape of the output.
            batch: the batch that the model was run on.

        Raises:
            ObjectiveError: the arguments do not fit the batch.
        """
        positions = positions_of(shape, batch, self.output)
        return self._places(shape, positions) if len(shape) == 3 and tuple(shape[:2]) == positions.shape else None

    def evaluate(self, output: np.ndarray, batch: TokenBatch) -> tuple[np.ndarray, np.ndarray]:
        """Return the objective and its cotangent.

        Args:
            output: one output of the model, with the examples on its first axis.
            batch: the batch that the model was run on.

        Returns:
            L of shape (example,) and the cotangent of the output's shape, both float64.

        Raises:
            ObjectiveError: the output, the arguments and the batch do not fit together, or L is not finite.
        """
        if output.ndim == 0 or output.shape[0] != len(batch):
            raise ObjectiveError(
                f"the output has shape {output.shape}: expected {len(batch)} examples on its first axis; name another "
                "with output=..., or give a callable, which may read any output"
            )
        rows = self._select(output, batch)
        values, slopes = self._values(rows)
        return values, self._scatter(slopes, rows, output.shape)

    def evaluate_rows(
        self, rows: np.ndarray, places: tuple[np.ndarray, np.ndarray], batch: TokenBatch
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the same as `evaluate`, from only those rows of a per-position output that count.

        Args:
            rows: (row, classes).
            places: the rows' examples and positions, as returned by the method `places`.
            batch: the batch that the model was run on.

        Returns:
            L of shape (example,) and the cotangent of the rows' shape, both float64.
        """
        return self._values(Rows(rows.astype(np.float64), *places, len(batch)))

    def _values(self, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        """Return L of each example, and the slopes of the rows."""
        values, slopes = self._rows(rows)
        finite = np.isfinite(values)
        if not finite.all():
            wrong = np.flatnonzero(~finite)
            raise ObjectiveError(
                f"the objective is {values[wrong[0]]} at {rows.location(int(wrong[0]))}, where the output holds "
                f"{brief(rows.values[wrong[0]])}: expected finite numbers; look at the model's weights and inputs"
            )
        if rows.positions is None:  # one row for each example
            return np.asarray(values, np.float64), slopes
        return np.bincount(rows.examples, weights=values, minlength=rows.count), slopes

    def describe(self) -> dict[str, Any]:
        """Return the class name and the arguments as JSON-compatible values."""
        arguments = [(name, getattr(self, name)) for name in self._argument_names()]
        plain = {
            name: value.tolist() if isinstance(value, np.ndarray) else value
            for name, value in arguments
            if value is not None
        }
        return {"class": type(self).__name__, **plain}

    def take(self, examples: slice | np.ndarray, count: int) -> Objective:
        """Return the objective of some of the batch's examples: arguments with one entry for each example are sliced.

        Args:
            examples: the indices of the examples, in order, or a slice.
            count: the number of examples in the whole batch.

        Raises:
            ObjectiveError: an array argument does not have one entry for each example, or a subclass of yours has another
                attribute that may: it then has to override this method.
        """
        taken = copy.copy(self)
        if type(self).take is Objective.take:
            self._expect_no_other(count)
        for name in self._argument_names():
            setattr(taken, name, self._cut(name, examples, count))
        return taken

    def __repr__(self) -> str:
        described = self.describe()
        arguments = ", ".join(f"{name}={brief(value)}" for name, value in described.items() if name != "class")
        return f"{described['class']}({arguments})"

    @abstractmethod
    def _rows(self, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        """Return the value of each row, (row,), and its gradient in the row's entries, (row, classes)."""

    def _argument_names(self) -> tuple[str, ...]:
        return ("output", "position")

    def _expect_no_other(self, count: int) -> None:
        for name in sorted(set(vars(self)) - set(self._argument_names())):
            value = getattr(self, name)
            is_of_each = np.ndim(value) > 0 if hasattr(value, "shape") else isinstance(value, (list, tuple))
            if is_of_each and len(value) == count:
                raise ObjectiveError(
                    f"{type(self).__name__} has the attribute {name!r} with {count} entries, as many as the batch has "
                    "examples, and the batch is run in parts: override take(examples, count) in the class, which returns the "
                    "objective of these examples"
                )

    def _cut(self, name: str, examples: slice | np.ndarray, count: int) -> Any:
        value = getattr(self, name)
        if not isinstance(value, np.ndarray) or value.ndim == 0:
            return value
        expect_one_per_example(value, count, name)
        return value[examples]

    def _select(self, output: np.ndarray, batch: TokenBatch) -> Rows:
        places = self.places(output.shape, batch)
        if places is not None:
            return Rows(output[places].astype(np.float64), *places, len(batch))
        if self.position is not None:
            raise ObjectiveError(
                f"position={brief(self.position)} selects one position, but the output has shape {output.shape}: "
                f"expected (example, position, classes) = ({len(batch)}, {self._positions(output, batch)}, …); omit position"
            )
        if output.ndim > 2 and not self.any_shape:
            raise ObjectiveError(
                f"the output has shape {output.shape}: expected (example, classes) or (example, position, classes) with "
                f"{len(batch)} examples and {self._positions(output, batch)} positions; name another with output=..., or give a "
                "callable"
            )
        values = output.astype(np.float64).reshape(len(batch), -1)
        return Rows(values, np.arange(len(batch)), None, len(batch))

    def _positions(self, output: np.ndarray, batch: TokenBatch) -> int:
        """Return the number of positions that belong to the output, for messages."""
        return positions_of(output.shape, batch, self.output).shape[1]

    def _places(self, shape: tuple[int, ...], batch: TokenBatch) -> tuple[np.ndarray, np.ndarray]:
        if self.position is None:
            examples, positions = np.nonzero(batch.real)
            return examples, positions
        return np.arange(len(batch)), resolve_positions(self.position, batch)

    @staticmethod
    def _scatter(slopes: np.ndarray, rows: Rows, shape: tuple[int, ...]) -> np.ndarray:
        if rows.positions is None:
            return slopes.reshape(shape)
        cotangent = np.zeros(shape)
        cotangent[rows.examples, rows.positions] = slopes
        return cotangent
