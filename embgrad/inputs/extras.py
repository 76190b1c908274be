"""The further inputs of a batch: find those that have an entry for each example, and slice them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from embgrad.common.arrays import to_numpy, whole_numbers
from embgrad.common.pytree import entries, every, with_entry
from embgrad.errors import BatchError

__all__ = ["cut", "is_of_each", "mask_of_further", "of_examples"]

#: Replacements that turn the name of ids into that of their mask: `decoder_input_ids`, `decoder_attention_mask`.
MASKS: Final = (
    ("input_ids", "attention_mask"),
    ("input_ids", "mask"),
    ("token_ids", "padding_mask"),
    ("ids", "attention_mask"),
    ("ids", "mask"),
)


def mask_of_further(extras: Mapping[str, Any], ids: np.ndarray) -> np.ndarray | None:
    """Return the mask that belongs, by its name, to the further input that equals these ids; None where there is none.

    Args:
        ids: the indices of a lookup, (example, position).
    """
    names = [name for name, value in extras.items() if "ids" in name and equals(value, ids)]
    for name in names:
        for of_ids, of_mask in MASKS:
            mask_name = name.replace(of_ids, of_mask)
            mask = _whole(extras[mask_name]) if mask_name != name and mask_name in extras else None
            if mask is not None and mask.shape == ids.shape and np.isin(mask, (0, 1)).all():
                return mask
    return None


def equals(value: Any, ids: np.ndarray) -> bool:
    """Return whether a further input holds these whole numbers."""
    numbers = _whole(value)
    return numbers is not None and np.array_equal(numbers, ids)


def _whole(value: Any) -> np.ndarray | None:
    """Return the input as an int64 array; None where it holds anything but whole numbers."""
    try:
        return whole_numbers(to_numpy(value))
    except (TypeError, ValueError):
        return None


def is_of_each(value: Any, examples: int, *, outside: bool = True) -> bool:
    """Return whether an input, or an array in it, has one entry for each example.

    Args:
        value: an array, which has if its first axis has that length; a list or tuple with one entry for each example; or a
            nest of arrays, such as a dict, or one entry for each layer that holds all examples.
    """
    if _is_array(value):
        return _has(value, examples)
    if outside and _is_one_an_example(value, examples):
        return True
    inside = outside and not isinstance(value, (list, tuple))
    return any(is_of_each(entry, examples, outside=inside) for _, entry in entries(value))


def cut(name: str, value: Any, count: int, examples: slice | np.ndarray) -> Any:
    """Return an input restricted to some of its examples.

    Args:
        name: the input's name, for the message.
        value: see `is_of_each`.
        count: the number of examples.
        examples: a slice, or the indices of the examples; an array of indices may repeat them.

    Raises:
        BatchError: the input cannot be sliced.
    """
    try:
        return of_examples(
            value, count, lambda array: _rows(array, examples), lambda entries: _entries(entries, examples)
        )
    except TypeError as error:  # a SparseTensor, say
        raise BatchError(
            f"the further input {name!r} is a {type(value).__name__}, which cannot be sliced by examples: expected an array or a "
            "dense tensor where sub-batches are run (batch_size, check=True, points other than 'word'). If all examples share "
            "it, name it in TokenBatch(..., shared=[...])"
        ) from error


def _rows(array: Any, examples: slice | np.ndarray) -> Any:
    """Return the entries of an array, as NumPy where they are chosen by indices, which not all frameworks' tensors take."""
    if isinstance(examples, slice):
        return array[examples]
    try:
        return to_numpy(array)[examples]
    except ValueError:  # PyTorch's bfloat16, which NumPy lacks
        return array[examples]


def _entries(values: Sequence[Any], examples: slice | np.ndarray) -> Any:
    """Return the entries of a list or tuple, in one of the same type."""
    if isinstance(examples, slice):
        return values[examples]
    return type(values)(values[index] for index in examples.tolist())  # type: ignore[call-arg]


def of_examples(
    value: Any,
    examples: int,
    array: Callable[[Any], Any],
    listed: Callable[[Sequence[Any]], Any],
    *,
    outside: bool = True,
) -> Any:
    """Return an input in which the arrays and lists with one entry for each example are replaced.

    Args:
        array: returns the replacement of an array whose first axis holds the examples.
        listed: returns the replacement of a list or tuple with one entry for each example.
        outside: whether the value is inside no list or tuple. A list inside a list is one entry, or one layer, of that list.
    """
    if _is_array(value):
        return array(value) if _has(value, examples) else value
    if outside and _is_one_an_example(value, examples):
        return listed(value)
    new, inside = value, outside and not isinstance(value, (list, tuple))
    for key, entry in entries(value):
        replacement = of_examples(entry, examples, array, listed, outside=inside)
        if replacement is not entry:
            new = with_entry(new, key, replacement)
    return new


def _is_one_an_example(value: Any, examples: int) -> bool:
    """Return whether a list or tuple has one entry for each example, rather than one for each of equally many layers.

    An entry for a layer holds an entry for each example itself. A list of NumPy arrays is treated as one array, as the
    frameworks treat it.
    """
    if not isinstance(value, (list, tuple)) or hasattr(value, "_fields") or len(value) != examples:
        return False
    if isinstance(value, list) and all(isinstance(entry, np.ndarray) for entry in value):
        return True
    arrays = every(value, _is_array)
    return not arrays or not all(_has(array, examples) and len(array.shape) > 1 for array in arrays)


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape")


def _has(array: Any, examples: int) -> bool:
    """Return whether an array's first axis has the batch's length."""
    shape = array.shape
    return len(shape) > 0 and int(next(iter(shape))) == examples
