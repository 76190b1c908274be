"""Probes: forward passes on a changed batch, which show what the batch itself does not determine."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from itertools import combinations, product
from typing import Any, Final, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from embgrad.backend.protocol import BoundModel
from embgrad.common.tracebacks import errors_of_model
from embgrad.errors import AmbiguousPointError, PointNotReachedError
from embgrad.inputs.batch import TokenBatch
from embgrad.inputs.other_ids import with_other_ids
from embgrad.model_points.axes import axis_of_examples
from embgrad.model_points.gather import Window, gather_of, reproduces, window_of
from embgrad.model_points.points import (
    WORD,
    Layout,
    Lookup,
    Point,
    are_equal,
    could_be_positions,
    layout_is_open,
    reads_both_ways,
)

__all__ = [
    "example_axis",
    "expect_embedding",
    "expect_word",
    "order_of",
    "with_layout",
    "with_shared",
    "word_resolved",
]

T = TypeVar("T")

#: The most further inputs that are tried together as inputs that all examples share.
MOST_SHARED: Final = 3

#: The most forms of batches for which what a probe showed is remembered, for each model.
MOST_FORMS: Final = 64

#: By model, by lookup and numbers of positions, the window in which a probe has found the ids.
_windows: WeakKeyDictionary[Any, dict[Hashable, Window]] = WeakKeyDictionary()


def word_resolved(bound: BoundModel, batch: TokenBatch, points: Sequence[Point]) -> list[Point]:
    """Return the points with the role "word" only at lookups whose indices follow the ids, and with the layouts of these.

    Other lookups' indices can equal the ids by chance: positions 0, 1, 2, … or types of zeros. Where several lookups have the
    role, a probe with other ids shows which of them follow. Where indices hold the ids in an order that no probe shows, the only
    such lookup keeps the role without a layout.
    """
    lookups = [point.lookup for point in points if point.lookup is not None and WORD in point.roles]
    if not any(lookup.layout is not None and lookup.layout.determined for lookup in lookups):
        alone = len(lookups) == 1
        return [_with_probed_layout(bound, batch, point, alone) if WORD in point.roles else point for point in points]
    other = with_other_ids(batch, min(lookup.rows for lookup in lookups)) if len(lookups) > 1 else None
    if other is None:
        return list(points)
    try:
        probed = {point.key: _follow(point) for point in bound.points(other)}
    except errors_of_model() as failure:
        raise AmbiguousPointError(
            f"'word' fits {len(lookups)} lookups, {', '.join(map(str, lookups))}, and a forward pass with other ids, which would "
            f"distinguish them, raised {type(failure).__name__}: name one of them in at=...",
            lookups,
        ) from failure
    return [_with_probed_roles(point, probed.get(point.key)) for point in points]


def _with_probed_layout(bound: BoundModel, batch: TokenBatch, point: Point, alone: bool) -> Point:
    """Return the point of a lookup whose indices hold the ids with its layout; without the role "word" if it has none."""
    assert point.lookup is not None, "a word is looked up"
    lookup = with_layout(bound, batch, point.lookup)
    keeps = alone or lookup.layout is not None
    return replace(point, lookup=lookup, roles=tuple(role for role in point.roles if role != WORD or keeps))


def _follow(point: Point) -> tuple[str, ...]:
    """Return a point's roles in a probe, "word" only where the indices are the ids, and not these in another order by chance."""
    layout = None if point.lookup is None else point.lookup.layout
    return tuple(role for role in point.roles if role != WORD or (layout is not None and layout.determined))


def _with_probed_roles(point: Point, probed: Sequence[str] | None) -> Point:
    """Return the point with only the roles that it also had in the probe; `probed` is None if the probe did not reach it."""
    words = {WORD} & set(point.roles) & set(probed or ())
    others = [role for role in (point.roles if probed is None else probed) if role != WORD]
    lookup = point.lookup
    if lookup is not None and WORD in point.roles and not words:
        lookup = replace(lookup, layout=None)  # the layout belonged to ids that the indices equalled by chance
    return replace(point, roles=(*words, *others), lookup=lookup)


def with_layout(bound: BoundModel, batch: TokenBatch, lookup: Lookup) -> Lookup:
    """Return the lookup with its layout, from a probe where the batch's ids do not determine it.

    A lookup whose indices hold the ids has no layout where no probe shows an order.
    """
    if lookup.layout is None or lookup.layout.gather is not None:
        return lookup
    if not lookup.layout.determined:
        return replace(lookup, layout=_probe_layout(bound, batch, lookup))
    if not layout_is_open(lookup.indices, batch.ids):
        if lookup.rows < 2 or not reads_both_ways(batch.ids, batch.real) or _reads_forward(bound, batch, lookup):
            return lookup
        return replace(lookup, layout=_probe_layout(bound, batch, lookup) or lookup.layout)
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


