"""The actors' classes, which hold the model and compute blocks of results from blocks of rows."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa

from embgrad.backend.registry import backend_for
from embgrad.engine.gradients import gradients
from embgrad.errors import (
    BackendError,
    BatchError,
    EmbgradError,
    ObjectiveError,
    OutputError,
    PointError,
    UnsupportedError,
    brief,
    listed,
)
from embgrad.inputs.encode import padding_of
from embgrad.objectives.objectives import Objective, Scalar
from embgrad.ray.partial_sum import Partial
from embgrad.ray.result_columns import Answer, Wanted, with_answers
from embgrad.ray.row_columns import Columns, Examples, NoColumnError, examples_of, named_row, rows_at
from embgrad.ray.settings import Asked
from embgrad.ray.tally import tally_of
from embgrad.ray.weight_check import expect_same_weights
from embgrad.results.gradients import EmbeddingGradients
from embgrad.streaming.padding_invariance import Difference, Verdict, compared_alone

__all__ = ["GradientWorker", "TableWorker"]

#: Errors that concern the model or the request, and not a single row.
OF_ALL_ROWS: Final = (BackendError, NoColumnError, OutputError, PointError, UnsupportedError)

#: The number of rows run alone to check that other rows do not matter. One is not enough: the others may depend on it.
TRIED: Final = 2


class Worker:
    """The base class of the actors, which holds the model; subclasses use the gradients.

    The model is built at the first block and not in the constructor, since Ray reports a failing constructor only after
    several more actors have failed in it.
    """

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._built: tuple[Any, Any] | None = None
        self._by_length = asked.inputs.convention == "ids"
        self._padding_tried = False  # whether padding is known not to change results
        self._others_tried = False  # whether other rows are known not to change results
        self._held_to_others = asked.run is None  # whether the weights are known to equal those of the other actors

    def answers(self, rows: pa.Table) -> Iterator[Answer]:
        """Yield the gradients of a block's rows, in groups of similar length.

        Raises:
            EmbgradError: as `embgrad.gradients`; the message names the row.
        """
        if self._built is None:
            self._built = _built(self._asked)
        if not rows.num_rows:  # a filter has removed all rows of the block
            return
        try:
            examples = examples_of(rows, self._asked.inputs, self._built[1])
            self._by_length = self._by_length or _may_read_padding(self._asked, self._built[1])
            lengths = examples.own.sum(1)
            order = np.argsort(lengths, kind="stable")
            groups = np.split(order, np.flatnonzero(np.diff(lengths[order])) + 1) if self._by_length else [order]
            size = self._asked.batch_size
            for group in groups:
                for start in range(0, len(group), size):
                    for answer in self._answers(rows, examples, group[start : start + size]):
                        self._hold_to_others()  # a model may create weights in its first forward pass
                        yield answer
        except Exception as error:  # errors of the model as well; Ray would report them in a hundred lines
            raise self._naming_the_row(rows, _ours(error)) from error

    def _hold_to_others(self) -> None:
        if not self._held_to_others and self._built is not None and self._asked.run is not None:
            expect_same_weights(self._asked.run, self._built[0])
            self._held_to_others = True

    def _answers(self, rows: pa.Table, examples: Examples, chosen: np.ndarray) -> Iterator[Answer]:
        part = examples.take(chosen)
        if self._by_length and not part.own.all():
            lengths = part.own.sum(1)
            for length in np.unique(lengths):
                yield from self._answers(rows, examples, chosen[lengths == length])
            return
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            found = self._gradients(rows_at(rows, chosen), part)
        if self._is_other_alone(rows, part, chosen, found):
            self._by_length = True  # from now on only rows of one length share a batch
            yield from self._answers(rows, examples, chosen)
            return
        for one in said:
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
        if found.values.ndim != 3 or found.values.shape[:2] != part.batch.shape:
            raise PointError(
                f"the point {self._asked.point!r} has the shape {found.values.shape}: expected (example, position, dim), with "
                f"{part.batch.shape} examples and positions"
            )
        yield Answer(chosen, found, part.own)

    def _is_other_alone(self, rows: pa.Table, part: Examples, chosen: np.ndarray, found: EmbeddingGradients) -> bool:
        """Return whether padded rows have other results when run alone, because padding or other rows change them.

        Until this is known not to happen, rows of each group are run again alone. A padded row that cannot be run alone counts as
        different.

        Raises:
            UnsupportedError: a row's results alone differ from those beside rows of its length.
        """
        padded = not part.own.all()
        if padded and "mask" in found.provenance["unused"]:
            return True
        several = _that_differ(found.values)
        shortest = several[np.argsort(part.own.sum(1)[several], kind="stable")]
        count = TRIED if len(several) > 1 and not self._others_tried else int(padded and not self._padding_tried)
        told = 0
        for row in shortest[:count]:
            verdict = self._alone(rows, part, chosen, int(row), found)
            if padded and (verdict is None or verdict.difference is not None):
                return True
            if verdict is not None and verdict.difference is not None:
                raise self._of_others(rows_at(rows, chosen[[row]]), verdict.difference)
            if verdict is not None and verdict.told:
                told += 1
                self._padding_tried = self._padding_tried or not part.own[row].all()
        self._others_tried = self._others_tried or told == TRIED
        return False

    def _alone(
        self, rows: pa.Table, part: Examples, chosen: np.ndarray, row: int, found: EmbeddingGradients
    ) -> Verdict | None:
        """Return the comparison of a row's results with those of the row alone.

        Where the model accepts only one number of rows, the row is run with copies of itself. Returns None where it accepts
        neither.
        """
        for count in dict.fromkeys((1, len(chosen))):
            copies = np.full(count, row)
            try:
                alone = self._gradients(rows_at(rows, chosen[copies]), part.take(copies), check=False)
            except Exception:  # of the model; if the row is at fault, it is named later
                continue
            return compared_alone(
                {self._asked.point: found},
                {self._asked.point: alone},
                (row, 0),
                "right",
                lambda: {self._asked.point: self._gradients(rows_at(rows, chosen), part, check=False)},
            )
        return None

    def _of_others(self, row: pa.Table, difference: Difference) -> UnsupportedError:
        return UnsupportedError(
            f"{named_row(row, self._asked.inputs)} has other numbers alone than beside rows of its length: at "
            f"{difference.name!r} they lie {difference.size:.2g} apart, relatively, where rounding explains "
            f"{difference.limit:.2g}. Which rows share a batch is Ray's affair: expected a model, an objective and changes in "
            "which rows do not meet (batch statistics and maxima over a batch are such meetings); or pass batch_size=1"
        )

    def _gradients(self, rows: pa.Table, examples: Examples, **others: Any) -> EmbeddingGradients:
        assert self._built is not None
        passed = {**self._asked.passed, **others}
        found = gradients(self._built[0], examples.batch, _objective(self._asked.objective, rows), **passed)
        assert isinstance(found, EmbeddingGradients)  # `at` is one name
        return found

    def _naming_the_row(self, rows: pa.Table, error: EmbgradError) -> EmbgradError:
        """Return the error of the first row that fails when run alone, with the row's name in the message."""
        assert self._built is not None
        if isinstance(error, OF_ALL_ROWS):
            return _again(error, error.message)
        for number in range(rows.num_rows):
            row = rows.slice(number, 1)
            try:
                self._gradients(row, examples_of(row, self._asked.inputs, self._built[1]))
            except Exception as raised:
                alone = _ours(raised)
                return _again(alone, f"{named_row(row, self._asked.inputs)}: {alone.message}")
        together = (
            f"{rows.num_rows} rows together, of which {named_row(rows.slice(0, 1), self._asked.inputs)} is the first"
        )
        return _again(error, f"{together}: {error.message}")


