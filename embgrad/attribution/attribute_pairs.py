"""`embgrad.attribute_pairs`: how much each pair of tokens contributes to the similarity of two texts, under one encoder."""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np

from embgrad.attribution.baselines import baseline_values, check_baseline
from embgrad.attribution.completeness import RANDOM, SHARE
from embgrad.attribution.method import describe_arguments, expect_choice, expect_count
from embgrad.attribution.passes import Passes, passes_through
from embgrad.attribution.quadrature import RULES, nodes_and_weights
from embgrad.backend.protocol import BoundModel, Call
from embgrad.backend.registry import bind
from embgrad.common.finite import not_finite
from embgrad.common.keywords import explain_arguments
from embgrad.common.metrics import length
from embgrad.common.options import count_or_none, expect_flag
from embgrad.common.progress import Progress, reporter
from embgrad.engine.call_errors import explain_errors
from embgrad.engine.company import Company
from embgrad.engine.evaluate import evaluate_each
from embgrad.engine.options import GradientOptions, expect_one_name
from embgrad.engine.question import Question
from embgrad.engine.run import point_values, reduce_run, run_located
from embgrad.errors import (
    BatchError,
    EmbgradWarning,
    NoGradientError,
    ObjectiveError,
    OutputError,
    UnsupportedError,
    brief,
    level_of_user,
)
from embgrad.inputs.batch import TokenBatch
from embgrad.inputs.checks import is_text
from embgrad.inputs.conventions import batch_of, tokenizer_of
from embgrad.inputs.encode import with_known_tokens
from embgrad.model_points.points import WORD
from embgrad.objectives.objectives import Objective, Projection, Sum
from embgrad.objectives.selection import Rows
from embgrad.results.attribution import Attribution
from embgrad.results.pair_attribution import PairAttribution

__all__ = ["IntegratedJacobians", "attribute_pairs"]

#: The similarities of two vectors.
SIMILARITIES: Final = ("cosine", "dot")

#: The position of an output with a vector at each position that stands for the text; None for the mean of the real positions.
POOLINGS: Final = {"mean": None, "first": 0, "last": -1}

#: The most pairs whose texts are run together.
MOST_PAIRS: Final = 32

#: How many times as many numbers as both texts have positions an encoding must have for few directions to be worth while.
FEW: Final = 3

#: The share of a position's difference from its baseline by which it is moved, to find the directions of its contributions.
DIFFERENCE: Final = 0.003

#: The share of the largest size of a direction below which one is left out, the number of directions by which is tested what lies
#: outside of them, and the most that may, as a share of the scores.
SMALLEST, TESTS, MOST_LEFT = 1e-7, 2, 1e-5

#: The options of a pass that reads no point.
_PLAIN: Final = GradientOptions(())


