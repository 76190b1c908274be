"""Probes: forward passes on a changed batch, which show what the batch itself does not determine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import Final

import numpy as np

from embgrad.backend.protocol import BoundModel
from embgrad.errors import AmbiguousPointError, PointNotReachedError
from embgrad.forward.axes import axis_of_examples
from embgrad.forward.points import WORD, Lookup, Point, layout_is_open
from embgrad.inputs.batch import TokenBatch
from embgrad.inputs.other_ids import with_other_ids

__all__ = [
    "could_be_positions",
    "example_axis",
    "expect_ids_followed",
    "with_layout",
    "with_shared",
    "word_resolved",
]

#: The most further inputs that are tried together as inputs that all examples share.
MOST_SHARED: Final = 3


def word_resolved(bound: BoundModel, batch: TokenBatch, points: Sequence[Point]) -> list[Point]:
    """Return the points with the role "word" only at lookups whose indices follow the ids.

    Other lookups' indices can equal the ids by chance: positions 0, 1, 2, … or types of zeros. Where several lookups have the
    role, a probe with other ids shows which of them follow.

    Raises:
        AmbiguousPointError: the probe failed.
    """
    lookups = [point.lookup for point in points if point.lookup is not None and WORD in point.roles]
    other = with_other_ids(batch, min(lookup.rows for lookup in lookups)) if len(lookups) > 1 else None
    if other is None:
        return list(points)
    try:
        probed = {point.key: point.roles for point in bound.points(other)}
    except Exception as failure:
        raise AmbiguousPointError(
            f"'word' fits {len(lookups)} lookups, {', '.join(map(str, lookups))}, and a forward pass with other ids, which would "
            f"distinguish them, raised {type(failure).__name__}: name one of them in at=...",
            lookups,
        ) from failure
    return [_with_probed_roles(point, probed.get(point.key)) for point in points]


def _with_probed_roles(point: Point, probed: Sequence[str] | None) -> Point:
    """Return the point with only the roles that it also had in the probe; `probed` is None if the probe did not reach it."""
    words = {WORD} & set(point.roles) & set(probed or ())
    others = [role for role in (point.roles if probed is None else probed) if role != WORD]
    lookup = point.lookup
    if lookup is not None and WORD in point.roles and not words:
        lookup = replace(lookup, layout=None)  # the layout belonged to ids that the indices equalled by chance
    return replace(point, roles=(*words, *others), lookup=lookup)


def with_layout(bound: BoundModel, batch: TokenBatch, lookup: Lookup) -> Lookup:
    """Return the lookup with its layout, from a probe with one id changed where the batch's ids do not determine it.

    Raises:
        AmbiguousPointError: the probe did not show the layout either.
    """
    if lookup.layout is None or not layout_is_open(lookup.indices, batch.ids):
        return lookup
    layout = None
    if lookup.rows > 1:
        lookups = (point.lookup for point in bound.points(_with_one_other_id(batch)))
        layout = next((other.layout for other in lookups if other is not None and other.key == lookup.key), None)
    if layout is None:
        raise AmbiguousPointError(
            f"the ids are the same by example and by position, so that they do not show which axis of {lookup} holds the "
            "examples, and a forward pass with another id did not either: run the examples one at a time, batch_size=1",
            [lookup],
        )
    return replace(lookup, layout=layout)


def example_axis(bound: BoundModel, batch: TokenBatch, point: Point) -> int | None:
    """Return which of the first two axes of a point's tensor holds the examples, where both axes are equally long.

    A probe with one example fewer shows it. The result is None for tensors whose shape shows the axes.

    Raises:
        AmbiguousPointError: the probe failed, or did not show the axis either.
    """
    examples, positions = batch.shape
    # At a lookup only the indices have such axes: a table's rows may be as long as the batch has positions.
    shape = point.shape if point.lookup is None else point.lookup.indices.shape
    if examples != positions or examples == 1 or shape[:2] != batch.shape:
        return None
    try:
        probed = bound.points(batch[:-1])
    except Exception as failure:
        raise AmbiguousPointError(
            f"the batch has as many examples as positions, so that the axes of {point} cannot be distinguished, and a forward "
            f"pass with one example less, which would show them, raised {type(failure).__name__}: pass another number of "
            "examples, or of positions"
        ) from failure
    shorter = next((other.shape for other in probed if other.key == point.key), ())
    axis = axis_of_examples(shorter, examples - 1, positions)
    if axis is None:
        raise AmbiguousPointError(
            f"the batch has as many examples as positions, so that the axes of {point} cannot be distinguished, and a forward "
            "pass with one example less did not show them either: run it with another batch_size"
        )
    return axis


def expect_ids_followed(bound: BoundModel, batch: TokenBatch, lookup: Lookup) -> None:
    """Refuse a lookup whose indices equal the ids only by chance.

    Ids such as 0, 1, 2, … or zeros can be the positions or types that a model computes itself, while its lookup of the ids is
    not recorded. A probe with other ids shows whether the indices follow.

    Raises:
        PointNotReachedError: the indices did not change.
    """
    if lookup.layout is None or not could_be_positions(batch.ids):
        return
    other = with_other_ids(batch, lookup.rows)
    if other is None:
        return
    try:
        probed = {point.key: point.roles for point in bound.points(other)}
    except Exception:  # the model may not accept other ids: then nothing contradicts the lookup
        return
    if WORD not in probed.get(lookup.key, (WORD,)):
        raise PointNotReachedError(
            f"the model made no lookup of the batch's ids: the indices of {lookup} equal them by chance, and did not "
            "follow when the ids changed. Use a model that looks up the ids that it receives, or name the table with at=..."
        )


def with_shared(bound: BoundModel, batch: TokenBatch, *, repeated: bool = False) -> TokenBatch:
    """Return the batch with its shared inputs marked: further inputs that have as many entries as examples only by chance.

    Such an input may have one entry for each position or class. A probe with another number of examples shows it: the model
    accepts the whole input, and not a slice of it.
    """
    if (len(batch) < 2 and not repeated) or not batch.of_each:
        return batch
    other = batch[:2] if len(batch) > 2 else batch.take([*range(len(batch)), 0])
    for count in range(min(len(batch.of_each), MOST_SHARED) + 1):
        for names in combinations(batch.of_each, count):
            whole = {name: batch.extras[name] for name in names}
            if bound.accepts(other.replace(extras={**other.extras, **whole})):
                return batch.replace(shared=batch.shared | set(names)) if names else batch
    return batch


def could_be_positions(ids: np.ndarray) -> bool:
    """Return whether ids are small and increase by steps of 0 or 1, as positions and types do."""
    most = ids.shape[1] + 8
    if ids.item(0) >= most or ids.max() >= most:  # the first id mostly decides
        return False
    steps = np.diff(ids, axis=1)
    return bool(((steps == 0) | (steps == 1)).all())


def _with_one_other_id(batch: TokenBatch) -> TokenBatch:
    """Return the batch with the last id of the first example changed, to another id of the batch where there is one."""
    ids = batch.ids.copy()
    last = ids[0, -1]
    others = ids[ids != last]
    ids[0, -1] = others[0] if others.size else int(last == 0)
    return batch.replace(ids=ids, tokens=None)
