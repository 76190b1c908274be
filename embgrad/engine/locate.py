"""Locate the points that names mean, and their tensors' axes, by a forward pass of a sub-batch where that suffices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from embgrad.backend.protocol import BoundModel, Run
from embgrad.common.tracebacks import errors_of_model
from embgrad.engine.descent import with_roles_of_text
from embgrad.engine.probe import (
    Order,
    example_axis,
    expect_embedding,
    expect_word,
    order_of,
    with_layout,
    word_resolved,
)
from embgrad.errors import AmbiguousPointError, quote
from embgrad.inputs.batch import TokenBatch
from embgrad.model_points.axes import Located, axis_of_examples, of_lookup, of_module
from embgrad.model_points.descent import Reached
from embgrad.model_points.expected import SEPARATOR, expected_keys
from embgrad.model_points.names import LAYER_ROLE, needs_layers, point_of
from embgrad.model_points.points import WORD, Lookup, Point, split_name

__all__ = [
    "Meanings",
    "ProbeInconclusiveError",
    "are_roles",
    "cannot_record",
    "expect_each_once",
    "expected_points",
    "forget_meanings",
    "locate",
    "locate_in_pass",
    "meanings",
    "meanings_in_sub_batch",
    "word_of",
]

#: The number of examples that a forward pass runs to locate points for a larger batch.
PROBED: Final = 2

#: The most forms of batches for which it is remembered what names mean, for each model.
MOST_FORMS: Final = 64


class ProbeInconclusiveError(Exception):
    """Internal: an earlier pass does not show what a name means; decide it anew."""


class Meaning(NamedTuple):
    """The point that a name meant in a pass.

    Attributes:
        located: the point, as it was arranged in that pass.
    """

    point: Point
    located: Located
    examples: int

    def axis(self, batch: TokenBatch) -> int | None:
        """Return which of the first two axes of the point's tensor holds the examples; None where its shape did not show it."""
        shape = self.point.shape if self.point.lookup is None else self.point.lookup.indices.shape
        return None if self.examples == batch.shape[1] else axis_of_examples(shape, self.examples, batch.shape[1])


@dataclass(frozen=True)
class Meanings:
    """The points that names meant in passes that made the same calls.

    Attributes:
        times: the number of times that the passes reached each table and module, see `Request.times`.
        order: the modules that they called, see `Request.order`.
    """

    points: Mapping[str, Meaning]
    times: Mapping[str, int]
    order: Sequence[str]

    def expect(self, changed: Iterable[str], reduced: Iterable[str], batch: TokenBatch) -> dict[str, Located] | None:
        """Return the points as they should be arranged in a batch, so that changes can be prepared.

        The result is None if the arrangement is not known of a point whose values are changed, or reduced in other axes than the
        tensor's own.
        """
        before = {name: meaning.located.arrangement for name, meaning in self.points.items()}
        now = {name: before[name].for_batch(meaning.examples, batch) for name, meaning in self.points.items()}
        if any(now[name] is None for name in {*changed, *(name for name in reduced if not before[name].keeps_axes)}):
            return None
        return {
            name: replace(meaning.located, arrangement=now[name] or before[name])
            for name, meaning in self.points.items()
        }

    def locate(self, bound: BoundModel, batch: TokenBatch, run: Run) -> dict[str, Located]:
        """Return the points as they are arranged in a run that made the same calls, and read them by their keys.

        Raises:
            ProbeInconclusiveError: the ids were used otherwise, too, so that "word" may mean another point.
        """
        points = {}
        for name, (point, located, _) in self.points.items():
            values = run.points[point.key]
            if name == WORD and values.lookup is not None and values.lookup.rival is not None:
                raise ProbeInconclusiveError(point.key)
            points[name] = replace(point, shape=values.activation.shape, lookup=values.lookup), located.by_role
        axes = {name: meaning.axis(batch) for name, meaning in self.points.items()}
        if run.lookups is not None:
            lookups = [Point(lookup.key, (), lookup.shape, lookup, lookup.key) for lookup in run.lookups]
            return _arrange(bound, points, batch, lookups, axes)
        before = [meaning.located for meaning in self.points.values()]
        changed = frozenset(
            point.key for point in before if point.lookup is not None and not point.arrangement.is_batch
        )
        order = Order(all(point.arrangement.in_order for point in before), changed)
        return {name: _at(bound, name, *points[name], batch, order, axes[name]) for name in points}


#: By model and by form of a batch, what names meant in earlier passes.
_meanings: WeakKeyDictionary[Any, dict[Hashable, Meanings]] = WeakKeyDictionary()

#: The models of which no pass can record all points and read some.
_not_recorded: WeakKeyDictionary[Any, dict[Hashable, bool]] = WeakKeyDictionary()


def meanings(bound: BoundModel, names: Iterable[str], batch: TokenBatch) -> Meanings | None:
    """Return what the names meant in an earlier pass on a batch of the same form; None where it is not known."""
    known = (bound.memory_of(_meanings) or {}).get(_form(batch)) if bound.call is None else None
    if known is None or any(name not in known.points for name in names):
        return None
    return replace(known, points={name: known.points[name] for name in names})


def are_roles(bound: BoundModel, names: Sequence[str], batch: TokenBatch) -> bool:
    """Return whether all names are known to be roles, before a pass on the batch."""
    known = meanings(bound, names, batch)
    if known is not None:
        return all(meaning.located.by_role for meaning in known.points.values())
    open_names = [name for name in names if name != WORD and not needs_layers(name)]
    return not open_names and set(names).isdisjoint(bound.backend.paths(bound.model))


