"""Check the values of a batch; each error names the wrong value and its position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from embgrad.common.arrays import exact_below, to_numpy, whole_numbers
from embgrad.errors import BatchError, brief

__all__ = [
    "IGNORED",
    "Text",
    "as_array",
    "check_ids",
    "check_integers",
    "check_mask",
    "check_offsets",
    "check_texts",
    "check_tokens",
    "is_text",
    "read_only",
]

#: The label that a per-position cross-entropy ignores, as the frameworks' own losses do.
IGNORED: Final = -100

#: The user's text of an example, or a pair of texts.
Text: TypeAlias = "str | tuple[str, ...]"


def check_ids(ids: Any) -> np.ndarray:
    """Return token ids as a read-only int64 array, (example, position)."""
    if is_text(ids):
        raise BatchError("ids are text: expected token ids; build the batch with embgrad.encode(texts, tokenizer)")
    array = as_array(ids, "ids")
    if array.size == 0:
        raise BatchError(
            f"the batch is empty: ids have shape {array.shape}; expected one example and one position at least"
        )
    if array.ndim != 2:
        hint = "; for one example write [ids]" if array.ndim == 1 else ""
        raise BatchError(f"ids have shape {array.shape}: expected two axes, (example, position){hint}")
    return check_integers(array, "ids", array.shape)


def check_mask(mask: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Return a mask as a read-only int64 array."""
    array = as_array(mask, "mask")
    _expect_shape(array, "mask", shape)
    if array.dtype.kind in "cVmMSU":  # some of these compare equal to 0 and 1, others cannot be compared
        raise BatchError(
            f"mask is of dtype {array.dtype}: expected 1 at real positions and 0 at padding, as integers, floats or bools"
        )
    wrong = np.argwhere((array != 0) & (array != 1))
    if wrong.size:
        index = tuple(int(i) for i in wrong[0])
        raise BatchError(
            f"mask holds {array[index]} at example {index[0]}, position {index[1]}: expected 1 at real positions and 0 at "
            "padding (for additive masks, of 0 and minus infinity, use call=...)"
        )
    return read_only(array.astype(np.int64))


def check_integers(values: Any, name: str, shape: tuple[int, ...], least: int = 0) -> np.ndarray:
    """Return whole numbers of that shape, none below `least`, as a read-only int64 array."""
    array = as_array(values, name)
    _expect_shape(array, name, shape)
    whole = whole_numbers(array)
    if whole is None:
        raise BatchError(_not_whole(array, name))
    wrong = np.argwhere(whole < least)
    if wrong.size:
        raise BatchError(
            f"{name} holds {whole[tuple(wrong[0])]} at {_find_index(wrong[0])}: expected no number below {least}"
            + ("; pad with an id of the table, and mask=0 there" if name == "ids" else "")
        )
    return read_only(whole)


def _not_whole(array: np.ndarray, name: str) -> str:
    expected = "expected whole numbers, exactly represented"
    if array.dtype.kind != "f":
        return f"{name} are of dtype {array.dtype}: {expected}; convert them to integers"
    limit = exact_below(array.dtype)
    wrong = np.argwhere(~np.isfinite(array) | (np.floor(array) != array) | (np.abs(array) >= limit))[0]
    value = array[tuple(wrong)]
    why = f", and {array.dtype} rounds whole numbers above {limit:.0f}" if abs(value) >= limit else ""
    return f"{name} holds {value} at {_find_index(wrong)}{why}: {expected}; pass an integer array"


def check_tokens(
    tokens: Sequence[Sequence[str]], ids: np.ndarray, mask: np.ndarray | None
) -> tuple[tuple[str, ...], ...]:
    """Return the tokens as tuples, one token for each position."""
    if not hasattr(tokens, "__iter__"):
        raise BatchError(f"tokens are {brief(tokens)}: expected a list of tokens for each example")
    examples = list(tokens)  # an iterator can be read only once
    lengths = [len(example) if isinstance(example, (list, tuple, np.ndarray)) else -1 for example in examples]
    if -1 in lengths:
        raise BatchError(f"tokens are {brief(tokens)}: expected a list of tokens for each example")
    if lengths != [ids.shape[1]] * ids.shape[0]:
        raise BatchError(
            f"tokens are {len(examples)} lists of the lengths {lengths[:8]}: expected {ids.shape[0]} lists of {ids.shape[1]}, "
            "one token for each position, padding included"
        )
    return tuple(tuple(map(str, example)) for example in examples)


