"""Alignment of two results by their token ids, across other orders of examples, padding and special tokens."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Final

import numpy as np

from embgrad.errors import BatchError
from embgrad.results.io import Result

__all__ = ["Alignment", "aligned"]

#: The similarity ratio from which two examples count as one text with a few tokens changed.
ALIKE: Final = 0.5

#: The most pairs of examples that are searched for similar texts; with more pairs, only examples with the same index are.
MOST_PAIRS: Final = 4096


@dataclass(frozen=True, eq=False)
class Alignment:
    """The partner in b of each position of a.

    Attributes:
        example: the index of b's example, int64, (example, position) as in a; -1 where there is no partner.
        position: the index of b's position, int64, (example, position) as in a; -1 where there is no partner.
        notes: how the two results had to be rearranged to match; empty where they have the same ids at the same positions.
    """

    example: np.ndarray
    position: np.ndarray
    notes: tuple[str, ...]

    @property
    def matched(self) -> np.ndarray:
        """The positions of a that have a partner, bool, (example, position)."""
        return np.asarray(self.example >= 0)

    @property
    def trivial(self) -> bool:
        """True if each position is its own partner."""
        examples, positions = np.indices(self.example.shape)
        return bool((self.example == examples).all() and (self.position == positions).all())

    def arrange(self, array: np.ndarray) -> np.ndarray:
        """Return an array of b, (example, position, …), arranged as a, with zeros where there is no partner."""
        arranged = array[np.maximum(self.example, 0), np.maximum(self.position, 0)]
        arranged[~self.matched] = 0
        return np.asarray(arranged)

    def examples(self) -> np.ndarray:
        """Return the index of b's example for each example of a, int64, (example,); -1 where there is none."""
        return np.asarray(self.example.max(axis=1, initial=-1))

    def reversed(self, shape: tuple[int, int]) -> Alignment:
        """Return the partner in a of each position of b.

        Args:
            shape: the shape of b's ids, (example, position).
        """
        example, position = np.full(shape, -1), np.full(shape, -1)
        at = np.nonzero(self.matched)
        example[self.example[at], self.position[at]], position[self.example[at], self.position[at]] = at
        return Alignment(example, position, self.notes)


def aligned(a: Result, b: Result) -> Alignment:
    """Return the positions of b that belong to those of a.

    Raises:
        BatchError: the two have no text in common, or only texts without tokens.
    """
    if np.array_equal(a.ids, b.ids):
        return _unmoved(a.ids, tuple(_notes_of_masks(a, b)))
    texts = _texts(a), _texts(b)
    partners = _partners(*(list(map(tuple, side)) for side in _ids_of(a, b, texts)))
    if not partners:
        return _by_index(a, b)
    example, position = np.full(a.ids.shape, -1), np.full(a.ids.shape, -1)
    for i, j in partners.items():
        for p, q in _positions(a, b, i, j, texts):
            example[i, p], position[i, p] = j, q
    alignment = Alignment(example, position, ())
    if not alignment.matched.any():
        raise BatchError(
            "a and b have no position in common: the texts that they share have no tokens. Pass gradients of the same texts, "
            "with masks that are 1 at tokens"
        )
    return Alignment(example, position, tuple(_notes(a, b, alignment, texts)))


def _unmoved(ids: np.ndarray, notes: tuple[str, ...]) -> Alignment:
    """Return the alignment of each position with the position at the same indices."""
    indices = np.indices(ids.shape)
    return Alignment(indices[0], indices[1], notes)


def _texts(result: Result) -> list[np.ndarray]:
    """Return the positions of each example's text: the real ones; without a mask, those from the first to the last nonzero id."""
    if result.mask is not None:
        return [np.flatnonzero(row) for row in result.mask]
    inside = [np.flatnonzero(ids) for ids in result.ids]
    return [np.arange(at[0], at[-1] + 1) if at.size else np.arange(0) for at in inside]