class GradientWorker(Worker):
    """The actor that adds the requested columns to the rows."""

    def __init__(self, asked: Asked, wanted: Wanted) -> None:
        super().__init__(asked)
        self._wanted = wanted

    def __call__(self, rows: pa.Table) -> pa.Table:
        """Return the rows, in their order, with the requested columns."""
        return with_answers(rows, self.answers(rows), self._wanted, self._asked.inputs)


class TableWorker(Worker):
    """The actor that sums the table's gradient over a block of rows."""

    def __call__(self, rows: pa.Table) -> pa.Table:
        """Return one row: the sum, and the tally of the rows that it covers."""
        total = Partial(tally=tally_of(rows, self._asked.inputs.columns))
        for answer in self.answers(rows):
            total += Partial.of_gradients(answer.found, answer.own)
        return total.to_arrow()


def _built(asked: Asked) -> tuple[Any, Any]:
    """Return the model and the tokenizer that `build` returns."""
    try:
        given = asked.build()
    except EmbgradError:
        raise
    except (
        Exception,
        SystemExit,
    ) as error:  # user code; Ray would report it in a hundred lines, or end the actor
        raise BackendError(f"build() raised {type(error).__name__}: {error}") from error
    if isinstance(given, tuple) and (len(given) != 2 or _are_parts(given)):
        raise BackendError(
            f"build() gave a tuple of {len(given)}: expected (model, tokenizer), or the model alone; the parts of one model as a "
            "list"
        )
    model, tokenizer = given if isinstance(given, tuple) else (given, None)
    backend_for(model)
    if tokenizer is None and asked.inputs.ids is None:
        raise BatchError(
            f"the rows hold texts, in the column {asked.inputs.text[0]!r}, and build() gave no tokenizer: expected "
            "(model, tokenizer); or name a column of ids with ids=..."
        )
    return model, tokenizer


