"""What functions and objects do, as plain values that can be compared: their code, and all that it reads around them."""

from __future__ import annotations

import collections
import dataclasses
import dis
import functools
import sys
from collections.abc import Callable, ItemsView, KeysView, Mapping, Sequence, ValuesView
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType, NoneType
from typing import Any, Final

import numpy as np

from embgrad.arrays import is_tensor, widened
from embgrad.errors import BackendError, UnsupportedError
from embgrad.identity import globals_of
from embgrad.streaming.holding import attributes_of, compares, is_hidden, parts_of
from embgrad.weights import weights_of

__all__ = ["UnreadableError", "is_function", "read"]

#: The modules of Python's own whose objects hold what the user has put there.
HOLDERS: Final = ("argparse", "types")

#: The text of an object of a library's that has no attributes tells what it is (a bit of `operator`), up to this length.
LONGEST: Final = 200

#: How the folders are called in which packages are installed, for all or for one user.
_INSTALLED: Final = frozenset({"site-packages", "dist-packages"})

#: The packages of which the user's own classes may be made and stay theirs, whatever they hold.
_OPEN: Final = {"embgrad", *sys.stdlib_module_names} - {"__main__"}


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

    def of(self, value: Any) -> Any:
        """What stands for a value."""
        if _is_plain(value):
            return value
        if isinstance(value, ModuleType):
            return value.__name__
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
            return _named(value) if _is_installed(value.__module__) else [_named(value), *self._loose._class(value)]
        if (array := _as_array(value)) is not None:
            return self._with_own(value, self._array(value, array))
        if self._whole:
            return self._loose._function(value) if is_function(value) else self._data(value)
        return self._function(value) if callable(value) else self._object(value)

    @property
    def _loose(self) -> _Reading:
        """The same walk through what is no data: a function, say, may hold what does not tell what it holds."""
        return _Reading(self._digest, self._seen, False) if self._whole else self

    def _with_own(self, value: Any, held: Any) -> Any:
        """What a container holds, and the attributes that a class of the user's has given it."""
        own = {} if _is_installed(type(value).__module__) else attributes_of(value)
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
        return sorted(value, key=repr)

    def _function(self, value: Any) -> Any:
        if isinstance(value, functools.partial):
            return ["partial", *map(self.of, (value.func, value.args, value.keywords))]
        if isinstance(value, MethodType):
            return ["method", self.of(value.__func__), self.of(value.__self__)]
        if isinstance(value, FunctionType):
            return _named(value) if _is_installed(value.__module__) else [_named(value), *self._code(value)]
        if isinstance(value, BuiltinFunctionType) and not isinstance(value.__self__, (ModuleType, type, NoneType)):
            return [value.__name__, self.of(value.__self__)]  # such as the method `get` of a dict
        if isinstance(getattr(value, "__wrapped__", None), FunctionType):  # as functools.lru_cache makes them
            return [type(value).__qualname__, self.of(value.__wrapped__)]
        return _named(value) if hasattr(value, "__name__") else self._object(value)  # such as a ufunc

    def _code(self, function: FunctionType) -> list[Any]:
        code, own = function.__code__, function.__globals__
        names = _names(code)
        cells = [self._held(_content(cell), names) for cell in function.__closure__ or ()]
        around = [[name, self._held(own[name], names)] for name in _read(code) if name in own]
        return [_of_code(code), cells, around, self.of(function.__defaults__), self.of(function.__kwdefaults__)]

    def _held(self, value: Any, names: set[str]) -> Any:
        """What a function reads; of a module of the user's what it may mean by the names in it."""
        if not isinstance(value, ModuleType) or _is_installed(value.__name__) or id(value) in self._seen:
            return self.of(value)
        self._seen[id(value)] = (value, len(self._seen))
        held = [[name, self._held(vars(value)[name], names)] for name in sorted(names & vars(value).keys())]
        return [value.__name__, held]

    def _data(self, value: Any) -> Any:
        parts = parts_of(value)
        if parts is None:
            parts = _as_table(value)
        if parts is None:
            raise UnreadableError(value)
        return [self.of(type(value)), self.of(parts)]

    def _object(self, value: Any) -> Any:
        kind, own = type(value), attributes_of(value)
        if not _is_installed(kind.__module__):
            return self._of_users(value, own)
        weights = [] if _is_open(kind) else self._weights(value)
        if weights:
            return [_named(kind), weights]
        if kind.__module__ in HOLDERS or dataclasses.is_dataclass(kind) or _root(kind) == "embgrad":
            return [_named(kind), self.of(own)]
        if compares(kind) and (parts := parts_of(value)) is not None:
            return [_named(kind), self.of(parts)]
        if (array := _as_table(value)) is not None:
            return self._array(value, array)
        text = LONGEST * "." if kind.__dictoffset__ else repr(value)
        return [_named(kind), text] if len(text) < LONGEST and " at 0x" not in text else _named(kind)

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
        held = {name: _parts(one) for name, one in vars(kind).items()}
        told = {
            name: parts for name, parts in held.items() if isinstance(parts[0], FunctionType) or not _is_pythons(name)
        }
        return [self.of(told), [self.of(base) for base in kind.__bases__]]


