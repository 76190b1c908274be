"""Greedy coordinate gradient: many single replacements among the best by gradients are evaluated, and the best one is taken."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from embgrad.attribution.method import expect_count
from embgrad.token_search.draws import keys_of, priorities
from embgrad.token_search.method import SearchMethod, State
from embgrad.token_search.problem import Problem
from embgrad.token_search.texts import Texts, join

__all__ = ["GCG"]

#: How many texts are searched side by side; more would take more memory, and no less time.
MOST_TEXTS: Final = 16


@dataclass(frozen=True)
class GCG(SearchMethod):
    """Greedy coordinate gradient.

    Each step takes the gradient at the current text, offers the `top` ids of each position by their first-order estimates, draws
    `candidates` of these replacements, evaluates them, and goes on from the best, also where it is worse than before; the
    best text of all steps is returned. Zou et al., "Universal and transferable adversarial attacks on aligned language models",
    2023, whose numbers are the defaults. A replacement is not drawn twice in a step.

    Args:
        steps: the number of steps.
        candidates: how many texts a step evaluates, for each example.
        top: how many ids of each position are offered.
        seed: with it an example has the same draws in each framework, whatever batch it is in.
    """

    steps: int = 250
    candidates: int = 512
    top: int = 256
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("steps", "candidates", "top"):
            expect_count(getattr(self, name), name)
        expect_count(self.seed, "seed", 0)

    def step(self, problem: Problem, state: State, active: np.ndarray, number: int) -> State:
        """Return the state after a step."""
        for moving in state.current.take(active & state.current.free.any(1)).groups(MOST_TEXTS):
            state = self._move(problem, state, moving, number)
        return state

    def _move(self, problem: Problem, state: State, moving: Texts, number: int) -> State:
        """Return the state after a step of some texts."""
        _, ids, _ = problem.estimates(moving, self.top)
        original = problem.original
        keys = keys_of(self.seed, number, original.ids[moving.examples], original.real[moving.examples])
        drawn = [self._draw(problem, moving, row, ids[row], keys[row]) for row in range(len(moving))]
        candidates = join(drawn)
        if not len(candidates):
            return state
        values = problem.objectives(candidates)
        rows = candidates.best_of_each(problem.sign * values)
        examples = candidates.examples[rows]
        current_values = state.values.copy()
        current_values[examples] = values[rows]
        improved = state.improve(problem.sign, candidates, values)
        return replace(improved, current=state.current.put(examples, candidates.take(rows)), values=current_values)

    def _draw(self, problem: Problem, texts: Texts, row: int, ids: np.ndarray, key: np.uint64) -> Texts:
        """Return the texts that are evaluated in place of one: stable ones, in the order of their draws."""
        positions, ranks = np.nonzero(ids >= 0)
        replacements = ids[positions, ranks]
        numbers = np.cumsum(texts.real[row])[positions] - 1  # padding on the left must not change the draws
        order = np.argsort(priorities(key, numbers, replacements), kind="stable")
        kept: list[Texts] = []
        count = 0
        for start in range(0, len(order), self.candidates):
            some = order[start : start + self.candidates]
            texts_made = texts.substitute(np.full(len(some), row), positions[some], replacements[some])
            stable = np.flatnonzero(problem.stable(texts_made))[: self.candidates - count]
            kept.append(texts_made.take(stable))
            count += len(stable)
            if count == self.candidates:
                break
        return join(kept) if kept else texts.take(np.zeros(0, np.int64))
