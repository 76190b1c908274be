"""The differences of two versions of a text: tokens that were substituted, inserted and deleted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from embgrad.inputs.batch import TokenBatch

__all__ = ["Change", "changes_of", "names_of"]


class Change(NamedTuple):
    """A difference between the text before a search and the text that was found.

    Attributes:
        position_before: the position in the text before; None for an inserted token.
        position: the position in the text that was found; None for a deleted token.
        before: the token there before, its id as text where tokens are not known; None for an inserted token.
        after: the token there now, likewise; None for a deleted token.
    """

    position_before: int | None
    position: int | None
    before: str | None
    after: str | None

    @property
    def kind(self) -> str:
        """The kind of the difference: "substituted", "inserted" or "deleted"."""
        return "inserted" if self.before is None else "deleted" if self.after is None else "substituted"


def names_of(*batches: TokenBatch) -> dict[int, str]:
    """Return the tokens' texts that these batches know, by id."""
    names: dict[int, str] = {}
    for batch in batches:
        for ids, tokens in zip(batch.ids.tolist(), batch.tokens or (), strict=False):
            names |= dict(zip(ids, tokens, strict=True))
    return names


def changes_of(before: TokenBatch, batch: TokenBatch, resized: bool) -> list[list[Change]]:
    """Return the differences of each example, in the order of the texts.

    Texts of one length are compared position by position, unless tokens were inserted and deleted. Others are aligned so that
    they differ in as few tokens as possible (the edit distance of Levenshtein, "Binary codes capable of correcting deletions,
    insertions, and reversals", 1966).

    Args:
        batch: the texts after, with as many examples.
        resized: whether tokens may have been inserted and deleted.
    """
    names = names_of(before, batch)
    return [list(_changes(before, batch, example, resized, names)) for example in range(len(before))]


def _changes(
    before: TokenBatch, batch: TokenBatch, example: int, resized: bool, names: Mapping[int, str]
) -> Iterator[Change]:
    """Yield the differences of one example."""
    positions = tuple(np.flatnonzero(side.real[example]).tolist() for side in (before, batch))
    ids = tuple(side.ids[example, own] for side, own in zip((before, batch), positions, strict=True))
    by_position = not resized and len(ids[0]) == len(ids[1])
    for pair in ((place, place) for place in range(len(ids[0]))) if by_position else _align(*ids):
        held = [None if place is None else int(own[place]) for place, own in zip(pair, ids, strict=True)]
        if held[0] != held[1]:
            at = [None if place is None else own[place] for place, own in zip(pair, positions, strict=True)]
            tokens = [None if number is None else names.get(number, str(number)) for number in held]
            yield Change(at[0], at[1], tokens[0], tokens[1])


def _align(before: np.ndarray, after: np.ndarray) -> Iterator[tuple[int | None, int | None]]:
    """Yield the pairs of indices of an alignment with the fewest differences; None stands beside an inserted or deleted one."""
    costs = _costs(before[::-1], after[::-1])[::-1, ::-1]  # [i, j]: the differences of before[i:] and after[j:]
    first, second = 0, 0
    while first < len(before) or second < len(after):
        left = costs[first, second]
        if first < len(before) and second < len(after):
            differs = int(before[first] != after[second])
            if left == differs + costs[first + 1, second + 1]:
                yield first, second
                first, second = first + 1, second + 1
                continue
        if second < len(after) and left == 1 + costs[first, second + 1]:
            yield None, second
            second += 1
        else:
            yield first, None
            first += 1


def _costs(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return how many edits make the beginnings of one text those of another, int64, shape (len + 1, len + 1)."""
    counts = np.arange(len(second) + 1)
    costs = np.empty((len(first) + 1, len(second) + 1), np.int64)
    costs[0] = counts
    for row, token in enumerate(first.tolist(), 1):
        costs[row, 0] = row
        costs[row, 1:] = np.minimum(costs[row - 1, 1:] + 1, costs[row - 1, :-1] + (second != token))
        costs[row] = np.minimum.accumulate(costs[row] - counts) + counts  # insertions, from left to right
    return costs