def _parts(member: Any) -> list[Any]:
    """What a member of a class is made of."""
    if isinstance(member, property):
        return [member.fget, member.fset]
    if isinstance(member, functools.cached_property):
        return [member.func]
    return [member.__func__ if isinstance(member, (staticmethod, classmethod)) else member]


def _is_pythons(name: str) -> bool:
    """Whether Python itself keeps something in a class under this name."""
    return name[:2] == name[-2:] == "__" or name == "_abc_impl"


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
    return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', value.__name__)}"


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty as yet
        return None


def _read(code: CodeType) -> list[str]:
    """The globals that a function reads, but for those that it writes to: a count of its calls is another each time."""
    written = _written(code)
    return [name for name in globals_of(code) if name not in written]


def _written(code: CodeType) -> set[Any]:
    """The names of the globals that a piece of Python writes to, and those inside it."""
    own = {one.argval for one in dis.get_instructions(code) if one.opname in ("STORE_GLOBAL", "DELETE_GLOBAL")}
    return own.union(*map(_written, _inside(code)))


def _names(code: CodeType) -> set[str]:
    """All names in a piece of Python, attributes' too."""
    return {*code.co_names}.union(*map(_names, _inside(code)))


def _inside(code: CodeType) -> list[CodeType]:
    return [one for one in code.co_consts if isinstance(one, CodeType)]


def _of_code(code: CodeType) -> list[Any]:
    constants = [_of_code(one) if isinstance(one, CodeType) else repr(one) for one in code.co_consts if _is_stable(one)]
    sets = [one for one in code.co_consts if not _is_stable(one)]
    return [code.co_code, list(code.co_names), constants, sets]


def _is_stable(constant: Any) -> bool:
    """Whether its text is the same in every process; a set's is not."""
    return not isinstance(constant, frozenset)


def _is_open(kind: type) -> bool:
    """Whether a class is made of the user's, Python's and ours alone, so that its objects are looked into."""
    return all(_root(one) in _OPEN or not _is_installed(one.__module__) for one in kind.__mro__)


def _root(kind: type) -> str:
    """The package that a class is of."""
    return kind.__module__.partition(".")[0]


def _is_installed(module: str | None) -> bool:
    """Whether a module belongs to Python or to an installed package, and is another with another version of that."""
    if module is None:  # made by a decorator, such as that of data classes
        return False
    root = module.partition(".")[0]
    return root in _OPEN or any(_lies_installed(sys.modules.get(name)) for name in (root, module))


def _lies_installed(module: Any) -> bool:
    file = getattr(module, "__file__", None) or ""  # what is written in C may have none, and its package has
    return not _INSTALLED.isdisjoint(Path(file).parts)
