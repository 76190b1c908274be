"""Finds the points that names mean by a forward pass, of a few examples where these tell it, and how their tensors lie."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final
from weakref import WeakKeyDictionary

from embgrad.backend.protocol import Backend, Call, PointValues
from embgrad.backend.signature import as_parts
from embgrad.engine.probe import example_axis, expect_ids_followed, told_apart, with_layout
from embgrad.errors import AmbiguousPointError, PointError, UnsupportedError, listed
from embgrad.forward.axes import Arrangement, of_lookup, of_module
from embgrad.forward.names import point_of
from embgrad.forward.points import WORD, Lookup, Point, split_name
from embgrad.inputs.batch import TokenBatch

__all__ = ["ByFew", "FewDoNotTellError", "Located", "Search", "expect_ability", "expect_each_once", "expect_one_name"]

#: How many examples tell what a forward pass of more comes by.
FEW: Final = 2


class FewDoNotTellError(Exception):
    """What a few examples have shown does not hold for all, or is not enough: the whole batch must tell. No user sees it."""


@dataclass(frozen=True)
class Located:
    """A point that a name means, found by a forward pass.

    Attributes:
        key: means the point and no other.
        place: how its tensor is arranged.
        lookup: the lookup that is made there; None at a module.
        by_role: whether the name is a role.
    """

    key: str
    place: Arrangement
    lookup: Lookup | None
    by_role: bool


@dataclass(frozen=True)
class ByFew:
    """Points that a forward pass of a few examples came by.

    Attributes:
        named: by the names as given, with the arrangements that they have there.
        times: how often the pass came by each table and module, see `Request.times`.
        count: how many examples they were.
    """

    named: Mapping[str, Located]
    times: Mapping[str, int]
    count: int

    def for_changes(self, changed: Collection[str], batch: TokenBatch) -> dict[str, Located] | None:
        """The points with the arrangements that they should have in the whole batch, for changes to be made ready.

        Args:
            changed: the names of those that are changed.
            batch: the whole.

        Returns:
            The points; None where the few do not tell that of one that is changed.
        """
        places = {name: one.place.of_more(self.count, batch) for name, one in self.named.items()}
        if any(places[name] is None for name in changed):
            return None
        return {name: replace(one, place=places[name] or one.place) for name, one in self.named.items()}


#: By a model, and by the form of a batch, where `word` was.
_words: WeakKeyDictionary[Any, dict[Hashable, ByFew]] = WeakKeyDictionary()

#: How many forms of batches are remembered of a model.
MOST_KEPT: Final = 64


@dataclass(frozen=True)
class Search:
    """Looks for points of one model.

    Attributes:
        backend: the model's.
        model: is run in evaluation mode.
        call: calls it in another way than by its arguments' names.
    """

    backend: Backend
    model: Any
    call: Call | None

    def named(self, names: Iterable[str], batch: TokenBatch) -> dict[str, Located]:
        """The points by the names as given, from a forward pass on the batch.

        Raises:
            PointError: a name means no point, or several.
        """
        return self._named(names, batch, list(self.backend.points(self.model, batch, self.call)))

    def _named(self, names: Iterable[str], batch: TokenBatch, seen: list[Point]) -> dict[str, Located]:
        try:
            seen = told_apart(self.backend, self.model, batch, self.call, seen)
        except AmbiguousPointError:
            if any(split_name(name).path == WORD for name in names):
                raise
        words = [point for point in seen if WORD in point.roles]
        return {name: self._located(name, *point_of(name, seen, words, batch), batch) for name in names}

    def named_by_few(self, names: Iterable[str], batch: TokenBatch) -> ByFew | None:
        """The points as a forward pass of the first examples comes by them, for a fraction of the whole batch's cost.

        `word` is remembered from call to call: the pass of all shows whether the lookup is still that of the ids, and the only
        one. What a role means beyond that follows from the whole of a pass, and is looked for in each call.

        Returns:
            The points, see `for_changes` and `in_whole`; None where the whole batch must tell.
        """
        wanted = tuple(names)
        kept = self._kept if wanted == (WORD,) and self.call is None else None
        form = _form(batch)
        if kept is not None and form in kept:
            return kept[form]
        few = FEW if kept is None or len(batch) >= 2 * FEW else len(batch)
        if len(batch) < few or batch.shape[1] == few or (kept is None and len(batch) < 2 * FEW):
            return None
        try:
            seen = list(self.backend.points(self.model, batch[:few], self.call))
            found = ByFew(self._named(wanted, batch[:few], seen), self._times(seen), few)
        except Exception:  # of a model that takes no other number of examples, or which the whole batch says better
            return None
        if kept is not None:
            if len(kept) >= MOST_KEPT:
                kept.clear()
            kept[form] = found
        return found

    def forget(self) -> None:
        """What is remembered of the model does not hold any more."""
        kept = self._kept
        if kept is not None:
            kept.clear()

    @property
    def _kept(self) -> dict[Hashable, ByFew] | None:
        """By the forms of batches what is remembered of the model; None where it cannot be referred to weakly."""
        first, *others = as_parts(self.model)
        try:
            return None if others else _words.setdefault(first, {})
        except TypeError:
            return None

    def in_whole(self, name: str, few: Located, values: PointValues, batch: TokenBatch) -> Located:
        """A point that was found by few examples, as it is in the run of all of them.

        Raises:
            FewDoNotTellError: the few do not tell which axis of its tensor is the examples, or what `word` is.
            AmbiguousPointError: a forward pass that is to tell it failed.
            UnsupportedError: a role's tensor has no entry for each example and position.
        """
        if name == WORD and (values.lookup is None or values.lookup.layout is None):
            raise FewDoNotTellError(few.key)
        shape, own = values.activation.shape, few.place.native
        if values.lookup is None:
            place = of_module(name, shape, batch, _example_axis(own, shape, batch), by_role=few.by_role)
            return replace(few, place=place)
        lookup = with_layout(self.backend, self.model, batch, self.call, values.lookup)
        axis = None if lookup.layout else _example_axis(own, shape, batch)
        return replace(few, place=of_lookup(name, lookup, batch, axis, by_role=few.by_role), lookup=lookup)

    def word(self, lookup: Lookup, batch: TokenBatch) -> Located:
        """`word`, the only lookup of the ids, after it was made."""
        expect_ids_followed(self.backend, self.model, batch, self.call, lookup)
        lookup = with_layout(self.backend, self.model, batch, self.call, lookup)
        return Located(lookup.key, of_lookup(WORD, lookup, batch, by_role=True), lookup, True)

    def _times(self, seen: Iterable[Point]) -> dict[str, int]:
        """How often a pass came by each table and module, see `Request.times`: all modules are in it."""
        times = {f"{path}:": 0 for path in self.backend.paths(self.model)}
        for point in seen:
            name = split_name(point.key)
            counted = name.path if name.side is None else f"{name.path}:"
            times[counted] = max(times.get(counted, 0), (name.occurrence or 0) + 1)
        return times

    def _located(self, name: str, point: Point, by_role: bool, batch: TokenBatch) -> Located:
        if point.lookup is not None:
            if by_role and WORD in point.roles and name == WORD:
                expect_ids_followed(self.backend, self.model, batch, self.call, point.lookup)
            lookup = with_layout(self.backend, self.model, batch, self.call, point.lookup)
            axis = None if lookup.layout else example_axis(self.backend, self.model, batch, self.call, point)
            return Located(point.key, of_lookup(name, lookup, batch, axis, by_role=by_role), lookup, by_role)
        expect_ability(self.backend, "modules")
        axis = example_axis(self.backend, self.model, batch, self.call, point)
        return Located(point.key, of_module(name, point.shape, batch, axis, by_role=by_role), None, by_role)


def expect_each_once(option: str, names: Iterable[str], located: Mapping[str, Located]) -> None:
    """Refuse an option that names one point under several names.

    Raises:
        AmbiguousPointError: it does.
    """
    keys = {name: located[name].key for name in names}
    twice = [name for name, key in keys.items() if list(keys.values()).count(key) > 1]
    if twice:
        raise AmbiguousPointError(f"{option} names one point several times, as {listed(twice)}: expected each once")


def expect_one_name(at: Any, instead: str) -> None:
    """Refuse as the option `at` what is no name of one point, where there can be but one.

    Args:
        at: what was given.
        instead: what to do for several.

    Raises:
        PointError: it is none.
    """
    if not isinstance(at, str) or not at:
        raise PointError(f"at is {at!r}: expected the name of a point, such as 'word'; {instead}")


def expect_ability(backend: Backend, ability: str) -> None:
    """Refuse what the backend cannot do.

    Raises:
        UnsupportedError: it does not support it.
    """
    if ability not in backend.supports:
        instead = getattr(backend, "instead", {}).get(ability, "leave it out")
        raise UnsupportedError(
            f"the backend {backend.name!r} does not support {ability!r}: it supports {listed(sorted(backend.supports), 20)}; "
            f"{instead}"
        )


def _form(batch: TokenBatch) -> Hashable:
    """What of a batch can decide how a model is called and how its tensors lie, less the number of examples."""
    given = (batch.mask is None, batch.types is None, tuple(batch.extras))
    return (batch.shape[1], batch.convention, *given)


def _example_axis(few: tuple[int, ...], whole: tuple[int, ...], batch: TokenBatch) -> int | None:
    """As `example_axis`, told by the shape that the tensor had with a few examples."""
    examples, positions = batch.shape
    if examples != positions or tuple(whole[:2]) != batch.shape:
        return None
    if tuple(few[:2]) not in ((FEW, positions), (positions, FEW)):
        raise FewDoNotTellError(few, whole)
    return 0 if few[0] == FEW else 1
