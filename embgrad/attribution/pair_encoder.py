"""The encodings of texts, and the contributions of positions to them, for `attribute_pairs`."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np

from embgrad.attribution.baselines import baseline_values, check_baseline
from embgrad.attribution.gradient_methods import InputXGradient
from embgrad.attribution.method import describe_arguments, expect_choice, expect_count
from embgrad.attribution.passes import Passes, passes_through
from embgrad.attribution.quadrature import RULES, nodes_and_weights
from embgrad.backend.protocol import BoundModel
from embgrad.common.finite import not_finite
from embgrad.common.options import expect_flag
from embgrad.engine.call_errors import explain_errors
from embgrad.engine.company import Company
from embgrad.engine.evaluate import evaluate_each
from embgrad.engine.options import GradientOptions
from embgrad.engine.question import Question
from embgrad.engine.run import point_values, reduce_run, run_located
from embgrad.errors import NoGradientError, ObjectiveError, OutputError, UnsupportedError
from embgrad.inputs.batch import TokenBatch
from embgrad.inputs.encode import with_known_tokens
from embgrad.objectives.objectives import Objective, Projection, Sum
from embgrad.objectives.selection import Rows
from embgrad.results.attribution import Attribution

__all__ = ["POOLINGS", "Encoder", "IntegratedJacobians"]

#: The position of an output with a vector at each position that stands for the text; None for the mean of the real positions.
POOLINGS: Final = {"mean": None, "first": 0, "last": -1}

#: The share of a position's difference from its baseline by which it is moved along a line, and at a single place.
ON_LINES, AT_TEXTS = 0.001, 0.01

#: The options of a pass that reads no point.
_PLAIN: Final = GradientOptions(())


@dataclass(frozen=True)
class IntegratedJacobians:
    """The product of both encodings' Jacobians, each integrated along the straight line from a baseline to the text.

    Möller, Nikolaev and Padó, "An Attribution Method for Siamese Encoders", 2023. Each text takes a pullback, of all steps
    together, for each number of its encoding, or for each token of the other text, whichever is less; see `attribute_pairs`.

    Args:
        steps: the number of Jacobians along each line.
        baseline: "zero", "pad" or "mask", the table's row at all real positions, "mean", the mean of its rows; an id; or an array
            at the point, which broadcasts to (example, position, dim).
        rule: see `IntegratedGradients`.
        keep_special: leave the values of special tokens as they are under a baseline that is a name or an id.
    """

    steps: int = 20
    baseline: Any = "zero"
    rule: str = "gausslegendre"
    keep_special: bool = False

    def __post_init__(self) -> None:
        expect_flag(self.keep_special, "keep_special")
        expect_count(self.steps, "steps")
        check_baseline(self.baseline)
        expect_choice(self.rule, "rule", RULES)


class _Reading(Sum):
    """The sum of an example's output, which keeps the sum of the rows: the encoding, or that of all positions."""

    def __init__(self, *, output: str | None = None, position: Any = None) -> None:
        super().__init__(output=output, position=position)
        self.kept: dict[str, np.ndarray] = {}

    def _values(self, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        self.kept["sums"] = np.zeros((rows.count, rows.values.shape[1]))
        np.add.at(self.kept["sums"], rows.examples, rows.values)
        return super()._values(rows)


@dataclass(frozen=True)
class Encoder:
    """An encoder and the texts of one side.

    Attributes:
        batch: the texts of the pairs, of which some may be equal.
        batch_size: how many rows one pass runs at most; None for as many as have 2,048 positions.
        tokenizer: knows special tokens; None where there is none.
    """

    bound: BoundModel
    batch: TokenBatch
    output: str | None
    pooling: str | None
    at: str
    batch_size: int | None
    method: IntegratedJacobians | InputXGradient
    tokenizer: Any

    @cached_property
    def equals(self) -> np.ndarray:
        """For each text the index of the first one that is equal to it, int64, (text,)."""
        if self.batch.extras or self.passes.needs_whole:
            return np.arange(len(self.batch))
        arrays = [self.batch.ids, self.batch.real, *([] if self.batch.types is None else [self.batch.types])]
        rows = np.concatenate([np.asarray(array, np.int64) for array in arrays], axis=1)
        _, first, numbers = np.unique(rows, axis=0, return_index=True, return_inverse=True)
        return np.asarray(first[numbers.reshape(-1)])

    @cached_property
    def passes(self) -> Passes:
        """The passes of the first number of the encoding alone, for what does not depend on the number."""
        (first,) = self._objectives(np.eye(1, self.width))
        passes = passes_through(self.bound, self.batch, first, self.at, "keep", self.batch_size)
        if passes.company is Company.HELD:
            raise UnsupportedError(
                f"the encoding of a text depends on the other {len(self.batch) - 1} of the batch: pass one pair at a time"
            )
        return passes

    def _objectives(self, directions: np.ndarray) -> tuple[Projection, ...]:
        """Return an objective for each direction in the space of encodings, (direction, number) or (direction, row, number).

        Its value is the inner product of the encoding and the direction; with the mean as pooling times the text's length.
        """
        name, position = self._named[0], self._position
        return tuple(Projection(direction, output=name, position=position) for direction in directions)

    @property
    def _position(self) -> int | None:
        """The position of the output that stands for a text; None for all."""
        return None if self.pooling is None else POOLINGS[self.pooling]

    @property
    def width(self) -> int:
        """The number of numbers of an encoding."""
        return self._named[1]

    @cached_property
    def _named(self) -> tuple[str | None, int]:
        """The name of the output with the encoding, and how many numbers it has."""
        name, shape = self._find_output()
        expected = 2 if self.pooling is None else 3
        if len(shape) != expected:
            advice = (
                "pass pooling='mean', 'first' or 'last', or call=... that returns a vector for each text"
                if len(shape) > expected
                else "omit pooling"
            )
            raise ObjectiveError(
                f"the output has the shape {shape} for one text, and pooling is {self.pooling!r}: expected a vector for each "
                f"{'text' if self.pooling is None else 'position'}. Name another with output=..., or {advice}"
            )
        if shape[-1] == 1:
            raise ObjectiveError(
                f"the output has the shape {shape}, a single number for one text, which is no encoding: for a model that reads "
                "both texts at once, as a cross-encoder does, call embgrad.attribute(model, [(a, b)], embgrad.Logit(0), method)"
            )
        return name, shape[-1]

    def _find_output(self) -> tuple[str | None, tuple[int, ...]]:
        """Return the name of the output with the encoding, and its shape for the first text."""
        usual = "sentence_embedding" if self.pooling is None else "sequence"
        if self.output is not None:
            return self.output, self._shape_of(self.output)
        try:
            return None, self._shape_of(None)
        except OutputError:  # there are several
            return usual, self._shape_of(usual)

    def _shape_of(self, output: str | None) -> tuple[int, ...]:
        """Return the shape of an output for the first text."""
        question = Question(self.bound, self.batch[:1], (Sum(output=output),), _PLAIN, pullback=False, quiet=True)
        run, _ = run_located(question)
        return run.objectives[0].shape or ()

    @cached_property
    def origins(self) -> np.ndarray:
        """The baselines' values at the point, float64, (text, position, dim); for gradients zeros."""
        if isinstance(self.method, InputXGradient):
            return baseline_values(self.passes, "zero", self.tokenizer, keep_special=False)
        return baseline_values(self.passes, self.method.baseline, self.tokenizer, self.method.keep_special)

    @cached_property
    def line(self) -> tuple[np.ndarray, np.ndarray]:
        """The places of the Jacobians on the line from the baseline to the text, and their weights; for gradients the text."""
        if isinstance(self.method, InputXGradient):
            return np.ones(1), np.ones(1)
        return nodes_and_weights(self.method.rule, self.method.steps)

    def ends(self, texts: np.ndarray) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        """Return by text its encoding, and that of its baseline, for gradients zeros, float64, (number,) each."""
        vectors = self._vectors(texts, None)
        has_baseline = isinstance(self.method, IntegratedJacobians)
        origins = self._vectors(texts, self.origins[texts]) if has_baseline else np.zeros_like(vectors)
        return dict(zip(texts.tolist(), zip(vectors, origins, strict=True), strict=True))

    def _vectors(self, texts: np.ndarray, values: np.ndarray | None) -> np.ndarray:
        """Return the encodings of texts, with these values at the point, float64, (text, number)."""
        pieces = []
        for start in range(0, len(texts), self._size(len(texts))):
            rows = slice(start, start + self._size(len(texts)))
            reading = _Reading(output=self._named[0], position=self._position)
            question = self._question(texts[rows], None if values is None else values[rows], (reading,), pullback=False)
            evaluate_each(question)
            pieces.append(reading.kept["sums"])
        return np.asarray(np.concatenate(pieces) / self._lengths[texts, None])

    @cached_property
    def _lengths(self) -> np.ndarray:
        """The number by which the sum over a text's positions is divided, float64, (text,)."""
        if self.pooling != "mean":
            return np.ones(len(self.batch))
        return np.asarray(np.maximum(self.batch.real.sum(1), 1), np.float64)

    def _size(self, count: int) -> int:
        """Return the most rows of a pass of some texts, this many."""
        return count if self.passes.needs_whole else self.passes.size

    def nearly(self, text: int) -> np.ndarray:
        """Return the contributions of a text's positions by differences of encodings, float64, (number, position).

        They take forward passes alone, and have errors below a hundredth. Along a line the differences are forward and backward
        by turns, so that part of their errors cancels; at a single place they are both.
        """
        origin = self.origins[text]
        change = self.passes.inputs[text] - origin
        nodes, weights = self.line
        move = ON_LINES
        if len(nodes) == 1:
            nodes, weights, move = np.repeat(nodes, 2), np.repeat(weights / 2, 2), AT_TEXTS
        moves = move * (-1.0) ** np.arange(len(nodes))
        positions = np.flatnonzero(change.any(1))
        places = np.append(positions, -1)  # the last row of each place on the line has no position moved
        count, size, pieces = len(nodes) * len(places), self._size(1), []
        for start in range(0, count, size):
            node, place = np.divmod(np.arange(start, min(start + size, count)), len(places))
            values = origin + nodes[node, None, None] * change
            moved = np.flatnonzero(places[place] >= 0)
            at = places[place[moved]]
            values[moved, at] += moves[node[moved], None] * change[at]
            pieces.append(self._vectors(np.full(len(values), text), values))
        vectors = np.concatenate(pieces).reshape(len(nodes), len(places), self.width)
        found = np.zeros((self.width, len(change)))
        found[:, positions] = np.einsum("s,spn->np", weights / moves, vectors[:, :-1] - vectors[:, -1:])
        return found

    def contributions(self, texts: np.ndarray, directions: np.ndarray) -> np.ndarray:
        """Return the contributions of the positions of texts in directions, float64, (direction, text, position).

        Args:
            directions: the directions, (direction, number), or those of each text, (direction, text, number).
        """
        own, origin = self.passes.inputs[texts], self.origins[texts]
        differences = own - origin
        nodes, weights = self.line
        total = np.zeros((len(directions), *own.shape[:2]))
        count, size = len(nodes) * len(texts), self._size(len(texts))
        for start in range(0, count, size):
            step, text = np.divmod(np.arange(start, min(start + size, count)), len(texts))
            values = origin[text] + nodes[step, None, None] * differences[text]
            objectives = self._objectives(directions if directions.ndim == 2 else directions[:, text])
            scores = self._scores(texts[text], values, differences[text], objectives) * weights[step, None]
            for row, at in enumerate(text):
                total[:, at] += scores[:, row]
        return np.asarray(total / self._lengths[None, texts, None])

    def _scores(
        self, texts: np.ndarray, values: np.ndarray, differences: np.ndarray, objectives: tuple[Projection, ...]
    ) -> np.ndarray:
        """Return the gradients of each objective at values of the point, times the differences, (objective, row, position)."""

        def product(key: str, gradient: np.ndarray, value: np.ndarray) -> np.ndarray:
            return np.asarray(np.einsum("rpd,rpd->rp", gradient, differences, dtype=np.float64)[..., None])

        question = self._question(texts, values, objectives, pullback=True)
        with explain_errors(self.bound, question.batch):
            run, located = run_located(question, product)
        point = located[self.at]
        scores = reduce_run(point_values(run, self.at, point), point.arrangement)
        if any(array is None for array in scores):
            raise NoGradientError(
                f"the encoding does not depend on the point {self.at!r}: no path in the graph leads from it to the point. Check "
                "whether the model detaches the value"
            )
        stacked = np.stack([array for array in scores if array is not None])
        wrong = not_finite(stacked)
        if wrong is not None:
            raise NoGradientError(
                f"the gradient of the encoding at {self.at!r} is {wrong.at('number', 'row', 'position')}: expected finite "
                "numbers. Check the model's inputs, mask and dtype, or give another baseline"
            )
        return stacked

    def _question(
        self, texts: np.ndarray, values: np.ndarray | None, objectives: tuple[Objective, ...], *, pullback: bool
    ) -> Question:
        changes = {} if values is None else {"override": {self.at: values}}
        options = GradientOptions((self.at,) if pullback else (), changes=changes)
        return Question(self.bound, self.passes.batch.take(texts), objectives, options, pullback=pullback, quiet=True)

    def attribution(self, scores: np.ndarray, similarity: np.ndarray, explained: np.ndarray, name: str) -> Attribution:
        """Return the contributions of one side's positions, for each pair."""
        batch = with_known_tokens(self.batch, self.tokenizer)
        state, has_baseline = self.passes.state, isinstance(self.method, IntegratedJacobians)
        return Attribution(
            values=None,
            scores=scores,
            objective=similarity.copy(),
            baseline_objective=similarity - explained if has_baseline else None,
            delta=scores.sum(1) - explained if has_baseline else None,
            ids=batch.ids.copy(),
            mask=None if batch.mask is None else batch.mask.copy(),
            types=None if batch.types is None else batch.types.copy(),
            tokens=batch.tokens,
            words_of=None if batch.words is None else batch.words.copy(),
            provenance={
                **copy.deepcopy(dict(state.provenance)),
                "objective": {"class": "Similarity", "of": name, "output": self._named[0], "pooling": self.pooling},
                "method": describe_arguments(self.method),
                "batch_size": self.passes.size,
            },
            texts=batch.texts,
            offsets=None if batch.offsets is None else batch.offsets.copy(),
            parts=None if batch.parts is None else batch.parts.copy(),
        )
