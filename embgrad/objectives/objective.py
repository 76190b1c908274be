"""The base class of objectives."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import numpy as np

from embgrad.errors import ObjectiveError, brief
from embgrad.inputs.batch import TokenBatch
from embgrad.inputs.decoder import is_undecided, positions_of, undecided_error
from embgrad.objectives.outputs import ROLES
from embgrad.objectives.selection import (
    Rows,
    alike,
    expect_one_per_example,
    holds_names,
    indices_of,
    resolve_positions,
    whole,
)

__all__ = ["SCORES", "Layouts", "Objective", "OpenAxesError", "OpenPositionsError"]

#: The outputs that have one number for each position: the scores of where an answer starts and ends.
SCORES: Final = ("start_logits", "end_logits")


@dataclass(frozen=True)
class Layouts:
    """The axes of a model's outputs, as far as probes have shown them.

    Attributes:
        axes: by an output's name and number of axes, its shape with None at the axes that are the batch's positions.
        prefixed: by an output's name and the number of its positions that are not the batch's, as of virtual tokens, whether
            these are known to stand before the batch's.
        first: the names and numbers of axes of outputs whose first axis has been seen to be the examples.
    """

    axes: dict[tuple[str | None, int], tuple[int | None, ...]] = field(default_factory=dict)
    prefixed: dict[tuple[str | None, int], bool] = field(default_factory=dict)
    first: set[tuple[str | None, int]] = field(default_factory=set)


class OpenPositionsError(ObjectiveError):
    """The error for an output with more positions than the batch, where it is not known which are the batch's.

    Args:
        output: the name of the output as the objective gives it.
        more: the number of its positions that are not the batch's.
    """

    def __init__(self, output: str | None, shape: Sequence[int], more: int) -> None:
        self.output, self.shape, self.more = output, tuple(shape), more
        super().__init__(
            f"the output has the shape {self.shape}, with {more} positions more than the batch, and which are the batch's is not "
            "known: cut off the others in call=..."
        )


class OpenAxesError(ObjectiveError):
    """The error for a padded batch and an output with an axis that may be the batch's positions, or classes by chance.

    Args:
        output: the name of the output as the objective gives it.
        axis: its axis that is as long as the batch has positions.
    """

    def __init__(self, output: str | None, shape: Sequence[int], axis: int) -> None:
        self.output, self.shape, self.axis = output, tuple(shape), axis
        super().__init__(
            f"the output has the shape {self.shape}, and its axis {axis} may be the {self.shape[axis]} positions of the padded "
            "batch, of which the real ones count, or classes, of which all count: pass "
            f"objective.with_axes([{axis}]) for positions, or objective.with_axes([]) for classes"
        )


class Objective(ABC):
    """Base class of objectives: computes the value L of each example from one output of the model, and its cotangent.

    An output with an axis that is the batch's positions, as `start_logits`, (example, position), counts at real positions only.

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

    #: The arguments that are classes, whose names a model may know.
    of_classes: ClassVar[tuple[str, ...]] = ()

    # Defaults for user-defined subclasses that do not call this class's __init__.
    output: str | None = None
    position: Any = None

    #: The axes of the output that are the batch's positions, beside that of a per-position output; None where this is not known.
    axes: tuple[int, ...] | None = None

    #: The number of entries that a row of the output must have, as in the text before tokens were deleted; None for any.
    width: int | None = None

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
        places = self.places(output.shape, batch)
        if places is not None:
            cotangent = np.zeros(output.shape)
            values, cotangent[places] = self._of_places(output[places], places, output.shape, batch)
            return values, cotangent
        self._expect_rows_of_examples(output, batch)
        counted = np.ones(output.shape, bool)
        for axis in range(1, output.ndim):
            real = self._real_along(axis, output.shape, batch)
            if real is not None:
                counted &= np.expand_dims(real, [other for other in range(1, output.ndim) if other != axis])
        rows, each = output.reshape(len(batch), -1), np.arange(len(batch))
        values, slopes = self._of_entries(rows, each, None, counted.reshape(rows.shape), len(batch))
        return values, slopes.reshape(output.shape)

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
        positions = positions_of((len(batch), rows.shape[1]), batch, self.output)
        return self._of_places(rows, places, (*positions.shape, rows.shape[1]), batch)

    def with_axes(self, axes: Sequence[int]) -> Objective:
        """Return the objective for an output of which these axes are the batch's positions, so that real positions alone count.

        embgrad finds them by itself, with a pass of one example without its padding, where an axis is as long as a padded batch
        has positions. Where the model takes no other number of positions, say which they are.

        Args:
            axes: the axes, from 1: [1] for an output (example, position), [] for (example, class).
        """
        known = copy.copy(self)
        known.axes = tuple(axes)
        return known

    def _of_places(
        self, rows: np.ndarray, places: tuple[np.ndarray, np.ndarray], shape: tuple[int, ...], batch: TokenBatch
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return L of each example, and the slopes of rows of a per-position output of this shape."""
        real = self._real_along(2, shape, batch)
        return self._of_entries(rows, *places, None if real is None else real[places[0]], len(batch))

    def _of_entries(
        self,
        values: np.ndarray,
        examples: np.ndarray,
        positions: np.ndarray | None,
        counted: np.ndarray | None,
        count: int,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return L of each example, and the slopes of the rows.

        Args:
            values: the rows, (row, entry).
            positions: the rows' positions; None where each example has one row.
            counted: the entries that count, bool, (row, entry); None for all. The others are not read, and their slopes are 0.
        """
        if self.width is not None and values.shape[1] != self.width:
            raise ObjectiveError(
                f"the output has {values.shape[1]} entries in a row, and {self.width} for the whole text: they follow its "
                "positions, and what the objective chooses among them would be of another token; give remove='mask', 'pad' or "
                "'zero', which keep the text's length"
            )
        if counted is None or counted.all():
            rows = Rows(values.astype(np.float64), examples, positions, count, output=self.output)
            return self._values(rows)
        totals, slopes = np.zeros(count), np.zeros(values.shape)
        for some, columns in alike(counted):  # as each example alone, without its padding
            entries = (some[:, None], columns)
            own = None if positions is None else positions[some]
            shown = values[entries].astype(np.float64)
            rows = Rows(shown, examples[some], own, count, columns, values.shape[1], self.output)
            part, slopes[entries] = self._values(rows)
            totals += part if positions is not None else np.bincount(examples[some], part, count)
        return totals, slopes

    def _real_along(self, axis: int, shape: tuple[int, ...], batch: TokenBatch) -> np.ndarray | None:
        """Return the real positions along an axis of an output that is the positions of a padded batch, else None."""
        positions = positions_of((shape[0], shape[axis]), batch, self.output)
        if shape[axis] != positions.shape[1] or not positions.padded:
            return None
        axes = self._find_axes() if self.axes is None else self.axes
        if axes is None:
            raise OpenAxesError(self.output, shape, axis)
        if axis in axes and is_undecided((shape[0], shape[axis]), batch, self.output):
            raise undecided_error(shape, batch)
        return positions.real if axis in axes else None

    def _find_axes(self) -> tuple[int, ...] | None:
        """Return the axes that are positions by the output's name; None where it does not say."""
        if self.output in SCORES:
            return (1,)
        return () if self.output in ("pooled", "sequence", *ROLES["pooled"], *ROLES["sequence"]) else None

    def _values(self, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        """Return L of each example, and the slopes of the rows."""
        for name in self.named:
            raise ObjectiveError(
                f"{name} is {brief(getattr(self, name).tolist())}, and only a call with a model knows the classes by name: "
                "expected whole numbers, or call objective.with_classes first"
            )
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

    @property
    def named(self) -> tuple[str, ...]:
        """The arguments that name classes, which a call with a model replaces by their indices."""
        return tuple(name for name in self.of_classes if holds_names(getattr(self, name)))

    def with_classes(self, known: Mapping[str, list[int]]) -> Objective:
        """Return the objective with the indices of classes in place of their names; itself where it names none.

        Args:
            known: the indices by name, as the model's `config.id2label` has them; empty where it has none.

        Raises:
            ObjectiveError: the model has no such class.
        """
        made = copy.copy(self) if self.named else self
        for name in self.named:
            setattr(made, name, self._indices_of(name, known))
        return made

    def _indices_of(self, name: str, known: Mapping[str, list[int]]) -> np.ndarray:
        return indices_of(getattr(self, name), name, known)

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

    def _expect_rows_of_examples(self, output: np.ndarray, batch: TokenBatch) -> None:
        """Refuse an output that is not per position, and whose examples have no row of classes each."""
        if self.position is not None:
            raise ObjectiveError(
                f"position={brief(self.position)} selects one position, but the output has shape {output.shape}: "
                f"expected (example, position, classes) = ({len(batch)}, {self._positions(output, batch)}, …); "
                f"{self._way_to_cut(output, batch) or 'omit position'}"
            )
        if output.ndim > 2 and not self.any_shape:
            raise ObjectiveError(
                f"the output has shape {output.shape}: expected (example, classes) or (example, position, classes) with "
                f"{len(batch)} examples and {self._positions(output, batch)} positions; "
                f"{self._way_to_cut(output, batch) or 'name another with output=..., or give a callable'}"
            )

    def _way_to_cut(self, output: np.ndarray, batch: TokenBatch) -> str | None:
        """Return what to do about an output that has further positions, as behind virtual tokens; None for other outputs."""
        more = output.shape[1] - self._positions(output, batch) if output.ndim == 3 and len(output) == len(batch) else 0
        if more <= 0:
            return None
        return (
            f"cut off the {more} that the model adds in call=..., as in call=lambda model, inputs: model(**inputs)[:, {more}:] "
            f"where they come first, or model(**inputs).logits[:, {more}:] for an output with that name"
        )

    def _positions(self, output: np.ndarray, batch: TokenBatch) -> int:
        """Return the number of positions that belong to the output, for messages."""
        return positions_of(output.shape, batch, self.output).shape[1]

    def _places(self, shape: tuple[int, ...], batch: TokenBatch) -> tuple[np.ndarray, np.ndarray]:
        if self.position is None:
            examples, positions = np.nonzero(batch.real)
            return examples, positions
        return np.arange(len(batch)), resolve_positions(self.position, batch)
