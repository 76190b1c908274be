"""Batches for calls: valid ones in every accepted form, and broken ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import embgrad
from tests.fuzz.drawing import Draw
from tests.fuzz.nonsense import disguised, nonsense


@dataclass(frozen=True)
class DrawnBatch:
    """A batch in one of the accepted forms.

    Attributes:
        argument: the batch as it is passed to embgrad.
        token_batch: the equivalent TokenBatch.
        extra: True if it holds an input that no model of the suite takes.
    """

    text: str
    argument: Any
    token_batch: embgrad.TokenBatch
    extra: bool = False


def drawn_mask(draw: Draw, shape: tuple[int, int], kinds: tuple[str, ...] = ("right", "left", "holes")) -> np.ndarray:
    """Return a mask with at least one real position per example."""
    examples, positions = shape
    lengths = draw.integers(1, positions, examples)
    kind = draw.choice(kinds)
    if kind == "holes":
        mask = draw.integers(0, 1, shape)
        mask[np.arange(examples), draw.integers(0, positions - 1, examples)] = 1
        return mask
    mask = (np.arange(positions) < lengths[:, None]).astype(int)
    return mask[:, ::-1] if kind == "left" else mask


def drawn_batch(
    draw: Draw,
    framework: str,
    vocab: int,
    *,
    mask: bool | None = None,
    pad: bool = False,
    positions: int = 6,
    examples: int = 4,
) -> DrawnBatch:
    """Return a valid batch.

    Args:
        vocab: the number of rows of the table.
        mask: True for a mask with padding, False for no mask, None for either.
        pad: in most cases all padding has the same id.
        positions: the largest number of positions.
        examples: the largest number of examples.
    """
    shape = (draw.integer(1, examples), draw.integer(2 if mask else 1, positions))
    ids = draw.integers(0, vocab - 1, shape)
    masked = draw.chance(0.5) if mask is None else mask
    kinds = {"batch": 2.0, "huggingface": 2.0, "tfhub": 1.0, "keras_hub": 1.0, "gluonnlp": 1.0}
    kind = draw.weighted(kinds if masked else {**kinds, "ids": 3.0})
    types = draw.integers(0, 1, shape) if draw.chance(0.25) and kind != "ids" else None
    real = None
    if masked:
        real = drawn_mask(draw, shape, ("right",) if kind == "gluonnlp" else ("right", "left", "holes"))
        if mask and real.all():
            real[:, -1] = 0
            real[:, 0] = 1
    if pad and real is not None and draw.chance(0.9):
        ids[real == 0] = draw.integer(0, vocab - 1)
    convention = "huggingface" if kind == "batch" else kind
    if kind == "gluonnlp" and real is None:
        real = np.ones(shape, int)
    token_batch = embgrad.TokenBatch(ids, real, types, convention=convention)
    argument = _form(draw, framework, kind, ids, real, types)
    said = [f"ids={ids.tolist()}"]
    said += [f"{name}={value.tolist()}" for name, value in {"mask": real, "types": types}.items() if value is not None]
    extra = isinstance(argument, dict) and draw.chance(0.06)
    if extra:
        argument["further"] = draw.choice([np.arange(len(ids)), "text", None, [1, 2, 3]])
        said.append(f"further={argument['further']!r}")
    return DrawnBatch(f"{kind} ({_shown(argument)}): {', '.join(said)}", argument, token_batch, extra)


def _shown(argument: Any) -> str:
    if isinstance(argument, Mapping):
        return "dict of " + ", ".join(_shown(value) for value in argument.values())
    if isinstance(argument, tuple):
        return "tuple of " + ", ".join(_shown(value) for value in argument)
    text = type(argument).__name__ + (f" {argument.dtype}" if hasattr(argument, "dtype") else "")
    if isinstance(argument, (np.ndarray, np.generic)):
        text += "" if argument.flags.writeable else " read-only"
        text += "" if argument.flags.c_contiguous else " not contiguous"
    return text


def native(draw: Draw, framework: str, array: np.ndarray) -> Any:
    """Return the array as a tensor of the framework, or in an unusual NumPy form."""
    if framework == "reference" or draw.chance(0.6):
        return disguised(draw, array)
    whole = array.dtype.kind in "iu"
    if framework == "torch":
        import torch

        return torch.tensor(array.copy())  # a contiguous array of one column can have a negative stride
    if framework == "tensorflow":
        import tensorflow as tf

        return tf.constant(array)
    if framework == "jax":
        import jax.numpy as jnp

        return jnp.asarray(array)
    import mxnet as mx

    return mx.nd.array(array, dtype="float32" if whole and draw.chance(0.5) else "int64" if whole else "float64")


def _form(draw: Draw, framework: str, kind: str, ids: Any, mask: Any, types: Any) -> Any:
    def made(array: np.ndarray) -> Any:
        return native(draw, framework, array)

    if kind == "ids":
        return made(ids)
    if kind == "gluonnlp":
        segments = np.zeros_like(ids) if types is None else types
        return made(ids), made(segments), made(mask.sum(1))
    real = None if mask is None else mask.astype(bool) if kind != "gluonnlp" and draw.chance(0.2) else mask
    if kind == "batch":
        options = {name: made(value) for name, value in {"mask": real, "types": types}.items() if value is not None}
        return embgrad.TokenBatch(made(ids), **options)
    keys = {
        "huggingface": ("input_ids", "attention_mask", "token_type_ids"),
        "tfhub": ("input_word_ids", "input_mask", "input_type_ids"),
        "keras_hub": ("token_ids", "padding_mask", "segment_ids"),
    }[kind]
    inputs = {key: made(value) for key, value in zip(keys, (ids, real, types), strict=True) if value is not None}
    return dict(reversed(inputs.items())) if draw.chance(0.2) else inputs


def broken_batch(draw: Draw, framework: str, vocab: int) -> tuple[str, Callable[[], Any]]:
    """Return the name of a kind of broken batch, and the function that makes it."""
    examples, positions = draw.integer(1, 3), draw.integer(1, 4)
    ids = draw.integers(0, vocab - 1, (examples, positions))
    index = draw.integer(0, examples - 1), draw.integer(0, positions - 1)

    def with_id(value: Any, dtype: Any = None) -> np.ndarray:
        changed = ids.astype(dtype) if dtype is not None else ids.copy()
        changed[index] = value
        return changed

    def masked(mask: Any) -> Any:
        form = draw.choice(["batch", "dict", "tfhub"])
        if form == "batch":
            return embgrad.TokenBatch(ids, mask)
        keys = ("input_ids", "attention_mask") if form == "dict" else ("input_word_ids", "input_mask")
        return dict(zip(keys, (ids, mask), strict=True))

    def mask_with(value: Any, dtype: Any = int) -> np.ndarray:
        mask = np.ones(ids.shape, dtype)
        mask[index] = value
        return mask

    kinds: dict[str, Callable[[], Any]] = {
        "a negative id": lambda: with_id(-1 - draw.integer(0, 3)),
        "an id that is not whole": lambda: with_id(0.5, float),
        "an id that is not a number": lambda: with_id(np.nan, float),
        "an infinite id": lambda: with_id(np.inf, float),
        "an id that float16 rounds": lambda: with_id(2048, np.float16),
        "an id past int64": lambda: with_id(2**63, np.uint64),
        "ids of dtype bool": lambda: np.ones((examples, positions), bool),
        "ids of dtype complex": lambda: ids.astype(complex),
        "ids of objects": lambda: with_id(None, object),
        "one axis": lambda: ids[0],
        "three axes": lambda: ids[None],
        "no axis": lambda: 3,
        "no example": lambda: np.zeros((0, positions), int),
        "no position": lambda: np.zeros((examples, 0), int),
        "ragged lists": lambda: [[1, 2, 3], [4, 5], *ids.tolist()],
        "numbers as text": lambda: ids.astype(str),
        "text without a tokenizer": lambda: draw.choice(["a text", ["a", "b"], [("a", "b")], b"bytes"]),
        "nonsense": lambda: nonsense(draw),
        "None": lambda: None,
        "an empty dict": lambda: {},
        "a dict of other names": lambda: {"inputs_ids": ids},
        "a dict of two conventions": lambda: {"input_ids": ids, "input_word_ids": ids},
        "a dict of mixed conventions": lambda: {"input_ids": ids, "input_mask": np.ones_like(ids)},
        "a dict of nonsense": lambda: {"input_ids": nonsense(draw)},
        "a mask of nonsense": lambda: masked(nonsense(draw)),
        "a mask of another shape": lambda: masked(np.ones((examples, positions + 1), int)),
        "a mask of one axis": lambda: masked(np.ones(positions + examples + 1, int)),
        "a mask with a two": lambda: masked(mask_with(2)),
        "a mask with a negative": lambda: masked(mask_with(-1)),
        "a mask with a NaN": lambda: masked(mask_with(np.nan, float)),
        "an additive mask": lambda: masked(mask_with(-1e9, float)),
        "types of another shape": lambda: embgrad.TokenBatch(ids, types=np.zeros((examples + 1, positions), int)),
        "types of nonsense": lambda: {"input_ids": ids, "token_type_ids": nonsense(draw)},
        "negative types": lambda: {"input_ids": ids, "token_type_ids": np.full_like(ids, -1)},
        "valid lengths too long": lambda: (ids, np.zeros_like(ids), np.full(examples, positions + 1)),
        "valid lengths of zero": lambda: (ids, np.zeros_like(ids), np.zeros(examples)),
        "valid lengths of halves": lambda: (ids, np.zeros_like(ids), np.full(examples, 0.5)),
        "too many valid lengths": lambda: (ids, np.zeros_like(ids), np.ones(examples + 1)),
        "a pair": lambda: (ids, np.zeros_like(ids)),
        "tokens too few": lambda: embgrad.TokenBatch(ids, tokens=[["a"]] * (examples + 1)),
        "tokens that are no lists": lambda: embgrad.TokenBatch(ids, tokens=["ab"] * examples),
        "tokens that are a number": lambda: embgrad.TokenBatch(ids, tokens=3),
        "a mask of dtype complex": lambda: masked(np.ones(ids.shape, complex)),
        "a mask of records": lambda: masked(np.ones(ids.shape, [("a", int)])),
        "extras that are no dict": lambda: embgrad.TokenBatch(ids, extras=draw.choice([3, "ab", [1, 2], {3: 4}])),
        "a flag that is none": lambda: embgrad.TokenBatch(
            ids, np.ones_like(ids), mask_is_bool=draw.choice(["no", 0.5, [1]])
        ),
        "conventions": lambda: embgrad.TokenBatch(ids, convention=np.array(["ids", "tfhub"])),
        "an unknown convention": lambda: embgrad.TokenBatch(ids, convention=draw.choice(["hugingface", None, 3, []])),
        "an id outside the table": lambda: native(draw, framework, with_id(vocab + draw.integer(0, 3))),
        "a huge id": lambda: with_id(2**40),
    }
    kind = draw.choice(list(kinds))
    return kind, kinds[kind]
