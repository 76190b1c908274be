"""Finds what models keep in containers and in objects of the user's own, as far as it is little, and puts it back."""

from __future__ import annotations

import collections
import functools
import operator
import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from typing import Any, Final, NamedTuple

import numpy as np

from embgrad.composition import is_installed
from embgrad.generators import is_generator

__all__ = [
    *("Arrays", "Held", "Nested", "Object", "are_same", "base_of", "dict_of", "held_in", "holds_any", "is_entered"),
    *("is_same", "nested", "put_back", "put_back_attributes", "slots_of"),
]

#: The containers that a forward pass may fill, each before those that it is made of.
BASES: Final = (list, set, collections.deque, collections.OrderedDict, dict)

#: So many entries are gone through of one model, the outer ones first; more are data, which no forward pass writes to.
MOST_ENTRIES: Final = 1 << 14

#: So many numbers are in the arrays, in all, that are found there: they are copied in each call.
MOST_NUMBERS: Final = 1 << 20

#: A larger array of NumPy's, in numbers, is a table.
LARGEST_ARRAY: Final = 1 << 16

#: What classes of the user's may be made of and hold nothing but what the user has put there.
_BARE: Final = frozenset({"abc", "typing"})

_NOTHING: Final = object()

_type: Final[Callable[[Any], type]] = type


class Held(NamedTuple):
    """What a container held.

    Attributes:
        values: its entries; of a dict their values.
        keys: of a dict its keys, in the same order; None for other containers.
    """

    values: Sequence[Any]
    keys: Sequence[Any] | None = None


class Object(NamedTuple):
    """An object of the user's own, and what it held.

    Attributes:
        itself: the object.
        own: what its attributes are in, or None.
        slots: the descriptors of those that have places of their own.
        values: what was in these.
    """

    itself: Any
    own: Any
    slots: Sequence[Any]
    values: Sequence[Any]

    def holds(self) -> bool:
        """Whether it has the same dict, and the same in its slots."""
        return dict_of(self.itself) is self.own and are_same(_slotted(self.itself, self.slots), self.values)

    def put_back(self, stays: Callable[[Any], bool] = lambda value: False) -> None:
        """The dict, and what was in the slots; not what was in the dict.

        Args:
            stays: whether something that is or was in a slot is left as it is.
        """
        if dict_of(self.itself) is not self.own:
            object.__setattr__(self.itself, "__dict__", self.own)
        for slot, before, now in zip(self.slots, self.values, _slotted(self.itself, self.slots), strict=True):
            if before is now or stays(before) or stays(now):
                continue
            if before is _NOTHING:
                slot.__delete__(self.itself)
            else:
                slot.__set__(self.itself, before)


class Nested(NamedTuple):
    """What was found, each once.

    Attributes:
        containers: the containers, those given too.
        objects: the objects.
        arrays: the arrays.
        generators: the random generators of Python's and NumPy's.
    """

    containers: Sequence[Any]
    objects: Sequence[Object]
    arrays: Sequence[Any]
    generators: Sequence[Any]


def nested(
    values: Iterable[Any],
    arrays: Mapping[type, Callable[[Any], int]],
    *,
    enters: Callable[[type], bool] | None = None,
    opened: Callable[[Any], Any] = lambda value: value,
) -> Nested:
    """What is in containers, tuples and objects, and in those in them.

    Args:
        values: of any types; what is not entered, no array and no generator is left out.
        arrays: by the exact types of arrays what gives the numbers in one.
        enters: whether what is in values of a type is looked at, of objects their attributes where `is_entered` says so, too;
            None for `is_entered`.
        opened: gives a container in the place of what a framework has put around it.
    """
    search = _Search(arrays, enters or is_entered, opened)
    search.take(values)
    while search.waiting:
        search.enter(search.waiting.popleft())
    return Nested(list(search.containers.values()), search.objects, search.arrays, search.generators)


