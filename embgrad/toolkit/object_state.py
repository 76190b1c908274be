"""A snapshot of the attributes of a model's modules, with the containers and small arrays in them, to restore after a pass."""

from __future__ import annotations

import collections
import functools
import itertools
import operator
from collections.abc import Callable, Collection, Iterable, Sequence, Set
from typing import Any, Final, NamedTuple

import numpy as np

from embgrad.toolkit.recorded_changes import is_recorded, record_change, record_kept

__all__ = ["ObjectState", "contains"]

#: The containers that a forward pass may fill, each before its base classes.
CONTAINERS: Final = (list, set, collections.deque, collections.OrderedDict, dict)

#: The same containers, to test for exact types, without derived classes.
PLAIN: Final = frozenset(CONTAINERS)

#: The immutable types of most attributes.
ATOMS: Final = frozenset({type(None), bool, int, float, complex, str, bytes, type})

#: The most entries of a container to snapshot, and of all nested ones together. Larger ones hold data, which no pass writes.
MOST_ENTRIES: Final = 1 << 14

#: The most elements of an array to snapshot. A larger array is a table.
LARGEST_ARRAY: Final = 1 << 16

#: The most elements of all arrays to snapshot, since they are copied at each call.
MOST_NUMBERS: Final = 1 << 20

_ABSENT: Final = object()


