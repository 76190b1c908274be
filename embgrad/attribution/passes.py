"""The passes of an attribution method: gradients and objectives where the value at one point is replaced."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np

from embgrad.backend.protocol import BoundModel, Call
from embgrad.backend.registry import bind
from embgrad.common.options import count_or_none, expect_flag
from embgrad.common.tolerance import computation_dtype, unit_roundoff
from embgrad.engine.company import Company, company_of, differs, tolerance_of
from embgrad.engine.encoder_decoders import with_decoder
from embgrad.engine.evaluate import evaluate_question
from embgrad.engine.gradients import results_of
from embgrad.engine.options import GradientOptions, expect_one_name
from embgrad.engine.probe import with_shared
from embgrad.engine.question import Question
from embgrad.errors import NoGradientError, ObjectiveError, UnsupportedError
from embgrad.inputs.batch import TokenBatch
from embgrad.inputs.conventions import batch_of
from embgrad.inputs.decoder import IDS
from embgrad.inputs.extras import equals
from embgrad.objectives.native import NativeObjective
from embgrad.objectives.objectives import Objective, as_objective
from embgrad.results.gradients import EmbeddingGradients

__all__ = [
    *("MOST_POSITIONS", "Passes", "Rows", "add_rows", "passes_of", "passes_through", "rounding_at", "size_of_pass"),
]

#: How many positions one pass runs at most where the user names no `batch_size`, but at least one example.
MOST_POSITIONS: Final = 2048

#: How many rounding errors of an objective's size an error of completeness may be by rounding.
ROUNDING: Final = 8


@dataclass(frozen=True)
class Rows:
    """The rows of a batch of steps: whole batches of the user's examples, one after another, each with other values.

    They are run so where an example's objective stays the same whatever other rows a pass has, see `Passes.company`.

    Attributes:
        count: how many times the user's batch is repeated.
        values: returns the values at the point of the rows from the first index up to the second, (row, position, dim).
    """

    count: int
    values: Callable[[int, int], np.ndarray]

    @classmethod
    def of(cls, values: np.ndarray, examples: int) -> Rows:
        """Return the rows with these values, (row, position, dim), for a batch of so many examples."""
        return cls(len(values) // examples, lambda start, end: values[start:end])


@dataclass(frozen=True)
class Passes:
    """A model, a batch and an objective, and what passes through them compute.

    Attributes:
        batch: the user's batch, whose shared extras are named.
        batch_size: how many rows one pass runs at most; None for as many as have `MOST_POSITIONS` positions.
        values: the values at the point that count as the batch's own, (example, position, dim); None for those that it has.
        quiet: whether the user has been warned of the batch.
        known: the `company` as tests on other passes of the batch have shown it; None where it is to be tested.
    """

    bound: BoundModel
    batch: TokenBatch
    objective: Objective | NativeObjective
    at: str
    pads: str = "keep"
    batch_size: int | None = None
    values: np.ndarray | None = None
    quiet: bool = False
    known: Company | None = None
    training: bool = field(kw_only=True)

    @cached_property
    def state(self) -> EmbeddingGradients:
        """The batch's own values at the point and its objectives; `values` are zeros."""
        return self.result if "result" in vars(self) else self._result(pullback=False)

    @cached_property
    def inputs(self) -> np.ndarray:
        """The batch's own values at the point, float64."""
        return np.asarray(self.state.activations, np.float64)

    @property
    def rounding(self) -> float:
        """The share of an objective that an error of completeness may be by rounding."""
        return rounding_at(computation_dtype(self.state))

    @cached_property
    def result(self) -> EmbeddingGradients:
        """The same with the gradients."""
        return self._result(pullback=True)

    def _result(self, *, pullback: bool) -> EmbeddingGradients:
        changes = {} if self.values is None else {"override": {self.at: self.values}}
        # The gradient of an example's own objective: that of the sum is another where a function reads several examples, or the
        # model, as batch norm does in training mode.
        split = pullback and (self.is_native or self.training) and self.company is Company.HELD
        options = self._options((self.at,), changes, split=split)
        quiet = self.quiet or self.values is not None
        question = Question(self.bound, self.batch, (self.objective,), options, pullback=pullback, quiet=quiet)
        is_whole = self.is_native or self.size >= len(self.batch)
        result = results_of(question, None if is_whole else self.size)[self.at]
        if result.values.ndim != 3 or result.values.shape[:2] != self.batch.shape:
            raise UnsupportedError(
                f"the point {self.at!r} has the shape {result.values.shape}: expected (example, position, dim), "
                f"{self.batch.shape} first, since positions are what an attribution is of"
            )
        if "order" in result.provenance:
            raise UnsupportedError(
                f"nothing shows that the entries at the point {self.at!r} belong to the batch's examples and positions, which an "
                "attribution is of: the model changes its ids or their order first. Use 'word' where the model has it, or the "
                "output of a module behind it"
            )
        if self._is_of_decoder(result):
            raise UnsupportedError(
                f"the point {self.at!r} is of the decoder's positions, and an attribution is of the batch's ids: expected a "
                "point of the encoder"
            )
        return result

    def _options(
        self, names: tuple[str, ...], changes: Mapping[str, Mapping[str, np.ndarray]], *, split: bool = False
    ) -> GradientOptions:
        return GradientOptions(names, training=self.training, pads=self.pads, split=split, changes=changes)

    def forward_question(
        self, batch: TokenBatch, objective: Objective | NativeObjective | None = None, *, quiet: bool = True
    ) -> Question:
        """Return the question of forward passes that change no value, for an objective, by default that of the own batch."""
        chosen = self.objective if objective is None else objective
        return Question(self.bound, batch, (chosen,), self._options((), {}), pullback=False, quiet=quiet)

    def _is_of_decoder(self, result: EmbeddingGradients) -> bool:
        """Return whether the point belongs to an encoder-decoder's decoder, whose length may be that of the batch."""
        extras = with_decoder(self.bound, self.batch).extras
        if IDS not in extras:
            return False
        reads_others = not np.array_equal(result.ids, self.batch.ids)
        return (reads_others and equals(extras[IDS], result.ids)) or "decoder" in result.provenance["path"].split(".")

    @property
    def is_native(self) -> bool:
        """Return whether the objective is a function, which may know the labels of the whole batch, in order."""
        return isinstance(self.objective, NativeObjective)

    def of_examples(self, examples: np.ndarray) -> Passes:
        """Return the passes of some examples of the batch, by their indices; with a function as objective of all of them."""
        if isinstance(self.objective, NativeObjective):
            return self
        objective = self.objective.take(examples, len(self.batch))
        values = None if self.values is None else self.values[examples]
        return replace(self, batch=self.batch.take(examples), objective=objective, values=values, known=self.company)

    def with_values(self, values: np.ndarray) -> Passes:
        """Return the passes of the same batch with other values at the point, (example, position, dim), as its own."""
        return replace(self, values=values, known=vars(self).get("company", self.known))

    @property
    def size(self) -> int:
        """The most examples of the batch in one pass."""
        if self.is_native:
            return len(self.batch)
        return size_of_pass(self.batch_size, self.batch.shape[1])

    @cached_property
    def company(self) -> Company:
        """With how many and with which other rows an example's objective stays the same, from a test with forward passes."""
        if self.known is not None:
            return self.known
        if self.size == 1 and not self.is_native:
            return Company.FREE
        if (len(self.batch) == 1 and self.is_fixed) or (self.training and self.is_random):
            return Company.FIXED
        return company_of(self._values_in, self.state, None if self.is_fixed else self.size)

    @property
    def is_fixed(self) -> bool:
        """Return whether each pass has to run as many rows as the batch has examples, as the user says."""
        return self.is_native or self.batch_size == len(self.batch)

    @cached_property
    def is_random(self) -> bool:
        """Return whether another forward pass gives other objectives, because the model draws random numbers."""
        examples = np.arange(min(self.size, len(self.batch)))
        own, tolerance = (
            np.asarray(self.state.objective)[examples],
            tolerance_of(self.state.provenance["compute_dtype"]),
        )
        again = self._values_in(examples, self.inputs[examples])
        return differs(again, own, np.zeros(len(own), bool), tolerance)

    @property
    def needs_whole(self) -> bool:
        """Return whether each pass has to run the batch's examples, all of them, in their order."""
        return self.company is not Company.FREE

    def _values_in(self, examples: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Return the objectives of these examples with these values at the point."""
        return evaluate_question(self._question(examples, values, ()))

    def _question(
        self, examples: np.ndarray, values: np.ndarray, names: tuple[str, ...], *, split: bool = False
    ) -> Question:
        """Return the question of a pass of these examples with these values at the point; without names it takes no gradients."""
        objective = self.objective
        if not isinstance(objective, NativeObjective):
            objective = objective.take(examples, len(self.batch))
        options = self._options(names, {"override": {self.at: values}}, split=split)
        batch = self.batch.take(examples)
        return Question(self.bound, batch, (objective,), options, pullback=bool(names), quiet=True)

    @property
    def batches_at_once(self) -> int:
        """The largest number of times that one pass runs the batch where the company is free; one at least."""
        return max(1, self.size // len(self.batch))

    def gradients(self, rows: Rows) -> Iterator[tuple[int, int, np.ndarray, np.ndarray]]:
        """Yield for pieces of the rows the first index, the index after the last, the gradients, and the objectives."""
        for piece in self._pieces(rows, (self.at,)):
            try:
                result = results_of(piece.question)[self.at]
            except (NoGradientError, ObjectiveError) as error:
                raise self._explain(error, piece.start, piece.end) from error
            yield piece.start, piece.end, result.values[piece.read], result.objective[piece.read]

    def objectives(self, rows: Rows) -> np.ndarray:
        """Return the objectives at the rows' values, float64, (row,)."""
        values = np.empty(rows.count * len(self.batch))
        for piece in self._pieces(rows, ()):
            try:
                values[piece.start : piece.end] = evaluate_question(piece.question)[piece.read]
            except ObjectiveError as error:
                raise self._explain(error, piece.start, piece.end) from error
        return values

    def objective_at(self, values: np.ndarray) -> np.ndarray:
        """Return the objectives at other values of the whole batch, float64, (example,)."""
        return self.objectives(Rows.of(values, len(self.batch)))

    def _pieces(self, rows: Rows, names: tuple[str, ...]) -> Iterator[_Piece]:
        """Yield the passes for the rows: as many as one pass runs, whole batches, or a batch with one in it."""
        count = len(self.batch)
        is_held = self.company is Company.HELD
        size = 1 if is_held else count if self.needs_whole else self.size
        for start in range(0, rows.count * count, size):
            end = min(start + size, rows.count * count)
            examples, values, read = np.arange(start, end) % count, rows.values(start, end), slice(None)
            if is_held:
                values = self.inputs.copy()
                values[examples] = rows.values(start, end)
                examples, read = np.arange(count), slice(start % count, start % count + 1)
            yield _Piece(start, end, self._question(examples, values, names, split=is_held and bool(names)), read)

    def _explain(self, error: NoGradientError | ObjectiveError, start: int, end: int) -> Exception:
        count = len(self.batch)
        examples = sorted({index % count for index in range(start, end)})
        named = (
            f"example {examples[0]}" if len(examples) == 1 else f"one of the examples {examples[0]} to {examples[-1]}"
        )
        return type(error)(
            f"at values that the method puts in place of those at {self.at!r}, for {named}, numbered in the pass: "
            f"{error.message}"
        )


class _Piece(NamedTuple):
    """One pass: the first of its rows and the one after the last, what is run, and which of its results are those of the rows."""

    start: int
    end: int
    question: Question
    read: slice


def add_rows(total: np.ndarray, start: int, rows: np.ndarray) -> None:
    """Add rows of steps to an array of the batch's examples, one step after another; `rows` is overwritten.

    Args:
        start: the index of the first of the rows, see `Rows`.
    """
    count = len(total)
    first = start % count
    head = min(-start % count, len(rows))
    total[first : first + head] += rows[:head]
    tail = (len(rows) - head) % count
    steps = rows[head : len(rows) - tail].reshape(-1, *total.shape)
    if len(steps):
        steps[0] += total
        np.add.reduce(steps, 0, out=total)
    total[:tail] += rows[len(rows) - tail :]


def rounding_at(dtype: Any) -> float:
    """Return the share of an objective that an error of completeness may be by rounding where a model computes in a dtype."""
    return float(ROUNDING * 2 * unit_roundoff(dtype))


def size_of_pass(batch_size: int | None, positions: int) -> int:
    """Return how many rows of so many positions one pass runs at most, where the user names a `batch_size` or None."""
    return batch_size or max(1, MOST_POSITIONS // positions)


def passes_of(
    model: Any,
    batch: Any,
    objective: Any,
    at: str,
    tokenizer: Any,
    max_length: int | None,
    call: Call | None,
    batch_size: int | None,
    *,
    pads: str = "keep",
    training: bool = False,
) -> Passes:
    """Return the passes for the arguments of a public function, see `attribute`."""
    expect_one_name(at, "make a call for each point")
    expect_flag(training, "training")
    tokens = batch_of(batch, tokenizer, max_length, model)
    size = count_or_none(batch_size, "batch_size")
    return passes_through(bind(model, call), tokens, as_objective(objective), at, pads, size, training=training)


def passes_through(
    bound: BoundModel,
    batch: TokenBatch,
    objective: Objective | NativeObjective,
    at: str,
    pads: str,
    size: int | None,
    *,
    training: bool = False,
) -> Passes:
    """Return the passes of a batch whose arguments have been read, see `Passes`."""
    if isinstance(objective, NativeObjective) and objective.scalar:
        raise UnsupportedError(
            "a Scalar objective reduces over the batch, and an attribution is of each example's own objective: give a function "
            "of shape (example,)"
        )
    if batch.extras:
        batch = with_shared(bound, batch, repeated=True)
    return Passes(bound, batch, objective, at, pads, size, training=training)
