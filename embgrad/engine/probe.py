"""Tells points apart where the batch does not: by a forward pass on another one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any, Final

import numpy as np

from embgrad.backend.protocol import Backend, Call
from embgrad.common.arrays import to_numpy
from embgrad.errors import AmbiguousPointError, BatchError, EmbgradError, PointNotReachedError, listed
from embgrad.forward.points import WORD, Lookup, Point, layout_is_open
from embgrad.inputs.batch import TokenBatch
from embgrad.inputs.extras import of_examples

__all__ = [
    *("could_be_made", "example_axis", "expect_ids_followed", "expecting_parts", "told_apart", "with_layout"),
    "with_shared",
]

#: How many further inputs may be taken at once for such as all examples share.
MOST_SHARED: Final = 3


def told_apart(
    backend: Backend, model: Any, batch: TokenBatch, call: Call | None, points: Sequence[Point]
) -> list[Point]:
    """The points, with the roles and layouts that stay when the ids change where several lookups' indices are the ids.

    Other lookups' indices can equal the ids by chance: positions 0, 1, 2, … or types of zeros. A second forward pass
    with other ids tells them apart.

    Raises:
        AmbiguousPointError: that forward pass failed.
    """
    lookups = [point.lookup for point in points if point.lookup is not None and WORD in point.roles]
    other = _with_other_ids(batch, min(lookup.rows for lookup in lookups)) if len(lookups) > 1 else None
    if other is None:
        return list(points)
    try:
        again = {point.key: point.roles for point in backend.points(model, other, call)}
    except Exception as failure:
        raise AmbiguousPointError(
            f"'word' fits {len(lookups)} lookups, {', '.join(map(str, lookups))}, and a forward pass with other ids, which would "
            f"tell them apart, raised {type(failure).__name__}: name one of them in at=...",
            lookups,
        ) from failure

    def stays(point: Point) -> Point:
        words = {WORD} & set(point.roles) & set(again.get(point.key, ()))
        others = [role for role in again.get(point.key, point.roles) if role != WORD]
        # Indices that were the ids by chance have no layout of theirs: no other ids would tell their axes.
        lookup = point.lookup
        if lookup is not None and WORD in point.roles and not words:
            lookup = replace(lookup, layout=None)
        return replace(point, roles=(*words, *others), lookup=lookup)

    return [stays(point) for point in points]


def with_layout(backend: Backend, model: Any, batch: TokenBatch, call: Call | None, lookup: Lookup) -> Lookup:
    """The lookup with its layout, from a forward pass with one id changed where the batch's own ids leave it open.

    Raises:
        AmbiguousPointError: that forward pass did not show it either.
    """
    if lookup.layout is None or not layout_is_open(lookup.indices, batch.ids):
        return lookup
    layout = None
    if lookup.rows > 1:
        seen = (point.lookup for point in backend.points(model, _with_one_other_id(batch), call))
        layout = next((one.layout for one in seen if one is not None and one.key == lookup.key), None)
    if layout is None:
        raise AmbiguousPointError(
            f"the ids are the same read by example and by position, so that they do not tell which axis of {lookup} is the "
            "examples, and a forward pass with another id did not either: run the examples one at a time, batch_size=1",
            [lookup],
        )
    return replace(lookup, layout=layout)


def example_axis(backend: Backend, model: Any, batch: TokenBatch, call: Call | None, point: Point) -> int | None:
    """Which of the first two axes of a point's tensor is the examples, where there are as many of them as positions.

    A forward pass with one example less shows it. None where the axes' lengths tell by themselves.

    Raises:
        AmbiguousPointError: that forward pass failed, or did not show it either.
    """
    examples, positions = batch.shape
    # Of a lookup the indices alone have such axes: a table's rows can be as long as the batch has positions, too.
    shape = point.shape if point.lookup is None else point.lookup.indices.shape
    if examples != positions or examples == 1 or shape[:2] != batch.shape:
        return None
    try:
        seen = backend.points(model, batch[:-1], call)
    except Exception as failure:
        raise AmbiguousPointError(
            f"the batch has as many examples as positions, so that it does not tell which axis of {point} is the examples, and a "
            f"forward pass with one example less, which would tell, raised {type(failure).__name__}: give it another number of "
            "examples, or of positions"
        ) from failure
    fewer = next((one for one in seen if one.key == point.key), None)
    shorter = () if fewer is None else fewer.shape[:2]
    if shorter not in ((examples - 1, positions), (positions, examples - 1)):
        raise AmbiguousPointError(
            f"the batch has as many examples as positions, so that it does not tell which axis of {point} is the examples, and "
            "a forward pass with one example less did not either: run it with another batch_size"
        )
    return 0 if shorter[0] == examples - 1 else 1


def expect_ids_followed(backend: Backend, model: Any, batch: TokenBatch, call: Call | None, lookup: Lookup) -> None:
    """Refuse a lookup whose indices are the batch's ids by chance alone, where the ids are such as models make themselves.

    So with positions 0, 1, 2, … or types of zeros, in a model whose lookup of the ids themselves cannot be seen.

    Raises:
        PointNotReachedError: the lookup does not follow when the ids change.
    """
    if lookup.layout is None or not could_be_made(batch.ids):
        return
    other = _with_other_ids(batch, lookup.rows)
    if other is None:
        return
    try:
        again = {point.key: point.roles for point in backend.points(model, other, call)}
    except Exception:  # other ids may be none that this model takes: then nothing is known against the lookup
        return
    if WORD not in again.get(lookup.key, (WORD,)):
        raise PointNotReachedError(
            f"the model made no lookup of the batch's ids: the indices of {lookup} equal them by chance, and stayed what they "
            "were when the ids changed; expected the model to look up the ids that it is given, or name the table with at=..."
        )


def with_shared(backend: Backend, model: Any, batch: TokenBatch, call: Call | None) -> TokenBatch:
    """The batch, which knows of the further inputs that all examples share, and that have as many entries by chance: one a
    position, or one a class, say.

    A forward pass on another number of examples shows it: the model does not take them cut along, and takes them whole.
    """
    if len(batch) < 2 or not batch.of_each:
        return batch
    other = batch[:2] if len(batch) > 2 else _and_the_first_again(batch)
    for count in range(min(len(batch.of_each), MOST_SHARED) + 1):
        for names in combinations(batch.of_each, count):
            whole = {name: batch.extras[name] for name in names}
            if _takes(backend, model, other.replace(extras={**other.extras, **whole}), call):
                return batch.replace(shared=batch.shared | set(names)) if names else batch
    return batch


@contextlib.contextmanager
def expecting_parts(
    backend: Backend, model: Any, batch: TokenBatch, call: Call | None, size: int | None
) -> Iterator[None]:
    """Say of an error that the model takes all examples and no part of them, as where a cache goes with all.

    Args:
        backend: the model's.
        model: the model.
        batch: the whole.
        call: calls the model.
        size: how many examples are run at once; None where one example less shows what follows them.

    Raises:
        BatchError: it does.
    """
    try:
        yield
    except EmbgradError:
        raise
    except Exception as failure:
        part = batch[: size or -1]
        if not 0 < len(part) < len(batch) or _takes(backend, model, part, call):
            raise
        if not _takes(backend, model, batch, call):
            raise
        besides = f"; it is given {listed(batch.extras)} besides, where arrays are cut, also in tuples and dicts, and objects not"
        further = besides if batch.extras else ""
        raise BatchError(
            f"the model takes all {len(batch)} examples at once, and raised {type(failure).__name__} for {len(part)} of "
            f"them{further}: expected one that takes any number of examples, which batch_size=... and split=... go by; leave "
            "them out, or cut what goes with the examples in call=lambda model, inputs: ..."
        ) from failure


def _and_the_first_again(batch: TokenBatch) -> TokenBatch:
    """One example more, where there is none less that would not be alone: what one is given broadcasts."""
    order = [*range(len(batch)), 0]

    def array(value: Any) -> Any:
        return to_numpy(value)[order]

    def in_order(value: Any) -> Any:
        return type(value)(value[place] for place in order)

    def again(value: Any) -> Any:
        return of_examples(value, len(batch), array, in_order)

    return TokenBatch(
        again(batch.ids),
        None if batch.mask is None else again(batch.mask),
        None if batch.types is None else again(batch.types),
        extras={**batch.extras, **{name: again(batch.extras[name]) for name in batch.of_each}},
        convention=batch.convention,
        mask_is_bool=batch.mask_is_bool,
    )


def _takes(backend: Backend, model: Any, batch: TokenBatch, call: Call | None) -> bool:
    try:
        backend.points(model, batch, call)
    except Exception:  # whatever the framework says of shapes that do not go together
        return False
    return True


def could_be_made(ids: np.ndarray) -> bool:
    """Whether the ids are small and go on by steps of 0 or 1, as positions and types do."""
    most = ids.shape[1] + 8
    if ids.item(0) >= most or ids.max() >= most:  # the first of them mostly tells
        return False
    steps = np.diff(ids, axis=1)
    return bool(((steps == 0) | (steps == 1)).all())


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
