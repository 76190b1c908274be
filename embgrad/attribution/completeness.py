"""Warnings of contributions that do not sum to the difference of the objective."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Final

import numpy as np

from embgrad.attribution.passes import Passes
from embgrad.errors import EmbgradWarning, level_of_user

__all__ = ["ADVICE", "RANDOM", "SHARE", "find_missed", "warn_of_missed"]

#: An error of completeness above this share of the objective's difference is warned of.
SHARE: Final = 0.01

#: What to do where the steps are too few, by whether the line was refined.
ADVICE: Final[Mapping[bool, str]] = {
    False: "Take more steps, or a tolerance, with which the line is refined where it bends",
    True: "Give most=... for more steps, for a causal model baseline='pad' with keep_first=True, or take a method that needs no "
    "path, such as Occlusion or KernelShap, and see by embgrad.metrics.faithfulness which one the model follows",
}

#: What a warning says in place of its advice where more steps do not help.
RANDOM: Final = (
    "The model draws other random numbers in each pass, and more steps do not help: give its dropout a rate of 0"
)


def find_missed(
    passes: Passes, delta: np.ndarray, difference: np.ndarray, before: np.ndarray, most: float
) -> np.ndarray:
    """Return the indices of the examples whose error is more than a share of the difference, and more than rounding.

    Args:
        delta: the errors of completeness, (example,).
        difference: the size of the difference that they should sum to, (example,).
        before: L at the baseline, (example,).
    """
    allowed = most * np.abs(difference) + passes.rounding * (np.abs(passes.state.objective) + np.abs(before))
    return np.flatnonzero(np.abs(delta) > allowed)


def warn_of_missed(
    passes: Passes,
    delta: np.ndarray,
    difference: np.ndarray,
    before: np.ndarray,
    effort: str,
    advice: str,
    most: float = SHARE,
    promise: str = "L - L(baseline)",
    size: np.ndarray | None = None,
) -> None:
    """Warn of examples whose contributions do not sum to the difference of the objective.

    Args:
        difference: what the contributions should sum to, (example,).
        effort: the number of steps in words.
        advice: a sentence on what to do, without its period.
        promise: what the contributions should sum to, in words.
        size: the size of the difference where it is not `difference` itself, as where terms of both signs add up to it.
    """
    examples = find_missed(passes, delta, difference if size is None else size, before, most)
    if not examples.size:
        return
    worst = examples[np.argmax(np.abs(delta[examples]))]
    named = ", ".join(map(str, examples[:10])) + (", …" if len(examples) > 10 else "")
    warnings.warn(
        f"with {effort} the contributions of example(s) {named} do not sum to {promise} within {most:.3g} of it: at "
        f"example {worst} they miss {difference[worst]:.6g} by {delta[worst]:.2g}. {RANDOM if passes.is_random else advice}",
        EmbgradWarning,
        stacklevel=level_of_user() + 1,
    )
