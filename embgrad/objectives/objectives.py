"""Objectives: a value per example and its cotangent, in NumPy, so that the arithmetic is the same in every framework."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from embgrad.common.arrays import to_numpy
from embgrad.errors import ObjectiveError, brief, did_you_mean
from embgrad.inputs.batch import TokenBatch
from embgrad.inputs.checks import IGNORED
from embgrad.inputs.decoder import positions_of
from embgrad.objectives.probabilities import are_probabilities, refuse_probabilities
from embgrad.objectives.selection import (
    Rows,
    chosen_entries,
    entries,
    expect_inside,
    expect_one_an_example,
    one_hot,
    resolve_positions,
    whole,
)

__all__ = ["CrossEntropy", "Logit", "Margin", "Objective", "Projection", "Scalar", "Sum"]


class Objective(ABC):
    """L of each example from one output of the model, and its cotangent.

    Args:
        output: the output's role (`logits`, `pooled`, `sequence`) or native name; None for the logits, or else
            the only output.
        position: of a per-position output the position that counts: p ≥ 0 is a column, p < 0 counts back from
            each example's last real position, an array of shape (example,) gives one an example. None for all
            real positions.

    Raises:
        ObjectiveError: an argument is not of its kind; when it meets the output and the batch, see `evaluate`.
    """

    #: Whether outputs of other shapes than (example, classes) and (example, position, classes) make sense.
    any_shape: ClassVar[bool] = False

    # As they are in a class of the user's that does not call this class's __init__.
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
        """The rows that count in a per-position output of this shape, as (examples, positions); None in any other output.

        Raises:
            ObjectiveError: the arguments and the batch do not go together.
        """
        positions = positions_of(shape, batch, self.output)
        return self._places(shape, positions) if len(shape) == 3 and tuple(shape[:2]) == positions.shape else None

    def evaluate(self, output: np.ndarray, batch: TokenBatch) -> tuple[np.ndarray, np.ndarray]:
        """The objective and its cotangent.

        Args:
            output: one output of the model, the examples on its first axis.
            batch: the batch that the model was run on.

        Returns:
            L of shape (example,) and the cotangent of the output's shape, both float64.

        Raises:
            ObjectiveError: the output, the arguments and the batch do not go together, or L is not finite.
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
        """As `evaluate`, of those rows of a per-position output alone that count.

        Args:
            rows: (row, classes).
            places: where they are in the output, as the method of that name gave it.
            batch: the batch that the model was run on.

        Returns:
            L of shape (example,) and the cotangent of the rows' shape, both float64.
        """
        return self._values(Rows(rows.astype(np.float64), *places, len(batch)))

    def _values(self, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        """L of each example, and the slopes of the rows."""
        values, slopes = self._rows(rows)
        finite = np.isfinite(values)
        if not finite.all():
            wrong = np.flatnonzero(~finite)
            raise ObjectiveError(
                f"the objective is {values[wrong[0]]} at {rows.place(int(wrong[0]))}, where the output holds "
                f"{brief(rows.values[wrong[0]])}: expected finite numbers; look at the model's weights and inputs"
            )
        if rows.positions is None:  # one row an example
            return np.asarray(values, np.float64), slopes
        return np.bincount(rows.examples, weights=values, minlength=rows.count), slopes

    def describe(self) -> dict[str, Any]:
        """The class and its arguments, as JSON can hold them."""
        arguments = [(name, getattr(self, name)) for name in self._argument_names()]
        plain = {
            name: value.tolist() if isinstance(value, np.ndarray) else value
            for name, value in arguments
            if value is not None
        }
        return {"class": type(self).__name__, **plain}

    def take(self, examples: slice | np.ndarray, count: int) -> Objective:
        """The objective of some of the batch's examples: arguments with one entry an example are cut.

        Args:
            examples: which examples, in which order.
            count: how many examples the whole batch has.

        Raises:
            ObjectiveError: an argument has not one entry an example.
        """
        taken = copy.copy(self)
        for name in self._argument_names():
            setattr(taken, name, self._cut(name, examples, count))
        return taken

    def __repr__(self) -> str:
        described = self.describe()
        arguments = ", ".join(f"{name}={brief(value)}" for name, value in described.items() if name != "class")
        return f"{described['class']}({arguments})"

    @abstractmethod
    def _rows(self, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        """The value of each row, (row,), and its slope in the row's entries, (row, classes)."""

    def _argument_names(self) -> tuple[str, ...]:
        return ("output", "position")

    def _cut(self, name: str, examples: slice | np.ndarray, count: int) -> Any:
        value = getattr(self, name)
        if not isinstance(value, np.ndarray) or value.ndim == 0:
            return value
        expect_one_an_example(value, count, name)
        return value[examples]

    def _select(self, output: np.ndarray, batch: TokenBatch) -> Rows:
        places = self.places(output.shape, batch)
        if places is not None:
            return Rows(output[places].astype(np.float64), *places, len(batch))
        batch = positions_of(output.shape, batch, self.output)
        if self.position is not None:
            raise ObjectiveError(
                f"position={brief(self.position)} asks for one position, and the output has shape {output.shape}: "
                f"expected (example, position, classes) = ({len(batch)}, {batch.shape[1]}, …); leave position out"
            )
        if output.ndim > 2 and not self.any_shape:
            raise ObjectiveError(
                f"the output has shape {output.shape}: expected (example, classes) or (example, position, classes) with "
                f"{len(batch)} examples and {batch.shape[1]} positions; name another with output=..., or give a callable"
            )
        values = output.astype(np.float64).reshape(len(batch), -1)
        return Rows(values, np.arange(len(batch)), None, len(batch))

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


class Sum(Objective):
    """The sum of an example's output; of a per-position output over its real positions.

    Args:
        output: as in `Objective`; so is `position`.

    Raises:
        ObjectiveError: as in `Objective`.
    """

    any_shape = True

    def _rows(self, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        return rows.values.sum(1), np.ones(rows.values.shape)


class Projection(Objective):
    """The inner product of an example's output with a vector.

    Args:
        vector: (classes,) for all examples, or (example, classes); of a per-position output the same vector
            meets each of its real positions.
        output: as in `Objective`; so is `position`.

    Raises:
        ObjectiveError: as in `Objective`.
    """

    any_shape = True

    def __init__(self, vector: Any, *, output: str | None = None, position: Any = None) -> None:
        super().__init__(output=output, position=position)
        try:
            given = to_numpy(vector)
            if given.dtype.kind in "cSUVMm":
                raise TypeError(f"of dtype {given.dtype}")
            self.vector = np.array(given, dtype=np.float64)
        except (TypeError, ValueError, OverflowError) as error:
            raise ObjectiveError(f"vector is {brief(vector)}: expected an array of real numbers ({error})") from error
        if self.vector.ndim not in (1, 2) or not np.isfinite(self.vector).all():
            raise ObjectiveError(
                f"vector has shape {self.vector.shape}: expected finite numbers of shape (classes,) or (example, classes)"
            )

    def _argument_names(self) -> tuple[str, ...]:
        return ("vector", *super()._argument_names())

    def _cut(self, name: str, examples: slice | np.ndarray, count: int) -> Any:
        return self.vector if name == "vector" and self.vector.ndim == 1 else super()._cut(name, examples, count)

    def _rows(self, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        classes = rows.values.shape[1]
        if self.vector.shape[-1] != classes:
            raise ObjectiveError(f"vector has shape {self.vector.shape}: the output has {classes} entries in a row")
        if self.vector.ndim == 2:
            expect_one_an_example(self.vector, rows.count, "vector")
        slopes = (
            self.vector[rows.examples] if self.vector.ndim == 2 else np.broadcast_to(self.vector, rows.values.shape)
        )
        return (rows.values * slopes).sum(1), slopes


class Logit(Objective):
    """One entry of the output.

    Args:
        index: the entry, from 0 on, for all examples or one an example, shape (example,).
        output: as in `Objective`; so is `position`.

    Raises:
        ObjectiveError: as in `Objective`.
    """

    def __init__(self, index: Any, *, output: str | None = None, position: Any = None) -> None:
        super().__init__(output=output, position=position)
        self.index = whole(index, "index")

    def _argument_names(self) -> tuple[str, ...]:
        return ("index", *super()._argument_names())

    def _rows(self, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        chosen = chosen_entries(self.index, rows, "index")
        return entries(rows.values, chosen), one_hot(rows.values, chosen)


class Margin(Objective):
    """One entry of the output less another.

    Args:
        index: the entry that counts for, from 0 on, for all examples or one an example, shape (example,).
        against: the entry that counts against, likewise.
        output: as in `Objective`; so is `position`.

    Raises:
        ObjectiveError: as in `Objective`; or both are the same entry.
    """

    def __init__(self, index: Any, against: Any, *, output: str | None = None, position: Any = None) -> None:
        super().__init__(output=output, position=position)
        self.index = whole(index, "index")
        self.against = whole(against, "against")
        alike = self.index.shape == self.against.shape or 0 in (self.index.ndim, self.against.ndim)
        if alike and (self.index == self.against).any():
            raise ObjectiveError(
                f"index={brief(self.index)} and against={brief(self.against)} name the same entry: its margin over "
                "itself is always 0; name another"
            )

    def _argument_names(self) -> tuple[str, ...]:
        return ("index", "against", *super()._argument_names())

    def _rows(self, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        plus, minus = chosen_entries(self.index, rows, "index"), chosen_entries(self.against, rows, "against")
        values = entries(rows.values, plus) - entries(rows.values, minus)
        return values, one_hot(rows.values, plus) - one_hot(rows.values, minus)


class CrossEntropy(Objective):
    """Minus the logarithm of the probability of an example's label. Summed, never a mean.

    Args:
        labels: whole numbers of shape (example,); of a per-position output without `position` of shape (example,
            position), where -100 leaves a position out, and masked positions are left out in any case.
        of: what the output holds, "logits" or "probabilities" (behind a softmax).
        output: as in `Objective`; so is `position`.

    Raises:
        ObjectiveError: as in `Objective`; or the output is not what `of` says, or holds one class alone.
    """

    def __init__(self, labels: Any, of: str = "logits", *, output: str | None = None, position: Any = None) -> None:
        super().__init__(output=output, position=position)
        self.labels = np.atleast_1d(whole(labels, "labels"))
        if not isinstance(of, str) or of not in ("logits", "probabilities"):
            kinds = ("logits", "probabilities")
            raise ObjectiveError(f"of is {of!r}: expected 'logits' or 'probabilities'.{did_you_mean(str(of), kinds)}")
        self.of = of

    def _argument_names(self) -> tuple[str, ...]:
        return ("labels", "of", *super()._argument_names())

    def _places(self, shape: tuple[int, ...], batch: TokenBatch) -> tuple[np.ndarray, np.ndarray]:
        examples, positions = super()._places(shape, batch)
        if self.position is not None:
            return examples, positions
        if self.labels.shape != batch.shape:
            raise ObjectiveError(
                f"labels have shape {self.labels.shape} and the output is per position, {shape}: expected labels "
                f"of shape {batch.shape} (-100 leaves a position out), or position=... for one position an example"
            )
        counts = self.labels[examples, positions] != IGNORED
        return examples[counts], positions[counts]

    def _rows(self, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        labels = self._labels_of(rows)
        if self.of == "probabilities":
            return self._of_probabilities(rows, labels)
        refuse_probabilities(rows.values)
        shifted = rows.values - rows.values.max(1, keepdims=True, initial=-np.inf)
        of_label, each = entries(shifted, labels), np.arange(len(labels))
        slopes = np.exp(shifted, out=shifted)  # in place: a row is as long as the vocabulary in a language model
        label = slopes[each, labels]
        # Of a confident prediction the others are all that tells: 1 - p keeps none of their digits.
        slopes[each, labels] = 0
        others = slopes.sum(1)
        totals = others + label
        slopes /= totals[:, None]
        slopes[each, labels] = -others / totals
        return np.where(of_label == 0, np.log1p(others), np.log(totals) - of_label), slopes

    def _labels_of(self, rows: Rows) -> np.ndarray:
        """The label of each row."""
        if rows.values.shape[1] == 1:
            raise ObjectiveError(
                "the output has one entry an example: a cross-entropy over one class is always 0; for a single logit use "
                "Sum(), or give a callable with the binary cross-entropy"
            )
        if self.labels.ndim == 1:
            return chosen_entries(self.labels, rows, "label")
        if rows.positions is None or self.position is not None:
            raise ObjectiveError(
                f"labels have shape {self.labels.shape}: expected one label an example, as the output has one row an example"
            )
        return expect_inside(self.labels[rows.examples, rows.positions], rows, "label")

    def _of_probabilities(self, rows: Rows, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        wrong = np.flatnonzero(~are_probabilities(rows.values))
        if wrong.size:
            raise ObjectiveError(
                f"the output at {rows.place(int(wrong[0]))} is {brief(rows.values[wrong[0]])}, which are no probabilities: "
                "expected entries from 0 to 1 that sum to 1; pass of='logits' if the model has no softmax"
            )
        chosen = entries(rows.values, labels)
        if (chosen <= 0).any():
            row = int(np.flatnonzero(chosen <= 0)[0])
            raise ObjectiveError(
                f"the probability of the label at {rows.place(row)} is {chosen[row]}: its logarithm is infinite; take the "
                "cross-entropy of the model's logits instead"
            )
        return -np.log(chosen), one_hot(rows.values, labels) * (-1 / chosen)[:, None]


@dataclass(frozen=True)
class Scalar:
    """An objective of the user's that reduces over the examples itself.

    Args:
        function: takes what the model returned and gives a native scalar. What the gradient means (a mean, a
            regulariser) is then the function's affair; the result's `objective` has shape ().

    Raises:
        ObjectiveError: it is no function.
    """

    function: Callable[[Any], Any]

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise ObjectiveError(
                f"the function of Scalar is {brief(self.function)}: expected a function that takes what the model returned"
            )