def _ids_of(
    a: Result, b: Result, texts: tuple[list[np.ndarray], list[np.ndarray]]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    first, second = (
        [ids[at] for ids, at in zip(result.ids, text, strict=True)] for result, text in zip((a, b), texts, strict=True)
    )
    return first, second


def _partners(first: Sequence[tuple[int, ...]], second: Sequence[tuple[int, ...]]) -> dict[int, int]:
    """Return, for each first text, the index of an equal second text, or else of the most similar one; each is used once."""
    waiting = defaultdict(list)
    for j, text in enumerate(second):
        waiting[text].append(j)
    partners = {i: waiting[text].pop(0) for i, text in enumerate(first) if waiting.get(text)}
    left = [i for i in range(len(first)) if i not in partners]
    free = sorted(set(range(len(second))) - set(partners.values()))
    pairs = ((i, j) for i in left for j in (free if len(left) * len(free) <= MOST_PAIRS else {i} & set(free)))
    alike = sorted(((_likeness(first[i], second[j]), i == j, i, j) for i, j in pairs), key=lambda entry: entry[:2])
    for likeness, _, i, j in reversed(alike):
        if likeness >= ALIKE and i not in partners and j not in partners.values():
            partners[i] = j
    return dict(sorted(partners.items()))


def _likeness(first: tuple[int, ...], second: tuple[int, ...]) -> float:
    matcher = SequenceMatcher(None, first, second, autojunk=False)
    return matcher.ratio() if matcher.real_quick_ratio() >= ALIKE and matcher.quick_ratio() >= ALIKE else 0.0


def _positions(
    a: Result, b: Result, i: int, j: int, texts: tuple[list[np.ndarray], list[np.ndarray]]
) -> Iterator[tuple[int, int]]:
    """Yield the positions of one example of a, each with b's position that holds the same token of the same text."""
    text_a, text_b = texts[0][i], texts[1][j]
    same_places = a.ids.shape[1] == b.ids.shape[1] and np.array_equal(text_a, text_b)
    if same_places and np.array_equal(a.ids[i], b.ids[j]):
        yield from ((p, p) for p in range(a.ids.shape[1]))  # including padding
        return
    matcher = SequenceMatcher(None, a.ids[i, text_a].tolist(), b.ids[j, text_b].tolist(), autojunk=False)
    for block in matcher.get_matching_blocks():
        for step in range(block.size):
            yield int(text_a[block.a + step]), int(text_b[block.b + step])


def _by_index(a: Result, b: Result) -> Alignment:
    """Return the alignment by index of two results of one shape that have no text in common."""
    if a.ids.shape != b.ids.shape:
        raise BatchError(
            f"a holds ids of shape {a.ids.shape} and b of shape {b.ids.shape}, and no example of a has half of its tokens in "
            f"common with one of b: expected gradients of the same texts; a begins {a.ids[0, :8].tolist()}, b "
            f"{b.ids[0, :8].tolist()}"
        )
    different = a.ids != b.ids
    note = (
        f"the ids differ at {int(different.sum())} of {different.size} positions, {_first_of(a, b, different)}: compared "
        "position by position"
    )
    return _unmoved(a.ids, (note,))


def _first_of(a: Result, b: Result, different: np.ndarray) -> str:
    example, position = (int(i) for i in np.argwhere(different)[0])
    return (
        f"first at example {example}, position {position}, where a has {a.ids[example, position]} and b "
        f"{b.ids[example, position]}"
    )


def _notes_of_masks(a: Result, b: Result) -> Iterator[str]:
    if a.mask is not None and b.mask is not None and (different := a.mask != b.mask).any():
        example, position = (int(i) for i in np.argwhere(different)[0])
        yield (
            f"the masks differ at {int(different.sum())} of {different.size} positions, first at example {example}, position "
            f"{position}, where a has {a.mask[example, position]} and b {b.mask[example, position]}"
        )


def _notes(
    a: Result,
    b: Result,
    alignment: Alignment,
    texts: tuple[list[np.ndarray], list[np.ndarray]],
) -> Iterator[str]:
    partners = alignment.examples()
    yield from _notes_of_examples(a, b, partners)
    if a.ids.shape[1] != b.ids.shape[1]:
        yield f"a is padded to {a.ids.shape[1]} positions and b to {b.ids.shape[1]}"
    yield from _notes_of_sides(a, b, partners, texts)
    yield from _notes_of_tokens(a, b, alignment, texts)


def _notes_of_examples(a: Result, b: Result, partners: np.ndarray) -> Iterator[str]:
    matched = partners[partners >= 0]
    if (np.diff(matched) < 0).any():
        yield f"b has the examples in another order: a's first {min(len(partners), 8)} are b's {partners[:8].tolist()}"
    missing = np.flatnonzero(partners < 0).tolist()
    further = sorted(set(range(len(b.ids))) - set(matched.tolist()))
    for which, name, other in ((missing, "a", "b"), (further, "b", "a")):
        if which:
            shown = ", ".join(map(str, which[:8])) + (", …" if len(which) > 8 else "")
            yield f"{len(which)} of the examples of {name} ({shown}) are not in {other} and were skipped"


def _notes_of_sides(
    a: Result,
    b: Result,
    partners: np.ndarray,
    texts: tuple[list[np.ndarray], list[np.ndarray]],
) -> Iterator[str]:
    pairs = [(texts[0][i], texts[1][j]) for i, j in enumerate(partners) if j >= 0]
    sides = [
        {_side(text, result.ids.shape[1]) for text in column} - {None}
        for result, column in zip((a, b), zip(*pairs, strict=True), strict=True)
    ]
    if all(len(side) == 1 for side in sides) and sides[0] != sides[1]:
        yield f"a is padded on the {sides[0].pop()} and b on the {sides[1].pop()}"


def _side(text: np.ndarray, width: int) -> str | None:
    """Return the side of the text on which the padding is; None for no padding, or padding on both sides."""
    if not text.size or (text[0] == 0) == (text[-1] == width - 1):
        return None
    return "left" if text[0] else "right"


def _notes_of_tokens(
    a: Result,
    b: Result,
    alignment: Alignment,
    texts: tuple[list[np.ndarray], list[np.ndarray]],
) -> Iterator[str]:
    partners = alignment.examples()
    back = alignment.reversed((b.ids.shape[0], b.ids.shape[1]))
    alone_in_a = [(i, p) for i, j in enumerate(partners) if j >= 0 for p in texts[0][i] if alignment.example[i, p] < 0]
    alone_in_b = [(j, q) for j in partners if j >= 0 for q in texts[1][j] if back.example[j, q] < 0]
    for result, name, other, alone in ((a, "a", "b", alone_in_a), (b, "b", "a", alone_in_b)):
        if alone:
            distinct_ids = sorted({int(result.ids[at]) for at in alone})
            shown = ", ".join(_named(result, at) for at in _first_of_each_id(result, alone)[:4])
            yield (
                f"{len(alone)} tokens of {name} are not in {other} and were skipped: {shown}"
                + (f" and {len(distinct_ids) - 4} others" if len(distinct_ids) > 4 else "")
            )


def _first_of_each_id(result: Result, positions: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    return list({int(result.ids[at]): at for at in reversed(positions)}.values())[::-1]


def _named(result: Result, at: tuple[int, int]) -> str:
    text = "" if result.tokens is None else f"{result.tokens[at[0]][at[1]]!r}, "
    return f"{text}id {result.ids[at]}, at example {at[0]}, position {at[1]}"