def holds_any(value: Any, wanted: Callable[[Any], bool], opened: Callable[[Any], Any] = lambda value: value) -> bool:
    """Whether a value is wanted, or one that is in it: in containers and tuples of any depth.

    Args:
        value: anything.
        wanted: says so of one value.
        opened: as in `nested`.
    """
    waiting, seen = [value], {id(value)}
    while waiting:
        one = waiting.pop()
        if wanted(one):
            return True
        inner = opened(one)
        if base_of(_type(inner)) is not None:
            entries = held_in(inner).values
        else:
            entries = [*inner] if _type(inner) in (tuple, frozenset) else ()
        fresh = {id(entry): entry for entry in entries if id(entry) not in seen}
        seen.update(fresh)
        waiting.extend(fresh.values())
    return False


class _Search:
    """What has been found so far.

    Attributes:
        waiting: what is to be entered, with what it holds.
        containers: by their identities.
        objects: as in `Nested`; so are `arrays` and `generators`.
    """

    def __init__(
        self,
        arrays: Mapping[type, Callable[[Any], int]],
        enters: Callable[[type], bool],
        opened: Callable[[Any], Any],
    ) -> None:
        self.waiting: collections.deque[Any] = collections.deque()
        self.containers: dict[int, Any] = {}
        self.objects: list[Object] = []
        self.arrays: list[Any] = []
        self.generators: list[Any] = []
        self._sizes = arrays
        self._enters = enters
        self._opened = opened
        self._seen: set[int] = set()
        self._entries, self._numbers = MOST_ENTRIES, MOST_NUMBERS

    def take(self, values: Iterable[Any]) -> None:
        """What is found among values."""
        for value in values:
            size, inner = self._sizes.get(_type(value)), self._opened(value)
            drawn_from = is_generator(_type(value))
            if id(value) in self._seen or not (size or drawn_from or self._enters(_type(inner))):
                continue
            self._seen.add(id(value))
            if drawn_from:
                self.generators.append(value)
            elif size is not None:
                self._take_array(value, size(value))
            else:
                if base_of(_type(inner)) is not None:
                    self.containers[id(value)] = value
                self.waiting.append(inner)

    def enter(self, one: Any) -> None:
        """What a container or an object holds."""
        base = base_of(_type(one))
        if base is not None or issubclass(_type(one), tuple):
            self._go_through(held_in(one).values if base is not None else [*tuple.__iter__(one)])
        if _type(one) in _BUILTIN or not is_entered(_type(one)):
            return
        own, slots = dict_of(one), [slot for _, slot in slots_of(_type(one))]
        if _type(own) is dict or slots:
            found = Object(one, own, slots, _slotted(one, slots))
            self.objects.append(found)
            self._go_through(found.values)
        if _type(own) is dict:
            self.containers[id(own)] = own
            self._go_through([*own.values()])

    def _go_through(self, entries: Sequence[Any]) -> None:
        if len(entries) <= self._entries:
            self._entries -= len(entries)
            self.take(entries)

    def _take_array(self, array: Any, numbers: int) -> None:
        if numbers <= self._numbers and not (type(array) is np.ndarray and not _is_copied(array)):
            self._numbers -= numbers
            self.arrays.append(array)


class Arrays:
    """Arrays of NumPy's, to be put back.

    Args:
        arrays: among others, which are left out.
    """

    def __init__(self, arrays: Iterable[Any]) -> None:
        self._found = [(one, one.copy()) for one in arrays if _type(one) is np.ndarray and _is_copied(one)]

    def put_back(self) -> None:
        """They hold what they held, to the bit."""
        for array, before in self._found:
            if array.tobytes() != before.tobytes():
                array[...] = before


def _is_copied(array: Any) -> bool:
    """Whether an array has numbers of its own that are few and can be written."""
    return array.size <= LARGEST_ARRAY and not array.dtype.hasobject and bool(array.flags.writeable)


def dict_of(one: Any) -> Any:
    """The dict of an object's attributes, or None, by no code of the user's: a proxy may raise whatever it likes."""
    try:
        return object.__getattribute__(one, "__dict__")
    except AttributeError:
        return None


