"""What functions and objects do, as plain values that can be compared: their code, and all that it reads around them."""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Callable, ItemsView, KeysView, Mapping, Sequence, ValuesView
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType, NoneType
from typing import Any, Final

import numpy as np

from embgrad.backend.code import (
    HOLDERS,
    OPEN,
    attributes_of,
    content_of,
    globals_of,
    is_installed,
    members_of,
    names_in,
    root_of,
    written_by,
)
from embgrad.common.arrays import is_tensor, widened
from embgrad.engine.weights import weights_of
from embgrad.errors import BackendError, UnsupportedError
from embgrad.moved import FORMER
from embgrad.streaming.object_parts import compares, is_hidden, parts_of

__all__ = ["UnreadableError", "is_function", "read"]

#: The text of an object of a library's that has no attributes tells what it is (a bit of `operator`), up to this length.
LONGEST: Final = 200


class UnreadableError(Exception):
    """What an object holds cannot be read.

    Attributes:
        value: the object.
    """

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self.value = value


def read(value: Any, digest: Callable[[Any], str], known: Sequence[Any] = (), *, whole: bool = False) -> Any:
    """Plain values, arrays, and lists and dicts of them, that are the same where the value does the same.

    A function goes by its code and by what it reads: cells, defaults, its object where it is a method, and the globals that it
    does not write to; an object by its attributes and its class; a class by what it and its bases hold; a model in any framework
    by its weights. What else Python or an installed package brought goes by its name, but for arrays and for what compares as a
    value, such as a date; an object of a class that is made of one has its plain attributes.

    Args:
        value: anything.
        digest: tells plain values apart by a text: the elements of a set are in its order, and of weights nothing else is kept.
        known: what is not looked into, and goes by its place here.
        whole: the value is data, and so is what it holds: nothing of it but functions and classes goes by its name.

    Raises:
        UnreadableError: with `whole`, what an object holds cannot be read.
    """
    return _Reading(digest, {id(one): (one, place) for place, one in enumerate(known)}, whole).of(value)


def is_function(value: Any) -> bool:
    """Whether a value goes by what it does: a function, a method or a class."""
    return isinstance(value, (type, functools.partial)) or (callable(value) and hasattr(value, "__name__"))


def _is_plain(value: Any) -> bool:
    """Whether it is text, numbers, arrays, or a list, set or dict of nothing else."""
    kind = type(value)
    if kind in (list, tuple, set, frozenset):
        return all(map(_is_plain, value))
    if kind is dict:
        return all(map(_is_plain, (*value, *value.values())))
    if kind is np.ndarray or isinstance(value, np.generic):
        return not value.dtype.hasobject
    return value is None or kind in (bool, int, float, complex, str, bytes)


