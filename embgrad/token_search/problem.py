"""The problem of a search: a model, a batch, an objective, and the tokens that may stand in the place of others."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np

from embgrad.attribution.passes import Passes, size_of_pass
from embgrad.attribution.text_inputs import inputs_apart
from embgrad.backend.protocol import BoundModel
from embgrad.engine.company import Company
from embgrad.engine.embedding_table import TableReader
from embgrad.engine.evaluate import evaluate_question
from embgrad.engine.gradients import results_of
from embgrad.engine.options import GradientOptions
from embgrad.engine.question import Question
from embgrad.errors import EmbgradError, NoGradientError, ObjectiveError, UnsupportedError
from embgrad.inputs.batch import TokenBatch
from embgrad.inputs.resized import resize
from embgrad.model_points.points import WORD
from embgrad.objectives.native import NativeObjective
from embgrad.objectives.objectives import Objective, Sum
from embgrad.token_search.estimates import NONE, top_substitutions_at
from embgrad.token_search.prefix import SharedPrefixes
from embgrad.token_search.rule import Rule
from embgrad.token_search.stability import Stability
from embgrad.token_search.texts import Texts

__all__ = ["INSTEAD", "Problem", "Queries"]

#: What a message proposes where tokens cannot be inserted or deleted.
INSTEAD: Final = "give insert=False and delete=False, which keep the text's length"


@dataclass
class Queries:
    """The numbers of queries to the model, int64, shape (example,), which grow while a search runs.

    Attributes:
        evaluations: the forward passes of each example.
        gradients: the passes of each example with a pullback, which are not among the evaluations.
    """

    evaluations: np.ndarray
    gradients: np.ndarray

    @classmethod
    def none(cls, examples: int) -> Queries:
        """Return no queries of so many examples."""
        return cls(np.zeros(examples, np.int64), np.zeros(examples, np.int64))


@dataclass(frozen=True)
class Problem:
    """A model, a batch, an objective, and the tokens that may stand in the place of others.

    Attributes:
        bound: the model.
        batch: the user's batch, whose shared extras are named.
        objective: its objective.
        rule: what the search is for, and when that of an example stops.
        allowed: the ids that may replace others, bool, shape (vocab,).
        free: the positions whose tokens may be replaced, bool, shape (example, position).
        table: reads the rows of the table behind the lookup of the ids.
        stability: tells which texts tokenise to their own ids; None where any ids will do.
        batch_size: how many texts one pass runs at most; None for as many as have `MOST_POSITIONS` positions.
        queries: the numbers of queries to the model.
        joint: whether a search is for one text for all examples, see `SearchMethod`.
        training: whether the model runs in training mode.
    """

    bound: BoundModel
    batch: TokenBatch
    objective: Objective | NativeObjective
    rule: Rule
    allowed: np.ndarray
    free: np.ndarray
    table: TableReader
    stability: Stability | None
    batch_size: int | None
    queries: Queries
    joint: bool
    training: bool

    @property
    def sign(self) -> int:
        """1 where the objective is maximised, -1 where it is minimised."""
        return self.rule.sign

    @cached_property
    def original(self) -> Texts:
        """The texts of the batch itself, one of each example."""
        batch = self.batch
        return Texts(np.arange(len(batch)), batch.ids, batch.real, batch.types, self.free)

    @cached_property
    def before(self) -> np.ndarray:
        """L of each example of the batch, float64, shape (example,); the user is warned of what is odd in it."""
        question = self.passes.forward_question(self.batch, quiet=False)
        values = evaluate_question(question, None if isinstance(self.objective, NativeObjective) else self._size)
        self.queries.evaluations += 1
        return values

    @cached_property
    def passes(self) -> Passes:
        """The passes through the model at the lookup of the ids."""
        return Passes(self.bound, self.batch, self.objective, WORD, batch_size=self.batch_size, training=self.training)

    @cached_property
    def apart(self) -> frozenset[str]:
        """The further inputs that stay as they are where tokens are inserted or deleted."""
        return inputs_apart(self.passes, INSTEAD)

    @cached_property
    def company(self) -> Company:
        """With how many and with which other texts an example's objective stays the same, see `Passes.company`."""
        batch, objective = self.batch, self.objective
        if not self.bound.supports("override"):
            return Company.FREE
        if not isinstance(objective, NativeObjective):
            if self._size == 1:
                return Company.FREE
            batch = batch if self._size >= len(batch) else batch[: self._size - 1]
            # The positions of a joint search are those of texts that it has yet to make.
            objective = (
                Sum(output=objective.output) if self.joint else objective.take(np.arange(len(batch)), len(self.batch))
            )
        return replace(self.passes, batch=batch, objective=objective, quiet=True).company

    def expect_independent(self) -> None:
        """Refuse examples that depend on one another, since each is searched by itself.

        Raises:
            UnsupportedError: the objective of an example changes with the values of the others.
        """
        if self.company is Company.HELD:
            raise UnsupportedError(
                f"the objective of an example depends on the other {len(self.batch) - 1} of the batch, as where a function "
                "compares examples, and each example is searched by itself: hold the others fixed. Pass one example at a time, "
                "with a function that knows the outputs of the others as constants"
            )

    @cached_property
    def allowed_ids(self) -> np.ndarray:
        """The ids that may replace others, int64, ascending."""
        return np.flatnonzero(self.allowed)

    @cached_property
    def prefixes(self) -> SharedPrefixes:
        """Evaluates texts that begin alike."""
        return SharedPrefixes(self.bound, self.batch_size)

    def batch_of(self, texts: Texts) -> TokenBatch:
        """Return the batch of texts as the model takes it, with the further inputs of their examples."""
        apart = self.apart if self.batch.extras and self._is_resized(texts).any() else frozenset()
        return resize(self.batch, texts.examples, texts.ids, texts.real, texts.types, INSTEAD, apart)

    def whole_batch_of(self, texts: Texts, pad: int | None) -> TokenBatch:
        """Return the batch of texts of any lengths, padded on the right; where the batch has no mask, with one that they need.

        Args:
            texts: one text of each example, in order.
            pad: the id of padding; None for the one that the batch is padded with, or else 0.
        """
        if not self._is_resized(texts).any():
            return self.batch_of(texts.cut(self.batch.shape[1]))
        cut = texts.cut(int(texts.real.sum(1).max()))
        padding = self.batch.ids[~self.batch.real]
        fill = pad if pad is not None else int(padding[0]) if len(padding) else 0
        filled = replace(cut, ids=np.where(cut.real, cut.ids, fill))
        batch = self.batch_of(filled)
        if cut.real.all():
            return batch
        convention = "huggingface" if batch.convention == "ids" else batch.convention  # bare ids have no mask
        return batch.replace(mask=cut.real.astype(np.int64), convention=convention)

    def objectives(self, texts: Texts) -> np.ndarray:
        """Return the objective of each text, float64, shape (text,), from forward passes.

        Raises:
            EmbgradError: as `evaluate` raises.
        """
        values = np.full(len(texts), np.nan)
        may_share = (
            self.company is Company.FREE and not self.training
        )  # what a model keeps of a text is of evaluation mode
        for rows, alike in self._by_length(texts) if may_share else ():
            values[rows] = self.prefixes.evaluate(self.batch_of(alike), alike.examples, self._objective_of(alike))
        left = np.flatnonzero(np.isnan(values))
        for piece in self._pieces(texts.take(left)) if len(left) else ():
            with self._explain(piece):
                question = self.passes.forward_question(self.batch_of(piece.texts), self._objective_of(piece.texts))
                values[left[piece.rows]] = evaluate_question(question)[piece.places]
        np.add.at(self.queries.evaluations, texts.examples, 1)
        return values

    def each_gradient(self, texts: Texts) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
        """Yield for pieces of the texts their indices, objectives, gradients at "word", and the values there.

        The gradients and the values are (text, position, dim). Texts of a piece are equally long, and may be shorter than the
        widest.

        Raises:
            EmbgradError: as `gradients` raises.
        """
        np.add.at(self.queries.gradients, texts.examples, 1)
        for piece in self._pieces(texts):
            options = GradientOptions((WORD,), training=self.training)
            objectives = (self._objective_of(piece.texts),)
            with self._explain(piece):
                question = Question(self.bound, self.batch_of(piece.texts), objectives, options, quiet=True)
                result, places = results_of(question)[WORD], piece.places
            yield piece.rows, np.asarray(result.objective)[places], result.values[places], result.activations[places]

    def estimates(self, texts: Texts, top: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the objective of each text, and for its free positions the best ids with the estimated changes of L.

        Returns:
            The objectives, float64, shape (text,); ids, int64, shape (text, position, top), best first, -1 where a position is
            not free or fewer are allowed; and the first-order estimates, float64, likewise, infinite there.
        """
        objective = np.empty(len(texts))
        ids = np.full((*texts.ids.shape, top), NONE, np.int64)
        scores = np.full(ids.shape, -np.inf * self.sign)
        for rows, values, gradients, inputs in self.each_gradient(texts):
            objective[rows] = values
            piece = texts.take(rows).cut(gradients.shape[1])
            ids[rows, : gradients.shape[1]], scores[rows, : gradients.shape[1]] = top_substitutions_at(
                gradients, inputs, piece.ids, piece.free, self.table, self.allowed, top, self.sign
            )
        return objective, ids, scores

    def stable(self, texts: Texts) -> np.ndarray:
        """Return whether each text tokenises to its own ids, bool, shape (text,); true where that is not asked for."""
        if self.stability is None or not len(texts):
            return np.ones(len(texts), bool)
        return self.stability.of([row[real] for row, real in zip(texts.ids, texts.real, strict=True)])

    def _objective_of(self, texts: Texts) -> Objective | NativeObjective:
        if isinstance(self.objective, NativeObjective):
            return self.objective
        return self.objective.take(texts.examples, len(self.batch))

    @property
    def _size(self) -> int:
        return size_of_pass(self.batch_size, self.batch.shape[1])

    def _pieces(self, texts: Texts) -> Iterator[_Piece]:
        """Yield pieces of the texts.

        Texts in which a token was inserted or deleted are run without padding, those of a length together, so that no model needs
        a mask for them. A function as objective, which may know the labels of the whole batch in order, gets the whole batch, and
        so does a model that accepts no other.
        """
        is_native, is_free = isinstance(self.objective, NativeObjective), self.company is Company.FREE
        is_alone = self.company is Company.WHOLE and len(self.batch) == 1
        if is_native or not (is_free or is_alone or self._is_open(texts)):
            yield from self._whole_batches(texts)
            return
        size = 1 if is_alone else self._size
        for rows, alike in self._by_length(texts):
            for start in range(0, len(rows), size):
                some = np.arange(start, min(start + size, len(rows)))
                yield _Piece(rows[some], np.arange(len(some)), alike.take(some))

    def _is_open(self, texts: Texts) -> bool:
        """Return whether a model that accepts no other rows than the batch's may accept these, which are shorter or longer."""
        return self.company is Company.FIXED and bool(self._is_resized(texts).any())

    def _by_length(self, texts: Texts) -> Iterator[tuple[np.ndarray, Texts]]:
        """Yield the indices of texts that can be run together, and these texts."""
        lengths = np.where(self._is_resized(texts), texts.real.sum(1), 0)
        for length in np.unique(lengths).tolist():
            rows = np.flatnonzero(lengths == length)
            yield rows, texts.take(rows).cut(length or self.batch.shape[1])

    def _is_resized(self, texts: Texts) -> np.ndarray:
        """Return whether each text's real positions are others than its example's in the batch."""
        width = max(self.batch.shape[1], texts.real.shape[1])
        present, own = (
            np.pad(real, ((0, 0), (0, width - real.shape[1])))
            for real in (texts.real, self.original.real[texts.examples])
        )
        return np.asarray((present != own).any(1))

    @contextlib.contextmanager
    def _explain(self, piece: _Piece) -> Iterator[None]:
        """Say of numbers that are not finite, and of errors at texts of another length, that the search tried these texts."""
        examples = sorted(set(piece.texts.examples.tolist()))
        named = (
            f"example {examples[0]}" if len(examples) == 1 else f"one of the examples {examples[0]} to {examples[-1]}"
        )
        try:
            yield
        except (NoGradientError, ObjectiveError) as error:
            raise type(error)(
                f"at a text that the search tried in place of {named}, numbered in the pass: {error.message}"
            ) from error
        except EmbgradError:
            raise
        except Exception as error:
            if not self._is_resized(piece.texts).any():
                raise
            raise UnsupportedError(
                f"the model takes {self.batch.shape[1]} positions, and raised {type(error).__name__} for texts of "
                f"{piece.texts.real.shape[1]} in place of {named}, in which tokens were inserted or deleted: {INSTEAD}"
            ) from error

    def _whole_batches(self, texts: Texts) -> Iterator[_Piece]:
        """Yield the whole batch again and again, each time with another version of each example that has one left."""
        if self._is_resized(texts).any():
            is_native = isinstance(self.objective, NativeObjective)
            subject = (
                "the objective is a function, which"
                if is_native
                else "the model takes this number of examples alone, and"
            )
            instead = "give an objective of embgrad" if is_native else "pass one example at a time"
            raise UnsupportedError(
                f"{subject} gets the whole batch, and texts of several lengths make no batch: {instead}, or a method that does "
                "not insert or delete tokens"
            )
        order = [texts.rows_of(example) for example in range(len(self.batch))]
        for turn in range(max(map(len, order))):
            places = np.array([example for example, rows in enumerate(order) if turn < len(rows)])
            rows = np.array([order[example][turn] for example in places.tolist()])
            yield _Piece(rows, places, self.original.put(places, texts.take(rows)))


@dataclass(frozen=True)
class _Piece:
    """Texts that are run together.

    Attributes:
        rows: the indices of those texts that are asked for.
        places: where they stand in what is run.
    """

    rows: np.ndarray
    places: np.ndarray
    texts: Texts
