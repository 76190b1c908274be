"""Locate the points that names mean, and their tensors' axes, by a forward pass of a sub-batch where that suffices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from embgrad.backend.protocol import BoundModel, PointValues, Run
from embgrad.engine.descent import with_roles_of_text
from embgrad.engine.probe import (
    Order,
    example_axis,
    expect_ids_followed,
    expect_word,
    order_of,
    with_layout,
    word_resolved,
)
from embgrad.errors import AmbiguousPointError, listed
from embgrad.forward.axes import Located, axis_of_examples, of_lookup, of_module
from embgrad.forward.descent import Reached
from embgrad.forward.expected import SEPARATOR, expected_keys
from embgrad.forward.names import LAYER_ROLE, point_of
from embgrad.forward.points import WORD, Lookup, Point, split_name
from embgrad.inputs.batch import TokenBatch

__all__ = [
    "Meanings",
    "ProbeInconclusiveError",
    "Sighting",
    "cannot_record",
    "expect_each_once",
    "expected_points",
    "forget",
    "forget_meanings",
    "in_whole_batch",
    "locate",
    "locate_in_pass",
    "locate_in_sub_batch",
    "meanings",
    "word_of",
]

#: The number of examples that a forward pass runs to locate points for a larger batch.
PROBED: Final = 2

#: The number of examples in a pass that shows whether the model sorts its examples by length, see `_unsorted`.
UNSORTED: Final = 3

#: The most forms of batches for which the lookup of the ids is remembered, for each model.
MOST_FORMS: Final = 64


class ProbeInconclusiveError(Exception):
    """Internal: the sub-batch probe was inconclusive; run the whole batch."""


@dataclass(frozen=True)
class Sighting:
    """The points that a forward pass of a sub-batch reached.

    Attributes:
        located: the points by the user's names, arranged as in the sub-batch.
        times: the number of times that the pass reached each table and module, see `Request.times`.
        count: the number of examples in the pass.
    """

    located: Mapping[str, Located]
    times: Mapping[str, int]
    count: int

    def arranged(
        self, changed: Iterable[str], batch: TokenBatch, reduced: Iterable[str] = ()
    ) -> dict[str, Located] | None:
        """Return the points as they should be arranged in the whole batch, so that changes can be prepared.

        The result is None if the arrangement with more examples is not known of a point whose values are changed, or reduced in
        other axes than the tensor's own.
        """
        arrangements = {name: point.arrangement.for_batch(self.count, batch) for name, point in self.located.items()}
        needed = {*changed, *(name for name in reduced if not self.located[name].arrangement.keeps_axes)}
        if any(arrangements[name] is None for name in needed):
            return None
        return {
            name: replace(point, arrangement=arrangements[name] or point.arrangement)
            for name, point in self.located.items()
        }


#: By model and by form of a batch, the sighting of "word".
_words: WeakKeyDictionary[Any, dict[Hashable, Sighting]] = WeakKeyDictionary()


class Meaning(NamedTuple):
    """The point that a name meant in a pass that recorded every point.

    Attributes:
        point: the point.
        by_role: whether the name is a role.
        examples: the number of examples in that pass.
    """

    point: Point
    by_role: bool
    examples: int

    def axis(self, batch: TokenBatch) -> int | None:
        """Return which of the first two axes of the point's tensor holds the examples; None where its shape did not show it."""
        shape = self.point.shape if self.point.lookup is None else self.point.lookup.indices.shape
        return None if self.examples == batch.shape[1] else axis_of_examples(shape, self.examples, batch.shape[1])


@dataclass(frozen=True)
class Meanings:
    """The points that names meant in passes that made the same calls.

    Attributes:
        points: the points by the names.
        times: the number of times that the pass reached each table and module, see `Request.times`.
        order: the modules that it called, see `Request.order`.
    """

    points: Mapping[str, Meaning]
    times: Mapping[str, int]
    order: Sequence[str]

    @property
    def keys(self) -> dict[str, str]:
        """The keys of the points by the names; "word" is looked for in each pass."""
        return {name: WORD if name == WORD else meaning.point.key for name, meaning in self.points.items()}

    def located(self, bound: BoundModel, batch: TokenBatch, run: Run) -> dict[str, Located]:
        """Return the points as they are arranged in a run that made the same calls.

        Raises:
            PointError: a point's arrangement is not known.
        """
        points = {}
        for name, (point, by_role, _) in self.points.items():
            values = run.points[self.keys[name]]
            key = point.key if values.lookup is None else values.lookup.key
            points[name] = replace(point, shape=values.activation.shape, lookup=values.lookup, key=key), by_role
        lookups = [Point(lookup.key, (), lookup.shape, lookup, lookup.key) for lookup in run.lookups or ()]
        axes = {name: meaning.axis(batch) for name, meaning in self.points.items()}
        return _arranged(bound, points, batch, lookups, axes)


