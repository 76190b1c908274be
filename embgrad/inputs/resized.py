"""Versions of the texts of a batch with more or fewer tokens, and what becomes of the further inputs that describe a text."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final

import numpy as np

from embgrad.common.arrays import to_numpy, whole_numbers
from embgrad.common.pytree import every, map_nest
from embgrad.errors import BatchError, UnsupportedError, brief
from embgrad.inputs.batch import TokenBatch
from embgrad.inputs.decoder import LABELS

__all__ = [
    *("expect_moved_input", "expect_resizable_input", "has_positions"),
    *("is_copy_of_ids", "resize", "with_numbers"),
]

#: The further input with the positions' numbers, which count from the first position again in another text.
POSITION_IDS: Final = "position_ids"

#: The most axes of an input that holds lengths, positions or spans; arrays with more are images.
MOST_AXES: Final = 3


def resize(
    batch: TokenBatch,
    examples: np.ndarray,
    ids: np.ndarray,
    real: np.ndarray,
    types: np.ndarray | None,
    instead: str,
    apart: Collection[str] = (),
) -> TokenBatch:
    """Return versions of the examples of a batch, in which tokens may have been inserted, deleted or replaced.

    The input `position_ids` counts on in them. A version whose real positions are its example's keeps all inputs.

    Args:
        examples: the index of the example that each text is a version of, int64, shape (text,).
        ids: the ids of the texts, shape (text, position).
        real: true at their real positions, bool, likewise.
        types: their types; None where the batch has none.
        instead: what the message proposes where an input cannot follow.
        apart: the names of further inputs that belong to other positions, such as those of a decoder.
    """
    taken = batch.take(examples)
    changes: dict[str, Any] = {"ids": ids, "types": types}
    if batch.mask is not None:
        changes["mask"] = real.astype(np.int64)
    is_same = real.shape[1] == batch.shape[1] and np.array_equal(real, batch.real[examples])
    own = set() if is_same else batch.extras.keys() - set(apart)
    for name in batch.extras:
        if name in own:
            expect_resizable_input(batch, name, instead)
    if POSITION_IDS in own:
        numbers = _position_ids(batch, instead)
        first = numbers[np.arange(len(numbers)), batch.real.argmax(1)][examples]
        counted = first[:, None] + np.maximum(real.cumsum(1) - 1, 0)
        changes |= {"extras": {**taken.extras, POSITION_IDS: counted}, "shared": batch.shared - {POSITION_IDS}}
    return taken.replace(**changes)


def expect_resizable_input(batch: TokenBatch, name: str, instead: str) -> None:
    """Refuse to insert or delete tokens where a further input could not follow, see `resize`."""
    if name == POSITION_IDS:
        _position_ids(batch, instead)
    if name == POSITION_IDS or name.startswith("decoder"):
        return
    for leaf in every(batch.extras[name], _is_leaf):
        if _has_positions(batch, name, leaf):
            raise UnsupportedError(
                f"the further input {name!r} has the shape {_shape(leaf)}, with as many entries as the text has positions, and "
                f"cannot follow it: {instead}"
            )
    found = _numbers_of_text(batch, name)
    if found is not None:
        raise UnsupportedError(
            f"the further input {name!r} is {found}, which may count or name positions of the text, and what it is for another "
            f"text is not known: {instead}, or make the input in call=lambda model, inputs: ..."
        )


def expect_moved_input(batch: TokenBatch, name: str) -> None:
    """Refuse to move the padding where a further input without an axis of positions may name some."""
    found = _numbers_of_text(batch, name)
    if found is not None:
        raise BatchError(
            f"the further input {name!r} is {found}, and the batch is padded on the left: it may count or name positions, which "
            "are moved. Pad on the right (padding_side='right'), or leave it out"
        )


def has_positions(batch: TokenBatch, name: str) -> bool:
    """Return whether a further input has as many entries as the text has positions, or numbers these."""
    leaves = every(batch.extras[name], _is_leaf)
    return name == POSITION_IDS or any(_has_positions(batch, name, leaf) for leaf in leaves)


def is_copy_of_ids(batch: TokenBatch, name: str) -> bool:
    """Return whether a further input holds the ids of the batch, at the real positions at least."""
    numbers = _whole(batch.extras[name])
    return (
        numbers is not None
        and numbers.shape == batch.shape
        and np.array_equal(numbers[batch.real], batch.ids[batch.real])
    )


def with_numbers(batch: TokenBatch, name: str, change: Callable[[np.ndarray], np.ndarray]) -> TokenBatch:
    """Return the batch with the whole numbers of a further input changed."""

    def changed(leaf: Any) -> Any:
        numbers = _whole(leaf)
        return leaf if numbers is None else _like(leaf, change(numbers))

    return batch.replace(extras={**batch.extras, name: map_nest(batch.extras[name], _is_leaf, changed)})


def _has_positions(batch: TokenBatch, name: str, leaf: Any) -> bool:
    """Return whether an array in an input has as many entries as the text has positions."""
    shape = _shape(leaf)
    is_of_each = name not in batch.shared and shape[:1] == (len(batch),)
    return batch.shape[1] in shape[int(is_of_each) :]


def _numbers_of_text(batch: TokenBatch, name: str) -> str | None:
    """Return the first whole numbers in an input that may count or name positions of the text; None where there are none.

    Labels of the examples do not, nor do truth values, images, and a single number that is no length.
    """
    if name == LABELS:
        return None
    for leaf in every(batch.extras[name], _is_leaf):
        numbers = _whole(leaf)
        if numbers is None or not numbers.size or numbers.ndim > MOST_AXES or to_numpy(leaf).dtype == bool:
            continue
        if numbers.ndim or int(numbers) in (batch.shape[1], batch.real.sum(1).max()):
            return brief(numbers.tolist())
    return None


def _is_leaf(value: Any) -> bool:
    """Return whether a value in an input is an array, a number, or a list that stands for an array."""
    if hasattr(value, "shape") or (isinstance(value, (int, float)) and not isinstance(value, bool)):
        return True
    if not isinstance(value, (list, tuple)) or every(value, lambda entry: hasattr(entry, "shape")):
        return False
    try:
        return to_numpy(value).dtype.kind in "iuf"
    except ValueError:  # the lists are ragged
        return False


def _whole(leaf: Any) -> np.ndarray | None:
    """Return the numbers of a leaf as int64; None where they are no whole numbers."""
    try:
        array = to_numpy(leaf)
        return array.astype(np.int64) if array.dtype == bool else whole_numbers(array)
    except (TypeError, ValueError):  # PyTorch's bfloat16, say
        return None


def _shape(leaf: Any) -> tuple[int, ...]:
    """Return the shape of a leaf; that of any other value is ()."""
    if hasattr(leaf, "shape"):
        return tuple(map(int, leaf.shape))
    return to_numpy(leaf).shape if _is_leaf(leaf) else ()


def _like(leaf: Any, numbers: np.ndarray) -> Any:
    """Return numbers in the form of a leaf: a list, a number, or an array of its dtype."""
    if isinstance(leaf, (list, tuple)):
        return type(leaf)(numbers.tolist())
    if not hasattr(leaf, "shape"):
        return type(leaf)(numbers)
    return numbers.astype(to_numpy(leaf).dtype)


def _is_numbered(numbers: np.ndarray, real: np.ndarray) -> int | None:
    """Return the first example whose numbers do not rise by 1 from real position to real position; None where all do."""
    wrong = (example for example, own in enumerate(real) if (np.diff(numbers[example, own]) != 1).any())
    return next(wrong, None)


def _position_ids(batch: TokenBatch, instead: str) -> np.ndarray:
    """Return the numbers of the positions, (example, position)."""
    try:
        numbers = np.broadcast_to(to_numpy(batch.extras[POSITION_IDS]), batch.shape)
    except ValueError:
        numbers = np.zeros(batch.shape)
    example = _is_numbered(numbers, batch.real)
    if example is not None:
        raise UnsupportedError(
            f"{POSITION_IDS} of example {example} are {brief(numbers[example, batch.real[example]])}: expected numbers that rise "
            f"by 1, so that those of another text are known; {instead}"
        )
    return numbers
