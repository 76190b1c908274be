"""Digests that tell whether two runs are of the same model, options and source."""

from __future__ import annotations

import dis
import functools
import hashlib
import json
import sys
import sysconfig
from collections.abc import Mapping
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final, Protocol

import numpy as np

from embgrad.arrays import to_numpy
from embgrad.batch import TokenBatch
from embgrad.identity import globals_of

__all__ = ["digest_of", "function_digest", "object_digest", "tokenizer_digest", "update"]


#: The modules of Python's own whose objects are mere holders of values.
HOLDERS: Final = ("argparse", "datetime", "decimal", "fractions", "types")


class _Hash(Protocol):
    def update(self, data: bytes, /) -> None: ...


def digest_of(value: Any) -> str:
    """Sixteen hexadecimal digits that tell one value from another, the same in every process."""
    made = hashlib.sha256()
    update(made, value)
    return made.hexdigest()[:16]


def update(made: _Hash, value: Any) -> None:
    """Take a value into a digest: text, numbers, arrays, functions, batches, and lists, sets and dicts of them.

    Of any other object only the class counts, and the plain values in its attributes; or its text, where it has none (a date).
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, complex)):
        _put(made, type(value).__name__, repr(value).encode())
    elif isinstance(value, str):
        _put(made, "str", value.encode("utf-8", "surrogatepass"))
    elif isinstance(value, bytes):
        _put(made, "bytes", value)
    elif isinstance(value, TokenBatch):
        update(made, {name: getattr(value, name) for name in TokenBatch.__slots__})
    elif isinstance(value, Mapping):
        _put(made, "dict", str(len(value)).encode())
        for key in sorted(value, key=repr):
            update(made, key)
            update(made, value[key])
    elif isinstance(value, (list, tuple)):
        _put(made, "list", str(len(value)).encode())
        for one in value:
            update(made, one)
    elif isinstance(value, (set, frozenset)):
        _put(made, "set", str(len(value)).encode())
        for digest in sorted(map(digest_of, value)):  # a set has another order in each process
            _put(made, "element", digest.encode())
    elif callable(value) and not hasattr(value, "shape"):
        _put(made, "function", function_digest(value).encode())
    else:
        _update_with_object(made, value)


def function_digest(function: Any) -> str:
    """A function's name with a digest of its code, and of the plain values and functions that it reads from around it.

    These lie in its cells, its defaults, its object where it is a method, and its module's globals. An object with a `__call__`
    goes by its attributes and its class's code. What a library holds goes by its name.
    """
    return _function(function, ())


def object_digest(value: Any) -> str:
    """An object's class with a digest of its attributes and of that class's functions."""
    return f"{type(value).__qualname__} {digest_of([vars(value), _object(value, ())])}"


def _function(function: Any, above: tuple[int, ...]) -> str:
    """The same inside functions that are being looked at, which may read themselves."""
    if isinstance(function, functools.partial):
        return f"partial {_function(function.func, above)} {digest_of([list(function.args), dict(function.keywords)])}"
    name = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(function).__qualname__)}"
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType):
        held = _object(function, above)
        return f"{name} {digest_of(held)}" if held else name
    inside = (*above, id(code))
    closed = [_around(_content(cell), inside, None) for cell in getattr(function, "__closure__", None) or ()]
    told: list[Any] = [_code(code), closed, list(getattr(function, "__defaults__", None) or ())]
    own = getattr(function, "__globals__", {})
    read = {name: _around(own[name], inside, own) for name in _read(code) if name in own}
    owner = getattr(function, "__self__", None)
    for more in (getattr(function, "__kwdefaults__", None), read, None if owner is None else _object(owner, inside)):
        if more:
            told.append(dict(more))
    return f"{name} {digest_of(told)}"


def tokenizer_digest(tokenizer: Any) -> str | None:
    """What tells a tokenizer: its own description where it has one, else its vocabulary, else its class."""
    if tokenizer is None:
        return None
    kind = f"{type(tokenizer).__module__}.{type(tokenizer).__qualname__}"
    own = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if hasattr(own, "to_str"):
        return f"{kind} {digest_of(_without_settings(own.to_str()))}"
    vocabulary = getattr(tokenizer, "get_vocab", None)
    if callable(vocabulary):
        return f"{kind} {digest_of(dict(vocabulary()))}"
    return function_digest(tokenizer) if hasattr(tokenizer, "__code__") else kind


def _without_settings(description: str) -> Any:
    """A tokenizer's description without truncation, which Hugging Face's tokenizers set at each call."""
    try:
        read = json.loads(description)
    except ValueError:
        return description
    return {key: value for key, value in read.items() if key != "truncation"} if isinstance(read, dict) else read


def _update_with_object(made: _Hash, value: Any) -> None:
    try:
        array = to_numpy(value)
    except ValueError:
        array = np.empty(0, object)
    if array.dtype != object:
        _put(made, f"array {array.dtype.str} {array.shape}", np.ascontiguousarray(array).tobytes())
    elif isinstance(value, np.ndarray):
        update(made, value.tolist())
    else:
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        _put(made, "object", kind.encode())
        held = _attributes(value)
        text = "" if held or hasattr(value, "__dict__") else repr(value)
        update(made, text if text and " at 0x" not in text else held)


def _attributes(value: Any) -> dict[str, Any]:
    """The plain values among an object's own attributes, in slots or not; a class goes by its name."""
    if isinstance(value, type):
        return {}
    held: dict[str, Any] = {}
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        names = [slots] if isinstance(slots, str) else list(slots)
        held.update({name: getattr(value, name) for name in names if name[:2] != "__" and hasattr(value, name)})
    held.update(getattr(value, "__dict__", {}))
    return {name: one for name, one in held.items() if _is_plain(one)}