def _that_differ(values: np.ndarray) -> np.ndarray:
    """Return the indices of the distinct rows: beside copies of itself a row has the results that it has alone."""
    return np.unique(values.reshape(len(values), -1), axis=0, return_index=True)[1]


def _are_parts(given: tuple[Any, ...]) -> bool:
    """Return whether a tuple is the parts of one model, and not a model with a tokenizer that is a model too."""
    try:
        backend_for(list(given))
    except BackendError:
        return False
    from embgrad.inputs.tfhub import is_preprocessor

    return not is_preprocessor(given[-1])


def _objective(given: Any, rows: pa.Table) -> Any:
    """Return the objective of these rows."""
    if isinstance(given, Objective):
        return given
    columns = Columns(rows)
    takes = (
        f"it is given the rows' columns ({listed(columns)}); for a function of the model's outputs write "
        "objective=lambda rows: function"
    )
    try:
        made = given(columns)
    except EmbgradError:
        raise
    except Exception as error:  # user code
        raise ObjectiveError(f"the objective's function raised {type(error).__name__}: {error}; {takes}") from error
    if isinstance(made, Scalar):
        raise UnsupportedError(
            "the objective's function gave a Scalar, which reduces over the batch, and which rows share one is Ray's affair: "
            "expected an objective of one number a row"
        )
    if isinstance(made, Objective) or (callable(made) and not isinstance(made, type)):
        return made
    raise ObjectiveError(f"the objective's function gave {brief(made)}: expected an objective; {takes}")


def _may_read_padding(asked: Asked, tokenizer: Any) -> bool:
    """Return whether padding may change results. Ray decides which rows share a batch, and results must not depend on that.

    A `call` may ignore the mask, and padding on the left moves the tokens to other positions.
    """
    return "call" in asked.passed or (asked.inputs.ids is None and padding_of(tokenizer).side == "left")


def _ours(error: Exception) -> EmbgradError:
    """Return the error itself if it is embgrad's, else an embgrad error about the model's."""
    if isinstance(error, EmbgradError):
        return error
    said = str(error).strip().partition("\n")[0]
    return BatchError(f"the model raised {type(error).__name__}: {said}")


def _again(error: EmbgradError, message: str) -> EmbgradError:
    """Return an error with another message, of the nearest class in `embgrad.errors`, so that other processes can load it."""
    kind = next(one for one in type(error).__mro__ if one.__module__ == "embgrad.errors")
    made: EmbgradError = kind(message)
    return made