def check_texts(texts: Any, count: int) -> tuple[Text, ...]:
    """Return the texts of so many examples: a str for each, or a tuple of two."""
    if not isinstance(texts, (list, tuple)) or len(texts) != count:
        raise BatchError(
            f"texts is {brief(texts)}: expected a list of {count}, one text or pair of texts for each example"
        )
    for index, text in enumerate(texts):
        is_pair = isinstance(text, (list, tuple)) and len(text) == 2 and all(isinstance(part, str) for part in text)
        if not isinstance(text, str) and not is_pair:
            raise BatchError(f"texts holds {brief(text)} at example {index}: expected a text or a pair of texts")
    return tuple(text if isinstance(text, str) else tuple(text) for text in texts)


def check_offsets(
    offsets: Any, parts: Any, texts: tuple[Text, ...] | None, shape: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """Return offsets, (example, position, 2), and parts, (example, position), int64, -1 where there are no characters.

    Args:
        offsets: the start and end of each token in its text; equal or negative for none.
        parts: the index of that text in a pair, -1 for none; None where no example is a pair.
    """
    if texts is None:
        raise BatchError("offsets or parts are given without texts: expected the texts in which they count characters")
    if offsets is None:
        raise BatchError("parts is given without offsets: expected the offsets of each token in its text as well")
    is_pair = np.array([not isinstance(text, str) for text in texts])
    if parts is None and is_pair.any():
        raise BatchError(
            f"offsets is given without parts, and example {is_pair.argmax()} is a pair: expected parts, 0 or 1 for the text "
            "that a position's offsets count in, and -1 for none"
        )
    spans = check_integers(offsets, "offsets", (*shape, 2), least=-1)
    numbers = np.zeros(shape, np.int64) if parts is None else check_integers(parts, "parts", shape, least=-1)
    wrong = np.argwhere(numbers > is_pair[:, None])
    if wrong.size:
        example, position = wrong[0]
        raise BatchError(
            f"parts holds {numbers[example, position]} at example {example}, position {position}: expected "
            + ("0 or 1 in a pair, or -1" if is_pair[example] else "0 in a single text, or -1")
        )
    starts, ends = spans[..., 0], spans[..., 1]
    empty = (numbers < 0) | (starts == ends)
    lengths = np.array([(len(text), 0) if isinstance(text, str) else tuple(map(len, text)) for text in texts])
    most = np.where(numbers == 1, lengths[:, 1:], lengths[:, :1])
    wrong = np.argwhere(~empty & ((starts < 0) | (starts > ends) | (ends > most)))
    if wrong.size:
        example, position = wrong[0]
        raise BatchError(
            f"offsets holds {tuple(spans[example, position].tolist())} at example {example}, position {position}, whose text has "
            f"{most[example, position]} characters: expected a start and an end in it, in this order"
        )
    if (starts[empty] == -1).all() and (ends[empty] == -1).all() and (numbers[empty] == -1).all():
        return spans, numbers
    return read_only(np.where(empty[..., None], -1, spans)), read_only(np.where(empty, -1, numbers))


def as_array(value: Any, name: str) -> np.ndarray:
    """Return an array of numbers from any array, tensor or nested list."""
    try:
        array = np.asarray(to_numpy(value))
        why = " (of dtype object; its .tolist() may do)" if isinstance(getattr(value, "dtype", None), np.dtype) else ""
    except ValueError as error:
        array, why = np.empty(0, object), f" ({error})"
    if array.dtype != object:
        return array
    lengths = [len(row) for row in value if hasattr(row, "__len__")] if isinstance(value, (list, tuple)) else []
    if len(set(lengths)) > 1:
        raise BatchError(
            f"{name} cannot be read as a rectangular array of numbers: the lists have the lengths {lengths[:8]}; expected every "
            "list of the same length: pad them, with mask=0 at the padding, or use embgrad.encode"
        )
    raise BatchError(
        f"{name} cannot be read as a rectangular array of numbers: got {brief(value)}{why}; expected an array of integers, "
        "or lists of the same length"
    )


def _expect_shape(array: np.ndarray, name: str, shape: tuple[int, ...]) -> None:
    if array.shape != shape:
        like = "as the ids" if len(shape) == 2 else "one for each example"
        raise BatchError(f"{name} has shape {array.shape}: expected {shape}, {like}")


def _find_index(index: np.ndarray) -> str:
    names = ("example", "position")
    return ", ".join(f"{name} {int(i)}" for name, i in zip(names, index, strict=False))


def read_only(array: np.ndarray) -> np.ndarray:
    """Make an array read-only and return it."""
    array.flags.writeable = False
    return array


def is_text(value: Any) -> bool:
    """Return whether a batch is a text, a pair of texts or a list of these, rather than ids."""
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "US" or (value.dtype == object and value.size > 0 and is_text(value.flat[0]))
    if isinstance(value, (list, tuple)):
        return bool(value) and is_text(value[0])
    return isinstance(value, (str, bytes))