def _probe_layout(bound: BoundModel, batch: TokenBatch, lookup: Lookup) -> Layout | None:
    """Return the layout of a lookup whose indices hold the ids, from probes; None where they show none, see `gather_of`."""
    known = bound.memory_of(_windows) if bound.call is None else None
    form = (lookup.key, batch.shape[1], lookup.indices.size // len(batch))
    if known is not None and form in known:
        gather = known[form].gather(batch.shape)
        if reproduces(gather, lookup.indices, batch):
            return Layout(batch.shape, transposed=False, gather=gather)

    def read(other: TokenBatch) -> np.ndarray | None:
        lookups = (point.lookup for point in bound.points(other) if point.key == lookup.key)
        return next((probed.indices for probed in lookups if probed is not None), None)

    probed = gather_of(read, batch, lookup)
    if probed is None:
        return None
    window = window_of(probed, lookup, batch)
    if known is not None and window is not None:
        _remember(known, form, window)
    return Layout(batch.shape, transposed=False, gather=probed)


def _reads_forward(bound: BoundModel, batch: TokenBatch, lookup: Lookup) -> bool:
    """Return whether a lookup takes ids that read the same in both directions in the batch's order.

    A probe with the first id of an example changed shows it; where the model raises, nothing contradicts the order.
    """
    known = bound.memory_of(_orders) if bound.call is None else None
    form = (lookup.key, batch.shape, batch.real.tobytes(), (batch.ids == 0).tobytes(), tuple(batch.extras))
    if known is not None and form in known:
        return known[form].is_batch
    assert lookup.layout is not None
    example = int((batch.real.sum(1) > 1).argmax())
    ids = batch.ids.copy()
    others = ids[batch.real & (ids != ids[example, 0]) & (ids != 0)]  # 0 may be padding, which a model may look for
    ids[example, 0] = others[0] if others.size else 1 + int(ids[example, 0] == 1 and lookup.rows > 2)
    try:
        probed = {point.key: point.lookup for point in bound.points(batch.replace(ids=ids, tokens=None))}
    except errors_of_model():  # the model may not take other ids
        return True
    read = probed.get(lookup.key)
    same = read is None or (
        read.indices.shape == lookup.indices.shape
        and are_equal(lookup.layout.indices(read.indices).ravel(), ids.ravel())
    )
    if known is not None:
        _remember(known, form, Order(same))
    return same


def expect_word(bound: BoundModel, batch: TokenBatch, lookup: Lookup) -> Lookup:
    """Return the lookup that is `word` with its layout, see `with_layout`."""
    known = with_layout(bound, batch, lookup)
    if known.layout is None:
        raise PointNotReachedError(
            f"the indices of {lookup} hold the batch's ids, of shape {batch.shape}, in an order that forward passes on other "
            "ids did not show. Give the model the ids in the order in which it looks them up, or name the table with at=..., "
            "to have its gradient in the lookup's own order"
        )
    return known


class Order(NamedTuple):
    """The order in which a model takes its examples and positions, as far as it is known.

    Attributes:
        is_batch: whether it is the batch's, as far as the lookups show.
        changed: the keys of lookups whose indices follow the ids without being the ids, where no lookup's indices are.
    """

    is_batch: bool
    changed: frozenset[str] = frozenset()


#: By model and by form of a batch, the order in which a model looks up ids where these do not show it.
_orders: WeakKeyDictionary[Any, dict[Hashable, Order]] = WeakKeyDictionary()


def order_of(bound: BoundModel, batch: TokenBatch, points: Sequence[Point]) -> Order:
    """Return the order in which a model takes its examples and positions.

    Where a lookup's indices are the ids, it is known. Where the model changes its ids first, probes that change some of them show
    whether each index follows the id at its own example and position. Without such a lookup nothing contradicts the order.
    """
    lookups = [point.lookup for point in points if point.lookup is not None]
    layouts = [lookup.layout for lookup in lookups if lookup.layout is not None]
    if layouts or not lookups:
        return Order(not lookups or any(layout.is_in_order for layout in layouts))
    known = bound.memory_of(_orders) if bound.call is None else None
    form = (batch.shape, batch.real.tobytes(), (batch.ids == 0).tobytes(), tuple(batch.extras))
    if known is None or form not in known:
        try:
            order = _probe_order(bound, batch, lookups)
        except errors_of_model():  # the model may not take other ids: then nothing shows the order
            return Order(False)
        if known is None:
            return order
        _remember(known, form, order)
    return known[form]


def _probe_order(bound: BoundModel, batch: TokenBatch, lookups: Sequence[Lookup]) -> Order:
    """Return the order where no lookup's indices are the ids: an index may follow other ids than that at its own place."""
    changed = with_other_ids(batch, min(lookup.rows for lookup in lookups))
    if changed is None:
        return Order(False)

    def differing(where: np.ndarray) -> dict[str, np.ndarray]:
        """Return by key which indices change with the ids at some positions; all of them if their number changes."""
        probed = bound.points(batch.replace(ids=np.where(where, changed.ids, batch.ids), tokens=None))
        read = {point.key: point.lookup.indices for point in probed if point.lookup is not None}
        return {
            lookup.key: other != lookup.indices
            if (other := read.get(lookup.key)) is not None and other.shape == lookup.indices.shape
            else np.ones(lookup.indices.shape, bool)
            for lookup in lookups
        }

    following = [key for key, differs in differing(np.ones(batch.shape, bool)).items() if differs.any()]
    if not following:
        return Order(True)
    shaped = [lookup.key for lookup in lookups if lookup.key in following and lookup.indices.size == batch.ids.size]
    alone = {key: np.zeros(batch.shape, bool) for key in shaped}  # an index did not follow its own id
    others = {key: np.zeros(batch.shape, bool) for key in shaped}  # an index followed other ids
    for axis, count in enumerate(batch.shape):
        numbers = np.expand_dims(np.arange(count), 1 - axis)
        for bit, value in product(range((count - 1).bit_length()), (0, 1)):
            where = np.broadcast_to(numbers >> bit & 1 == value, batch.shape)
            differs = differing(where)
            for key in shaped:
                follows = differs[key].reshape(batch.shape)
                alone[key] |= where & ~follows
                others[key] |= ~where & follows
    is_batch = bool(shaped) and not any((alone[key] & others[key]).any() for key in shaped)
    return Order(is_batch, frozenset(following))


def _remember(known: dict[Hashable, T], form: Hashable, value: T) -> None:
    if len(known) >= MOST_FORMS:
        known.clear()
    known[form] = value


def example_axis(bound: BoundModel, batch: TokenBatch, point: Point) -> int | None:
    """Return which of the first two axes of a point's tensor holds the examples, where both axes are equally long.

    A probe with one example fewer shows it. The result is None for tensors whose shape shows the axes.
    """
    examples, positions = batch.shape
    # At a lookup only the indices have such axes: a table's rows may be as long as the batch has positions.
    shape = point.shape if point.lookup is None else point.lookup.indices.shape
    if examples != positions or examples == 1 or shape[:2] != batch.shape:
        return None
    try:
        probed = bound.points(batch[:-1])
    except errors_of_model() as failure:
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


def expect_embedding(bound: BoundModel, batch: TokenBatch, lookup: Lookup) -> None:
    """Refuse a lookup as "word" that may be none of embeddings: of one number for each token, or of ids only by chance.

    One number may be a scale or a bias beside the embedding, which is then read in a way that no backend sees. Ids such as 0, 1,
    2, … or zeros can be the positions or types that a model computes itself, while its lookup of the ids is not recorded. A
    probe with other ids shows whether the indices follow.
    """
    if lookup.dim == 1:
        raise PointNotReachedError(
            f"the lookup {lookup} may not be the model's embedding of the ids: it has one number for each token, which may be a "
            f"scale or a bias. Name the table whose gradient you want, as in at={lookup.path!r}"
        )
    if lookup.layout is None or lookup.layout.gather is not None or not lookup.layout.determined:
        return  # a probe shows these layouts
    if not could_be_positions(batch.ids):
        return
    other = with_other_ids(batch, lookup.rows)
    if other is None:
        return
    try:
        probed = {point.key: _follow(point) for point in bound.points(other)}
    except errors_of_model():  # the model may not accept other ids: then nothing contradicts the lookup
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
            if _takes(bound, other.replace(extras={**other.extras, **whole})):
                return batch.replace(shared=batch.shared | set(names)) if names else batch
    return batch


def _takes(bound: BoundModel, batch: TokenBatch) -> bool:
    """Return whether a probe on the batch raises no exception."""
    try:
        bound.points(batch)
    except errors_of_model():
        return False
    return True


def _with_one_other_id(batch: TokenBatch) -> TokenBatch:
    """Return the batch with the last id of the first example changed, to another id of the batch where there is one."""
    ids = batch.ids.copy()
    last = ids[0, -1]
    others = ids[ids != last]
    ids[0, -1] = others[0] if others.size else int(last == 0)
    return batch.replace(ids=ids, tokens=None)
