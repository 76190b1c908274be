"""Puts batches together by length, over so many examples in a row, and the results back in the source's order."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from embgrad.inputs.batch import TokenBatch
from embgrad.inputs.collate import Padding, padded
from embgrad.results.certificate import worst
from embgrad.results.gradients import EmbeddingGradients
from embgrad.streaming.source import Portion

__all__ = ["Group", "Piece", "grouped", "restored"]

Results = Mapping[str, EmbeddingGradients]

#: What a result holds for each position, beside what it has of the batch; zeros stand where no position was run.
_PADDED: Final = ("values", "activations", "before", "ids")


@dataclass(frozen=True)
class Piece:
    """Examples that are run together.

    Attributes:
        batch: they.
        places: of each example its portion, as a place in the group, and its row there; in the piece's order.
    """

    batch: TokenBatch
    places: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Group:
    """Portions whose examples are run in pieces of their own.

    Attributes:
        portions: in the source's order.
        pieces: in the order in which they are run; empty where the portions are only passed by.
    """

    portions: tuple[Portion, ...]
    pieces: tuple[Piece, ...]


def grouped(
    portions: Generator[Portion, None, None], size: int, window: int | None, padding: Padding, finished: int = 0
) -> Generator[Group, None, None]:
    """The portions as they are run.

    Args:
        portions: in the source's order; closed with the groups.
        size: the most examples of a piece.
        window: of how many examples in a row the pieces are put together by length; None for each portion by itself.
        padding: what fills up the shorter examples of a piece.
        finished: of how many portions nothing is wanted; pieces of theirs alone are left out.
    """
    with contextlib.closing(portions):
        if window is None:
            yield from (_alone(portion, finished) for portion in portions)
        else:
            yield from _sorted_groups(portions, size, window, padding, finished)


def _alone(portion: Portion, finished: int) -> Group:
    if portion.batch is None or portion.number < finished:
        return Group((portion,), ())
    return Group((portion,), (Piece(portion.batch, tuple((0, row) for row in range(portion.count))),))


def _sorted_groups(
    portions: Iterable[Portion], size: int, window: int, padding: Padding, finished: int
) -> Generator[Group, None, None]:
    held: list[Portion] = []
    for portion in portions:
        held.append(portion)
        if len(held) == per_window(window, size):
            yield _sorted_group(held, size, padding, finished)
            held = []
    if held:
        yield _sorted_group(held, size, padding, finished)


def per_window(window: int, size: int) -> int:
    """How many portions a window has."""
    return -(-window // size)


def _sorted_group(portions: Sequence[Portion], size: int, padding: Padding, finished: int) -> Group:
    if any(portion.batch is None for portion in portions):
        return Group(tuple(portions), ())
    places = [(number, row) for number, portion in enumerate(portions) for row in range(portion.count)]
    kinds: dict[tuple[Any, ...], list[tuple[int, int]]] = {}
    for number, row in places:
        kinds.setdefault(_kind(portions[number], row), []).append((number, row))
    pieces = []
    for (*_, empty), alike in kinds.items():
        alike.sort(key=lambda place: len(portions[place[0]].texts[place[1]].ids))  # stable: ties stay in order
        for start in range(0, len(alike), size):
            own = alike[start : start + size]
            if any(portions[number].number >= finished for number, _ in own):
                texts = [portions[number].texts[row] for number, row in own]
                pieces.append(Piece(padded(texts, padding, empty), tuple(own)))
    return Group(tuple(portions), tuple(pieces))


def _kind(portion: Portion, row: int) -> tuple[Any, ...]:
    """What a batch tells the model of all its examples alike: examples that differ in it are not run together.

    The last is how long a text without a token is padded, to which nothing but its padding is told: as in its own batch.
    """
    text = portion.texts[row]
    assert portion.batch is not None, "what is run was encoded"
    empty = 0 if len(text.ids) else portion.batch.shape[1]
    return text.types is None, text.tokens is None, text.words is None, text.convention, empty


def restored(
    group: Group,
    results: Sequence[Results],
    number: int,
    by_position: Mapping[str, bool],
    objective: Mapping[str, Any],
    window: int,
    padding: Padding,
) -> dict[str, EmbeddingGradients]:
    """The results of one of a group's portions.

    Args:
        group: whose pieces were run.
        results: of each piece.
        number: which portion, as a place in the group.
        by_position: by the points' names whether the second axis of their values is the positions.
        objective: what is remembered of the portion's objective.
        window: what is remembered of how the pieces were made.
        padding: what fills up the shorter examples.
    """
    found: dict[int, tuple[int, int]] = {}
    for piece, one in enumerate(group.pieces):
        found.update({row: (piece, place) for place, (owner, row) in enumerate(one.places) if owner == number})
    portion = group.portions[number]
    origins = [found[row] for row in range(portion.count)]
    return {
        name: _restored(
            name,
            portion,
            [(results[piece][name], place) for piece, place in origins],
            by_position[name],
            objective,
            window,
            padding,
        )
        for name in results[0]
    }


def _restored(
    name: str,
    portion: Portion,
    rows: Sequence[tuple[EmbeddingGradients, int]],
    by_position: bool,
    objective: Mapping[str, Any],
    window: int,
    padding: Padding,
) -> EmbeddingGradients:
    batch, first = portion.batch, rows[0][0]
    assert batch is not None, "what was run was encoded"
    of_batch = first.mask is not None  # else the ids are the lookup's own
    arrays: dict[str, Any] = {}
    for key in _PADDED:
        if getattr(first, key) is None:
            arrays[key] = None
            continue
        parts = [getattr(one, key)[row] for one, row in rows]
        if by_position or (key == "ids" and of_batch):
            arrays[key] = _together(parts, batch.shape[1], padding.side)
        else:
            arrays[key] = np.stack(parts)
    if of_batch and np.array_equal(np.where(batch.real, arrays["ids"], batch.ids), batch.ids):
        arrays["ids"] = batch.ids.copy()  # the batch's own, and so the ids of its padding
    pieces = list({id(one): one for one, _ in rows}.values())
    return replace(
        first,
        **arrays,
        objective=np.array([one.objective[row] for one, row in rows]),
        mask=None if not of_batch or batch.mask is None else batch.mask.copy(),
        types=None if not of_batch or batch.types is None else batch.types.copy(),
        tokens=batch.tokens if first.tokens is not None else None,
        words_of=None if first.words_of is None or batch.words is None else batch.words.copy(),
        pad_leak=max(one.pad_leak for one in pieces),
        provenance=_provenance(first, batch, objective, window),
        certificate=None if first.certificate is None else worst([one.certificate for one in pieces]),
    )


def _together(parts: Sequence[np.ndarray], length: int, side: str) -> np.ndarray:
    """One array as long as the batch: what is beyond an example's end is cut, or zeros where no position was run."""
    made = np.zeros((len(parts), length, *parts[0].shape[1:]), parts[0].dtype)
    for row, part in enumerate(parts):
        common = min(length, len(part))
        if side == "left":
            made[row, length - common :] = part[len(part) - common :]
        else:
            made[row, :common] = part[:common]
    return made


def _provenance(
    first: EmbeddingGradients, batch: TokenBatch, objective: Mapping[str, Any], window: int
) -> dict[str, Any]:
    shape = first.provenance["output_shape"]
    per_position = shape is not None and len(shape) == 3 and shape[1] == first.ids.shape[1]
    if shape is not None:
        shape = [len(batch), *([batch.shape[1], shape[2]] if per_position else shape[1:])]
    return {
        **first.provenance,
        "objective": dict(objective),
        "output_shape": shape,
        "truncated": batch.truncated.tolist(),
        "window": window,
    }
