"""Plain values that describe functions and objects for comparison: their code, and everything that the code reads."""

from __future__ import annotations

import collections
import copyreg
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

__all__ = ["UnreadableError", "is_function", "read"]

#: The longest `repr` by which a library's object without attributes is described (an `operator.itemgetter`, for example).
LONGEST: Final = 200

#: The first protocol of `pickle` that covers objects with slots.
_PROTOCOL: Final = 4

#: The flag of classes created at run time. Other classes are written in C, and their objects may hold more than attributes.
_CREATED_AT_RUN_TIME: Final = 1 << 9


class UnreadableError(Exception):
    """The content of an object cannot be read.

    Attributes:
        value: the object.
    """

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self.value = value


def read(value: Any, digest: Callable[[Any], str], known: Sequence[Any] = (), *, whole: bool = False) -> Any:
    """Return a description of a value: plain values, arrays, lists and dicts that are equal where the value does the same.

    A function is described by its code and by what it reads: closure cells, defaults, the object of a method, and the globals
    that it does not write to. An object is described by its attributes and its class, a class by its members and bases, and a
    model in any framework by its weights. Everything else from Python or an installed package is described by its name,
    except arrays and objects that compare by value, such as dates. An object of a user's class that derives from a package's
    class is described by its plain attributes.

    Args:
        value: the value, of any type.
        digest: returns a text that identifies plain values. It orders the elements of sets and stands in for weights.
        known: objects that are not examined, but described by their index in this sequence.
        whole: whether the value is data, so that only functions and classes in it may be described by name.

    Raises:
        UnreadableError: `whole` is set and the content of an object cannot be read.
    """
    return _Walk(digest, {id(value): (value, index) for index, value in enumerate(known)}, whole).describe(value)


def is_function(value: Any) -> bool:
    """Return whether a value is described by its code: a function, a method or a class."""
    return isinstance(value, (type, functools.partial)) or (callable(value) and hasattr(value, "__name__"))


def _is_plain(value: Any) -> bool:
    """Return whether a value is text, a number or an array, or consists of lists, sets and dicts of these alone."""
    cls = type(value)
    if cls in (list, tuple, set, frozenset):
        return all(map(_is_plain, value))
    if cls is dict:
        return all(map(_is_plain, (*value, *value.values())))
    if cls is np.ndarray or isinstance(value, np.generic):
        return not value.dtype.hasobject
    return value is None or cls in (bool, int, float, complex, str, bytes)