class _Reading:
    """One walk through a value. What it comes by again goes by the number that it had.

    Args:
        digest: see `read`; so is `whole`.
        seen: by identity what was come by before, and its number; it is kept, so that no other has its identity.
    """

    def __init__(self, digest: Callable[[Any], str], seen: dict[int, tuple[Any, int]], whole: bool) -> None:
        self._digest = digest
        self._seen = seen
        self._whole = whole
        self._told: set[tuple[ModuleType, str]] = set()

    def of(self, value: Any) -> Any:
        """What stands for a value."""
        if _is_plain(value):
            return value
        if isinstance(value, ModuleType):
            return FORMER.get(value.__name__, value.__name__)
        if id(value) in self._seen:
            return ["again", self._seen[id(value)][1]]
        self._seen[id(value)] = (value, len(self._seen))
        if isinstance(value, (list, tuple, collections.deque, KeysView, ValuesView, ItemsView)):
            return self._with_own(value, [self.of(one) for one in value])
        if isinstance(value, (set, frozenset)):
            found = [_Reading(self._digest, dict(self._seen), self._whole).of(one) for one in value]
            return self._with_own(value, sorted(map(self._digest, found)))
        if isinstance(value, Mapping):
            return self._with_own(value, [[self.of(name), self.of(value[name])] for name in self._names(value)])
        if isinstance(value, type):
            return _named(value) if is_installed(value.__module__) else [_named(value), *self._loose._class(value)]
        if (array := _as_array(value)) is not None:
            return self._with_own(value, self._array(value, array))
        if self._whole:
            return self._loose._function(value) if is_function(value) else self._data(value)
        return self._function(value) if callable(value) else self._object(value)

    @property
    def _loose(self) -> _Reading:
        """The same walk through what is no data: a function, say, may hold what does not tell what it holds."""
        if not self._whole:
            return self
        loose = _Reading(self._digest, self._seen, False)
        loose._told = self._told
        return loose

    def _with_own(self, value: Any, held: Any) -> Any:
        """What a container holds, and the attributes that a class of the user's has given it."""
        own = {} if is_installed(type(value).__module__) else attributes_of(value)
        return [held, self.of(own)] if own else held

    def _array(self, value: Any, array: np.ndarray) -> Any:
        if array.dtype.hasobject:
            return [array.shape, self.of(array.tolist())]
        kind = str(getattr(value, "dtype", ""))
        return array if array.dtype.name in kind else [kind, array]  # it was widened

    def _names(self, value: Mapping[Any, Any]) -> list[Any]:
        """A mapping's keys in an order that counts."""
        if isinstance(value, collections.OrderedDict) or not all(map(_is_plain, value)):
            return list(value)
        return sorted(value, key=self._digest)  # the text of a set is another in each process

    def _function(self, value: Any) -> Any:
        if isinstance(value, functools.partial):
            return ["partial", *map(self.of, (value.func, value.args, value.keywords))]
        if isinstance(value, MethodType):
            return ["method", self.of(value.__func__), self.of(value.__self__)]
        if isinstance(value, FunctionType):
            return _named(value) if is_installed(value.__module__) else [_named(value), *self._code(value)]
        if isinstance(value, BuiltinFunctionType) and not isinstance(value.__self__, (ModuleType, type, NoneType)):
            return [value.__name__, self.of(value.__self__)]  # such as the method `get` of a dict
        if isinstance(getattr(value, "__wrapped__", None), FunctionType):  # as functools.lru_cache makes them
            return [type(value).__qualname__, self.of(value.__wrapped__)]
        return _named(value) if hasattr(value, "__name__") else self._object(value)  # such as a ufunc

    def _code(self, function: FunctionType) -> list[Any]:
        code, own = function.__code__, function.__globals__
        names = names_in(code)
        cells = [self._held(content_of(cell), names) for cell in function.__closure__ or ()]
        around = [[name, self._held(own[name], names)] for name in _read(code) if name in own]
        given = [self.of(function.__defaults__), self.of(function.__kwdefaults__)]
        return [_of_code(code), cells, around, *given, *([self.of(vars(function))] if vars(function) else [])]

    def _held(self, value: Any, names: frozenset[str]) -> Any:
        """What a function reads; of a module of the user's what it may mean by the names in it, and no other has told."""
        if not isinstance(value, ModuleType) or is_installed(value.__name__):
            return self.of(value)
        asked = [name for name in sorted(names & vars(value).keys()) if (value, name) not in self._told]
        self._told.update([(value, name) for name in asked])
        return [
            FORMER.get(value.__name__, value.__name__),
            [[name, self._held(vars(value)[name], names)] for name in asked],
        ]

    def _data(self, value: Any) -> Any:
        parts = parts_of(value)
        if parts is None:
            parts = _as_table(value)
        if parts is None:
            raise UnreadableError(value)
        return [self.of(type(value)), self.of(parts)]

    def _object(self, value: Any) -> Any:
        kind, own = type(value), attributes_of(value)
        if not is_installed(kind.__module__):
            return self._of_users(value, own)
        weights = [] if _is_open(kind) else self._weights(value)
        if weights:
            return [_named(kind), weights]
        if kind.__module__ in HOLDERS or dataclasses.is_dataclass(kind) or root_of(kind) == "embgrad":
            return [_named(kind), self.of(own)]
        if compares(kind) and (parts := parts_of(value)) is not None:
            return [_named(kind), self._all_of(parts)]
        if (array := _as_table(value)) is not None:
            return self._array(value, array)
        text = LONGEST * "." if kind.__dictoffset__ else repr(value)
        return [_named(kind), text] if len(text) < LONGEST and " at 0x" not in text else _named(kind)

    def _all_of(self, parts: Any) -> Any:
        """What a value of a library's is made of, such as a table of pandas, as far down as it tells."""
        whole = _Reading(self._digest, dict(self._seen), True)
        try:
            held = whole.of(parts)
        except UnreadableError:
            return self.of(parts)
        self._seen.update(whole._seen)
        return held

    def _of_users(self, value: Any, own: Mapping[str, Any]) -> list[Any]:
        """An object of a class of the user's."""
        kind = type(value)
        hidden = self.of(parts_of(value)) if is_hidden(kind) and compares(kind) else None
        if _is_open(kind):
            return [self.of(kind), self.of(own), [], hidden]
        plain = {name: one for name, one in own.items() if _is_plain(one)}
        return [self.of(kind), self.of(plain), self._weights(value), hidden]

    def _weights(self, value: Any) -> list[str]:
        """A digest of each of a model's weights; none of what is no model."""
        try:
            return [self._digest([one.name, one.dtype, one.get()]) for one in weights_of(value)]
        except (BackendError, UnsupportedError):
            return []

    def _class(self, kind: type) -> list[Any]:
        """What a class of the user's holds, and its bases."""
        return [self.of(members_of(kind)), [self.of(base) for base in kind.__bases__]]


