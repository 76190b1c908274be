"""Tests of whether an example's objective depends on the other examples of a pass, or on their number."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final

import numpy as np

from embgrad.common.tracebacks import errors_of_model
from embgrad.errors import ObjectiveError
from embgrad.results.gradients import EmbeddingGradients
from embgrad.toolkit.recorded_changes import changes_recorded

__all__ = ["Company", "change_values", "company_of", "differs", "rows_of_test", "tolerance_of"]

#: The largest accepted change of an objective, relative to the objectives and to how they change with their own examples.
TOLERANCES: Final = {"float64": 1e-6, "float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}

#: Returns the objectives of examples, given by their indices, with values at the point in place of theirs.
Evaluate = Callable[[np.ndarray, np.ndarray], np.ndarray]


class Company(Enum):
    """The other rows that a pass may have beside an example, so that the example's objective is that in the user's batch.

    Members:
        FREE: any.
        FIXED: the batch's other examples in their order, with any values, since the model does not accept other rows.
        WHOLE: the same, since with another number of rows the model computes something else, such as a model that begins with a
            state from an earlier call.
        HELD: the batch's other examples with their own values: examples depend on one another.
    """

    FREE = "free"
    FIXED = "fixed"
    WHOLE = "whole"
    HELD = "held"


def company_of(evaluate: Evaluate, own: EmbeddingGradients, size: int | None) -> Company:
    """Return the company of the examples of a batch.

    The test takes one forward pass of two examples more than the batch has, and one for each other number of examples of which
    the model may keep a state; where the objectives are then others, up to four on the batch itself.

    Args:
        evaluate: runs a forward pass on some of the batch's examples.
        own: the values at the point and the objectives of the batch as it is.
        size: the most examples of a pass, at least 2; None for the number of the batch's alone.
    """
    count, values = len(own.objective), np.asarray(own.activations, np.float64)
    changed, tolerance = change_values(values), tolerance_of(own.provenance["compute_dtype"])

    def is_another(examples: np.ndarray, moved: np.ndarray) -> bool:
        """Return whether an objective changes with the values of others, those at the indices where `moved` is true."""
        mixed = np.where(moved[:, None, None], changed[examples], values[examples])
        try:
            objectives = evaluate(examples, mixed)
        except ObjectiveError:  # it is not finite at these values, which a method may never try
            return False
        return differs(objectives, np.asarray(own.objective)[examples], moved, tolerance)

    otherwise = Company.FIXED
    if size is not None:
        none = np.zeros(size, bool)
        examples, moved = rows_of_test(count, size)
        try:
            with changes_recorded() as changes:
                is_free = not is_another(examples, moved)
            numbers = [number for number in sorted(changes.numbers - {count, len(examples)}) if number <= size]
            if is_free and not any(is_another(np.arange(number) % count, none[:number]) for number in numbers):
                return Company.FREE
            otherwise = Company.WHOLE
        except errors_of_model():  # the model may accept no other number of examples, or no other order
            otherwise = Company.FIXED
    if count == 1:
        return otherwise
    whole = np.arange(count)
    # Partners are neighbours, or stand at the same place of each half or from each end: one of the two ways separates some.
    ways = (whole % 2 == 1, whole >= count // 2) if count > 2 else (whole == 1,)
    return Company.HELD if any(is_another(whole, moved) for way in ways for moved in (way, ~way)) else otherwise


def rows_of_test(count: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of the first pass of a test, by the examples' indices, and which of them have other values than their own.

    One of these is the first row: a model that takes the examples for its positions lets each depend on those before it. Where
    there is room the first example follows the last, as in passes of several steps, which a model may refuse.
    """
    kept = min(count, size - 1)
    if kept + 1 == count:  # another number of examples is to be tested as well
        kept = max(1, kept - 1)
    rows = np.append(0, np.arange(kept))
    if len(rows) < size and kept == count:
        rows = np.append(rows, 0)
    return rows, np.arange(len(rows)) % 2 == 0


def change_values(values: np.ndarray) -> np.ndarray:
    """Return other values, (example, position, dim): each is a share of its own, so that directions and lengths change."""
    return values * np.random.default_rng(0).random(values.shape)


def differs(objectives: np.ndarray, own: np.ndarray, moved: np.ndarray, tolerance: float) -> bool:
    """Return whether an objective changed that should not have.

    Args:
        objectives: the objectives of a pass, (row,).
        own: those of the same examples in the user's batch.
        moved: where an example itself was changed, bool.
        tolerance: see `TOLERANCES`.
    """
    change = np.abs(objectives - own)
    scale = max(float(np.abs(own).max()), float(change.max()))
    return bool((change[~moved] > tolerance * scale).any())


def tolerance_of(compute_dtype: str) -> float:
    """Return the largest relative change by rounding, where a pass has other rows."""
    return TOLERANCES.get(compute_dtype, TOLERANCES["bfloat16"])
