"""The passes of an attribution of output tokens: several log-probabilities through one forward pass, reduced as they arrive."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from embgrad.attribution.passes import Passes, size_of_pass
from embgrad.attribution.targets import Targets
from embgrad.backend.protocol import BoundModel, PointValues, Reduce
from embgrad.common.finite import not_finite
from embgrad.engine.call_errors import explain_errors
from embgrad.engine.company import Company
from embgrad.engine.encoder_decoders import with_decoder
from embgrad.engine.evaluate import evaluate_each
from embgrad.engine.options import GradientOptions
from embgrad.engine.question import Question
from embgrad.engine.run import point_values, reduce_run, run_located, run_question
from embgrad.engine.sub_batches import compare_sub_batch
from embgrad.errors import NoGradientError, ObjectiveError, UnsupportedError
from embgrad.inputs.batch import TokenBatch
from embgrad.inputs.decoder import decoder_of as decoder_side
from embgrad.objectives.log_probability import LogProbability

__all__ = ["Scored", "TokenPasses"]


@dataclass(frozen=True)
class Scored:
    """The results of one pass.

    Attributes:
        objectives: L, float64, (output, row).
        scores: for each point the reduced gradients, (output, row, position), or (output, row, position, number).
    """

    objectives: np.ndarray
    scores: tuple[np.ndarray, ...]
    provenance: Mapping[str, Any]


@dataclass(frozen=True)
class TokenPasses:
    """A model, a batch and its output tokens, and what passes through them compute.

    Attributes:
        batch: the batch, whose padding is on the right.
        names: the points whose values are the inputs: of the batch's ids, and in an encoder-decoder of the decoder's ids.
        batch_size: how many rows one pass runs at most; None for as many as have `MOST_POSITIONS` positions.
        paired: whether the second half of the batch's examples are those of the first with continuations to compare with.
        on_pullback: called after each pullback, and after each pass without any.
    """

    bound: BoundModel
    batch: TokenBatch
    targets: Targets
    names: tuple[str, ...]
    batch_size: int | None
    training: bool
    paired: bool = False
    on_pullback: Callable[[], None] = lambda: None

    @cached_property
    def sides(self) -> list[TokenBatch]:
        """The ids and the mask of each point's positions."""
        decoder = decoder_of(self.bound, self.batch)
        return [self.batch] if decoder is None else [self.batch, decoder]

    @cached_property
    def objectives(self) -> tuple[LogProbability, ...]:
        """The log-probabilities of the output tokens of the whole batch."""
        return self.targets.objectives(self.sides[-1])

    @cached_property
    def first(self) -> Passes:
        """The passes of the first objective alone, for what does not depend on the output tokens."""
        return Passes(
            self.bound,
            self.batch,
            self.objectives[0],
            self.names[0],
            batch_size=self.batch_size,
            quiet=True,  # `score` and `describe` warn of the batch
            training=self.training,
        )

    @property
    def size(self) -> int:
        """The most rows of one pass."""
        return size_of_pass(self.batch_size, sum(side.shape[1] for side in self.sides))

    def count_pullbacks(self, times: int) -> int:
        """Return how many pullbacks all outputs take where the batch is run several times."""
        outputs = int(self.targets.spans.shape[1])
        rows = times * len(self.batch) * (2 if self.targets.needs_continuations else 1)
        return outputs * math.ceil(rows / self.size)

    def pieces(self, times: int) -> Iterator[np.ndarray]:
        """Yield the numbers of the rows of each pass, where the batch is run several times.

        Row r is the example at index r modulo the number of examples.
        """
        count, size = times * len(self.batch), self.size if times == 1 else self.step_size
        for start in range(0, count, size):
            yield np.arange(start, min(start + size, count))

    def places(self, chosen: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Yield for passes that each change one position of each row: the examples, the positions, and which are chosen.

        Args:
            chosen: bool, (example, position).
        """
        examples, positions = np.nonzero(chosen)
        if not self.is_free and len(self.batch) > 1:  # the batch as a whole, changed at one position
            for position in np.flatnonzero(chosen.any(0)):
                yield np.arange(len(chosen)), np.full(len(chosen), position), chosen[:, position]
            return
        for start in range(0, len(examples), self.step_size):
            rows = slice(start, start + self.step_size)
            yield examples[rows], positions[rows], np.ones(len(examples[rows]), bool)

    @property
    def step_size(self) -> int:
        """The most rows of a pass of which each is a step of an example."""
        return self.size if self.is_free else len(self.batch)

    @property
    def is_free(self) -> bool:
        """Return whether a pass may run any examples, each as often as is needed."""
        return self._company is Company.FREE

    def in_pairs(self, examples: np.ndarray) -> np.ndarray:
        """Return the examples that are chosen, bool, (example,), with the others of their pairs."""
        return np.asarray(examples | (np.roll(examples, len(examples) // 2) & self.paired))

    def sizes(self, differences: np.ndarray) -> np.ndarray:
        """Return the sizes of differences of L, (output, example), to which errors compare: of a pair half of its difference."""
        if not self.paired:
            return np.asarray(np.abs(differences))
        first, second = np.split(differences, 2, axis=1)
        return np.tile(np.abs(first - second) / 2, 2)

    @cached_property
    def _company(self) -> Company:
        """See `Passes.company`."""
        company = self.first.company
        if company is Company.HELD:
            raise UnsupportedError(
                f"the log-probabilities of an example's tokens depend on the other {len(self.batch) - 1} of the batch, of which "
                "each is attributed by itself: pass one example at a time"
            )
        return company

    def values(self) -> list[np.ndarray]:
        """Return the batch's own values at the points, float64, (example, position, dim)."""
        pieces = []
        for rows in self.pieces(1):
            question = self._question(rows, {}, pullback=False, quiet=True)
            with explain_errors(self.bound, question.batch):
                (results,) = run_question(question.only(-1))
            pieces.append([results[name].activations for name in self.names])
        return [np.concatenate(arrays).astype(np.float64) for arrays in zip(*pieces, strict=True)]

    def score(
        self,
        rows: np.ndarray,
        reduce: Reduce,
        values: Sequence[np.ndarray] | None = None,
        *,
        quiet: bool = False,
        weighed: np.ndarray | None = None,
    ) -> Scored:
        """Return the reduced gradients of some rows.

        Args:
            rows: the numbers of the rows, see `pieces`.
            reduce: takes the key of the point, the gradient and the value there, (row, position, dim), and returns what is
                kept, (row, position, 1), or more numbers for each position.
            values: the values at the points, to put in place of the model's own; None to leave those.
            quiet: whether warnings about the batch were given before.
            weighed: the rows whose gradients count, bool, (row,); those of the others are 0, whatever they are. None for all.
        """
        changes = {} if values is None else {"override": dict(zip(self.names, values, strict=True))}
        question = self._question(rows % len(self.batch), changes, pullback=True, quiet=quiet)
        with self._compare(question, rows) if values is None else contextlib.nullcontext():
            return self._pass_rows(question, reduce, weighed)

    def _compare(self, question: Question, rows: np.ndarray) -> AbstractContextManager[None]:
        """Return the context in which a sub-batch of the batch is run, see `embgrad.engine.sub_batches.compare_sub_batch`."""
        count, start = len(self.batch), int(rows[0])
        if len(rows) == count or (start and len(rows) == self.size):
            return contextlib.nullcontext()
        whole = self._question(np.arange(count), {}, pullback=False, quiet=True)
        return compare_sub_batch(whole, question, start)

    def describe(self) -> Mapping[str, Any]:
        """Return the provenance of a pass on the first example, without gradients, and warn of the batch as `score` does."""
        return self._pass_rows(self._question(np.arange(1), {}, pullback=False, quiet=False)).provenance

    def _pass_rows(self, question: Question, reduce: Reduce | None = None, weighed: np.ndarray | None = None) -> Scored:
        """Return the results of a pass; there are scores if the question has a pullback."""
        with explain_errors(self.bound, question.batch):
            run, located = run_located(question, None if reduce is None else self._report_each(reduce))
        question.warn(run.unused, run.masked_id)
        scores = []
        for name in self.names:
            point = located[name]
            read = point_values(run, name, point)
            _expect_logits(run.objectives[0].shape, read)
            if question.pullback:
                scores.append(self._expect_all(name, reduce_run(read, point.arrangement), weighed))
        return Scored(
            np.stack([response.values for response in run.objectives]),
            tuple(scores),
            {
                **question.provenance(run),
                "point": self.names[0],
                "path": located[self.names[0]].key,
            },
        )

    def _report_each(self, reduce: Reduce) -> Reduce:
        """Return the function that reduces gradients, and reports each pullback when the first of its points arrives."""
        first: list[str] = []

        def reduce_and_report(key: str, gradient: np.ndarray, value: np.ndarray) -> np.ndarray:
            reduced = reduce(key, gradient, value)
            first.append(key)
            if key == first[0]:
                self.on_pullback()
            return reduced

        return reduce_and_report

    def evaluate(self, rows: np.ndarray, batch: TokenBatch) -> np.ndarray:
        """Return L of the outputs of some rows for a changed batch, float64, (output, row), without gradients."""
        question = self._question(rows % len(self.batch), {}, pullback=False, quiet=True)
        found = np.stack(evaluate_each(replace(question, batch=batch, options=replace(question.options, names=()))))
        self.on_pullback()
        return found

    def objectives_at(self, rows: np.ndarray, values: Sequence[np.ndarray]) -> np.ndarray:
        """Return L of the outputs of some rows with other values at the points, float64, (output, row), without gradients."""
        changes = {"override": dict(zip(self.names, values, strict=True))}
        question = self._question(rows % len(self.batch), changes, pullback=False, quiet=True)
        return np.stack(evaluate_each(replace(question, options=replace(question.options, names=()))))

    def _expect_all(
        self, name: str, kept: Sequence[np.ndarray | None], weighed: np.ndarray | None = None
    ) -> np.ndarray:
        """Return the reduced gradients of all outputs at a point, float64, (output, row, position)."""
        arrays = []
        for output, array in enumerate(kept):
            if array is None:
                raise NoGradientError(
                    f"the log-probabilities of the output tokens at index {output} do not depend on the point {name!r}: "
                    "no path in the graph leads from them to it. Check whether the model detaches the value, and whether its "
                    "logits are read"
                )
            if weighed is not None:
                array[~weighed] = 0
            wrong = not_finite(array)
            if wrong is not None:
                raise NoGradientError(
                    f"the gradient of the output tokens at index {output} at {name!r} is {wrong.at('example', 'position')}: "
                    "expected finite numbers. Check the model's inputs, mask and dtype"
                )
            arrays.append(array)
        return np.stack(arrays).astype(np.float64)

    def _question(
        self, examples: np.ndarray, changes: Mapping[str, Mapping[str, np.ndarray]], *, pullback: bool, quiet: bool
    ) -> Question:
        objectives = tuple(objective.take(examples, len(self.batch)) for objective in self.objectives)
        options = GradientOptions(self.names, training=self.training, changes=changes)
        batch = self.batch.take(examples)
        return Question(self.bound, batch, objectives, options, pullback=pullback, quiet=quiet)


def _expect_logits(shape: tuple[int, ...] | None, read: PointValues) -> None:
    """Refuse an output that is a hidden state: as wide as the table's rows, and not as long as the table."""
    if not shape or read.lookup is None:
        return
    width = shape[-1]
    if width == read.lookup.dim != read.lookup.rows:
        raise ObjectiveError(
            f"the model's output has the shape {shape}, as wide as the rows of its table, which has {read.lookup.rows}: "
            "expected logits, one for each id. Load the model with its language-model head, such as GPT2LMHeadModel for GPT2Model"
        )


def decoder_of(bound: BoundModel, batch: TokenBatch) -> TokenBatch | None:
    """Return the decoder's ids and mask as a batch; None where the model has no decoder of its own."""
    return decoder_side(with_decoder(bound, batch))
