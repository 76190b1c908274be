"""The actors' classes, which hold the model and compute blocks of results from blocks of rows."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from embgrad.backend.registry import backend_for, bind
from embgrad.common.tracebacks import errors_of_model
from embgrad.engine.gradients import results_of
from embgrad.engine.question import Question
from embgrad.errors import (
    BackendError,
    BatchError,
    EmbgradError,
    EmbgradWarning,
    ObjectiveError,
    OutputError,
    PointError,
    UnsupportedError,
    brief,
    listed,
)
from embgrad.inputs.encode import padding_of
from embgrad.objectives.objectives import Objective, Scalar, as_objective
from embgrad.ray.partial_sum import Partial
from embgrad.ray.result_columns import RowGradients, Wanted, with_columns
from embgrad.ray.row_columns import Columns, Examples, NoColumnError, examples_of, named_row, rows_at
from embgrad.ray.settings import Job
from embgrad.ray.tally import tally_of
from embgrad.ray.weight_check import expect_same_weights
from embgrad.results.gradients import EmbeddingGradients
from embgrad.streaming.attributions import attributions_of
from embgrad.streaming.padding_invariance import Difference, Verdict, compared_alone

__all__ = ["GradientWorker", "TableWorker"]

#: Errors that concern the model or the request, and not a single row.
OF_ALL_ROWS: Final = (BackendError, NoColumnError, OutputError, PointError, UnsupportedError)

#: The number of rows run alone to check that other rows do not matter. One is not enough: the others may depend on it.
ROWS_RUN_ALONE: Final = 2


class Worker:
    """The base class of the actors, which holds the model; subclasses use the gradients.

    The model is built at the first block and not in the constructor, since Ray reports a failing constructor only after
    several more actors have failed in it.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._built: tuple[Any, Any] | None = None
        self._by_length = job.inputs.convention == "ids"
        self._padding_checked = False  # whether padding is known not to change results
        self._other_rows_checked = False  # whether other rows are known not to change results
        self._weights_checked = job.run is None  # whether the weights are known to equal those of the other actors

    def row_gradients(self, rows: pa.Table) -> Iterator[RowGradients]:
        """Yield the gradients of a block's rows, in groups of similar length.

        Raises:
            EmbgradError: as `embgrad.gradients`; the message names the row.
        """
        if self._built is None:
            self._built = _built_model(self._job)
        if not rows.num_rows:  # a filter has removed all rows of the block
            return
        try:
            examples = examples_of(rows, self._job.inputs, self._built[1])
            self._by_length = self._by_length or _may_read_padding(self._job, self._built[1])
            lengths = examples.real.sum(1)
            order = np.argsort(lengths, kind="stable")
            groups = np.split(order, np.flatnonzero(np.diff(lengths[order])) + 1) if self._by_length else [order]
            size = self._job.batch_size
            for group in groups:
                for start in range(0, len(group), size):
                    for entry in self._row_gradients(rows, examples, group[start : start + size]):
                        self._check_weights()  # a model may create weights in its first forward pass
                        yield entry
        except Exception as error:  # errors of the model as well; Ray would report them in a hundred lines
            raise self._with_row_name(rows, _as_embgrad_error(error)) from error

    def _check_weights(self) -> None:
        if not self._weights_checked and self._built is not None and self._job.run is not None:
            expect_same_weights(self._job.run, self._built[0])
            self._weights_checked = True

    def _row_gradients(self, rows: pa.Table, examples: Examples, chosen: np.ndarray) -> Iterator[RowGradients]:
        part = examples.take(chosen)
        if self._by_length and not part.real.all():
            lengths = part.real.sum(1)
            for length in np.unique(lengths):
                yield from self._row_gradients(rows, examples, chosen[lengths == length])
            return
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = self._gradients(rows_at(rows, chosen), part)
        if self._differs_alone(rows, part, chosen, result):
            self._by_length = True  # from now on only rows of one length share a batch
            yield from self._row_gradients(rows, examples, chosen)
            return
        for warning in caught:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
        if result.values.ndim != 3 or result.values.shape[:2] != part.batch.shape:
            raise PointError(
                f"the point {self._job.point!r} has the shape {result.values.shape}: expected (example, position, dim), with "
                f"{part.batch.shape} examples and positions"
            )
        yield RowGradients(chosen, self._finished(rows_at(rows, chosen), part, result), part.real)

    def _finished(self, rows: pa.Table, examples: Examples, result: EmbeddingGradients) -> Any:
        """Return what is requested of a batch, whose gradients are the result."""
        return result

    def _differs_alone(self, rows: pa.Table, part: Examples, chosen: np.ndarray, result: EmbeddingGradients) -> bool:
        """Return whether padded rows have other results when run alone, because padding or other rows change them.

        Until this is known not to happen, rows of each group are run again alone. A padded row that cannot be run alone counts as
        different.

        Raises:
            UnsupportedError: a row's results alone differ from those beside rows of its length.
        """
        padded = not part.real.all()
        if padded and "mask" in result.provenance["unused"]:
            return True
        several = _distinct_rows(result.values)
        shortest = several[np.argsort(part.real.sum(1)[several], kind="stable")]
        count = (
            ROWS_RUN_ALONE
            if len(several) > 1 and not self._other_rows_checked
            else int(padded and not self._padding_checked)
        )
        conclusive = 0
        for row in shortest[:count]:
            verdict = self._alone(rows, part, chosen, int(row), result)
            if padded and (verdict is None or verdict.difference is not None):
                return True
            if verdict is not None and verdict.difference is not None:
                raise self._interaction_error(rows_at(rows, chosen[[row]]), verdict.difference)
            if verdict is not None and verdict.conclusive:
                conclusive += 1
                self._padding_checked = self._padding_checked or not part.real[row].all()
        self._other_rows_checked = self._other_rows_checked or conclusive == ROWS_RUN_ALONE
        return False

    def _alone(
        self, rows: pa.Table, part: Examples, chosen: np.ndarray, row: int, result: EmbeddingGradients
    ) -> Verdict | None:
        """Return the comparison of a row's results with those of the row alone.

        Where the model accepts only one number of rows, the row is run with copies of itself. Returns None where it accepts
        neither.
        """
        for count in dict.fromkeys((1, len(chosen))):
            copies = np.full(count, row)
            try:
                alone = self._gradients(rows_at(rows, chosen[copies]), part.take(copies), check=False)
            except errors_of_model():  # of the model; if the row is at fault, it is named later
                continue
            return compared_alone(
                {self._job.point: result},
                {self._job.point: alone},
                (row, 0),
                "right",
                lambda: {self._job.point: self._gradients(rows_at(rows, chosen), part, check=False)},
            )
        return None

    def _interaction_error(self, row: pa.Table, difference: Difference) -> UnsupportedError:
        return UnsupportedError(
            f"{named_row(row, self._job.inputs)} has other results alone than beside rows of its length: at "
            f"{difference.name!r} their relative difference is {difference.size:.2g}, and rounding explains "
            f"{difference.limit:.2g}. Ray decides which rows share a batch: use a model, an objective and changes in which rows "
            "do not interact (as they do by batch statistics and maxima over a batch), or pass batch_size=1"
        )

    def _gradients(self, rows: pa.Table, examples: Examples, *, check: bool = True) -> EmbeddingGradients:
        question = self._question(rows, examples)
        if not check:
            question = replace(question, options=replace(question.options, check=False))
        with warnings.catch_warnings():  # rows that padding changes are run again without it, see `_differs_alone`
            warnings.filterwarnings("ignore", "the model reads padding", EmbgradWarning)
            return results_of(question)[self._job.point]

    def _question(self, rows: pa.Table, examples: Examples) -> Question:
        assert self._built is not None
        job = self._job
        objective = as_objective(_objective(job.objective, rows))
        return Question(bind(self._built[0], job.call), examples.batch, (objective,), job.options)

    def _with_row_name(self, rows: pa.Table, error: EmbgradError) -> EmbgradError:
        """Return the error of the first row that fails when run alone, with the row's name in the message."""
        assert self._built is not None
        if isinstance(error, OF_ALL_ROWS):
            return _with_message(error, error.message)
        for number in range(rows.num_rows):
            row = rows.slice(number, 1)
            try:
                example = examples_of(row, self._job.inputs, self._built[1])
                self._finished(row, example, self._gradients(row, example))
            except Exception as exception:
                alone = _as_embgrad_error(exception)
                return _with_message(alone, f"{named_row(row, self._job.inputs)}: {alone.message}")
        together = (
            f"{rows.num_rows} rows together, of which {named_row(rows.slice(0, 1), self._job.inputs)} is the first"
        )
        return _with_message(error, f"{together}: {error.message}")


