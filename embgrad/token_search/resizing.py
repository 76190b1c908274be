"""The checks before a search inserts or deletes tokens."""

from __future__ import annotations

import numpy as np

from embgrad.attribution.passes import Passes
from embgrad.attribution.removal import columns_read, expect_deletable
from embgrad.errors import BatchError, UnsupportedError
from embgrad.token_search.problem import INSTEAD, Problem
from embgrad.token_search.texts import Texts

__all__ = ["expect_resizable", "expect_room", "movable"]


def expect_resizable(problem: Problem) -> None:
    """Refuse to insert and delete tokens where something has an entry for each position and would have to follow."""
    problem.batch.lengths()
    passes = movable(problem, INSTEAD)
    columns = columns_read(passes)
    if columns is None:
        return
    first = np.where(problem.free.any(1), problem.free.argmax(1), problem.free.shape[1])
    for example in np.flatnonzero(columns >= first)[:1].tolist():
        raise UnsupportedError(
            f"the objective reads position {columns[example]} of example {example}, whose token would move: {INSTEAD}, or count "
            "the position back from the end, as in position=-1"
        )


def movable(problem: Problem, instead: str) -> Passes:
    """Return the passes of a problem, in whose texts tokens can be inserted and deleted.

    Args:
        instead: what the message proposes where the objective or a further input has an entry for each position.
    """
    expect_deletable(problem.passes, instead)
    return problem.passes


def expect_room(problem: Problem, texts: Texts, instead: str) -> None:
    """Refuse to insert tokens where the longest of these texts, with them, is longer than the model accepts.

    Args:
        texts: texts of the batch with as many tokens more as a search may insert.
        instead: what the message proposes beside shorter texts.
    """
    row = int(texts.real.sum(1).argmax())
    length = int(texts.real[row].sum())
    if problem.bound.accepts(problem.batch_of(texts.take(np.array([row])).cut(length))):
        return
    example = int(texts.examples[row])
    count = int(problem.original.real[example].sum())
    raise BatchError(
        f"example {example} has {count} tokens, and the model does not accept {length - count} more: {instead}, or "
        f"max_length={max(1, 2 * count - length)} with the tokenizer"
    )
