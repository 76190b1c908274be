"""The goal of a search, and the rule by which that of an example stops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from embgrad.errors import EmbgradError, brief, did_you_mean, listed

__all__ = ["GOALS", "Rule", "Until", "expect_goal"]

#: The goals by name, with the sign of the objective that makes them a maximum.
GOALS: Final = {"maximize": 1, "minimize": -1}

#: L at which an example's search stops, or a function of L, (example,), that returns which examples may stop.
Until: TypeAlias = float | Callable[[np.ndarray], Any]


@dataclass(frozen=True)
class Rule:
    """What a search is for, and when that of an example stops.

    Attributes:
        goal: "maximize" or "minimize".
        until: see `search`.
    """

    goal: str
    until: Until | None = None

    @property
    def sign(self) -> int:
        """1 where the objective is maximised, -1 where it is minimised."""
        return GOALS[self.goal]

    @classmethod
    def of(cls, goal: Any, until: Any) -> Rule:
        """Return the rule for the arguments of `search`.

        Raises:
            EmbgradError: `until` is neither a number nor a function, or there is no such goal.
        """
        expect_goal(goal)
        is_number = isinstance(until, (int, float, np.number)) and not isinstance(until, bool) and np.isfinite(until)
        if until is not None and not is_number and not callable(until):
            raise EmbgradError(
                f"until is {brief(until)}: expected the L at which the search of an example stops, or a function that takes L of "
                "shape (example,) and returns which examples may stop"
            )
        return cls(goal, until)

    def met(self, objective: np.ndarray) -> np.ndarray:
        """Return whether each example may stop, bool, shape (example,).

        Raises:
            EmbgradError: the user's function returned another shape.
        """
        if self.until is None:
            return np.zeros(len(objective), bool)
        if not callable(self.until):
            return np.asarray(self.sign * objective >= self.sign * self.until)
        returned = np.asarray(self.until(objective.copy()))
        if returned.shape != objective.shape:
            raise EmbgradError(
                f"until returned {brief(returned)}: expected a truth value for each of {len(objective)} examples"
            )
        return returned.astype(bool)

    def describe(self) -> dict[str, Any]:
        """Return the rule as JSON-compatible values."""
        until = self.until
        named = getattr(until, "__qualname__", type(until).__qualname__) if callable(until) else until
        return {"goal": self.goal, "until": float(named) if isinstance(named, np.number) else named}


def expect_goal(goal: Any) -> None:
    """Raise an error for a goal that is neither "maximize" nor "minimize"."""
    if not isinstance(goal, str) or goal not in GOALS:
        raise EmbgradError(f"goal is {brief(goal)}: expected {listed(GOALS)}.{did_you_mean(str(goal), list(GOALS))}")
