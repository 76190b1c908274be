"""Tells lookups apart where the batch's ids do not: by a forward pass with other ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from embgrad.backend import Backend, Call, PointValues
from embgrad.batch import TokenBatch
from embgrad.errors import AmbiguousPointError, PointError, PointNotReachedError
from embgrad.points import WORD, Point, layout_is_open, split_occurrence

__all__ = ["could_be_made", "expect_ids_followed", "native_name", "with_layout", "word_points"]


def word_points(
    backend: Backend, model: Any, batch: TokenBatch, call: Call | None, error: AmbiguousPointError | None
) -> list[Point]:
    """The points that are `word`: their indices are the batch's ids, and follow when the ids change.

    Other lookups' indices can equal the ids by chance: positions 0, 1, 2, … or types of zeros. A second forward pass
    with other ids tells them apart.
    """
    found = [point for point in backend.points(model, batch, call) if point.role == WORD]
    if len(found) < 2:
        return found
    other = _with_other_ids(batch, min(point.lookup.rows for point in found))
    if other is None:
        return found
    try:
        again = {point.name for point in backend.points(model, other, call) if point.role == WORD}
    except Exception as failure:
        raise AmbiguousPointError(
            f"'word' fits {len(found)} lookups, {', '.join(str(point.lookup) for point in found)}, and a forward pass with "
            f"other ids, which would tell them apart, raised {type(failure).__name__}: name one of them in at=...",
            [point.lookup for point in found],
        ) from (error or failure)
    return [point for point in found if point.name in again]


def with_layout(backend: Backend, model: Any, batch: TokenBatch, call: Call | None, values: PointValues) -> PointValues:
    """The point with its layout, from a forward pass with one id changed where the batch's own ids leave it open.

    Raises:
        AmbiguousPointError: that forward pass did not show it either.
    """
    lookup = values.lookup
    if lookup.layout is None or not layout_is_open(lookup.indices, batch.ids):
        return values
    layout = None
    if lookup.rows > 1:
        seen = backend.points(model, _with_one_other_id(batch), call)
        layout = next((point.lookup.layout for point in seen if point.name == lookup.name), None)
    if layout is None:
        raise AmbiguousPointError(
            f"the ids are the same read by example and by position, so that they do not tell which axis of {lookup} is the "
            "examples, and a forward pass with another id did not either: run the examples one at a time, batch_size=1",
            [lookup],
        )
    return replace(values, lookup=replace(lookup, layout=layout))


def expect_ids_followed(
    backend: Backend, model: Any, batch: TokenBatch, call: Call | None, values: PointValues
) -> None:
    """Refuse a lookup whose indices are the batch's ids by chance alone, where the ids are such as models make themselves.

    So with positions 0, 1, 2, … or types of zeros, in a model whose lookup of the ids themselves cannot be seen.

    Raises:
        PointNotReachedError: the lookup does not follow when the ids change.
    """
    lookup = values.lookup
    if lookup.layout is None or not could_be_made(batch.ids):
        return
    other = _with_other_ids(batch, lookup.rows)
    if other is None:
        return
    try:
        again = {point.name: point.role for point in backend.points(model, other, call)}
    except Exception:  # other ids may be none that this model takes: then nothing is known against the lookup
        return
    if again.get(lookup.name, WORD) != WORD:
        raise PointNotReachedError(
            f"the model made no lookup of the batch's ids: the indices of {lookup} equal them by chance, and stayed what they "
            "were when the ids changed; expected the model to look up the ids that it is given, or name the table with at=..."
        )


def could_be_made(ids: np.ndarray) -> bool:
    """Whether the ids are small and go on by steps of 0 or 1, as positions and types do."""
    steps = np.diff(ids, axis=1)
    return bool(ids.max() < ids.shape[1] + 8 and ((steps == 0) | (steps == 1)).all())


def _with_other_ids(batch: TokenBatch, rows: int) -> TokenBatch | None:
    """The batch with every id changed to another valid one, or None where there is no other."""
    distinct = np.unique(batch.ids)
    if len(distinct) == 1:
        others = [row for row in range(rows) if row != distinct[0]][:1]
        return batch.replace(ids=np.full_like(batch.ids, others[0]), tokens=None) if others else None
    changed = np.roll(distinct, -1)[np.searchsorted(distinct, batch.ids)]
    return batch.replace(ids=changed, tokens=None)


def _with_one_other_id(batch: TokenBatch) -> TokenBatch:
    """The batch with the last id of the first example changed, to one of the batch's own where there are others."""
    ids = batch.ids.copy()
    here = ids[0, -1]
    others = ids[ids != here]
    ids[0, -1] = others[0] if others.size else int(here == 0)
    return batch.replace(ids=ids, tokens=None)


def native_name(name: str, words: Sequence[Point]) -> str:
    """The native name of the point that a name means, given the points that are `word`.

    Raises:
        AmbiguousPointError: the name is `word`, and there are several.
        PointError: there are not so many.
    """
    path, occurrence = split_occurrence(name)
    if path != WORD:
        return name
    several = ", ".join(f"word#{k} = {point.lookup}" for k, point in enumerate(words))
    if occurrence is None and len(words) > 1:
        raise AmbiguousPointError(
            f"'word' fits {len(words)} lookups: {several}; name one of them, or give a list of names to get each",
            [point.lookup for point in words],
        )
    if (occurrence or 0) >= len(words):
        raise PointError(f"there is no point {name!r}: the ids are looked up {len(words)} time(s): {several or 'none'}")
    return words[occurrence or 0].name