@dataclass(frozen=True)
class IntegratedJacobians:
    """The product of both encodings' Jacobians, each integrated along the straight line from a baseline to the text.

    Möller, Nikolaev and Padó, "An Attribution Method for Siamese Encoders", 2023. Each text takes a pullback, of all steps
    together, for each number of its encoding; or where an encoding has many more numbers than the texts have tokens, for each
    direction in which the contributions lie, which forward passes show.

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


@explain_arguments
def attribute_pairs(
    model: Any,
    pairs: Any,
    method: IntegratedJacobians | str = "integrated_jacobians",
    *,
    similarity: str = "cosine",
    output: str | None = None,
    pooling: str | None = None,
    at: str = WORD,
    tokenizer: Any = None,
    max_length: int | None = None,
    call: Call | None = None,
    batch_size: int | None = None,
    progress: Progress | bool | None = None,
) -> PairAttribution:
    """Return how much each pair of tokens, one of each text, contributes to the similarity of two texts under one encoder.

    With the encodings f of the texts x and y, and of their baselines r and s, the scores of a pair add up to
    ⟨f(x) - f(r), f(y) - f(s)⟩; for the cosine all are divided by the lengths of f(x) and f(y), which count as constants.

    Args:
        model: the encoder, as in `gradients`; so are `tokenizer`, `max_length` and `call`. It returns a vector for each text, or
            with `pooling` for each position.
        pairs: a list of pairs of texts, or a pair of lists of texts, or of batches, which have the same number of examples.
        method: an `embgrad.methods.IntegratedJacobians`, or its name.
        similarity: "cosine" or "dot", the inner product.
        output: the output with the encoding: "pooled", "sequence" or a native name; None for the only one, or for that of a
            sentence encoder.
        pooling: for an output with a vector at each position the one that stands for the text: "mean" of the real positions,
            "first" or "last"; None for an output with a vector for each text.
        at: the point whose values are the inputs, as in `attribute`: at a late hidden state the scores take less time.
        batch_size: how many texts or steps one pass runs at most; None for as many as have 2,048 positions.
        progress: True for a bar on the terminal, or a function that takes the number of pairs done and that of all.

    Returns:
        A `PairAttribution`, whose `scores` are (pair, position of the first text, position of the second).

    Raises:
        BatchError: the pairs are in none of these forms, or the batches are of different lengths.
        ObjectiveError: the output is no encoding: it has a vector at each position and `pooling` is None, or a single number.
        EmbgradError: an argument is not among those above; or as `gradients` raises.
        UnsupportedError: the examples of a batch depend on one another, or the backend cannot pull back several objectives.
    """
    chosen = _method(method)
    expect_choice(similarity, "similarity", SIMILARITIES)
    if pooling is not None:
        expect_choice(pooling, "pooling", POOLINGS)
    expect_one_name(at, "make a call for each point")
    size = count_or_none(batch_size, "batch_size")
    batches = [batch_of(side, tokenizer, max_length, model) for side in _sides(pairs)]
    if len(batches[0]) != len(batches[1]):
        raise BatchError(
            f"the batches have {len(batches[0])} and {len(batches[1])} examples: expected as many, since the example at an index "
            "of the first is compared with that of the second"
        )
    bound = bind(model, call)
    known = tokenizer_of(model, tokenizer)
    with reporter(progress, "pairs") as report:
        encoders = [_Encoder(bound, batch, output, pooling, at, size, chosen, known) for batch in batches]
        return _attribute(encoders, similarity, report)


def _method(method: Any) -> IntegratedJacobians:
    if isinstance(method, IntegratedJacobians):
        return method
    expect_choice(method, "method", ("integrated_jacobians",))
    return IntegratedJacobians()


def _sides(pairs: Any) -> tuple[Any, Any]:
    """Return the first texts or batch, and the second.

    Raises:
        BatchError: they are in none of the accepted forms.
    """
    if isinstance(pairs, tuple) and len(pairs) == 2:
        first, second = pairs
        if isinstance(first, str) and isinstance(second, str):
            return [first], [second]
        return first, second
    is_listed = isinstance(pairs, list) and all(isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in pairs)
    if is_listed and pairs and all(is_text(list(pair)) for pair in pairs):
        return [first for first, _ in pairs], [second for _, second in pairs]
    raise BatchError(
        f"pairs is {brief(pairs)}: expected a list of pairs of texts, [(a, b), (c, d)], or a pair of lists of texts or of "
        "batches, ([a, c], [b, d])"
    )


@dataclass(frozen=True)
class _Encoding:
    """The encoding of a text, and the contributions to it.

    Attributes:
        vector: its encoding, float64, (number,).
        origin: that of its baseline, likewise.
        contributions: of each position to each number of their difference, float64, (number, position).
    """

    vector: np.ndarray
    origin: np.ndarray
    contributions: np.ndarray


class _Reading(Sum):
    """The sum of an example's output, which keeps the sum of the rows: the encoding, or that of all positions.

    Args:
        output: see `Objective`; so is `position`.
    """

    def __init__(self, *, output: str | None = None, position: Any = None) -> None:
        super().__init__(output=output, position=position)
        self.kept: dict[str, np.ndarray] = {}

    def _values(self, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        self.kept["sums"] = np.zeros((rows.count, rows.values.shape[1]))
        np.add.at(self.kept["sums"], rows.examples, rows.values)
        return super()._values(rows)


@dataclass(frozen=True)
class _Encoder:
    """An encoder and the texts of one side.

    Attributes:
        bound: the model.
        batch: the texts of the pairs, of which some may be equal.
        output: see `attribute_pairs`; so are `pooling` and `at`.
        batch_size: how many rows one pass runs at most; None for as many as have 2,048 positions.
        method: the method.
        tokenizer: knows special tokens; None where there is none.
    """

    bound: BoundModel
    batch: TokenBatch
    output: str | None
    pooling: str | None
    at: str
    batch_size: int | None
    method: IntegratedJacobians
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
        """The passes of the first number of the encoding alone, for what does not depend on the number.

        Raises:
            UnsupportedError: the point's axes are not (example, position, dim), or texts depend on one another.
        """
        (first,) = self._objectives(np.eye(1, self.width))
        passes = passes_through(self.bound, self.batch, first, self.at, "keep", self.batch_size)
        if passes.company is Company.HELD:
            raise UnsupportedError(
                f"the encoding of a text depends on the other {len(self.batch) - 1} of the batch: pass one pair at a time"
            )
        return passes

    def _objectives(self, directions: np.ndarray) -> tuple[Projection, ...]:
        """Return an objective for each direction in the space of encodings, (direction, number).

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
        """The name of the output with the encoding, and how many numbers it has.

        Raises:
            ObjectiveError: it is no encoding.
        """
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
        """The baselines' values at the point, float64, (text, position, dim)."""
        return baseline_values(self.passes, self.method.baseline, self.tokenizer, self.method.keep_special)

    def encode(self, texts: np.ndarray) -> list[_Encoding]:
        """Return the encodings of some texts and of their baselines, and the contributions to their differences."""
        ends, contributions = self.ends(texts), self.contributions(texts, np.eye(self.width))
        return [_Encoding(*ends[text], contributions[:, row]) for row, text in enumerate(texts.tolist())]

    def ends(self, texts: np.ndarray) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        """Return by text its encoding, and that of its baseline, float64, (number,) each."""
        vectors, origins = self._vectors(texts, None), self._vectors(texts, self.origins[texts])
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

        They take forward passes alone, and have errors of about a thousandth: enough to know in which directions of the space of
        encodings they lie.
        """
        own, origin = self.passes.inputs[text], self.origins[text]
        nodes, weights = nodes_and_weights(self.method.rule, self.method.steps)
        positions = np.flatnonzero(self.batch.real[text])
        line = origin + nodes[:, None, None] * (own - origin)
        moved = np.zeros((len(positions), *own.shape))
        moved[np.arange(len(positions)), positions] = DIFFERENCE * (own - origin)[positions]
        values = np.stack([line[:, None] + moved, line[:, None] - moved])
        rows = values.reshape(-1, *own.shape)
        vectors = self._vectors(np.full(len(rows), text), rows).reshape(*values.shape[:3], self.width)
        found = np.zeros((self.width, len(own)))
        found[:, positions] = np.einsum("s,spn->np", weights, vectors[0] - vectors[1]) / (2 * DIFFERENCE)
        return found

    def contributions(self, texts: np.ndarray, directions: np.ndarray) -> np.ndarray:
        """Return the contributions of the positions of texts in directions, float64, (direction, text, position)."""
        own, origin = self.passes.inputs[texts], self.origins[texts]
        differences = own - origin
        nodes, weights = nodes_and_weights(self.method.rule, self.method.steps)
        total = np.zeros((len(directions), *own.shape[:2]))
        count, size = len(nodes) * len(texts), self._size(len(texts))
        objectives = self._objectives(directions)
        for start in range(0, count, size):
            step, text = np.divmod(np.arange(start, min(start + size, count)), len(texts))
            values = origin[text] + nodes[step, None, None] * differences[text]
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
        state = self.passes.state
        return Attribution(
            values=None,
            scores=scores,
            objective=similarity.copy(),
            baseline_objective=similarity - explained,
            delta=scores.sum(1) - explained,
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


def _attribute(encoders: Sequence[_Encoder], similarity: str, report: Progress) -> PairAttribution:
    """Return the attribution of the pairs of two sides."""
    count = len(encoders[0].batch)
    scores = np.zeros((count, *(encoder.batch.shape[1] for encoder in encoders)))
    values, explained, most = np.zeros(count), np.zeros(count), np.zeros(count)
    positions = sum(encoder.batch.shape[1] for encoder in encoders)
    needs_whole = any(encoder.passes.needs_whole for encoder in encoders)
    few = encoders[0].width > FEW * positions and not needs_whole
    for pair, (a, b) in enumerate(_in_few_directions(encoders) if few else _in_all_directions(encoders, needs_whole)):
        size = _size_of(a, b, pair) if similarity == "cosine" else 1.0
        changes = a.vector - a.origin, b.vector - b.origin
        values[pair] = a.vector @ b.vector / size
        explained[pair] = changes[0] @ changes[1] / size
        most[pair] = length(changes[0]) * length(changes[1]) / size
        scores[pair] = a.contributions.T @ b.contributions / size
        report(pair + 1, count)
    delta = scores.sum((1, 2)) - explained
    _warn_of_missed(encoders[0], delta, explained, most)
    first, second = (
        encoder.attribution(scores.sum(axis), values, explained, similarity)
        for encoder, axis in zip(encoders, (2, 1), strict=True)
    )
    return PairAttribution(scores, values, explained, delta, first, second)


def _in_all_directions(encoders: Sequence[_Encoder], at_once: bool) -> Iterator[tuple[_Encoding, _Encoding]]:
    """Yield both encodings of each pair, with the contributions to all numbers; a text in several pairs is run once.

    Args:
        encoders: those of both sides.
        at_once: whether all texts are run together, and not in blocks.
    """
    count = len(encoders[0].batch)
    known: list[dict[int, _Encoding]] = [{}, {}]
    for start in range(0, count, count if at_once else MOST_PAIRS):
        pairs = range(start, count if at_once else min(start + MOST_PAIRS, count))
        for encoder, encodings in zip(encoders, known, strict=True):
            texts = np.unique(encoder.equals[pairs.start : pairs.stop])
            new = np.array([text for text in texts.tolist() if text not in encodings], int)
            if new.size:
                encodings.update(zip(new.tolist(), encoder.encode(new), strict=True))
        for pair in pairs:
            a, b = (encodings[encoder.equals[pair]] for encoder, encodings in zip(encoders, known, strict=True))
            yield a, b
        for encoder, encodings in zip(encoders, known, strict=True):
            for text in encodings.keys() - set(encoder.equals[pairs.stop :].tolist()):
                del encodings[text]


def _in_few_directions(encoders: Sequence[_Encoder]) -> Iterator[tuple[_Encoding, _Encoding]]:
    """Yield both encodings of each pair, with the contributions in the directions in which those of either text lie.

    A score is the inner product of two contributions, so that what lies in no direction of either text adds nothing. The
    directions are known from differences of encodings; their errors reach the scores squared, since both contributions would
    have to lie outside. That is measured by directions drawn at random: where they find something, all directions are taken.
    """
    texts = [encoder.equals for encoder in encoders]
    ends = [encoder.ends(np.unique(own)) for encoder, own in zip(encoders, texts, strict=True)]
    nearly = [functools.lru_cache(maxsize=MOST_PAIRS)(encoder.nearly) for encoder in encoders]
    random = np.random.default_rng(0)
    for pair in range(len(texts[0])):
        chosen = [int(own[pair]) for own in texts]
        spanned = np.concatenate([near(text) for near, text in zip(nearly, chosen, strict=True)], axis=1)
        directions = _orthonormal(spanned)
        outside = random.normal(size=(TESTS, len(directions[0])))
        outside -= outside @ directions.T @ directions
        found = [
            encoder.contributions(np.array([text]), np.concatenate([directions, outside]))[:, 0]
            for encoder, text in zip(encoders, chosen, strict=True)
        ]
        inside, missed = zip(*((both[: len(directions)], both[len(directions) :]) for both in found), strict=True)
        left = np.prod([length(array) / TESTS**0.5 for array in missed])
        if left > MOST_LEFT * length(inside[0].T @ inside[1]):
            inside = tuple(
                encoder.contributions(np.array([text]), np.eye(encoder.width))[:, 0]
                for encoder, text in zip(encoders, chosen, strict=True)
            )
        a, b = (
            _Encoding(*known[text], contributions)
            for known, text, contributions in zip(ends, chosen, inside, strict=True)
        )
        yield a, b


def _orthonormal(columns: np.ndarray) -> np.ndarray:
    """Return orthonormal directions, (direction, number), that span these columns, (number, column)."""
    left, sizes, _ = np.linalg.svd(columns, full_matrices=False)
    return np.ascontiguousarray(left[:, sizes > SMALLEST * sizes.max(initial=0.0)].T)


def _size_of(a: _Encoding, b: _Encoding, pair: int) -> float:
    """Return the product of the lengths of two encodings.

    Raises:
        ObjectiveError: it is 0.
    """
    size = length(a.vector) * length(b.vector)
    if not size:
        raise ObjectiveError(
            f"an encoding of the pair {pair} is zero everywhere, so that it has no cosine with another: give similarity='dot'"
        )
    return size


def _warn_of_missed(encoder: _Encoder, delta: np.ndarray, explained: np.ndarray, most: np.ndarray) -> None:
    """Warn of pairs whose scores miss the number to which they should add up by more than 1 % of the most that it could be.

    That is the product of the lengths of both differences of encodings, for which the inner product may be far smaller.
    """
    missed = np.flatnonzero(np.abs(delta) > (SHARE + encoder.passes.rounding) * most)
    if not missed.size:
        return
    worst = missed[np.argmax(np.abs(delta[missed]))]
    named = ", ".join(map(str, missed[:10])) + (", …" if missed.size > 10 else "")
    advice = RANDOM if encoder.passes.is_random else "Take more steps, or another baseline, with IntegratedJacobians"
    warnings.warn(
        f"with {encoder.method.steps} steps the scores of pair(s) {named} do not add up to what they explain: at pair {worst} "
        f"they miss {explained[worst]:.6g} by {delta[worst]:.2g}. {advice}",
        EmbgradWarning,
        stacklevel=level_of_user() + 1,
    )
