"""Influence of training examples on test examples by gradients of the embedding table."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import numpy as np

from embgrad.backend.protocol import Call
from embgrad.common.keywords import explain_arguments
from embgrad.common.options import count_or_none
from embgrad.common.progress import Progress
from embgrad.errors import BatchError, EmbgradError, ObjectiveError, brief
from embgrad.inputs.batch import TokenBatch
from embgrad.inputs.conventions import tokenizer_of
from embgrad.inputs.encode import with_known_tokens
from embgrad.model_points.points import WORD
from embgrad.results.influence import Influence
from embgrad.results.row_sparse import RowSparse
from embgrad.results.table_norms import TableIndex
from embgrad.streaming.objectives import Objectives
from embgrad.streaming.stream import stream

__all__ = ["Best", "influence"]


@explain_arguments
def influence(
    model: Any,
    train: Iterable[Any],
    test: Iterable[Any],
    objective: Any,
    *,
    test_objective: Any = None,
    rates: Sequence[float] | None = None,
    top: int | None = 10,
    tokens: int | None = None,
    tokenizer: Any = None,
    max_length: int | None = None,
    batch_size: int | None = None,
    at: str = WORD,
    call: Call | None = None,
    progress: Progress | bool | None = None,
) -> Influence:
    """Return the training examples whose gradient steps change the objectives of test examples most.

    This is TracIn for word embeddings (Yeh, Taly, Sundararajan, Liu and Ravikumar, "First is Better Than Last for Language Data
    Influence", 2022): the score of a training example x for a test example y is Σ over checkpoints of the learning rate times
    the inner product of both examples' gradients of the embedding table, ⟨∂L(x)/∂E, ∂L(y)/∂E⟩. Only ids that both texts have
    contribute. Training examples are read once a checkpoint, a batch at a time; gradients of all test examples are held in
    memory, as rows that were looked up.

    Args:
        model: a model, or a list of checkpoints of one model, all in memory.
        train: the training examples as a source of `embgrad.stream`: with `tokenizer` texts, or (text, label) with an objective
            `embgrad.Labelled`; otherwise batches. Of several checkpoints it must be readable more than once, as a list is.
        test: the test examples, likewise.
        objective: the loss of the training examples, as in `embgrad.stream`: `embgrad.Labelled(embgrad.CrossEntropy)` where
            labels come with the texts, or an objective whose arguments have one entry for each training example.
        test_objective: that of the test examples; None for the same, which then has no argument with entries by example.
        rates: the learning rate of each checkpoint; None for 1 each.
        top: how many proponents and opponents of each test example are kept; None for all training examples in order.
        tokens: how many tokens of each kept score are kept, those with the largest parts of it, see `Influence`; None for none.
        tokenizer: as in `embgrad.stream`, likewise `max_length`, `batch_size`, `call` and `progress`, which is of the
            training examples of the first checkpoint.
        at: the lookup whose table is meant.

    Returns:
        An `embgrad.results.Influence` with the indices of training examples, in the order of the source, and their scores.

    Raises:
        BackendError, BatchError, ObjectiveError, PointError, UnsupportedError: as `embgrad.stream`.
        BatchError: a source can be read once alone and there are several checkpoints, or `top` is not a whole number of at
            least 1.
        EmbgradError: `rates` are not one number for each checkpoint, or the checkpoints' tables have different shapes.
    """
    models = model if isinstance(model, list) else [model]
    weights = _expect_rates(rates, len(models))
    top, tokens = count_or_none(top, "top"), count_or_none(tokens, "tokens")
    test_objective = _of_test(objective, test_objective)
    if len(models) > 1:
        for name, source in (("train", train), ("test", test)):
            if isinstance(source, Iterator):
                raise BatchError(
                    f"{name} is a {type(source).__name__}, which can be read once, and there are {len(models)} checkpoints: "
                    "pass a list"
                )
    options = {"tokenizer": tokenizer, "max_length": max_length, "batch_size": batch_size}
    options |= {"at": at, "call": call}
    indices = [
        TableIndex(
            [table for result in stream(each, test, test_objective, **options) for table in result.per_example()]
        )
        for each in models
    ]
    highest, lowest = Best(top, 1), Best(top, -1)
    count, provenance = 0, dict[str, Any]()
    with contextlib.ExitStack() as stack:
        streams = [
            stack.enter_context(stream(each, train, objective, progress=progress if number == 0 else None, **options))
            for number, each in enumerate(models)
        ]
        for results in zip(*streams, strict=True):
            tables = [result.per_example() for result in results]
            products = [
                rate * index.products(TableIndex(own))
                for rate, index, own in zip(weights, indices, tables, strict=True)
            ]
            scores = np.sum(products, axis=0)
            for best in (highest, lowest):
                best.add(scores, np.broadcast_to(count + np.arange(scores.shape[1]), scores.shape))
                if tokens is not None:
                    best.add_terms(_Terms(weights, indices, tables, tokens), count)
            count += scores.shape[1]
            provenance = provenance or dict(results[0].provenance)
    provenance |= {"method": "TracIn-WE", "rates": weights}
    made = Influence(*highest.result(), *lowest.result(), count, provenance)
    return made if tokens is None else _with_tokens(made, highest, lowest, tokenizer_of(models[0], tokenizer))


def _with_tokens(made: Influence, highest: Best, lowest: Best, tokenizer: Any) -> Influence:
    """Return an influence with the terms of tokens, and with the tokens' names where a tokenizer knows them."""
    arrays: dict[str, Any] = {
        f"{kind}_{name}": array
        for kind, best in (("proponent", highest), ("opponent", lowest))
        for name, array in zip(("ids", "terms"), best.terms(), strict=True)
    }
    ids = np.unique(np.concatenate([arrays[f"{kind}_ids"].ravel() for kind in ("proponent", "opponent")]))
    ids = ids[ids >= 0]
    tokens = with_known_tokens(TokenBatch(ids[None]), tokenizer).tokens if ids.size else None
    return replace(made, **arrays, names=None if tokens is None else dict(zip(ids.tolist(), tokens[0], strict=True)))


def _expect_rates(rates: Any, count: int) -> list[float]:
    """Return the learning rate of each checkpoint."""
    if rates is None:
        return [1.0] * count
    listed = list(rates) if isinstance(rates, (list, tuple, np.ndarray)) else [rates]
    if len(listed) != count or not all(isinstance(rate, Real) and math.isfinite(rate) for rate in listed):
        checkpoints = "checkpoint" if count == 1 else "checkpoints"
        raise EmbgradError(
            f"rates is {brief(rates)}: expected a list of {count} finite numbers, as there are {count} {checkpoints}"
        )
    return [float(rate) for rate in listed]


def _of_test(objective: Any, test_objective: Any) -> Any:
    """Return the objective of the test examples."""
    if test_objective is not None:
        return test_objective
    count = Objectives(objective).count
    if count is not None:
        raise ObjectiveError(
            f"the objective has arguments with {count} entries, one for each training example: pass test_objective=... with "
            "those of the test examples, or Labelled(...) and labels beside the texts"
        )
    return objective


@dataclass(frozen=True)
class _Terms:
    """The parts of scores by ids, for one batch of training examples.

    Attributes:
        rates: the learning rate of each checkpoint.
        tests: the gradients of the test examples, by checkpoint.
        most: how many ids of a score are kept.
    """

    rates: Sequence[float]
    tests: Sequence[TableIndex]
    training: Sequence[Sequence[RowSparse]]
    most: int

    def of(self, test: int, example: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids with the largest parts of a score, and these, the largest first."""
        rows, terms = [], []
        for rate, index, tables in zip(self.rates, self.tests, self.training, strict=True):
            x, y = tables[example], index.tables[test]
            common, of_x, of_y = np.intersect1d(x.rows, y.rows, assume_unique=True, return_indices=True)
            rows.append(common)
            terms.append(rate * np.einsum("rd,rd->r", x.values[of_x], y.values[of_y], dtype=np.float64))
        ids, numbers = np.unique(np.concatenate(rows), return_inverse=True)
        sums = np.bincount(numbers.ravel(), np.concatenate(terms), len(ids))
        order = np.argsort(-np.abs(sums), kind="stable")[: self.most]
        return ids[order], sums[order]


class Best:
    """The training examples with the highest scores of each test example, or the lowest.

    Args:
        top: how many are kept; None for all.
        sign: 1 for the highest, -1 for the lowest.
    """

    def __init__(self, top: int | None, sign: int) -> None:
        self._top, self._sign = top, sign
        self._kept: list[tuple[np.ndarray, np.ndarray]] = []
        self._terms: dict[tuple[int, int], tuple[np.ndarray, np.ndarray]] = {}

    def add(self, scores: np.ndarray, numbers: np.ndarray) -> None:
        """Add the scores of further training examples, (test example, training example), with their indices, likewise."""
        self._kept.append((numbers, scores))
        if self._top is not None:
            self._kept = [self.result()]

    def add_terms(self, terms: _Terms, start: int) -> None:
        """Add the terms of those that were kept of the training examples that were added last."""
        numbers, _ = self.result()
        kept = dict[tuple[int, int], tuple[np.ndarray, np.ndarray]]()
        for test, row in enumerate(numbers.tolist()):
            for number in row:
                key = test, number
                kept[key] = terms.of(test, number - start) if number >= start else self._terms[key]
        self._terms = kept

    def terms(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids and terms of the result's scores, (test example, training example, token), -1 and 0 at the end."""
        numbers, _ = self.result()
        width = max(1, *(len(ids) for ids, _ in self._terms.values()))
        ids, terms = np.full((*numbers.shape, width), -1, np.int64), np.zeros((*numbers.shape, width))
        for index in np.ndindex(numbers.shape):
            own = self._terms[index[0], int(numbers[index])]
            ids[index][: len(own[0])], terms[index][: len(own[0])] = own
        return ids, terms

    def result(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the indices and scores, the best first; of equal scores the earlier example comes first."""
        numbers, scores = (np.concatenate(parts, axis=1) for parts in zip(*self._kept, strict=True))
        order = np.lexsort((numbers, -self._sign * scores))[:, : self._top]
        return np.take_along_axis(numbers, order, 1), np.take_along_axis(scores, order, 1)
