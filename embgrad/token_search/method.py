"""The base of search methods, and the state from which a search goes on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

import numpy as np

from embgrad.attribution.method import plain
from embgrad.token_search.problem import Problem
from embgrad.token_search.texts import Texts

__all__ = ["SearchMethod", "State"]


@dataclass(frozen=True)
class State:
    """The state of a search after a step, from which it can go on.

    Attributes:
        best: the best text of each example so far, one of each example, in order.
        objective: its L, float64, shape (example,).
        current: the texts from which the next step goes on, several of an example or none.
        values: L of each of them, float64, shape (text,).
        arrays: what else the method goes on from, by name.
    """

    best: Texts
    objective: np.ndarray
    current: Texts
    values: np.ndarray
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)

    @classmethod
    def at(cls, texts: Texts, values: np.ndarray, arrays: Mapping[str, np.ndarray] | None = None) -> State:
        """Return the state at one text of each example."""
        return cls(texts, values, texts, values, arrays or {})

    def improve(self, sign: int, texts: Texts, values: np.ndarray) -> State:
        """Return the state whose best texts are the better ones of its own and of these; of equal ones its own stay."""
        rows = texts.best_of_each(sign * values)
        rows = rows[sign * values[rows] > sign * self.objective[texts.examples[rows]]]
        if not len(rows):
            return self
        objective = self.objective.copy()
        objective[texts.examples[rows]] = values[rows]
        return replace(self, best=self.best.put(texts.examples[rows], texts.take(rows)), objective=objective)


class SearchMethod(ABC):
    """A search method: a frozen data class of its arguments, which are checked when it is made.

    Attributes:
        steps: the most steps.
        joint: whether something is searched that all examples share, so that no example needs to succeed by itself.
    """

    steps: int
    joint: ClassVar[bool] = False

    def start(self, problem: Problem) -> State:
        """Return the state before the first step."""
        return State.at(problem.original, problem.before)

    def active(self, problem: Problem, state: State) -> np.ndarray:
        """Return the examples whose search goes on, bool, shape (example,): those that do not meet the stopping rule."""
        return ~problem.rule.is_met(state.objective)

    @abstractmethod
    def step(self, problem: Problem, state: State, active: np.ndarray, number: int) -> State:
        """Return the state after a step.

        Args:
            problem: what is searched.
            state: the state before the step.
            active: the examples whose search goes on, bool, shape (example,); other examples' texts stay as they are.
            number: the number of the step, from 0; with the seed it determines the draws.
        """

    def describe(self) -> dict[str, Any]:
        """Return the class name and the arguments as JSON-compatible values."""
        arguments = {entry.name: plain(getattr(self, entry.name)) for entry in fields(self)}  # type: ignore[arg-type]
        return {"class": type(self).__name__, **arguments}