#: By model and by form of a batch, what names meant in earlier passes.
_meanings: WeakKeyDictionary[Any, dict[Hashable, Meanings]] = WeakKeyDictionary()

#: The models of which no pass can record all points and read some.
_not_recorded: WeakKeyDictionary[Any, dict[Hashable, bool]] = WeakKeyDictionary()


def meanings(bound: BoundModel, names: Iterable[str], batch: TokenBatch) -> Meanings | None:
    """Return what the names meant in an earlier pass on a batch of the same form; None where it is not known."""
    known = (bound.remembered(_meanings) or {}).get(_form(batch)) if bound.call is None else None
    if known is None or any(name not in known.points for name in names):
        return None
    return replace(known, points={name: known.points[name] for name in names})


def forget_meanings(bound: BoundModel) -> None:
    """Drop what names meant in earlier passes, after a pass contradicted it."""
    known = bound.remembered(_meanings)
    if known is not None:
        known.clear()


def expected_points(bound: BoundModel, names: Iterable[str]) -> tuple[str, ...]:
    """Return the keys of the points that names probably mean; none where that, or a pass that records all points, is unknown."""
    if bound.remembered(_not_recorded):
        return ()
    paths = dict.fromkeys(bound.backend.paths(bound.model))
    keys = [expected_keys(name, paths) for name in names]
    return tuple(dict.fromkeys(key for expected in keys for key in expected)) if all(keys) else ()


def cannot_record(bound: BoundModel) -> None:
    """Remember that no pass of the model can record all points and read some."""
    known = bound.remembered(_not_recorded)
    if known is not None:
        known["pass"] = True


def locate_in_pass(
    bound: BoundModel, names: Sequence[str], batch: TokenBatch, reached: Sequence[Point]
) -> dict[str, Located]:
    """Return the points by their names, from the record of a pass, and remember what the names mean.

    Args:
        bound: the model.
        names: the names.
        batch: the batch of the pass.
        reached: the points that the pass reached.

    Raises:
        PointError: a name means no point, or several.
    """
    points = reached if isinstance(reached, list) else list(reached)
    named = _named(bound, names, batch, points)
    located = _arranged(bound, named, batch, points)
    memory = bound.remembered(_meanings) if bound.call is None else None
    if memory is not None and isinstance(reached, Reached):
        if len(memory) >= MOST_FORMS:
            memory.clear()
        meant = {name: Meaning(point, by_role, len(batch)) for name, (point, by_role) in named.items()}
        form, paths = _form(batch), bound.backend.paths(bound.model)
        before = memory.get(form)
        if before is not None and before == _made(before.points, reached, paths):  # both passes made the same calls
            meant = {**before.points, **meant}
        memory[form] = _made(meant, reached, paths)
    return located


def _made(meant: Mapping[str, Meaning], reached: Reached, paths: Iterable[str]) -> Meanings:
    """Return what names meant, with the calls that another pass has to make for them to mean the same.

    What is called inside of a layer cannot change what is a layer, and is not compared unless it is named itself.
    """
    layers = {point.path for point in reached if any(map(LAYER_ROLE.fullmatch, point.roles))}
    own = {meaning.point.path for meaning in meant.values()}

    def is_compared(path: str) -> bool:
        return path in own or not any(path[: mark.start()] in layers for mark in SEPARATOR.finditer(path))

    order = [call.path for call in reached.calls if is_compared(call.path)]
    counts = Counter([*(f"{path}:" for path in order), *(lookup.path for lookup in reached.lookups)])
    return Meanings(meant, {**{f"{path}:": 0 for path in paths if is_compared(path)}, **counts}, order)