class _Walk:
    """One walk through a value. An object that is reached again is described by the number of its first visit.

    Args:
        digest: see `read`, likewise `whole`.
        seen: the visited objects and their numbers, by `id`; holding the objects keeps their ids from being reused.
    """

    def __init__(self, digest: Callable[[Any], str], seen: dict[int, tuple[Any, int]], whole: bool) -> None:
        self._digest = digest
        self._seen = seen
        self._whole = whole
        self._described_members: set[tuple[ModuleType, str]] = set()

    def describe(self, value: Any) -> Any:
        """Return the description of a value."""
        if _is_plain(value):
            return value
        if isinstance(value, ModuleType):
            return value.__name__
        if id(value) in self._seen:
            return ["again", self._seen[id(value)][1]]
        self._seen[id(value)] = (value, len(self._seen))
        if isinstance(value, (list, tuple, collections.deque, KeysView, ValuesView, ItemsView)):
            return self._container(value, [self.describe(item) for item in value])
        if isinstance(value, (set, frozenset)):
            descriptions = [_Walk(self._digest, dict(self._seen), self._whole).describe(item) for item in value]
            return self._container(value, sorted(map(self._digest, descriptions)))
        if isinstance(value, Mapping):
            return self._container(
                value, [[self.describe(name), self.describe(value[name])] for name in self._names(value)]
            )
        if isinstance(value, type):
            return (
                _qualified_name(value)
                if is_installed(value.__module__)
                else [_qualified_name(value), *self._code_walk._class_content(value)]
            )
        if (array := _as_array(value)) is not None:
            return self._container(value, self._array(value, array))
        if self._whole:
            return self._code_walk._function(value) if is_function(value) else self._data(value)
        return self._function(value) if callable(value) else self._object(value)

    @property
    def _code_walk(self) -> _Walk:
        """This walk with `whole` off, for functions and classes, which may refer to objects that cannot be read."""
        if not self._whole:
            return self
        walk = _Walk(self._digest, self._seen, False)
        walk._described_members = self._described_members
        return walk

    def _container(self, value: Any, content: Any) -> Any:
        """Return a container's described content, with the attributes that a user's subclass has added."""
        attributes = {} if is_installed(type(value).__module__) else attributes_of(value)
        return [content, self.describe(attributes)] if attributes else content

    def _array(self, value: Any, array: np.ndarray) -> Any:
        if array.dtype.hasobject:
            return [array.shape, self.describe(array.tolist())]
        dtype = str(getattr(value, "dtype", ""))
        return array if array.dtype.name in dtype else [dtype, array]  # the latter where NumPy lacks the dtype

    def _names(self, value: Mapping[Any, Any]) -> list[Any]:
        """Return the keys of a mapping: in its own order where that matters, else sorted."""
        if isinstance(value, collections.OrderedDict) or not all(map(_is_plain, value)):
            return list(value)
        return sorted(value, key=self._digest)  # the order of a set differs from process to process

    def _function(self, value: Any) -> Any:
        if isinstance(value, functools.partial):
            return ["partial", *map(self.describe, (value.func, value.args, value.keywords))]
        if isinstance(value, MethodType):
            return ["method", self.describe(value.__func__), self.describe(value.__self__)]
        if isinstance(value, FunctionType):
            return (
                _qualified_name(value)
                if is_installed(value.__module__)
                else [_qualified_name(value), *self._code(value)]
            )
        if isinstance(value, BuiltinFunctionType) and not isinstance(value.__self__, (ModuleType, type, NoneType)):
            return [value.__name__, self.describe(value.__self__)]  # such as the method `get` of a dict
        if isinstance(getattr(value, "__wrapped__", None), FunctionType):  # as functools.lru_cache makes them
            return [type(value).__qualname__, self.describe(value.__wrapped__)]
        return _qualified_name(value) if hasattr(value, "__name__") else self._object(value)  # such as a ufunc

    def _code(self, function: FunctionType) -> list[Any]:
        code, namespace = function.__code__, function.__globals__
        names = names_in(code)
        cells = [self._referenced(content_of(cell), names) for cell in function.__closure__ or ()]
        global_values = [
            [name, self._referenced(namespace[name], names)] for name in _globals_read(code) if name in namespace
        ]
        defaults = [self.describe(function.__defaults__), self.describe(function.__kwdefaults__)]
        return [
            _code_content(code),
            cells,
            global_values,
            *defaults,
            *([self.describe(vars(function))] if vars(function) else []),
        ]

    def _referenced(self, value: Any, names: frozenset[str]) -> Any:
        """Return the description of an object that a function reads.

        A user's module is described by those of its members that the function's names may refer to, each once in a walk.
        """
        if not isinstance(value, ModuleType) or is_installed(value.__name__):
            return self.describe(value)
        members = [name for name in sorted(names & vars(value).keys()) if (value, name) not in self._described_members]
        self._described_members.update([(value, name) for name in members])
        return [
            value.__name__,
            [[name, self._referenced(vars(value)[name], names)] for name in members],
        ]

    def _data(self, value: Any) -> Any:
        parts = _parts_of(value)
        if parts is None:
            parts = _as_table(value)
        if parts is None:
            raise UnreadableError(value)
        return [self.describe(type(value)), self.describe(parts)]

    def _object(self, value: Any) -> Any:
        cls, attributes = type(value), attributes_of(value)
        if not is_installed(cls.__module__):
            return self._users_object(value, attributes)
        weights = [] if _is_open(cls) else self._weights(value)
        if weights:
            return [_qualified_name(cls), weights]
        if cls.__module__ in HOLDERS or dataclasses.is_dataclass(cls) or root_of(cls) == "embgrad":
            return [_qualified_name(cls), self.describe(attributes)]
        if _compares(cls) and (parts := _parts_of(value)) is not None:
            return [_qualified_name(cls), self._content(parts)]
        if (array := _as_table(value)) is not None:
            return self._array(value, array)
        text = LONGEST * "." if cls.__dictoffset__ else repr(value)
        return [_qualified_name(cls), text] if len(text) < LONGEST and " at 0x" not in text else _qualified_name(cls)

    def _content(self, parts: Any) -> Any:
        """Return the description of a library's object, such as a pandas table, in full where all of its content can be read."""
        whole = _Walk(self._digest, dict(self._seen), True)
        try:
            description = whole.describe(parts)
        except UnreadableError:
            return self.describe(parts)
        self._seen.update(whole._seen)
        return description

    def _users_object(self, value: Any, attributes: Mapping[str, Any]) -> list[Any]:
        """Return the description of an object of a user's class."""
        cls = type(value)
        hidden = self.describe(_parts_of(value)) if _is_hidden(cls) and _compares(cls) else None
        if _is_open(cls):
            return [self.describe(cls), self.describe(attributes), [], hidden]
        plain = {name: item for name, item in attributes.items() if _is_plain(item)}
        return [self.describe(cls), self.describe(plain), self._weights(value), hidden]

    def _weights(self, value: Any) -> list[str]:
        """Return a digest of each weight of a model, or an empty list for an object that is no model."""
        try:
            return [self._digest([weight.name, weight.dtype, weight.get()]) for weight in weights_of(value)]
        except (BackendError, UnsupportedError):
            return []

    def _class_content(self, cls: type) -> list[Any]:
        """Return the descriptions of a user's class: its members and its bases."""
        return [self.describe(members_of(cls)), [self.describe(base) for base in cls.__bases__]]