class GradientWorker(Worker):
    """The actor that adds the requested columns to the rows."""

    def __init__(self, job: Job, wanted: Wanted) -> None:
        super().__init__(job)
        self._wanted = wanted

    def _finished(self, rows: pa.Table, examples: Examples, result: EmbeddingGradients) -> Any:
        method = self._wanted.method
        if method is None:
            return result
        assert self._built is not None
        return attributions_of(method, self._built[1], self._question(rows, examples), None)[self._job.point]

    def __call__(self, rows: pa.Table) -> pa.Table:
        """Return the rows, in their order, with the requested columns."""
        return with_columns(rows, self.row_gradients(rows), self._wanted, self._job.inputs)


class TableWorker(Worker):
    """The actor that sums the table's gradient over a block of rows."""

    def __call__(self, rows: pa.Table) -> pa.Table:
        """Return one row: the sum, and the tally of the rows that it covers."""
        total = Partial(tally=tally_of(rows, self._job.inputs.columns))
        for entry in self.row_gradients(rows):
            total += Partial.of_gradients(entry.result, entry.real)
        return total.to_arrow()


def _built_model(job: Job) -> tuple[Any, Any]:
    """Return the model and the tokenizer that `build` returns."""
    try:
        result = job.build()
    except EmbgradError:
        raise
    except (
        Exception,
        SystemExit,
    ) as error:  # user code; Ray would report it in a hundred lines, or end the actor
        raise BackendError(f"build() raised {type(error).__name__}: {error}") from error
    if isinstance(result, tuple) and (len(result) != 2 or _are_parts(result)):
        raise BackendError(
            f"build() returned a tuple of {len(result)}: expected the model, or (model, tokenizer); return the parts of one "
            "model as a list"
        )
    model, tokenizer = result if isinstance(result, tuple) else (result, None)
    backend_for(model)
    if tokenizer is None and job.inputs.ids is None:
        raise BatchError(
            f"the rows hold texts, in the column {job.inputs.text[0]!r}, but build() returned no tokenizer: return "
            "(model, tokenizer), or name a column of ids with ids=..."
        )
    return model, tokenizer