def locate(bound: BoundModel, names: Iterable[str], batch: TokenBatch) -> dict[str, Located]:
    """Return the points by their names, from a forward pass on the batch.

    Raises:
        PointError: a name means no point, or several.
    """
    return _located(bound, tuple(names), batch, bound.points(batch))


def locate_in_sub_batch(bound: BoundModel, names: Iterable[str], batch: TokenBatch) -> Sighting | None:
    """Return the points that a forward pass of the first examples reaches, at a fraction of the whole batch's cost.

    "word" is remembered from call to call, since the run of all examples shows whether the lookup is still the only lookup of
    the ids. Other roles depend on the whole pass, and are located in each call. The result is None where only the whole batch
    can show the points; see also `Sighting.arranged` and `in_whole_batch`.
    """
    wanted = tuple(names)
    known = bound.remembered(_words) if wanted == (WORD,) and bound.call is None else None
    form = _form(batch)
    if known is not None and form in known:
        return known[form]
    count = PROBED if known is None or len(batch) >= 2 * PROBED else len(batch)
    examples = _unsorted(batch) or list(range(count))
    count = len(examples)
    if batch.shape[1] == count or (known is None and len(batch) < 2 * PROBED):
        return None
    try:
        sub_batch = batch.take(examples)
        points = bound.points(sub_batch)
        sighting = Sighting(_located(bound, wanted, sub_batch, points), _times(bound, points), count)
    except Exception:  # the model may accept no other number of examples, and the whole batch gives the better message
        return None
    if known is not None:
        if len(known) >= MOST_FORMS:
            known.clear()
        known[form] = sighting
    return sighting


def forget(bound: BoundModel) -> None:
    """Drop what is remembered of the model after a run contradicted it."""
    known = bound.remembered(_words)
    if known is not None:
        known.clear()


def in_whole_batch(bound: BoundModel, name: str, point: Located, values: PointValues, batch: TokenBatch) -> Located:
    """Return a point that a sub-batch has located, as it is arranged in the run of all examples.

    Raises:
        ProbeInconclusiveError: the sub-batch does not show which axis holds the examples, or which lookup is "word".
        AmbiguousPointError: a probe that would show it failed.
        UnsupportedError: a role's tensor has no entry for each example and position.
    """
    if name == WORD and (values.lookup is None or values.lookup.layout is None):
        raise ProbeInconclusiveError(point.key)
    shape, native = values.activation.shape, point.arrangement.native
    ordered = point.arrangement.in_order
    if values.lookup is None:
        axis = _example_axis(native, shape, batch)
        arrangement = of_module(name, shape, batch, axis, by_role=point.by_role, in_order=ordered)
        return replace(point, arrangement=arrangement)
    lookup = with_layout(bound, batch, values.lookup)
    axis = None if lookup.layout else _example_axis(native, shape, batch)
    arrangement = of_lookup(name, lookup, batch, axis, by_role=point.by_role, in_order=ordered)
    if lookup.layout is None and lookup.indices.shape == batch.shape and not point.arrangement.is_batch:
        arrangement = replace(arrangement, is_batch=False)
    if arrangement.is_whole != point.arrangement.is_whole:  # the examples of the sub-batch stood in the model's order
        raise ProbeInconclusiveError(point.key)
    return replace(point, arrangement=arrangement, lookup=lookup)


def word_of(bound: BoundModel, lookup: Lookup, batch: TokenBatch) -> Located:
    """Return "word", which is the only lookup of the ids, after the run in which it was made."""
    expect_ids_followed(bound, batch, lookup)
    lookup = expect_word(bound, batch, lookup)
    return Located(lookup.key, of_lookup(WORD, lookup, batch, by_role=True), lookup, True)


def expect_each_once(option: str, names: Iterable[str], located: Mapping[str, Located]) -> None:
    """Refuse an option that names one point under several names.

    Raises:
        AmbiguousPointError: two of the names mean the same point.
    """
    keys = {name: located[name].key for name in names}
    twice = [name for name, key in keys.items() if list(keys.values()).count(key) > 1]
    if twice:
        raise AmbiguousPointError(f"{option} names one point several times, as {listed(twice)}: name it once")


def _located(bound: BoundModel, names: Sequence[str], batch: TokenBatch, points: list[Point]) -> dict[str, Located]:
    return _arranged(bound, _named(bound, names, batch, points), batch, points)