@functools.lru_cache(maxsize=1024)
def slots_of(kind: type) -> tuple[tuple[str, Any], ...]:
    """The attributes that a class, or a base, has places of their own for, with their descriptors."""
    named = [pair for base in kind.__mro__ if base.__module__ != "builtins" for pair in vars(base).items()]
    return tuple(
        [(name, one) for name, one in named if _type(one) is types.MemberDescriptorType and name != "__dict__"]
    )


def _slotted(one: Any, slots: Sequence[Any]) -> list[Any]:
    """What is in an object's slots."""
    return [_in_slot(one, slot) for slot in slots]


def _in_slot(one: Any, slot: Any) -> Any:
    try:
        return slot.__get__(one)
    except AttributeError:  # it is empty
        return _NOTHING


@functools.lru_cache(maxsize=1024)
def is_entered(kind: type) -> bool:
    """Whether what is in values of a type is looked at: containers, tuples, and objects of the user's own plain classes.

    Objects of packages, and those of classes made of theirs, such as threads, see to their state themselves.
    """
    if kind in _BUILTIN or kind is types.SimpleNamespace:
        return True
    bases = [one for one in kind.__mro__[:-1] if one not in _BUILTIN and one.__module__ not in _BARE]
    if not bases or kind.__module__.startswith("embgrad") or any(is_installed(one.__module__) for one in bases):
        return False
    return kind.__dictoffset__ != 0 or bool(slots_of(kind)) or issubclass(kind, (*BASES, tuple))


@functools.lru_cache(maxsize=1024)
def base_of(kind: type) -> Any:
    """The container of Python's own that values of a type are; None for others."""
    return next((one for one in BASES if issubclass(kind, one)), None)


#: What has no attributes beside what it holds.
_BUILTIN: Final = frozenset({*BASES, collections.defaultdict, tuple})


def held_in(container: Any) -> Held:
    """What a container holds, read by no code of the user's."""
    base = base_of(_type(container))
    if issubclass(base, dict):
        return Held([*base.values(container)], [*base.keys(container)])
    return Held([*base.__iter__(container)])


def are_same(now: Collection[Any], before: Collection[Any]) -> bool:
    """Whether two sequences hold the same objects. None of these is asked whether it is equal."""
    return len(now) == len(before) and all(map(operator.is_, now, before))


def is_same(container: Any, before: Held) -> bool:
    """Whether a container holds what it held, in the same order."""
    now = held_in(container)
    if issubclass(_type(container), set):
        return set(map(id, now.values)) == set(map(id, before.values))
    return are_same(now.values, before.values) and (now.keys is None or are_same(now.keys, before.keys or ()))


def put_back(container: Any, before: Held) -> None:
    """A container holds what it held, in its order; what is the same is left alone, as other threads may be reading it.

    It is written to by the plain class's methods, which tell nobody.
    """
    if is_same(container, before):
        return
    base = base_of(_type(container))
    if issubclass(base, dict):
        _put_back_dict(base, container, dict(zip(before.keys or (), before.values, strict=True)))
    elif base is set:
        base.intersection_update(container, before.values)
        base.update(container, before.values)
    elif base is list:
        base.__setitem__(container, slice(None), before.values)
    else:
        base.clear(container)
        base.extend(container, before.values)


def _put_back_dict(base: Any, container: Any, before: dict[Any, Any]) -> None:
    if not are_same(base.keys(container), before):
        base.clear(container)
    for key, value in before.items():
        if base.get(container, key, _NOTHING) is not value:
            base.__setitem__(container, key, value)


def put_back_attributes(
    own: dict[str, Any],
    before: Mapping[str, Any],
    grown: Callable[[Any, Any], bool],
    apart: Set[str] = frozenset(),
) -> None:
    """The attributes of a module, or of an object of the user's own, are what they were, but for what the model has built.

    Args:
        own: the attributes.
        before: what they were.
        grown: says of what was there, None for nothing, and of what is, whether it stays: the model built itself.
        apart: names of attributes that are seen to elsewhere.
    """
    for name in own.keys() - before.keys() - apart:
        if not grown(None, own[name]):
            del own[name]
    for name, value in before.items():
        now = own.get(name)
        if now is not value and not grown(value, now):
            own[name] = value
