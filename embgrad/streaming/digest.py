"""Digests that identify the model, the options and the source of a run."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import sys
from typing import Any, Final, Protocol

import numpy as np

from embgrad.common.arrays import is_tensor, widen
from embgrad.inputs.batch import TokenBatch
from embgrad.inputs.encode import padding_of
from embgrad.inputs.fast_tokenizers import description_of
from embgrad.toolkit.code import is_installed

__all__ = ["UnreadableError", "digest_of", "name_of", "tokenizer_digest", "update"]


#: The number types of Python, which are digested as text.
_NUMBERS: Final = (bool, int, float, complex)


#: Settings outside its description that decide on a tokenizer's ids, in Hugging Face's and in the library `tokenizers`.
_SETTINGS: Final = ("truncation_side", "split_special_tokens", "model_input_names", "encode_special_tokens")


class _Hash(Protocol):
    def update(self, data: bytes, /) -> None: ...


def digest_of(value: Any) -> str:
    """Return sixteen hexadecimal digits that identify a value; they are the same in every process."""
    sha256 = hashlib.sha256()
    update(sha256, value)
    return sha256.hexdigest()[:16]


class UnreadableError(Exception):
    """The content of a value is not known: it is a function or an object of a user's, or of a class that is not digested."""

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self.value = value


def update(hasher: _Hash, value: Any) -> None:
    """Add a value to a hash: text, numbers, arrays and tensors, batches, and lists, sets and dicts of them.

    A function or class of an installed package is its name.

    Raises:
        UnreadableError: the value is something else.
    """
    cls = type(value)
    if value is None or cls in _NUMBERS:
        text = hex(value) if cls is int else repr(value)  # Python limits the length of decimal text
        _put(hasher, cls.__name__, text.encode())
    elif cls is str:
        _put(hasher, "str", value.encode("utf-8", "surrogatepass"))
    elif cls is bytes:
        _put(hasher, "bytes", value)
    elif cls is np.ndarray:
        _update_with_array(hasher, value)
    elif isinstance(value, np.generic):
        _update_with_scalar(hasher, value)
    elif isinstance(value, TokenBatch):
        update(hasher, {**{name: getattr(value, name) for name in TokenBatch.__slots__}, "extras": dict(value.extras)})
    elif cls is dict:
        _put(hasher, "dict", str(len(value)).encode())
        for key in sorted(value, key=None if all(type(key) is str for key in value) else digest_of):
            update(hasher, key)
            update(hasher, value[key])
    elif cls in (list, tuple):
        _put(hasher, "list", str(len(value)).encode())
        for item in value:
            update(hasher, item)
    elif cls in (set, frozenset):
        _put(hasher, "set", str(len(value)).encode())
        for digest in sorted(map(digest_of, value)):  # the order of a set differs from process to process
            _put(hasher, "element", digest.encode())
    elif hasattr(value, "__qualname__"):
        _put(hasher, "function", name_of(value).encode())
    elif (array := _array_of(value)) is not None:
        update(hasher, [str(getattr(value, "dtype", "")), array])
    else:
        raise UnreadableError(value)


def name_of(function: Any) -> str:
    """Return the name of a function or class that Python or an installed package defines, under which it is found there."""
    found, module, name = None, getattr(function, "__module__", None), str(getattr(function, "__qualname__", ""))
    if module is not None and is_installed(module):
        with contextlib.suppress(AttributeError, KeyError):
            found = functools.reduce(getattr, name.split("."), sys.modules[module])
    if found is not function:
        raise UnreadableError(function)
    return f"{module}.{name}"


def tokenizer_digest(tokenizer: Any) -> str | None:
    """Return a text that identifies a tokenizer, or None for None.

    It covers the tokenizer's own description where it has one, else its vocabulary; and how it pads.
    """
    if tokenizer is None:
        return None
    class_name = f"{type(tokenizer).__module__}.{type(tokenizer).__qualname__}"
    padding = dataclasses.astuple(padding_of(tokenizer))
    fast = getattr(tokenizer, "backend_tokenizer", tokenizer)
    vocabulary = getattr(tokenizer, "get_vocab", None)
    description = description_of(fast) if hasattr(fast, "to_str") else None
    if description is not None:
        settings = {name: getattr(tokenizer, name, None) for name in _SETTINGS}
        return (
            f"{class_name} {digest_of([_description(description, wrapped=fast is not tokenizer), settings, padding])}"
        )
    if callable(vocabulary):
        settings = {
            name: value
            for name, value in getattr(tokenizer, "init_kwargs", {}).items()
            if isinstance(value, (bool, int))
        }
        return f"{class_name} {digest_of([dict(vocabulary()), settings, padding])}"
    raise UnreadableError(tokenizer)


def _description(description: str, *, wrapped: bool) -> Any:
    """Return a tokenizer's description, without the truncation and padding that Hugging Face's tokenizers set at each call."""
    try:
        parsed = json.loads(description)
    except ValueError:
        return description
    ignored = {"truncation", "padding"} if wrapped else set()
    return {key: value for key, value in parsed.items() if key not in ignored} if isinstance(parsed, dict) else parsed


def _array_of(value: Any) -> np.ndarray | None:
    """Return the values of a framework's tensor; None for other objects, and where it cannot be converted to NumPy."""
    if not is_tensor(value) or not hasattr(type(value), "shape"):
        return None
    try:
        array = np.asarray(widen(value))
    except Exception:  # of any class
        return None
    return None if array.dtype == object and not array.ndim else array


def _update_with_scalar(hasher: _Hash, value: np.generic) -> None:
    scalar = value.item()
    if type(scalar) in (*_NUMBERS, str, bytes) and value.dtype.kind not in "mM":  # times would lose their unit
        update(hasher, scalar)
    else:
        _update_with_array(hasher, np.asarray(value))


def _update_with_array(hasher: _Hash, array: np.ndarray) -> None:
    if array.dtype.char in "VgG":  # the memory has gaps
        raise UnreadableError(array)
    if array.dtype.kind in "OT":  # the memory holds pointers
        update(hasher, [array.shape, array.astype(object).ravel().tolist()])
    else:
        dtype = f"{array.dtype.str} {array.dtype.name}"  # the dtypes of `ml_dtypes` differ in their names alone
        _put(hasher, f"array {dtype} {array.shape}", np.ascontiguousarray(array).tobytes())


def _put(hasher: _Hash, label: str, data: bytes) -> None:
    """Add data with its type and length, so that no two sequences of values give the same bytes."""
    hasher.update(f"{label}:{len(data)}:".encode())
    hasher.update(data)