class ObjectState:
    """A snapshot of the attributes of a model's modules.

    Containers (lists, dicts, sets, deques and tuples, nested ones too) are restored with their contents, and NumPy arrays in
    them with their values. Objects of other classes are restored as references; their contents are not inspected.

    A model has thousands of attributes, nearly all of which stay as they are. What concerns each of them is done in
    comprehensions and by `map`, which take a tenth of the time of a loop.

    Args:
        attributes: the `__dict__`s of the modules.
        skip: the names of attributes that the framework itself restores.
        is_part: returns whether a value is a module or parameter. A module or parameter that appears during the pass stays,
            because a model may build itself in its first call, and so does the container that holds it.
        unwrap: returns the container inside a framework's wrapper; None where the framework wraps none.

    Attributes:
        values: all values that are neither containers nor NumPy arrays, so that a backend can restore its tensors among them.
    """

    def __init__(
        self,
        attributes: Iterable[dict[str, Any]],
        skip: Set[str] = frozenset(),
        is_part: Callable[[Any], bool] = lambda value: False,
        unwrap: Callable[[Any], Any] | None = None,
    ) -> None:
        self.values: list[Any] = []
        self._skip = skip
        self._is_part = is_part
        self._unwrap = unwrap
        self._attributes = _Copied()
        self._empty: list[Any] = []
        self._dicts = _Copied()
        self._filled: list[tuple[Any, _Content]] = []
        self._arrays: list[tuple[np.ndarray, np.ndarray]] = []
        self._find(attributes)

    def restore(self) -> None:
        """Restore the snapshot without calling code of the user's classes; leave unchanged containers unwritten."""
        self.record_changes()
        for namespace, before in self._attributes.find_changed():
            self._restore_attributes(namespace, before)
        for container in filter(None, self._empty):
            if not self._holds_part(container):
                container.clear()
        for container, content in self._find_changed():
            if not (self._holds_part(container) or self._holds_part(content.values)):
                content.restore(container)
        for array, copy in self._arrays:
            if array.tobytes() != copy.tobytes():  # compare bytes, so that NaN and -0.0 are seen
                array[...] = copy

    def record_changes(self) -> None:
        """Record, where this is asked for, the attributes that held arrays and hold others now; of a dict the keys."""
        if not is_recorded():
            return
        record_kept(array for array, _ in self._arrays)
        changed: dict[int, _Content | None] = {
            id(array): None for array, copy in self._arrays if array.tobytes() != copy.tobytes()
        }
        for container, content in self._find_changed():
            if any(map(_is_array, content.values)):
                changed[id(container)] = content
        for namespace, before in self._attributes.pairs():
            for name, value in before.items():
                if type(value) in ATOMS or name in self._skip:
                    continue
                now = self._inside(value)
                own = changed.get(id(now))
                if own is not None and own.keys is not None:
                    for key, entry in zip(own.keys, own.values, strict=True):
                        if _is_array(entry) and dict.get(now, key) is not entry:
                            record_change(str(key))
                elif namespace.get(name, _ABSENT) is not value:
                    if contains(value, _is_array, self._unwrap):
                        record_change(name)
                elif changed and contains(value, lambda inner: id(self._inside(inner)) in changed, self._unwrap):
                    record_change(name)

    def _find(self, attributes: Iterable[dict[str, Any]]) -> None:
        for namespace in attributes:
            self._attributes.add(namespace)
        copies, skip = self._attributes.copies, self._skip
        if skip:
            copies = [{name: value for name, value in before.items() if name not in skip} for before in copies]
        values = [value for before in copies for value in before.values() if type(value) not in ATOMS]
        entries, numbers, seen = MOST_ENTRIES, MOST_NUMBERS, set[int]()
        others: list[Any] = []
        is_nested = False
        while values:
            # Most attributes are plain containers, and most of these are empty.
            plain = [value for value in values if type(value) in PLAIN]
            rest = [value for value in values if type(value) not in PLAIN]
            if self._unwrap is not None:
                rest = [*map(self._unwrap, rest)]
            others += [value for value in rest if not _holds(type(value))]
            self._empty += [value for value in plain if not value]
            holding = [*filter(None, plain), *(value for value in rest if _holds(type(value)))]
            values = []
            for value in holding:
                if id(value) in seen:
                    continue
                seen.add(id(value))
                if type(value) is dict:
                    # A model may have any number of modules, so the total is limited for nested containers only.
                    if len(value) <= (entries if is_nested else MOST_ENTRIES):
                        entries -= len(value) if is_nested else 0
                        self._dicts.add(value)
                        values += [entry for entry in value.values() if type(entry) not in ATOMS]
                elif type(value) is np.ndarray:
                    if _is_kept(value) and value.size <= numbers:
                        numbers -= value.size
                        self._arrays.append((value, value.copy()))
                else:
                    content = _Content.of(value)
                    count = len(content.values)
                    if count <= (entries if is_nested else MOST_ENTRIES):
                        entries -= count if is_nested else 0
                        values += [entry for entry in content.values if type(entry) not in ATOMS]
                        if not isinstance(value, tuple):
                            self._filled.append((value, content))
            is_nested = True
        self.values = [*{id(value): value for value in others}.values()]

    def _find_changed(self) -> list[tuple[Any, _Content]]:
        """Return the containers that were not empty and hold others now, with their content before."""
        dicts = [(container, _Content.of(before)) for container, before in self._dicts.find_changed()]
        return [*dicts, *((container, content) for container, content in self._filled if not content.is_in(container))]

    def _inside(self, value: Any) -> Any:
        """Return the container inside a framework's wrapper, and any other value as it is."""
        return value if self._unwrap is None else self._unwrap(value)

    def _restore_attributes(self, namespace: dict[str, Any], before: dict[str, Any]) -> None:
        for name in namespace.keys() - before.keys() - self._skip:
            if not self._holds_part(namespace[name]):
                del namespace[name]
        for name, value in before.items():
            now = namespace.get(name, _ABSENT)
            if now is not value and name not in self._skip and not (self._holds_part(value) or self._holds_part(now)):
                namespace[name] = value
        if [name for name in namespace if name in before] != [name for name in before if name in namespace]:
            ordered = {name: namespace[name] for name in (*before, *namespace) if name in namespace}
            namespace.clear()
            namespace.update(ordered)

    def _holds_part(self, value: Any) -> bool:
        return contains(value, self._is_part, self._unwrap)


class _Copied:
    """Dicts, each with a copy; all are compared at once."""

    def __init__(self) -> None:
        self.dicts: list[dict[Any, Any]] = []
        self.copies: list[dict[Any, Any]] = []

    def add(self, entries: dict[Any, Any]) -> None:
        """Add a dict, and a copy of it."""
        self.dicts.append(entries)
        self.copies.append(entries.copy())

    def pairs(self) -> Iterable[tuple[dict[Any, Any], dict[Any, Any]]]:
        """Return the dicts with their copies."""
        return zip(self.dicts, self.copies, strict=True)

    def find_changed(self) -> list[tuple[dict[Any, Any], dict[Any, Any]]]:
        """Return the dicts that hold other keys or objects than their copies, or hold them in another order."""
        if _are_all_same(self.dicts, self.copies):
            return []
        return [(now, before) for now, before in self.pairs() if not _are_all_same([now], [before])]


