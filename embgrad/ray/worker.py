"""The actors' classes, which hold the model and compute blocks of results from blocks of rows."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
from ray.experimental import internal_kv

from embgrad.backend.registry import backend_for, bind
from embgrad.common.tracebacks import errors_of_model
from embgrad.engine.gradients import results_of
from embgrad.engine.question import Question
from embgrad.engine.weights import weights_sums
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
    quote,
)
from embgrad.inputs.tfhub import is_preprocessor
from embgrad.objectives.objectives import Objective, Scalar, as_objective
from embgrad.ray.alone import Verdict, compare_alone
from embgrad.ray.columns import (
    Block,
    Columns,
    NoColumnError,
    Wanted,
    block_of,
    row_name,
    table_of,
    with_columns,
)
from embgrad.ray.settings import Job
from embgrad.ray.tally import Total, tally_of
from embgrad.results.gradients import EmbeddingGradients
from embgrad.streaming.attributions import attributions_of

__all__ = ["GradientWorker", "TableWorker", "expect_same_weights"]

#: Errors that concern the model or the request, and not a single row.
OF_ALL_ROWS: Final = (BackendError, NoColumnError, OutputError, PointError, UnsupportedError)

#: The number of rows run alone to check that other rows do not matter. One is not enough: the others may depend on it.
ROWS_RUN_ALONE: Final = 2

#: The namespace in Ray's internal key-value store that holds the first weights of each run.
NAMESPACE: Final = "embgrad"


class Worker:
    """The base class of the actors, which holds the model; subclasses use the gradients.

    The model is built at the first block and not in the constructor, since Ray reports a failing constructor only after
    several more actors have failed in it.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._model: Any = None
        self._tokenizer: Any = None
        # Rows of one length alone share a batch where padding may change results: a `call` may ignore the mask, and padding on
        # the left moves the tokens to other positions.
        self._by_length = job.inputs.convention == "ids" or job.call is not None
        self._padding_checked = False  # whether padding is known not to change results
        self._other_rows_checked = False  # whether other rows are known not to change results
        self._unchecked = job.run  # None once the weights are known to equal those of the run's other actors

    def results(self, rows: pa.Table) -> Iterator[tuple[np.ndarray, Block, Any]]:
        """Yield the results of a block's rows, in batches of similar length: the rows' indices, the rows, their result."""
        if self._model is None:
            self._model, self._tokenizer = _built_model(self._job)
        if not rows.num_rows:  # a filter has removed all rows of the block
            return
        try:
            block = block_of(rows, self._job.inputs, self._tokenizer)
            self._by_length = self._by_length or block.padding.side == "left"
            order, size = np.argsort(block.lengths, kind="stable"), self._job.batch_size
            for start in range(0, len(order), size):
                chosen = order[start : start + size]
                yield from self._results(block.take(chosen), chosen)
        except Exception as error:  # errors of the model as well; Ray would report them in a hundred lines
            raise self._with_row_name(rows, _as_embgrad_error(error)) from error

    def _results(self, block: Block, chosen: np.ndarray) -> Iterator[tuple[np.ndarray, Block, Any]]:
        lengths = block.lengths
        if self._by_length and lengths.min() < lengths.max():
            for length in np.unique(lengths):
                same = np.flatnonzero(lengths == length)
                yield from self._results(block.take(same), chosen[same])
            return
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = self._gradients(block)
        if result.values.ndim != 3 or result.values.shape[:2] != block.batch.shape:
            raise PointError(
                f"the point {self._job.point!r} has the shape {result.values.shape}: expected (example, position, dim), with "
                f"{block.batch.shape} examples and positions"
            )
        if self._differs_alone(block, result):
            self._by_length = True  # from now on only rows of one length share a batch
            yield from self._results(block, chosen)
            return
        for warning in caught:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
        if self._unchecked is not None:  # now: a model may create weights in its first pass
            expect_same_weights(self._unchecked, self._model)
            self._unchecked = None
        yield chosen, block, self._finish(block, result)

    def _finish(self, block: Block, result: EmbeddingGradients) -> Any:
        """Return what is requested of a batch, whose gradients are the result."""
        return result

    def _differs_alone(self, block: Block, result: EmbeddingGradients) -> bool:
        """Return whether padded rows have other results when run alone, because padding or other rows change them.

        Until this is known not to happen, rows of each batch are run again alone. A padded row that cannot be run alone counts
        as different.
        """
        padded = not block.real.all()
        if padded and "mask" in result.provenance["unused"]:
            return True
        # Beside copies of itself a row has the results that it has alone.
        several = np.unique(result.values.reshape(len(result.values), -1), axis=0, return_index=True)[1]
        shortest = several[np.argsort(block.lengths[several], kind="stable")]
        check_others = len(several) > 1 and not self._other_rows_checked
        conclusive = 0
        for row in shortest[: ROWS_RUN_ALONE if check_others else int(padded and not self._padding_checked)]:
            verdict = self._alone(block, int(row), result)
            if padded and (verdict is None or verdict.difference is not None):
                return True
            if verdict is not None and verdict.difference is not None:
                raise UnsupportedError(
                    f"{block.name(int(row))} has other results alone than beside rows of its length: at "
                    f"{self._job.point!r} their relative difference is {verdict.difference:.2g}, and rounding explains "
                    f"{verdict.limit:.2g}. Ray decides which rows share a batch: use a model, an objective and changes in which "
                    "rows do not interact (as they do by batch statistics and maxima over a batch), or pass batch_size=1"
                )
            if verdict is not None and verdict.conclusive:
                conclusive += 1
                self._padding_checked = self._padding_checked or not block.real[row].all()
        self._other_rows_checked = self._other_rows_checked or conclusive == ROWS_RUN_ALONE
        return False

    def _alone(self, block: Block, row: int, result: EmbeddingGradients) -> Verdict | None:
        """Return the comparison of a row's results with those of the row alone.

        Where the model accepts only one number of rows, the row is run with copies of itself. Returns None where it accepts
        neither.
        """
        for count in dict.fromkeys((1, len(block.examples))):
            try:
                alone = self._gradients(block.take(np.full(count, row)))
            except errors_of_model():  # of the model; if the row is at fault, it is named later
                continue
            return compare_alone(result, alone, row, lambda: self._gradients(block))
        return None

    def _gradients(self, block: Block) -> EmbeddingGradients:
        with warnings.catch_warnings():  # rows that padding changes are run again without it, see `_differs_alone`
            warnings.filterwarnings("ignore", "the model reads padding", EmbgradWarning)
            return results_of(self._question(block))[self._job.point]

    def _question(self, block: Block) -> Question:
        objective = as_objective(_objective(self._job.objective, block.rows))
        return Question(bind(self._model, self._job.call), block.batch, (objective,), self._job.options)

    def _with_row_name(self, rows: pa.Table, error: EmbgradError) -> EmbgradError:
        """Return the error of the first row that fails when run alone, with the row's name in the message."""
        if isinstance(error, OF_ALL_ROWS):
            return _with_message(error, error.message)
        for number in range(rows.num_rows):
            row = rows.slice(number, 1)
            try:
                block = block_of(row, self._job.inputs, self._tokenizer)
                self._finish(block, self._gradients(block))
            except Exception as exception:
                alone = _as_embgrad_error(exception)
                return _with_message(alone, f"{row_name(row, self._job.inputs)}: {alone.message}")
        first = row_name(rows.slice(0, 1), self._job.inputs)
        return _with_message(error, f"{rows.num_rows} rows together, of which {first} is the first: {error.message}")