def forget_meanings(bound: BoundModel) -> None:
    """Drop what names meant in earlier passes, after a pass contradicted it."""
    known = bound.memory_of(_meanings)
    if known is not None:
        known.clear()


def expected_points(bound: BoundModel, names: Iterable[str]) -> tuple[str, ...]:
    """Return the keys of the points that names probably mean; none where that, or a pass that records all points, is unknown."""
    if bound.memory_of(_not_recorded):
        return ()
    paths = dict.fromkeys(bound.backend.paths(bound.model))
    keys = [expected_keys(name, paths) for name in names]
    return tuple(dict.fromkeys(key for expected in keys for key in expected)) if all(keys) else ()


def cannot_record(bound: BoundModel) -> None:
    """Remember that no pass of the model can record all points and read some."""
    known = bound.memory_of(_not_recorded)
    if known is not None:
        known["pass"] = True


def locate_in_pass(
    bound: BoundModel, names: Sequence[str], batch: TokenBatch, reached: Sequence[Point]
) -> dict[str, Located]:
    """Return the points by their names, from the record of a pass, and remember what the names mean."""
    points = reached if isinstance(reached, list) else list(reached)
    named = _find_named(bound, names, batch, points)
    located = _arrange(bound, named, batch, points)
    if isinstance(reached, Reached):
        _remember(bound, batch, reached, _find_meant(named, located, batch))
    return located


def _find_meant(
    named: Mapping[str, tuple[Point, bool]], located: Mapping[str, Located], batch: TokenBatch
) -> dict[str, Meaning]:
    return {name: Meaning(point, located[name], len(batch)) for name, (point, _) in named.items()}


def _remember(bound: BoundModel, batch: TokenBatch, reached: Reached, meant: Mapping[str, Meaning]) -> None:
    """Remember what names mean, beside what others meant in a pass that made the same calls."""
    memory = bound.memory_of(_meanings) if bound.call is None else None
    if memory is None:
        return
    if len(memory) >= MOST_FORMS:
        memory.clear()
    form, paths = _form(batch), bound.backend.paths(bound.model)
    before = memory.get(form)
    if before is not None:
        again = _make_meanings(before.points, reached, paths)
        if (again.times, again.order) == (before.times, before.order):
            meant = {**before.points, **meant}
    memory[form] = _make_meanings(meant, reached, paths)


def _make_meanings(meant: Mapping[str, Meaning], reached: Reached, paths: Iterable[str]) -> Meanings:
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
    """Return the points by their names, from a forward pass on the batch."""
    return locate_in_pass(bound, tuple(names), batch, bound.points(batch))


def meanings_in_sub_batch(bound: BoundModel, names: Iterable[str], batch: TokenBatch) -> Meanings | None:
    """Return what names mean in a forward pass of the first examples, at a fraction of the whole batch's cost.

    The result is None where only the whole batch can show it.
    """
    wanted = tuple(names)
    examples = _unsort(batch) or list(range(PROBED))
    if batch.shape[1] == len(examples) or len(batch) < 2 * PROBED:
        return None
    try:
        sub_batch = batch.take(examples)
        reached = bound.points(sub_batch)
        named = _find_named(bound, wanted, sub_batch, reached)
        meant = _find_meant(named, _arrange(bound, named, sub_batch, reached), sub_batch)
    except errors_of_model():  # it may accept no other number of examples: the whole batch gives the better message
        return None
    if not isinstance(reached, Reached):
        return Meanings(meant, _times(bound, reached), ())
    _remember(bound, batch, reached, meant)
    return _make_meanings(meant, reached, bound.backend.paths(bound.model))


def word_of(bound: BoundModel, lookup: Lookup, batch: TokenBatch) -> Located:
    """Return "word", which is the only lookup of the ids, after the run in which it was made."""
    expect_embedding(bound, batch, lookup)
    lookup = expect_word(bound, batch, lookup)
    return Located(lookup.key, of_lookup(WORD, lookup, batch, by_role=True), lookup, True)


def expect_each_once(option: str, names: Iterable[str], located: Mapping[str, Located]) -> None:
    """Refuse an option that names one point under several names."""
    keys = {name: located[name].key for name in names}
    twice = [name for name, key in keys.items() if list(keys.values()).count(key) > 1]
    if twice:
        raise AmbiguousPointError(f"{option} names one point several times, as {quote(twice)}: name it once")


def _find_named(
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


def _arrange(
    bound: BoundModel,
    named: Mapping[str, tuple[Point, bool]],
    batch: TokenBatch,
    points: Sequence[Point],
    axes: Mapping[str, int | None] | None = None,
) -> dict[str, Located]:
    """Return the points that names mean with their arrangement.

    Args:
        named: the points, and whether their names are roles.
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
        expect_embedding(bound, batch, point.lookup)
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


def _unsort(batch: TokenBatch) -> list[int] | None:
    """Return a long, a short and the long example again, which no order by length leaves as they are; None where all are equal.

    A model that sorts its examples by length does so in this sub-batch as well, whatever the examples' order.
    """
    lengths = batch.real.sum(1) if batch.mask is not None else (batch.ids != 0).sum(1)
    longest, shortest = int(lengths.argmax()), int(lengths.argmin())
    return None if lengths[longest] == lengths[shortest] else [longest, shortest, longest]


def _form(batch: TokenBatch) -> Hashable:
    """Return the properties of a batch, without its number of examples, that can decide how a model is called."""
    sortable = _unsort(batch) is not None
    return (batch.shape[1], batch.convention, batch.mask is None, batch.types is None, tuple(batch.extras), sortable)