def _named(
    bound: BoundModel, names: Sequence[str], batch: TokenBatch, points: list[Point]
) -> dict[str, tuple[Point, bool]]:
    """Return the points that names mean, and whether these are roles."""
    resolved = points
    try:
        resolved = word_resolved(bound, batch, points)
    except AmbiguousPointError:
        if any(split_name(name).path == WORD for name in names):
            raise
    points = with_roles_of_text(bound, batch, points, resolved, names)
    words = [point for point in points if WORD in point.roles]
    return {name: point_of(name, points, words, batch) for name in names}


def _arranged(
    bound: BoundModel,
    named: Mapping[str, tuple[Point, bool]],
    batch: TokenBatch,
    points: Sequence[Point],
    axes: Mapping[str, int | None] | None = None,
) -> dict[str, Located]:
    """Return the points that names mean with their arrangement.

    Args:
        bound: the model.
        named: the points, and whether their names are roles.
        batch: the batch of the pass.
        points: all points that the pass reached, or at least its lookups.
        axes: by name which axis of a tensor holds the examples, where that is known.
    """
    known = all(point.lookup is not None and point.lookup.layout is not None for point, _ in named.values())
    order = Order(True) if known else order_of(bound, batch, points)
    return {
        name: _at(bound, name, point, by_role, batch, order, (axes or {}).get(name))
        for name, (point, by_role) in named.items()
    }


def _at(
    bound: BoundModel, name: str, point: Point, by_role: bool, batch: TokenBatch, order: Order, known: int | None
) -> Located:
    def axis_of_point() -> int | None:
        return example_axis(bound, batch, point) if known is None else known

    if point.lookup is None:
        bound.expect_ability("modules")
        axis = axis_of_point() if order.is_batch else None
        arrangement = of_module(name, point.shape, batch, axis, by_role=by_role, in_order=order.is_batch)
        return Located(point.key, arrangement, None, by_role)
    if by_role and WORD in point.roles and name == WORD:
        expect_ids_followed(bound, batch, point.lookup)
    is_word = by_role and WORD in point.roles
    lookup = expect_word(bound, batch, point.lookup) if is_word else with_layout(bound, batch, point.lookup)
    axis = None if lookup.layout or not order.is_batch else axis_of_point()
    arrangement = of_lookup(name, lookup, batch, axis, by_role=by_role, in_order=order.is_batch)
    if lookup.key in order.changed:
        arrangement = replace(arrangement, is_batch=False)
    return Located(point.key, arrangement, lookup, by_role)


def _times(bound: BoundModel, points: Iterable[Point]) -> dict[str, int]:
    """Return the number of times that a pass reached each table and module, see `Request.times`; 0 for unreached modules."""
    times = {f"{path}:": 0 for path in bound.backend.paths(bound.model)}
    for point in points:
        name = split_name(point.key)
        path = name.path if name.side is None else f"{name.path}:"
        times[path] = max(times.get(path, 0), (name.occurrence or 0) + 1)
    return times


def _unsorted(batch: TokenBatch) -> list[int] | None:
    """Return a long, a short and the long example again, which no order by length leaves as they are; None where all are equal.

    A model that sorts its examples by length does so in this sub-batch as well, whatever the examples' order.
    """
    lengths = batch.real.sum(1) if batch.mask is not None else (batch.ids != 0).sum(1)
    longest, shortest = int(lengths.argmax()), int(lengths.argmin())
    return None if lengths[longest] == lengths[shortest] else [longest, shortest, longest]


def _form(batch: TokenBatch) -> Hashable:
    """Return the properties of a batch, without its number of examples, that can decide how a model is called."""
    sortable = _unsorted(batch) is not None
    return (batch.shape[1], batch.convention, batch.mask is None, batch.types is None, tuple(batch.extras), sortable)


def _example_axis(probed: tuple[int, ...], whole: tuple[int, ...], batch: TokenBatch) -> int | None:
    """Return the axis of the examples as `example_axis` does, from the shape that the tensor had in the sub-batch."""
    examples, positions = batch.shape
    if examples != positions or tuple(whole[:2]) != batch.shape:
        return None
    axes = (axis_of_examples(probed, count, positions) for count in (PROBED, UNSORTED))
    axis = next((axis for axis in axes if axis is not None), None)
    if axis is None:
        raise ProbeInconclusiveError(probed, whole)
    return axis