class GradientWorker(Worker):
    """The actor that adds the requested columns to the rows."""

    def __init__(self, job: Job, wanted: Wanted) -> None:
        super().__init__(job)
        self._wanted = wanted

    def _finish(self, block: Block, result: EmbeddingGradients) -> Any:
        if self._wanted.method is None:
            return result
        return attributions_of(self._wanted.method, self._tokenizer, self._question(block), None)[self._job.point]

    def __call__(self, rows: pa.Table) -> pa.Table:
        """Return the rows, in their order, with the requested columns."""
        return with_columns(rows, self.results(rows), self._wanted)


class TableWorker(Worker):
    """The actor that sums the table's gradient over a block of rows."""

    def __call__(self, rows: pa.Table) -> pa.Table:
        """Return one row: the sum, and the tally of the rows that it covers."""
        total = Total()
        total.tally = tally_of(rows, self._job.inputs.columns)
        for _, block, result in self.results(rows):
            values = result.values[block.real].astype(np.float64)
            total.add(table_of(result, result.ids[block.real], values), result.values.dtype)
        return total.to_arrow()


def expect_same_weights(run: str, model: Any) -> None:
    """Record the weights of the first actor of a run, or compare an actor's weights with the recorded ones.

    Outside of Ray, where there are no other actors, nothing is checked.

    Args:
        run: the identifier of the run, shared by all of its actors.
    """
    if not internal_kv._internal_kv_initialized():
        return
    key, digests = f"weights:{run}", weights_sums(model)
    internal_kv._internal_kv_put(key, json.dumps(digests), overwrite=False, namespace=NAMESPACE)
    first = json.loads(internal_kv._internal_kv_get(key, namespace=NAMESPACE))
    differing = [name for name in dict.fromkeys([*first, *digests]) if first.get(name) != digests.get(name)]
    if differing:
        raise BackendError(
            f"build() returned different weights in different actors ({quote(differing)}): expected the same model in each, and "
            "in restarted ones. Load all weights inside build(), or set the seed there, for example for a classifier's new head"
        )


def _built_model(job: Job) -> tuple[Any, Any]:
    """Return the model and the tokenizer that `build` returns."""
    try:
        result = job.build()
    except EmbgradError:
        raise
    except (Exception, SystemExit) as error:  # user code; Ray would report it in a hundred lines, or end the actor
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


def _are_parts(result: tuple[Any, ...]) -> bool:
    """Return whether a tuple is the parts of one model, and not a model with a tokenizer that is a model too."""
    try:
        backend_for(list(result))
    except BackendError:
        return False
    return not is_preprocessor(result[-1])


def _objective(objective: Any, rows: pa.Table) -> Any:
    """Return the objective of these rows."""
    if isinstance(objective, Objective):
        return objective
    columns = Columns(rows)
    advice = (
        f"it receives the rows' columns ({quote(columns)}); for a function of the model's outputs write "
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
