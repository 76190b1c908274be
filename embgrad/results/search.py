"""The result of `embgrad.search`: the texts that were found, how they were found, and at what cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from embgrad.inputs.batch import TokenBatch

__all__ = ["History", "Search"]


@dataclass(frozen=True, eq=False)
class History:
    """The course of a search: entry 0 is before the first step, entry k after step k.

    Attributes:
        objective: L of each example's best text so far, float64, shape (step + 1, example).
        ids: the best texts so far, int64, shape (step + 1, example, position), -1 after the end of a shorter text.
        evaluations: how many texts of each example were evaluated so far, int64, shape (step + 1, example).
        gradients: how many gradients were taken of each example so far, likewise.
        seconds: the time since the beginning, float64, shape (step + 1,).
    """

    objective: np.ndarray
    ids: np.ndarray
    evaluations: np.ndarray
    gradients: np.ndarray
    seconds: np.ndarray


@dataclass(frozen=True, eq=False)
class Search:
    """The texts that a search found.

    Attributes:
        before: the batch with which the search began.
        batch: the best texts that were found, as a batch that the model takes.
        objective_before: L of each example of `before`, float64, shape (example,).
        objective: L of each example of `batch`, likewise.
        success: whether each example met the stopping rule, bool, shape (example,); None where there is none.
        history: the course of the search.
        texts_before: the text of each example of `before`, without special tokens, decoded by the tokenizer; None without one.
        texts: the text of each example of `batch`, likewise.
        trigger: the ids that every text of the batch shares, int64, shape (length,), by `UniversalTrigger`; else None.
        provenance: the versions, the model, the objective, the method with its arguments, the goal, and more, as
            JSON-compatible values.
    """

    before: TokenBatch
    batch: TokenBatch
    objective_before: np.ndarray
    objective: np.ndarray
    success: np.ndarray | None
    history: History
    texts_before: tuple[str, ...] | None
    texts: tuple[str, ...] | None
    trigger: np.ndarray | None
    provenance: Mapping[str, Any]
