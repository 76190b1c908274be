"""Objectives: a value per example and its cotangent, computed in NumPy, so that every framework uses the same arithmetic."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from embgrad.common.arrays import to_numpy
from embgrad.errors import EmbgradError, ObjectiveError, brief
from embgrad.inputs.batch import TokenBatch
from embgrad.inputs.checks import IGNORED
from embgrad.objectives.native import NativeObjective, expect_of_outputs
from embgrad.objectives.objective import Objective
from embgrad.objectives.probabilities import are_probabilities, refuse_probabilities, surprisals
from embgrad.objectives.selection import (
    Rows,
    choose_entries,
    classes,
    entries,
    expect_inside,
    expect_one_per_example,
    expect_output_of,
    of_rows,
    one_hot,
)

__all__ = [
    "CrossEntropy",
    "Logit",
    "Margin",
    "Objective",
    "Probability",
    "Projection",
    "Scalar",
    "Sum",
    "as_objective",
    "as_objectives",
    "at_index",
    "describe",
]


class Sum(Objective):
    """The sum of an example's output; for a per-position output, summed over its real positions.

    Args:
        output: see `Objective`.
        position: see `Objective`.

    Raises:
        ObjectiveError: see `Objective`.
    """

    any_shape = True

    def _rows(self, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        return rows.values.sum(1), np.ones(rows.values.shape)


class Projection(Objective):
    """The inner product of an example's output with a vector.

    Args:
        vector: (classes,) for all examples, or (example, classes). For a per-position output the same vector is applied
            at each real position.
        output: see `Objective`.
        position: see `Objective`.

    Raises:
        ObjectiveError: see `Objective`.
    """

    any_shape = True

    def __init__(self, vector: Any, *, output: str | None = None, position: Any = None) -> None:
        super().__init__(output=output, position=position)
        try:
            array = to_numpy(vector)
            if array.dtype.kind in "cSUVMm":
                raise TypeError(f"of dtype {array.dtype}")
            self.vector = np.array(array, dtype=np.float64)
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
        if self.vector.shape[-1] != rows.classes:
            raise ObjectiveError(
                f"vector has shape {self.vector.shape}: the output has {rows.classes} entries in a row"
            )
        if self.vector.ndim == 2:
            expect_one_per_example(self.vector, rows.count, "vector")
        slopes = of_rows(self.vector, rows)
        return (rows.values * slopes).sum(1), slopes


class Logit(Objective):
    """One entry of the output.

    Args:
        index: the entry's index, from 0, or the name of its class, for all examples, or one for each example, shape (example,).
        output: see `Objective`.
        position: see `Objective`.

    Raises:
        ObjectiveError: see `Objective`.
    """

    of_classes = ("index",)

    def __init__(self, index: Any, *, output: str | None = None, position: Any = None) -> None:
        super().__init__(output=output, position=position)
        self.index = classes(index, "index")

    def _argument_names(self) -> tuple[str, ...]:
        return ("index", *super()._argument_names())

    def _rows(self, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        chosen = choose_entries(self.index, rows, "index")
        return entries(rows.values, chosen), one_hot(rows.values, chosen)


class Margin(Objective):
    """The difference of two entries of the output.

    `Margin(labels)` is above 0 where a classifier's label is the most likely class by itself, and at most 0 where another class
    is at least as likely.

    Args:
        index: the index or name of the entry that is added, for all examples, or one for each example, shape (example,).
        against: the index of the entry that is subtracted, likewise; None for the largest of the others, whichever it is. Of
            equal ones the first is differentiated.
        output: see `Objective`.
        position: see `Objective`.

    Raises:
        ObjectiveError: see `Objective`; or both indices are the same.
    """

    of_classes = ("index", "against")

    def __init__(self, index: Any, against: Any = None, *, output: str | None = None, position: Any = None) -> None:
        super().__init__(output=output, position=position)
        self.index = classes(index, "index")
        self.against = None if against is None else classes(against, "against")
        self._expect_two()

    def _expect_two(self) -> None:
        if self.against is None:
            return
        alike = self.index.shape == self.against.shape or 0 in (self.index.ndim, self.against.ndim)
        if alike and (self.index == self.against).any():
            raise ObjectiveError(
                f"index={brief(self.index)} and against={brief(self.against)} name the same entry: its margin over "
                "itself is always 0; name another"
            )

    def with_classes(self, known: Mapping[str, list[int]]) -> Margin:
        """Return the objective with the indices of classes in place of their names, see `Objective.with_classes`."""
        made = super().with_classes(known)
        assert isinstance(made, Margin)
        made._expect_two()
        return made

    def _argument_names(self) -> tuple[str, ...]:
        return ("index", "against", *super()._argument_names())

    def _rows(self, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        plus = choose_entries(self.index, rows, "index")
        minus = _largest_other(rows, plus) if self.against is None else choose_entries(self.against, rows, "against")
        values = entries(rows.values, plus) - entries(rows.values, minus)
        return values, one_hot(rows.values, plus) - one_hot(rows.values, minus)


def _largest_other(rows: Rows, chosen: np.ndarray) -> np.ndarray:
    """Return the index of the largest entry of each row but the chosen one."""
    if rows.values.shape[1] < 2:
        raise ObjectiveError(
            "the output has a single class, so that there is no other to compare it with: expected two classes or more; use "
            "embgrad.Logit"
        )
    others = rows.values.copy()
    others[np.arange(len(chosen)), chosen] = -np.inf
    return np.asarray(others.argmax(1))


class CrossEntropy(Objective):
    """The negative log-probability of an example's label. Summed over positions and examples, never a mean.

    Args:
        labels: integers of shape (example,), or names of classes as in `config.id2label` of models of transformers; for a
            per-position output without `position`, of shape (example, position), where -100 and masked positions are ignored.
        of: the content of the output: "logits", or "probabilities" (the output of a softmax).
        output: see `Objective`.
        position: see `Objective`.

    Raises:
        ObjectiveError: see `Objective`; or the output does not match `of`, or has a single class.
    """

    of_classes = ("labels",)

    def __init__(self, labels: Any, of: str = "logits", *, output: str | None = None, position: Any = None) -> None:
        super().__init__(output=output, position=position)
        self.labels = np.atleast_1d(classes(labels, "labels"))
        self.of = expect_output_of(of)

    def _argument_names(self) -> tuple[str, ...]:
        return ("labels", "of", *super()._argument_names())

    def _places(self, shape: tuple[int, ...], batch: TokenBatch) -> tuple[np.ndarray, np.ndarray]:
        examples, positions = super()._places(shape, batch)
        if self.position is not None:
            return examples, positions
        if self.labels.shape != batch.shape:
            raise ObjectiveError(
                f"labels have shape {self.labels.shape} and the output is per position, {shape}: expected labels "
                f"of shape {batch.shape} (-100 ignores a position), or position=... for one position in each example"
            )
        counts = self.labels[examples, positions] != IGNORED
        return examples[counts], positions[counts]

    def _rows(self, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        labels = self._labels_of(rows)
        if self.of == "probabilities":
            return self._of_probabilities(rows, labels)
        refuse_probabilities(rows.values)
        return surprisals(rows.values, labels)

    def _labels_of(self, rows: Rows) -> np.ndarray:
        """Return the label of each row."""
        if rows.classes == 1:
            raise ObjectiveError(
                "the output has one entry for each example: a cross-entropy over one class is always 0; for a single logit use "
                "Sum(), or embgrad.BinaryCrossEntropy(labels)"
            )
        if self.labels.ndim == 1:
            return choose_entries(self.labels, rows, "label")
        if rows.positions is None or self.position is not None:
            raise ObjectiveError(
                f"labels have shape {self.labels.shape}: expected one label for each example, of which "
                "the output has one row"
            )
        return expect_inside(self.labels[rows.examples, rows.positions], rows, "label")

    def _of_probabilities(self, rows: Rows, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        _expect_probabilities(rows)
        chosen = entries(rows.values, labels)
        if (chosen <= 0).any():
            row = int(np.flatnonzero(chosen <= 0)[0])
            raise ObjectiveError(
                f"the probability of the label at {rows.location(row)} is {chosen[row]}: its logarithm is infinite; take the "
                "cross-entropy of the model's logits instead"
            )
        return -np.log(chosen), one_hot(rows.values, labels) * (-1 / chosen)[:, None]


class Probability(Objective):
    """The probability of a class, a number from 0 to 1: the class's entry of the softmax of the logits.

    Args:
        label: the class, from 0, or its name, for all examples, or one for each example, shape (example,).
        of: the content of the output: "logits", or "probabilities" (the output of a softmax).
        output: see `Objective`.
        position: see `Objective`; a per-position output needs it.

    Raises:
        ObjectiveError: see `Objective`; or the output does not match `of`, has a single class, or is per position and `position`
            is None.
    """

    of_classes = ("label",)

    def __init__(self, label: Any, of: str = "logits", *, output: str | None = None, position: Any = None) -> None:
        super().__init__(output=output, position=position)
        self.label = classes(label, "label")
        self.of = expect_output_of(of)

    def _argument_names(self) -> tuple[str, ...]:
        return ("label", "of", *super()._argument_names())

    def _places(self, shape: tuple[int, ...], batch: TokenBatch) -> tuple[np.ndarray, np.ndarray]:
        if self.position is None:
            raise ObjectiveError(
                f"the output is per position, {shape}, and a sum of probabilities over positions is none: expected position=... "
                "for one position in each example"
            )
        return super()._places(shape, batch)

    def _rows(self, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        if rows.classes == 1:
            raise ObjectiveError(
                "the output has one entry for each example: the probability of a single class is always 1; for a single logit "
                "give a callable with the sigmoid"
            )
        chosen = choose_entries(self.label, rows, "label")
        if self.of == "probabilities":
            _expect_probabilities(rows)
            return entries(rows.values, chosen), one_hot(rows.values, chosen)
        refuse_probabilities(rows.values)
        powers = np.exp(rows.values - rows.values.max(1, keepdims=True, initial=-np.inf))
        hot = one_hot(rows.values, chosen)
        totals = powers.sum(1)
        of_label, others = (powers * hot).sum(1) / totals, (powers * (1 - hot)).sum(1) / totals
        # For a confident prediction, sum the other classes' probabilities: 1 - p would lose all their digits.
        return of_label, of_label[:, None] * np.where(hot, others[:, None], -powers / totals[:, None])


@dataclass(frozen=True)
class Scalar:
    """An objective given as a function that reduces over the examples itself.

    Args:
        function: a function of the model's return value that returns a native scalar. The meaning of the gradient (of a
            mean, of a regulariser) is then up to the function; the result's `objective` has shape ().

    Raises:
        ObjectiveError: `function` is not callable.
    """

    function: Callable[[Any], Any]

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise ObjectiveError(
                f"the function of Scalar is {brief(self.function)}: expected a function that takes what the model returned"
            )


def as_objective(objective: Any) -> Objective | NativeObjective:
    """Return an embgrad objective unchanged; wrap a function in a `NativeObjective`."""
    if isinstance(objective, Objective):
        return objective
    if isinstance(objective, Scalar):
        expect_of_outputs(objective.function)
        return NativeObjective(objective.function, scalar=True)
    if isinstance(objective, type) and issubclass(objective, (Objective, Scalar)):
        raise ObjectiveError(
            f"the objective is the class {objective.__name__}: expected an instance; write {objective.__name__}(...)"
        )
    if callable(objective):
        expect_of_outputs(objective)
        return NativeObjective(objective, scalar=False)
    raise ObjectiveError(
        f"the objective is {objective!r}: expected CrossEntropy, LogProbability, Logit, Margin, Probability, "
        "Sum, Projection, BinaryCrossEntropy, SquaredError, CosineSimilarity, Scalar, or "
        f"a function of the model's output that gives one number for each example{_instead(objective)}"
    )


def as_objectives(objective: Any) -> tuple[tuple[Objective | NativeObjective, ...], bool]:
    """Return the objectives that were passed as an argument, and whether these are several, a list or a tuple."""
    if isinstance(objective, (list, tuple)) and not objective:
        raise ObjectiveError(f"the objective is {objective!r}: expected an objective, or a list of at least one")
    if not _holds_objectives(objective):
        return (as_objective(objective),), False
    checked = []
    for index, entry in enumerate(objective):
        with at_index(index, len(objective)):
            checked.append(as_objective(entry))
    return tuple(checked), True


def _holds_objectives(value: Any) -> bool:
    """Return whether a value is a list or a tuple with an objective in it, and so no labels."""
    return isinstance(value, (list, tuple)) and any(
        isinstance(entry, (Objective, Scalar)) or callable(entry) for entry in value
    )


@contextlib.contextmanager
def at_index(index: int, count: int) -> Iterator[None]:
    """Let errors that are raised while the context is open name the objective of `count` to which they belong, by its index."""
    try:
        yield
    except EmbgradError as error:
        if count > 1:
            error.args = (f"at index {index} of the objectives: {error.message}",)
        raise


def _expect_probabilities(rows: Rows) -> None:
    """Raise an error for a row that does not hold probabilities."""
    wrong = np.flatnonzero(~are_probabilities(rows.values))
    if wrong.size:
        raise ObjectiveError(
            f"the output at {rows.location(int(wrong[0]))} is {brief(rows.values[wrong[0]])}, which are not probabilities: "
            "expected entries from 0 to 1 that sum to 1; pass of='logits' if the model has no softmax"
        )


def _instead(value: Any) -> str:
    """Return the message's advice where labels, or several objectives, were passed."""
    if _holds_objectives(value):
        return "; make one call for each objective"
    is_array = hasattr(value, "shape") or isinstance(value, (list, tuple))
    return (
        "; pass labels to an objective, embgrad.CrossEntropy(labels)" if is_array or isinstance(value, Mapping) else ""
    )


def describe(objective: Objective | NativeObjective) -> dict[str, Any]:
    """Return the description of an objective for the provenance."""
    if isinstance(objective, Objective):
        return objective.describe()
    function = objective.function
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return {"class": "Scalar" if objective.scalar else "callable", "name": name}