def _put(made: _Hash, kind: str, data: bytes) -> None:
    """With its kind and length, so that no two sequences of values read alike."""
    made.update(f"{kind}:{len(data)}:".encode())
    made.update(data)


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(map(_is_plain, (*value, *value.values())))
    return value is None or isinstance(value, (bool, int, float, str, bytes, np.ndarray, np.generic))


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty as yet
        return None


def _around(value: Any, above: tuple[int, ...], own: Mapping[str, Any] | None) -> Any:
    """What stands for a value that a function reads: itself where it is plain, of functions and objects what they hold.

    Args:
        value: that it reads.
        above: the functions, by their code, that are being looked at.
        own: the globals that it lies in; of those a function of another module goes by its name.
    """
    kind = type(value)
    if isinstance(value, ModuleType):
        return value.__name__
    if isinstance(value, FunctionType):
        theirs = own is not None and value.__globals__ is not own
        return value.__qualname__ if theirs or id(value.__code__) in above else _function(value, above)
    if _is_plain(value) or hasattr(value, "shape") or kind.__module__ in HOLDERS:
        return value
    if callable(value):
        return value.__qualname__ if isinstance(value, type) else kind.__qualname__
    return kind.__qualname__ if _is_installed(kind.__module__) else [kind.__qualname__, _attributes(value)]


def _read(code: CodeType) -> list[str]:
    """The globals that a function reads, but for those that it writes to: a count of its calls is another each time."""
    written = _written(code)
    return [name for name in globals_of(code) if name not in written]


def _written(code: CodeType) -> set[Any]:
    """The names of the globals that a piece of Python writes to, and those inside it."""
    own = {one.argval for one in dis.get_instructions(code) if one.opname in ("STORE_GLOBAL", "DELETE_GLOBAL")}
    return own.union(*(_written(one) for one in code.co_consts if isinstance(one, CodeType)))


def _object(value: Any, above: tuple[int, ...]) -> dict[str, Any]:
    """The plain values among an object's attributes, and its class's functions, but for those that a library brought."""
    if isinstance(value, type):
        return {}
    told = _attributes(value)
    for kind in type(value).__mro__:
        for name, one in vars(kind).items() if not _is_installed(kind.__module__) else ():
            method = one.fget if isinstance(one, property) else getattr(one, "__func__", one)
            if isinstance(method, FunctionType) and id(method.__code__) not in above:
                told[f"{kind.__qualname__}.{name}()"] = _function(method, above)
    return told


def _is_installed(module: str) -> bool:
    """Whether a module belongs to Python or to an installed package, and is another with another version of that."""
    root = module.partition(".")[0]
    if root == "embgrad" or (root in sys.stdlib_module_names and root != "__main__"):
        return True
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    return any(file.startswith(sysconfig.get_path(name)) for name in ("purelib", "platlib"))


def _code(code: CodeType) -> list[Any]:
    constants = [_code(one) if isinstance(one, CodeType) else repr(one) for one in code.co_consts if _is_stable(one)]
    sets = [one for one in code.co_consts if not _is_stable(one)]
    return [code.co_code, list(code.co_names), constants, *([sets] if sets else [])]


def _is_stable(constant: Any) -> bool:
    """Whether its text is the same in every process; a set's is not."""
    return not isinstance(constant, frozenset)