def _as_array(value: Any) -> np.ndarray | None:
    """Return the values of an array of any framework, or None for other objects and for dtypes that NumPy cannot hold."""
    if isinstance(value, np.ndarray):
        return None if isinstance(value, np.ma.MaskedArray) else np.asarray(value)
    if not is_tensor(value) or not hasattr(type(value), "shape"):
        return None
    array = _as_numpy(value)
    return None if array is not None and array.dtype == object and not array.ndim else array


def _as_table(value: Any) -> np.ndarray | None:
    """Return the values of an object that has `__array__`, such as an array in a file, or None for other objects."""
    return _as_numpy(value) if hasattr(type(value), "__array__") else None


def _as_numpy(value: Any) -> np.ndarray | None:
    try:
        return widened(value)
    except Exception:  # the framework cannot convert it: its content may be readable in another way
        return None


def _qualified_name(value: Any) -> str:
    """Return the name of a function or class, with its module."""
    return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', value.__name__)}"


def _globals_read(code: CodeType) -> list[str]:
    """Return the globals that a function reads and does not write to: a count of its calls, say, changes with every call."""
    written = written_by(code)
    return [name for name in globals_of(code) if name not in written]


def _code_content(code: CodeType) -> list[Any]:
    constants = [
        _code_content(constant) if isinstance(constant, CodeType) else repr(constant)
        for constant in code.co_consts
        if _is_stable(constant)
    ]
    sets = [constant for constant in code.co_consts if not _is_stable(constant)]
    return [code.co_code, list(code.co_names), constants, sets]


def _is_stable(constant: Any) -> bool:
    """Return whether the `repr` of a constant is the same in every process; that of a set is not."""
    return not isinstance(constant, frozenset)


def _is_open(cls: type) -> bool:
    """Return whether a class and its bases belong to the user, Python or embgrad, so that its objects are examined."""
    return all(root_of(base) in OPEN or not is_installed(base.__module__) for base in cls.__mro__)


def _parts_of(value: Any) -> Any:
    """Return the parts from which `pickle` would rebuild an object: the function, its arguments, the state and the items.

    Returns None for objects that cannot be pickled, such as a generator, an open file or a lock.
    """
    if type(value).__module__ == "itertools":  # these can be pickled up to Python 3.13, with a warning
        return None
    try:
        reducer = copyreg.dispatch_table.get(type(value))
        reduced = value.__reduce_ex__(_PROTOCOL) if reducer is None else reducer(value)
    except Exception:  # whatever the class raises means that the object cannot be copied
        return None
    if not isinstance(reduced, tuple):
        return reduced
    return [*reduced[:3], *(None if items is None else list(items) for items in reduced[3:5])]


def _compares(cls: type) -> bool:
    """Return whether the class defines `__eq__`, so that its objects compare by value and not by identity."""
    return vars(object)["__eq__"] is not getattr(cls, "__eq__", None)


def _is_hidden(cls: type) -> bool:
    """Return whether a class or a base is written in C, so that its objects may hold content beyond their attributes."""
    return any(not base.__flags__ & _CREATED_AT_RUN_TIME for base in cls.__mro__ if base is not object)