def _distinct_rows(values: np.ndarray) -> np.ndarray:
    """Return the indices of the distinct rows: beside copies of itself a row has the results that it has alone."""
    return np.unique(values.reshape(len(values), -1), axis=0, return_index=True)[1]


def _are_parts(result: tuple[Any, ...]) -> bool:
    """Return whether a tuple is the parts of one model, and not a model with a tokenizer that is a model too."""
    try:
        backend_for(list(result))
    except BackendError:
        return False
    from embgrad.inputs.tfhub import is_preprocessor

    return not is_preprocessor(result[-1])


def _objective(objective: Any, rows: pa.Table) -> Any:
    """Return the objective of these rows."""
    if isinstance(objective, Objective):
        return objective
    columns = Columns(rows)
    advice = (
        f"it receives the rows' columns ({listed(columns)}); for a function of the model's outputs write "
        "objective=lambda rows: function"
    )
    try:
        result = objective(columns)
    except EmbgradError:
        raise
    except Exception as error:  # user code
        raise ObjectiveError(f"the objective's function raised {type(error).__name__}: {error}; {advice}") from error
    if isinstance(result, Scalar):
        raise UnsupportedError(
            "the objective's function returned a Scalar, which reduces over the batch, but Ray decides which rows share one: "
            "return an objective with one number a row"
        )
    if isinstance(result, Objective) or (callable(result) and not isinstance(result, type)):
        return result
    raise ObjectiveError(f"the objective's function returned {brief(result)}: expected an objective; {advice}")


def _may_read_padding(job: Job, tokenizer: Any) -> bool:
    """Return whether padding may change results. Ray decides which rows share a batch, and results must not depend on that.

    A `call` may ignore the mask, and padding on the left moves the tokens to other positions.
    """
    return job.call is not None or (job.inputs.ids is None and padding_of(tokenizer).side == "left")


def _as_embgrad_error(error: Exception) -> EmbgradError:
    """Return the error itself if it is embgrad's, else an embgrad error about the model's."""
    if isinstance(error, EmbgradError):
        return error
    first_line = str(error).strip().partition("\n")[0]
    return BatchError(f"the model raised {type(error).__name__}: {first_line}")


def _with_message(error: EmbgradError, message: str) -> EmbgradError:
    """Return an error with another message, of the nearest class in `embgrad.errors`, so that other processes can load it."""
    cls = next(base for base in type(error).__mro__ if base.__module__ == "embgrad.errors")
    renamed: EmbgradError = cls(message)
    return renamed
