"""HotFlip: a beam search over replacements, insertions and deletions of tokens, which gradients propose."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from embgrad.attribution.method import expect_count
from embgrad.common.options import expect_flag
from embgrad.token_search.method import SearchMethod, State
from embgrad.token_search.problem import Problem
from embgrad.token_search.resizing import expect_resizable, expect_room
from embgrad.token_search.texts import Texts, join

__all__ = ["HotFlip"]

#: How many texts of an example are evaluated before the stopping rule is asked for the first time; then twice as many, and so on.
FIRST: Final = 8

#: How many texts are searched side by side; more would take more memory, and no less time.
MOST_TEXTS: Final = 64


@dataclass(frozen=True)
class HotFlip(SearchMethod):
    """A beam search over flips of tokens, which first-order estimates propose and forward passes decide.

    Each step evaluates for each example `candidates` texts that differ by a single edit from a text of its beam, those with the
    best estimates at each position, and keeps the best `beam` of them. An example's step ends early when a text meets the
    stopping rule. Ebrahimi et al., "HotFlip: white-box adversarial examples for text classification", 2018.

    The estimate of an insertion is made where the token at its place is repeated, which takes a gradient for each place;
    deletions are evaluated, all of them.

    Args:
        steps: the most edits of a text.
        beam: how many texts of an example are kept after each step.
        candidates: how many texts a step evaluates, for each example, deletions not counted.
        insert: whether tokens may be inserted before a position whose token may be replaced.
        delete: whether such tokens may be deleted.
    """

    steps: int = 5
    beam: int = 4
    candidates: int = 256
    insert: bool = False
    delete: bool = False

    def __post_init__(self) -> None:
        for name in ("steps", "beam", "candidates"):
            expect_count(getattr(self, name), name)
        expect_flag(self.insert, "insert")
        expect_flag(self.delete, "delete")

    def start(self, problem: Problem) -> State:
        """Return the state before the first step.

        Raises:
            BatchError: tokens are inserted or deleted, and the batch is padded on the left; or the model does not accept a text
                with a token more for each step.
            UnsupportedError: likewise, and the objective or a further input is bound to the positions.
        """
        if self.insert or self.delete:
            expect_resizable(problem)
        if self.insert:
            rows = np.flatnonzero(problem.free.any(1))
            texts = problem.original.take(rows[[problem.original.real[rows].sum(1).argmax()]])
            for _ in range(self.steps):
                texts = texts.repeat(np.zeros(1, np.int64), texts.free.argmax(1))
            expect_room(problem, texts, "pass insert=False, fewer steps")
        return super().start(problem)

    def step(self, problem: Problem, state: State, active: np.ndarray, number: int) -> State:
        """Return the state after a step."""
        moving = state.current.take(active[state.current.examples])
        evaluated: list[Texts] = []
        values: list[np.ndarray] = []
        met = np.zeros(len(problem.batch), bool)
        for group in moving.groups(MOST_TEXTS):
            for texts in self._candidates(problem, group):
                remaining = texts.take(~met[texts.examples])
                if len(remaining):
                    evaluated.append(remaining)
                    values.append(problem.objectives(remaining))
                    met[remaining.examples[problem.rule.is_met(values[-1], remaining.examples)]] = True
        if not evaluated:
            return state
        found, found_values = join(evaluated), np.concatenate(values)
        kept = found.best_of_each(problem.sign * found_values, self.beam)
        stays = ~np.isin(state.current.examples, found.examples[kept])
        improved = state.improve(problem.sign, found, found_values)
        return replace(
            improved,
            current=join([state.current.take(stays), found.take(kept)]),
            values=np.concatenate([state.values[stays], found_values[kept]]),
        )

    def _candidates(self, problem: Problem, texts: Texts) -> Iterator[Texts]:
        """Yield the texts to evaluate, the most promising first: deletions, then all others in ever larger pieces."""
        seen = {texts.key(row) for row in range(len(texts))}
        if self.delete:
            rows, positions = np.nonzero(texts.free & (texts.free.sum(1) > 1)[:, None])
            yield _new(problem, texts.delete(rows, positions), seen)
        edits = _flips(problem, texts, self.candidates)
        if self.insert:
            edits = edits.with_others(_insertions(problem, texts, self.candidates))
        ranked = [edits.best(problem, example, self.candidates, seen) for example in np.unique(texts.examples).tolist()]
        start, size = 0, FIRST
        while any(len(own) > start for own in ranked):
            yield join([own.take(np.arange(start, min(start + size, len(own)))) for own in ranked if len(own) > start])
            start, size = start + size, 2 * size


@dataclass(frozen=True)
class _Edits:
    """Single replacements in texts.

    Attributes:
        rows: the index of the text of each replacement, shape (edit,).
        positions: where it is, likewise.
        ids: the new id, likewise.
        estimates: the first-order estimates of L, float64, likewise.
        ranks: 0 for the best replacement at its position, 1 for the next, and so on, likewise.
    """

    texts: Texts
    rows: np.ndarray
    positions: np.ndarray
    ids: np.ndarray
    estimates: np.ndarray
    ranks: np.ndarray

    def with_others(self, others: _Edits) -> _Edits:
        """Return these replacements and others."""
        pairs = [(getattr(self, name), getattr(others, name)) for name in ("positions", "ids", "estimates", "ranks")]
        rows = np.concatenate([self.rows, len(self.texts) + others.rows])
        return _Edits(join([self.texts, others.texts]), rows, *map(np.concatenate, pairs))

    def best(self, problem: Problem, example: int, most: int, seen: set[bytes]) -> Texts:
        """Return at most so many texts of an example that were not seen: the best at each position, then the next, and so on.

        Estimates of different positions are less comparable than those of one, since a larger gradient also means a larger error:
        in their order nearly all texts would differ at the same position.
        """
        own = np.flatnonzero(self.texts.examples[self.rows] == example)
        own = own[np.lexsort((-problem.sign * self.estimates[own], self.ranks[own]))]
        kept = [self.texts.take(np.zeros(0, np.int64))]
        count = 0
        for start in range(0, len(own), most):
            some = own[start : start + most]
            made = _new(problem, self.texts.substitute(self.rows[some], self.positions[some], self.ids[some]), seen)
            kept.append(made.take(np.arange(min(len(made), most - count))))
            count += len(kept[-1])
            if count == most:
                break
        return join(kept)


def _flips(problem: Problem, texts: Texts, top: int) -> _Edits:
    """Return for each free position the replacements with the best estimates."""
    objective, ids, scores = problem.estimates(texts, top)
    rows, positions, ranks = np.nonzero(ids >= 0)
    estimates = objective[rows] + scores[rows, positions, ranks]
    return _Edits(texts, rows, positions, ids[rows, positions, ranks], estimates, ranks)


def _insertions(problem: Problem, texts: Texts, top: int) -> _Edits:
    """Return replacements of the first of the two equal tokens where the token at a free position is repeated."""
    rows, positions = np.nonzero(texts.free)
    longer = texts.repeat(rows, positions)
    only = np.zeros(longer.free.shape, bool)
    only[np.arange(len(rows)), positions] = True
    edits = _flips(problem, replace(longer, free=only), top)
    return replace(edits, texts=longer)


def _new(problem: Problem, texts: Texts, seen: set[bytes]) -> Texts:
    """Return the stable ones of texts that were not seen, and note that they are seen now."""
    fresh = []
    for row in range(len(texts)):
        key = texts.key(row)
        if key not in seen:
            seen.add(key)
            fresh.append(row)
    made = texts.take(np.array(fresh, np.int64))
    return made.take(problem.stable(made))
