"""Objectives that compare an example's output with numbers: binary cross-entropy, squared error, and cosine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from embgrad.common.arrays import to_numpy
from embgrad.errors import ObjectiveError, brief
from embgrad.inputs.batch import TokenBatch
from embgrad.objectives.objective import Objective
from embgrad.objectives.selection import Rows, expect_one_per_example, expect_output_of, index_of, of_rows

__all__ = ["BinaryCrossEntropy", "CosineSimilarity", "SquaredError"]


class _OfOneRow(Objective):
    """An objective of one row of the output for each example.

    Raises:
        ObjectiveError: see `Objective`; or the argument holds no finite real numbers.
    """

    def __init__(self, numbers: Any, name: str, *, output: str | None = None, position: Any = None) -> None:
        super().__init__(output=output, position=position)
        try:
            array = to_numpy(numbers)
        except ValueError:
            array = np.array(None)
        if array.dtype.kind not in "biuf" or not array.size or not np.isfinite(array).all():
            raise ObjectiveError(f"{name} is {brief(numbers)}: expected an array of finite real numbers")
        self._name = name
        setattr(self, name, np.array(array, np.float64))

    def _argument_names(self) -> tuple[str, ...]:
        return (self._name, *super()._argument_names())

    def _places(self, shape: tuple[int, ...], batch: TokenBatch) -> tuple[np.ndarray, np.ndarray]:
        if self.position is None:
            raise ObjectiveError(
                f"the output is per position, {shape}, and {type(self).__name__} is of one row for each example: expected "
                "position=... for one position in each example"
            )
        return super()._places(shape, batch)

    def _of_rows(self, rows: Rows, shared: bool) -> np.ndarray:
        """Return the argument for each row, (row, entry).

        Args:
            shared: whether one axis means one number for each entry, the same for all examples; otherwise one for each example.
        """
        numbers = np.atleast_1d(getattr(self, self._name))
        if numbers.ndim == 1:
            numbers = np.broadcast_to(numbers, (rows.count, len(numbers))) if shared else numbers[:, None]
        expect_one_per_example(numbers, rows.count, self._name)
        if numbers.ndim != 2 or numbers.shape[1] != rows.classes:
            raise ObjectiveError(
                f"{self._name} has shape {getattr(self, self._name).shape}: the output has {rows.classes} entries in a row, so "
                f"expected ({rows.count}, {rows.classes})"
            )
        return of_rows(numbers, rows)


class BinaryCrossEntropy(_OfOneRow):
    """The negative log-probability of an example's labels, of which each is there or not: several labels, or a single logit.

    Summed over the classes, never a mean.

    Args:
        labels: 1 where the label is there, 0 where not, or numbers between: (example,) for an output with one number for each
            example, else (example, class); or for each example a list of the names of its classes, as `config.id2label` of
            models of transformers has them, [["toxic", "insult"], []].
        of: the content of the output: "logits", or "probabilities" (the output of a sigmoid).
        output: see `Objective`.
        position: see `Objective`; a per-position output needs it.

    Raises:
        ObjectiveError: see `Objective`; or a label is below 0 or above 1, or the output does not match `of`.
    """

    labels: np.ndarray
    of_classes = ("labels",)

    def __init__(self, labels: Any, of: str = "logits", *, output: str | None = None, position: Any = None) -> None:
        named = _names_of_each(labels)
        super().__init__(0 if named is not None else labels, "labels", output=output, position=position)
        self.of = expect_output_of(of)
        if named is not None:
            self.labels = named
        elif ((self.labels < 0) | (self.labels > 1)).any():
            raise ObjectiveError(f"labels is {brief(labels)}: expected numbers from 0 to 1, 1 where the label is there")

    def _argument_names(self) -> tuple[str, ...]:
        return ("labels", "of", *super()._argument_names()[1:])

    def _indices_of(self, name: str, known: Mapping[str, list[int]]) -> np.ndarray:
        chosen = [[index_of(entry, name, known) for entry in names] for names in self.labels]
        labels = np.zeros((len(chosen), sum(map(len, known.values()))))
        for row, indices in zip(labels, chosen, strict=True):
            row[indices] = 1
        return labels

    def _rows(self, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        labels, values = self._of_rows(rows, shared=False), rows.values
        if self.of == "logits":
            products = np.multiply(values, labels, where=labels > 0, out=np.zeros(values.shape))  # a logit may be -inf
            # log(1 + exp(x)) without an overflow.
            losses = np.maximum(values, 0) - products + np.log1p(np.exp(-np.abs(values)))
            return losses.sum(1), _sigmoid(values) - labels
        wrong = np.flatnonzero(~((values >= 0) & (values <= 1)).all(1))
        if wrong.size:
            raise ObjectiveError(
                f"the output at {rows.location(int(wrong[0]))} is {brief(values[wrong[0]])}, which are not probabilities: "
                "expected entries from 0 to 1; pass of='logits' if the model has no sigmoid"
            )
        impossible = np.flatnonzero((((values == 0) & (labels > 0)) | ((values == 1) & (labels < 1))).any(1))
        if impossible.size:
            row = int(impossible[0])
            raise ObjectiveError(
                f"the probability of a label at {rows.location(row)} is 0, in {brief(values[row])}: its logarithm is infinite; "
                "take the binary cross-entropy of the model's logits instead"
            )
        losses, slopes = np.zeros(values.shape), np.zeros(values.shape)
        for share, probability, sign in ((labels, values, -1), (1 - labels, 1 - values, 1)):
            counts = share > 0
            losses[counts] -= share[counts] * np.log(probability[counts])
            slopes[counts] += sign * share[counts] / probability[counts]
        return losses.sum(1), slopes


def _names_of_each(labels: Any) -> np.ndarray | None:
    """Return lists of names, one for each example, as a column of lists; None where `labels` holds no names."""
    is_list = isinstance(labels, (list, tuple)) and all(isinstance(row, (list, tuple)) for row in labels)
    if not is_list or not any(isinstance(entry, str) for row in labels for entry in row):
        return None
    wrong = next((row for row in labels if not all(isinstance(entry, str) for entry in row)), None)
    if wrong is not None:
        raise ObjectiveError(f"labels holds {brief(wrong)}: expected a list of names of classes for each example")
    column = np.empty(len(labels), object)
    column[:] = [list(row) for row in labels]
    return column


class SquaredError(_OfOneRow):
    """The squared distance of an example's output and its target, as of a regression. Summed over the entries, never a mean.

    Args:
        target: (example,) for an output with one number for each example, else (example, entry).
        output: see `Objective`.
        position: see `Objective`; a per-position output needs it.

    Raises:
        ObjectiveError: see `Objective`.
    """

    target: np.ndarray

    def __init__(self, target: Any, *, output: str | None = None, position: Any = None) -> None:
        super().__init__(target, "target", output=output, position=position)

    def _rows(self, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        difference = rows.values - self._of_rows(rows, shared=False)
        return (difference**2).sum(1), 2 * difference


class CosineSimilarity(_OfOneRow):
    """The cosine of the angle between an example's output, such as its encoding, and a vector.

    Args:
        vector: (entry,) for all examples, or (example, entry).
        output: see `Objective`.
        position: see `Objective`; a per-position output needs it.

    Raises:
        ObjectiveError: see `Objective`; or the vector or the output of an example is zero everywhere.
    """

    vector: np.ndarray

    def __init__(self, vector: Any, *, output: str | None = None, position: Any = None) -> None:
        super().__init__(vector, "vector", output=output, position=position)

    def _cut(self, name: str, examples: slice | np.ndarray, count: int) -> Any:
        return self.vector if name == "vector" and self.vector.ndim == 1 else super()._cut(name, examples, count)

    def _rows(self, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        vectors, values = self._of_rows(rows, shared=True), rows.values
        sizes = [np.linalg.norm(array, axis=1, keepdims=True) for array in (values, vectors)]
        for size, name in zip(sizes, ("output", "vector"), strict=True):
            zero = np.flatnonzero(size == 0)
            if zero.size:
                raise ObjectiveError(
                    f"the {name} at {rows.location(int(zero[0]))} is zero everywhere, so that it has no cosine with another: "
                    "give embgrad.Projection for the inner product"
                )
        directions = values / sizes[0], vectors / sizes[1]
        cosines = (directions[0] * directions[1]).sum(1)
        return cosines, (directions[1] - cosines[:, None] * directions[0]) / sizes[0]


def _sigmoid(values: np.ndarray) -> np.ndarray:
    """Return 1 / (1 + exp(-values)) without an overflow."""
    powers = np.exp(-np.abs(values))
    return np.asarray(np.where(values >= 0, 1, powers) / (1 + powers))