class _Content(NamedTuple):
    """The entries of a container; for a dict its values, with the keys in a second sequence."""

    values: Sequence[Any]
    keys: Sequence[Any] | None = None

    @classmethod
    def of(cls, container: Any) -> _Content:
        """Return a container's content, read with the methods of the built-in class."""
        if isinstance(container, tuple):
            return cls([*tuple.__iter__(container)])
        base = container_of(type(container))
        if issubclass(base, dict):
            return cls([*base.values(container)], [*base.keys(container)])
        return cls([*base.__iter__(container)])

    def is_in(self, container: Any) -> bool:
        """Return whether a container holds the same objects, in the same order if it is ordered."""
        now = _Content.of(container)
        if isinstance(container, set):
            return set(map(id, now.values)) == set(map(id, self.values))
        return _are_same(now.values, self.values) and (now.keys is None or _are_same(now.keys, self.keys or ()))

    def restore(self, container: Any) -> None:
        """Write the content back into a container with the methods of the built-in class."""
        base = container_of(type(container))
        if issubclass(base, dict):
            self._restore_dict(base, container)
        elif base is set:
            base.intersection_update(container, self.values)
            base.update(container, self.values)
        elif base is list:
            base.__setitem__(container, slice(None), self.values)
        else:
            base.clear(container)
            base.extend(container, self.values)

    def _restore_dict(self, base: Any, container: Any) -> None:
        keys = self.keys or ()
        if not _are_same([*base.keys(container)], keys):
            base.clear(container)
        for key, value in zip(keys, self.values, strict=True):
            if base.get(container, key, _ABSENT) is not value:
                base.__setitem__(container, key, value)


def contains(value: Any, wanted: Callable[[Any], bool], unwrap: Callable[[Any], Any] | None = None) -> bool:
    """Return whether `wanted` is true of a value or of any value nested in it, in containers and tuples of any depth.

    Args:
        value: any object.
        wanted: the condition.
        unwrap: as in `ObjectState`.
    """
    waiting, seen = [value], {id(value)}
    while waiting:
        current = waiting.pop()
        if wanted(current):
            return True
        inner = current if unwrap is None else unwrap(current)
        if container_of(type(inner)) is not None or type(inner) in (tuple, frozenset):
            entries = inner if isinstance(inner, frozenset) else _Content.of(inner).values
            fresh = {id(entry): entry for entry in entries if id(entry) not in seen}
            seen.update(fresh)
            waiting.extend(fresh.values())
    return False


def _container_of(cls: type) -> Any:
    """Return the built-in container class that a class is or derives from, or None."""
    return cls if cls in PLAIN else next((base for base in CONTAINERS if issubclass(cls, base)), None)


#: The function with a cache: it is called for each attribute of a model, and these are of few classes.
container_of: Callable[[type], Any] = functools.lru_cache(maxsize=1024)(_container_of)


def _holds_any(cls: type) -> bool:
    """Return whether an object of a class holds others or numbers: a container, a tuple or a NumPy array."""
    return cls is np.ndarray or container_of(cls) is not None or issubclass(cls, tuple)


#: The function with a cache, as `container_of` has.
_holds: Callable[[type], bool] = functools.lru_cache(maxsize=1024)(_holds_any)


def _are_same(current: Collection[Any], before: Collection[Any]) -> bool:
    """Return whether two collections hold the same objects, by identity: `==` may run the user's code."""
    return len(current) == len(before) and all(map(operator.is_, current, before))


def _are_all_same(dicts: Sequence[dict[Any, Any]], copies: Sequence[dict[Any, Any]]) -> bool:
    """Return whether dicts hold the same keys and objects as their copies, in the same order, by identity."""
    chained = itertools.chain.from_iterable
    return (
        [*map(len, dicts)] == [*map(len, copies)]
        and all(map(operator.is_, chained(map(dict.values, dicts)), chained(map(dict.values, copies))))
        and all(map(operator.is_, chained(dicts), chained(copies)))
    )


def _is_array(value: Any) -> bool:
    """Return whether a value is an array of any framework."""
    return not isinstance(value, type) and hasattr(type(value), "shape")


def _is_kept(array: np.ndarray) -> bool:
    return array.size <= LARGEST_ARRAY and not array.dtype.hasobject and bool(array.flags.writeable)
