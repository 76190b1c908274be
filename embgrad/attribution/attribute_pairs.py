"""`embgrad.attribute_pairs`: how much each pair of tokens contributes to the similarity of two texts, under one encoder."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from embgrad.attribution.completeness import RANDOM, SHARE
from embgrad.attribution.gradient_methods import InputXGradient
from embgrad.attribution.method import expect_choice
from embgrad.attribution.pair_encoder import POOLINGS, Encoder, IntegratedJacobians
from embgrad.backend.protocol import Call
from embgrad.backend.registry import bind
from embgrad.common.keywords import explain_arguments
from embgrad.common.metrics import length
from embgrad.common.options import count_or_none
from embgrad.common.progress import Progress, reporter
from embgrad.engine.options import expect_one_name
from embgrad.errors import BatchError, EmbgradWarning, ObjectiveError, brief, level_of_user
from embgrad.inputs.checks import is_text
from embgrad.inputs.conventions import batch_of, tokenizer_of
from embgrad.model_points.points import WORD
from embgrad.results.pair_attribution import PairAttribution

__all__ = ["attribute_pairs"]

#: The similarities of two vectors.
SIMILARITIES: Final = ("cosine", "dot")

#: The methods by name.
METHODS: Final[Mapping[str, Callable[[], IntegratedJacobians | InputXGradient]]] = {
    "integrated_jacobians": IntegratedJacobians,
    "input_x_gradient": InputXGradient,
}

#: The most pairs whose texts are run together.
MOST_PAIRS: Final = 32

#: The share of the largest size of a direction below which one is left out, the number of directions by which the errors of
#: differences of encodings are estimated, and the largest part of the scores, as a share, that may be left out.
SMALLEST, TESTS, MOST_LEFT = 1e-4, 2, 1e-3


@explain_arguments
def attribute_pairs(
    model: Any,
    pairs: Any,
    method: IntegratedJacobians | InputXGradient | str = "integrated_jacobians",
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

    By integrated Jacobians, with the encodings f of the texts x and y, and of their baselines r and s, the scores of a pair add
    up to ⟨f(x) - f(r), f(y) - f(s)⟩. By `embgrad.methods.InputXGradient`, in far less time, the score of two tokens is the inner
    product of the changes of both encodings, to first order, as the values of each token are scaled: the second derivative of the
    inner product by both scales (the Hessian × product of Eberle et al., "Building and Interpreting Deep Similarity Models",
    2022). Of a linear encoder without a bias these scores add up to ⟨f(x), f(y)⟩, of others they need not. For the cosine all
    are divided by the lengths of f(x) and f(y), which count as constants.

    Either takes, of each text, a pullback for each token of the other: the differences that small changes of its tokens make to
    the encoding are the cotangents, and the error is of second order in theirs. It is estimated. Where it is above a thousandth
    of the scores, or where it takes less, there is a pullback for each number of the encoding.

    Args:
        model: the encoder, as in `gradients`; so are `tokenizer`, `max_length` and `call`. It returns a vector for each text, or
            with `pooling` for each position.
        pairs: a list of pairs of texts, or a pair of lists of texts, or of batches, which have the same number of examples.
        method: an `embgrad.methods.IntegratedJacobians`, "integrated_jacobians", or `embgrad.methods.InputXGradient`,
            "input_x_gradient".
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
        encoders = [Encoder(bound, batch, output, pooling, at, size, chosen, known) for batch in batches]
        return _attribute(encoders, similarity, report)


def _method(method: Any) -> IntegratedJacobians | InputXGradient:
    """Return a method, or the method of a name."""
    if isinstance(method, (IntegratedJacobians, InputXGradient)):
        return method
    expect_choice(method, "method", METHODS)
    return METHODS[method]()


def _sides(pairs: Any) -> tuple[Any, Any]:
    """Return the first texts or batch, and the second."""
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
class _Scored:
    """A pair's encodings, and the products of the contributions to them.

    Attributes:
        ends: for each text its encoding and that of its baseline, float64, (number,).
        products: for each pair of positions the inner product of their contributions, (position of a, position of b).
    """

    ends: Sequence[tuple[np.ndarray, np.ndarray]]
    products: np.ndarray


def _attribute(encoders: Sequence[Encoder], similarity: str, report: Progress) -> PairAttribution:
    """Return the attribution of the pairs of two sides."""
    count = len(encoders[0].batch)
    scores = np.empty((count, *(encoder.batch.shape[1] for encoder in encoders)))
    values, explained, most = np.empty(count), np.empty(count), np.empty(count)
    needs_whole = any(encoder.passes.needs_whole for encoder in encoders)
    few = not needs_whole and _take_less(encoders)
    for pair, scored in enumerate(_in_few_directions(encoders) if few else _in_all_directions(encoders, needs_whole)):
        (a, a_origin), (b, b_origin) = scored.ends
        size = _size_of(a, b, pair) if similarity == "cosine" else 1.0
        values[pair] = a @ b / size
        explained[pair] = (a - a_origin) @ (b - b_origin) / size
        most[pair] = length(a - a_origin) * length(b - b_origin) / size
        scores[pair] = scored.products / size
        report(pair + 1, count)
    delta = scores.sum((1, 2)) - explained
    if isinstance(encoders[0].method, IntegratedJacobians):
        _warn_of_missed(encoders[0], encoders[0].method.steps, delta, explained, most)
    first, second = (
        encoder.attribution(scores.sum(axis), values, explained, similarity)
        for encoder, axis in zip(encoders, (2, 1), strict=True)
    )
    return PairAttribution(scores, values, explained, delta, first, second)


def _take_less(encoders: Sequence[Encoder]) -> bool:
    """Return whether the passes of `_in_few_directions` run fewer positions than those of `_in_all_directions`."""
    positions = [encoder.batch.shape[1] for encoder in encoders]
    texts = [len(np.unique(encoder.equals)) for encoder in encoders]
    few = sum(count * length**2 for count, length in zip(texts, positions, strict=True))
    few += 2 * len(encoders[0].batch) * math.prod(positions)
    return few < encoders[0].width * sum(count * length for count, length in zip(texts, positions, strict=True))


def _in_all_directions(encoders: Sequence[Encoder], at_once: bool) -> Iterator[_Scored]:
    """Yield each pair, from the contributions to all numbers of its encodings; a text in several pairs is run once.

    Args:
        at_once: whether all texts are run together, and not in blocks.
    """
    count = len(encoders[0].batch)
    known: list[dict[int, tuple[Any, np.ndarray]]] = [{}, {}]
    for start in range(0, count, count if at_once else MOST_PAIRS):
        pairs = range(start, count if at_once else min(start + MOST_PAIRS, count))
        for encoder, encodings in zip(encoders, known, strict=True):
            texts = np.unique(encoder.equals[pairs.start : pairs.stop])
            new = np.array([text for text in texts.tolist() if text not in encodings], int)
            if new.size:
                ends, found = encoder.ends(new), encoder.contributions(new, np.eye(encoder.width))
                encodings.update((text, (ends[text], found[:, row])) for row, text in enumerate(new.tolist()))
        for pair in pairs:
            a, b = (encodings[encoder.equals[pair]] for encoder, encodings in zip(encoders, known, strict=True))
            yield _Scored((a[0], b[0]), a[1].T @ b[1])
        for encoder, encodings in zip(encoders, known, strict=True):
            for text in encodings.keys() - set(encoder.equals[pairs.stop :].tolist()):
                del encodings[text]


def _in_few_directions(encoders: Sequence[Encoder]) -> Iterator[_Scored]:
    """Yield each pair, from the contributions of either text in the directions of those of the other.

    With contributions A and B, of which differences of encodings give A' and B', the scores A·B are A'·B + A·B' - A'·B' and
    (A - A')·(B - B'), which is left out. Its size is estimated from contributions in directions drawn at random: where it is not
    negligible, all directions are taken.
    """
    texts = [encoder.equals for encoder in encoders]
    ends = [encoder.ends(np.unique(own)) for encoder, own in zip(encoders, texts, strict=True)]
    nearly = [functools.lru_cache(maxsize=2 * MOST_PAIRS)(encoder.nearly) for encoder in encoders]
    tests = np.random.default_rng(0).normal(size=(TESTS, encoders[0].width))
    at_once = min(MOST_PAIRS, max(1, min(encoder.passes.size for encoder in encoders) // len(encoders[0].line[0])))
    for start in range(0, len(texts[0]), at_once):
        chosen = [own[start : start + at_once] for own in texts]
        spans = [[_Span.of(near(text)) for text in side.tolist()] for near, side in zip(nearly, chosen, strict=True)]
        found = [
            encoder.contributions(side, _stack(others, tests))
            for encoder, side, others in zip(encoders, chosen, reversed(spans), strict=True)
        ]
        for row, pair in enumerate(zip(*spans, strict=True)):
            number = [int(side[row]) for side in chosen]
            products = _products(pair, [array[:, row] for array in found], tests)
            if products is None:
                a, b = (
                    encoder.contributions(np.array([text]), np.eye(encoder.width))[:, 0]
                    for encoder, text in zip(encoders, number, strict=True)
                )
                products = a.T @ b
            yield _Scored([known[text] for known, text in zip(ends, number, strict=True)], products)


class _Span(NamedTuple):
    """Contributions nearly as they are, as orthonormal directions, (direction, number), times shares, (direction, position)."""

    directions: np.ndarray
    shares: np.ndarray

    @classmethod
    def of(cls, contributions: np.ndarray) -> _Span:
        """Return the span of contributions, (number, position), without directions that their errors hide."""
        left, sizes, right = np.linalg.svd(contributions, full_matrices=False)
        large = sizes > SMALLEST * sizes.max(initial=0.0)
        return cls(left[:, large].T, sizes[large, None] * right[large])


def _stack(spans: Sequence[_Span], tests: np.ndarray) -> np.ndarray:
    """Return the directions of each text, the test directions first, then its own, then zeros, (direction, text, number)."""
    most = max(len(span.directions) for span in spans)
    stacked = np.zeros((len(tests) + most, len(spans), tests.shape[1]))
    stacked[: len(tests)] = tests[:, None]
    for row, span in enumerate(spans):
        stacked[len(tests) : len(tests) + len(span.directions), row] = span.directions
    return stacked


def _products(spans: Sequence[_Span], found: Sequence[np.ndarray], tests: np.ndarray) -> np.ndarray | None:
    """Return the inner products of both texts' contributions; None where what is left out of them is not negligible.

    Args:
        found: the contributions of each text in the test directions, and in those of the other text's span.
        tests: the test directions, (direction, number).
    """
    a, b = spans
    of_a, of_b = (array[len(tests) :] for array in found)
    left_of_b, left_of_a = of_a[: len(b.directions)].T @ b.shares, a.shares.T @ of_b[: len(a.directions)]
    products = left_of_a + left_of_b - a.shares.T @ (a.directions @ b.directions.T) @ b.shares
    errors = [
        length(array[: len(tests)] - tests @ span.directions.T @ span.shares) / len(tests) ** 0.5
        for span, array in zip(spans, found, strict=True)
    ]
    return np.asarray(products) if math.prod(errors) <= MOST_LEFT * length(products) else None


def _size_of(a: np.ndarray, b: np.ndarray, pair: int) -> float:
    """Return the product of the lengths of two encodings."""
    size = length(a) * length(b)
    if not size:
        raise ObjectiveError(
            f"an encoding of the pair {pair} is zero everywhere, so that it has no cosine with another: give similarity='dot'"
        )
    return size


def _warn_of_missed(encoder: Encoder, steps: int, delta: np.ndarray, explained: np.ndarray, most: np.ndarray) -> None:
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
        f"with {steps} steps the scores of pair(s) {named} do not add up to what they explain: at pair {worst} "
        f"they miss {explained[worst]:.6g} by {delta[worst]:.2g}. {advice}",
        EmbgradWarning,
        stacklevel=level_of_user() + 1,
    )
