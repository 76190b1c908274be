"""Digests that tell whether two runs are of the same model, options and source."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from embgrad.arrays import to_numpy
from embgrad.batch import TokenBatch
from embgrad.encoding import padding_of
from embgrad.streaming.reading import read

__all__ = ["digest_of", "function_digest", "object_digest", "tokenizer_digest", "update"]


class _Hash(Protocol):
    def update(self, data: bytes, /) -> None: ...


def digest_of(value: Any) -> str:
    """Sixteen hexadecimal digits that tell one value from another, the same in every process."""
    made = hashlib.sha256()
    update(made, value)
    return made.hexdigest()[:16]


def update(made: _Hash, value: Any) -> None:
    """Take a value into a digest: text, numbers, arrays, functions, batches, and lists, sets and dicts of them.

    Of any other object that counts which `embgrad.streaming.reading` reads.
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


def function_digest(function: Any, known: Sequence[Any] = ()) -> str:
    """A function's name, or its class's, with a digest of what it does, see `embgrad.streaming.reading`."""
    kind = function if hasattr(function, "__qualname__") else type(function)
    name, made = f"{getattr(kind, '__module__', '')}.{kind.__qualname__}", read(function, digest_of, known)
    return name if made == name else f"{name} {digest_of(made)}"  # a library's goes by its name alone


def object_digest(value: Any, known: Sequence[Any] = ()) -> str:
    """An object's class with a digest of its attributes and of that class."""
    return f"{type(value).__qualname__} {digest_of(read(value, digest_of, known))}"


def tokenizer_digest(tokenizer: Any) -> str | None:
    """What tells a tokenizer: its own description where it has one, else its vocabulary, else what it does; and how it pads."""
    if tokenizer is None:
        return None
    kind = f"{type(tokenizer).__module__}.{type(tokenizer).__qualname__}"
    padding = dataclasses.astuple(padding_of(tokenizer))
    own = getattr(tokenizer, "backend_tokenizer", tokenizer)
    vocabulary = getattr(tokenizer, "get_vocab", None)
    if hasattr(own, "to_str"):
        return f"{kind} {digest_of([_description(own.to_str(), wrapped=own is not tokenizer), padding])}"
    if callable(vocabulary):
        settings = {
            name: one for name, one in getattr(tokenizer, "init_kwargs", {}).items() if isinstance(one, (bool, int))
        }
        return f"{kind} {digest_of([dict(vocabulary()), settings, padding])}"
    return function_digest(tokenizer) if callable(tokenizer) else object_digest(tokenizer)


def _description(description: str, *, wrapped: bool) -> Any:
    """A tokenizer's description without what Hugging Face's tokenizers set at each call, truncation, and around it padding."""
    try:
        read = json.loads(description)
    except ValueError:
        return description
    left_out = {"truncation", "padding"} if wrapped else {"truncation"}
    return {key: value for key, value in read.items() if key not in left_out} if isinstance(read, dict) else read


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
        _put(made, "object", digest_of(read(value, digest_of)).encode())


def _put(made: _Hash, kind: str, data: bytes) -> None:
    """With its kind and length, so that no two sequences of values read alike."""
    made.update(f"{kind}:{len(data)}:".encode())
    made.update(data)