def _as_array(value: Any) -> np.ndarray | None:
    """The values of an array of any framework; None of what is none, and of one whose values NumPy cannot hold."""
    if isinstance(value, np.ndarray):
        return None if isinstance(value, np.ma.MaskedArray) else np.asarray(value)
    if not is_tensor(value) or not hasattr(type(value), "shape"):
        return None
    array = _converted(value)
    return None if array is not None and array.dtype == object and not array.ndim else array


def _as_table(value: Any) -> np.ndarray | None:
    """The values of what NumPy reads as an array, such as one in a file; None of what is none."""
    return _converted(value) if hasattr(type(value), "__array__") else None


def _converted(value: Any) -> np.ndarray | None:
    try:
        return widened(value)
    except Exception:  # of the framework, which has nothing to give to NumPy: it may tell what it holds in another way
        return None


def _named(value: Any) -> str:
    """How a function or a class is called, with its module."""
    module = getattr(value, "__module__", "")
    return f"{FORMER.get(module, module)}.{getattr(value, '__qualname__', value.__name__)}"


def _read(code: CodeType) -> list[str]:
    """The globals that a function reads, but for those that it writes to: a count of its calls is another each time."""
    written = written_by(code)
    return [name for name in globals_of(code) if name not in written]


def _of_code(code: CodeType) -> list[Any]:
    constants = [_of_code(one) if isinstance(one, CodeType) else repr(one) for one in code.co_consts if _is_stable(one)]
    sets = [one for one in code.co_consts if not _is_stable(one)]
    return [code.co_code, list(code.co_names), constants, sets]


def _is_stable(constant: Any) -> bool:
    """Whether its text is the same in every process; a set's is not."""
    return not isinstance(constant, frozenset)


def _is_open(kind: type) -> bool:
    """Whether a class is made of the user's, Python's and ours alone, so that its objects are looked into."""
    return all(root_of(one) in OPEN or not is_installed(one.__module__) for one in kind.__mro__)
