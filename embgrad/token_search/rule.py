"""The goal of a search, and the rule by which that of an example stops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from embgrad.common.arrays import to_numpy
from embgrad.errors import EmbgradError, brief, did_you_mean

__all__ = ["GOALS", "Rule", "expect_goal"]

#: The goals by name, with the sign of the objective that makes them a maximum.
GOALS: Final = {"maximize": 1, "minimize": -1}


@dataclass(frozen=True)
class Rule:
    """The goal of a search, and the rule by which that of an example stops.

    Attributes:
        goal: "maximize" or "minimize".
        until: the L at which the search of an example stops, float64, shape () or (example,); None where it does not.
    """

    goal: str
    until: np.ndarray | None = None

    @classmethod
    def of(cls, goal: Any, until: Any, examples: int) -> Rule:
        """Return the rule for the arguments of `search`."""
        expect_goal(goal)
        return cls(goal, None if until is None else _check(until, examples))

    @property
    def sign(self) -> int:
        """1 where the objective is maximised, -1 where it is minimised."""
        return GOALS[self.goal]

    def is_met(self, objective: np.ndarray, examples: np.ndarray | None = None) -> np.ndarray:
        """Return whether texts with these L meet the stopping rule, bool, shape (text,).

        Args:
            objective: L of each text, shape (text,).
            examples: the example of each; None where the texts are the examples in order.
        """
        if self.until is None:
            return np.zeros(len(objective), bool)
        until = self.until if self.until.ndim == 0 or examples is None else self.until[examples]
        return np.asarray(self.sign * objective >= self.sign * until)

    def describe(self) -> dict[str, Any]:
        """Return the rule as JSON-compatible values."""
        return {"goal": self.goal, "until": None if self.until is None else self.until.tolist()}


def expect_goal(goal: Any) -> None:
    """Raise an error for a goal that is neither "maximize" nor "minimize"."""
    if not isinstance(goal, str) or goal not in GOALS:
        raise EmbgradError(
            f"goal is {brief(goal)}: expected 'maximize' or 'minimize'.{did_you_mean(str(goal), list(GOALS))}"
        )


def _check(until: Any, examples: int) -> np.ndarray:
    try:
        array = to_numpy(until)
    except ValueError:
        array = np.array(None)
    if array.dtype.kind not in "iuf" or array.shape not in ((), (examples,)) or not np.isfinite(array).all():
        raise EmbgradError(
            f"until is {brief(until)}: expected the L at which the search of an example stops, a finite number, or one for each "
            f"of the {examples} examples"
        )
    return array.astype(np.float64)
