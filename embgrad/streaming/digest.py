"""Digests that identify the model, the options and the source of a run."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from typing import Any, Final, Protocol

import numpy as np

from embgrad.inputs.batch import TokenBatch
from embgrad.inputs.encode import padding_of
from embgrad.inputs.fast_tokenizers import description_of
from embgrad.moved import FORMER
from embgrad.streaming.code_digest import is_function, read

__all__ = ["digest_of", "function_digest", "object_digest", "tokenizer_digest", "update"]


#: The number types of Python, which are digested as text.
_NUMBERS: Final = (bool, int, float, complex)


#: Settings outside its description that decide on a tokenizer's ids, in Hugging Face's and in the library `tokenizers`.
_SETTINGS: Final = ("truncation_side", "split_special_tokens", "model_input_names", "encode_special_tokens")


class _Hash(Protocol):
    def update(self, data: bytes, /) -> None: ...


def digest_of(value: Any) -> str:
    """Return sixteen hexadecimal digits that identify a value; they are the same in every process."""
    made = hashlib.sha256()
    update(made, value)
    return made.hexdigest()[:16]


def update(made: _Hash, value: Any) -> None:
    """Add a value to a hash: text, numbers, arrays, functions, batches, lists, sets and dicts of them, and other objects.

    Functions and classes are represented by their code, everything else by its whole content.

    Raises:
        UnreadableError: the content of an object cannot be read.
    """
    kind = type(value)
    if value is None or kind in _NUMBERS:
        text = hex(value) if kind is int else repr(value)  # Python limits the length of decimal text
        _put(made, kind.__name__, text.encode())
    elif kind is str:
        _put(made, "str", value.encode("utf-8", "surrogatepass"))
    elif kind is bytes:
        _put(made, "bytes", value)
    elif kind is np.ndarray:
        _update_with_array(made, value)
    elif isinstance(value, np.generic):
        _update_with_scalar(made, value)
    elif isinstance(value, TokenBatch):
        update(made, {**{name: getattr(value, name) for name in TokenBatch.__slots__}, "extras": dict(value.extras)})
    elif kind is dict:
        _put(made, "dict", str(len(value)).encode())
        for key in sorted(value, key=None if all(type(key) is str for key in value) else digest_of):
            update(made, key)
            update(made, value[key])
    elif kind in (list, tuple):
        _put(made, "list", str(len(value)).encode())
        for one in value:
            update(made, one)
    elif kind in (set, frozenset):
        _put(made, "set", str(len(value)).encode())
        for digest in sorted(map(digest_of, value)):  # the order of a set differs from process to process
            _put(made, "element", digest.encode())
    elif is_function(value):
        _put(made, "function", function_digest(value).encode())
    else:
        _put(made, "object", digest_of(read(value, digest_of, whole=True)).encode())


def function_digest(function: Any, known: Sequence[Any] = ()) -> str:
    """Return the name of a function or of its class, with a digest of its code, see `embgrad.streaming.code_digest`."""
    kind = function if hasattr(function, "__qualname__") else type(function)
    module = getattr(kind, "__module__", "")
    name, made = f"{FORMER.get(module, module)}.{kind.__qualname__}", read(function, digest_of, known)
    return name if made == name else f"{name} {digest_of(made)}"  # a library's function is identified by its name alone


def object_digest(value: Any, known: Sequence[Any] = ()) -> str:
    """Return the name of an object's class, with a digest of the object's attributes and of the class."""
    return f"{type(value).__qualname__} {digest_of(read(value, digest_of, known))}"


def tokenizer_digest(tokenizer: Any) -> str | None:
    """Return a text that identifies a tokenizer, or None for None.

    It covers the tokenizer's own description where it has one, else its vocabulary, else its code; and how it pads.
    """
    if tokenizer is None:
        return None
    kind = f"{type(tokenizer).__module__}.{type(tokenizer).__qualname__}"
    padding = dataclasses.astuple(padding_of(tokenizer))
    own = getattr(tokenizer, "backend_tokenizer", tokenizer)
    vocabulary = getattr(tokenizer, "get_vocab", None)
    told = description_of(own) if hasattr(own, "to_str") else None
    if told is not None:
        settings = {name: getattr(tokenizer, name, None) for name in _SETTINGS}
        return f"{kind} {digest_of([_description(told, wrapped=own is not tokenizer), settings, padding])}"
    if callable(vocabulary):
        settings = {
            name: one for name, one in getattr(tokenizer, "init_kwargs", {}).items() if isinstance(one, (bool, int))
        }
        return f"{kind} {digest_of([dict(vocabulary()), settings, padding])}"
    return function_digest(tokenizer) if callable(tokenizer) else object_digest(tokenizer)


def _description(description: str, *, wrapped: bool) -> Any:
    """Return a tokenizer's description, without the truncation and padding that Hugging Face's tokenizers set at each call."""
    try:
        read = json.loads(description)
    except ValueError:
        return description
    left_out = {"truncation", "padding"} if wrapped else set()
    return {key: value for key, value in read.items() if key not in left_out} if isinstance(read, dict) else read


def _update_with_scalar(made: _Hash, value: np.generic) -> None:
    own = value.item()
    if type(own) in (*_NUMBERS, str, bytes) and value.dtype.kind not in "mM":  # times would lose their unit
        update(made, own)
    else:
        _update_with_array(made, np.asarray(value))


def _update_with_array(made: _Hash, array: np.ndarray) -> None:
    if array.dtype.names is not None:
        update(made, [array.shape, *([name, array[name]] for name in array.dtype.names)])
    elif array.dtype.kind in "OT":  # the memory holds pointers
        update(made, [array.shape, array.astype(object).ravel().tolist()])
    elif array.dtype.char in "gG":  # the memory has gaps
        update(made, [array.dtype.str, array.shape, [repr(one) for one in array.ravel()]])
    else:
        own = f"{array.dtype.str} {array.dtype.name}"  # the dtypes of `ml_dtypes` differ in their names alone
        _put(made, f"array {own} {array.shape}", np.ascontiguousarray(array).tobytes())


def _put(made: _Hash, kind: str, data: bytes) -> None:
    """Add data with its type and length, so that no two sequences of values give the same bytes."""
    made.update(f"{kind}:{len(data)}:".encode())
    made.update(data)
