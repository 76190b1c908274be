"""Versions of the texts of a batch with more or fewer tokens, and what becomes of the further inputs that describe a text."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from embgrad.common.arrays import to_numpy, whole_numbers
from embgrad.common.pytree import entries, every, map_nest
from embgrad.errors import BatchError, UnsupportedError, brief
from embgrad.inputs.batch import TokenBatch
from embgrad.inputs.extras import cut

__all__ = [
    *("expect_resizable_input", "has_positions", "input_after_move"),
    *("is_copy_of_ids", "resize", "with_numbers"),
]

#: The further input with the positions' numbers, which count from the first position again in another text.
POSITION_IDS: Final = "position_ids"

#: A word in the name of an input that counts the tokens of a text, or names the last of them.
LENGTH: Final = re.compile(".*lens?|.*lengths?|last|valid")

#: A word in the name of an input that holds positions; of one that numbers them all; and of one that counts on from text to text.
POSITION: Final = re.compile("spans?|starts?|ends?|pos|positions?|offsets?|index|indices|idx|cu|map|mapping")
NUMBERED: Final = re.compile("pos|positions?")
RUNNING: Final = re.compile("cu|offsets?")

#: A word in the name of an input whose numbers are no positions.
CATEGORY: Final = re.compile("langs?|languages?|labels?|class|classes|task|domain|speaker|ids?|types?")

#: A word that does not say which text an input belongs to.
GENERAL: Final = re.compile(
    "inputs?|texts?|tokens?|masks?|attention|padding|seq|sequences?|src|source|encoder|n|num|max"
)

#: From this number on an input that equals the counts of several examples of different lengths does so by no chance.
LEAST: Final = 2


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

    Further inputs that count the real positions of each example, name the last of them, or number the positions are brought up to
    date, and so are copies of the mask and the types. A version whose real positions are its example's keeps all inputs.

    Args:
        examples: the index of the example that each text is a version of, int64, shape (text,).
        ids: the ids of the texts, shape (text, position).
        real: true at their real positions, bool, likewise.
        types: their types; None where the batch has none.
        instead: what the message proposes where an input cannot follow.
        apart: the names of further inputs that belong to other positions, such as those of a decoder.

    Raises:
        UnsupportedError: a further input may describe the text, and what it is for another text is not known.
    """
    taken = batch.take(examples)
    changes: dict[str, Any] = {"ids": ids, "types": types}
    if batch.mask is not None:
        changes["mask"] = real.astype(np.int64)
    is_same = real.shape[1] == batch.shape[1] and np.array_equal(real, batch.real[examples])
    if batch.extras and not is_same:
        texts = _Texts(batch, examples, real, types)
        extras = {
            name: taken.extras[name] if name in apart else texts.follow(name, value, instead)
            for name, value in batch.extras.items()
        }
        changes |= {"extras": extras, "shared": batch.shared - {POSITION_IDS}}
    return taken.replace(**changes)


def expect_resizable_input(batch: TokenBatch, name: str, instead: str) -> None:
    """Refuse to insert or delete tokens where a further input could not follow, see `resize`.

    Raises:
        UnsupportedError: it may describe the text, and what it is for another text is not known.
    """
    _texts_of(batch, batch.real).follow(name, batch.extras[name], instead)


def has_positions(batch: TokenBatch, name: str) -> bool:
    """Return whether a further input has as many entries as the text has positions, or numbers these."""
    texts = _texts_of(batch, batch.real)
    return name == POSITION_IDS or any(texts.has_positions(name, leaf) for leaf in every(batch.extras[name], _is_leaf))


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


def input_after_move(name: str, value: Any, batch: TokenBatch, real: np.ndarray) -> Any:
    """Return a further input without an axis of positions, after the positions of each example were moved.

    Args:
        real: true at real positions after the move, bool, (example, position).

    Raises:
        BatchError: it may name positions, and which is not known.
    """
    texts = _texts_of(batch, real)
    try:
        return texts.describe(name, value)
    except _UnknownError as error:
        raise BatchError(
            f"the further input {name!r} is {error}, and the batch is padded on the left: it may count or name positions, which "
            "are moved. Pad on the right (padding_side='right')"
        ) from None


class _UnknownError(Exception):
    """An input may describe the text, and what it is for another text is not known; the message is its value."""


@dataclass(frozen=True)
class _Texts:
    """Versions of the examples of a batch.

    Attributes:
        batch: the batch.
        examples: the index of the example that each text is a version of, (text,).
        real: true at their real positions, (text, position).
        types: their types.
    """

    batch: TokenBatch
    examples: np.ndarray
    real: np.ndarray
    types: np.ndarray | None

    def follow(self, name: str, value: Any, instead: str) -> Any:
        """Return a further input of the texts.

        Args:
            instead: what the message proposes.

        Raises:
            UnsupportedError: what it is for the texts is not known.
        """
        if name == POSITION_IDS:
            return self._number_positions(_position_ids(self.batch, instead))
        of_positions = [leaf for leaf in every(value, _is_leaf) if self.has_positions(name, leaf)]
        if of_positions:
            copy = self._copy(name, value)
            if copy is None:
                raise UnsupportedError(
                    f"the further input {name!r} has the shape {_shape(of_positions[0])}, with as many entries as the text has "
                    f"positions, and cannot follow it: {instead}"
                )
            return copy
        try:
            return self.describe(name, value)
        except _UnknownError as error:
            raise UnsupportedError(
                f"the further input {name!r} is {error}, which may count or name positions of the text, and what it is for "
                f"another text is not known: {instead}, or leave it out where the objective does not depend on it"
            ) from None

    def describe(self, name: str, value: Any) -> Any:
        """Return a further input of the texts, none of whose axes is the positions.

        Raises:
            _UnknownError: it may describe the text, and what it is for the texts is not known.
        """
        new = [self._leaf(name, _words(path), leaf) for path, leaf in _leaves(name, value)]
        if all(made is None for made in new):
            return self._take(name, value)
        made = iter(new)

        def changed(leaf: Any) -> Any:
            numbers = next(made)
            return self._take(name, leaf) if numbers is None else _like(leaf, numbers)

        return map_nest(value, _is_leaf, changed)

    def _take(self, name: str, value: Any) -> Any:
        """Return an input of the texts' examples."""
        return value if name not in self.batch.of_each else cut(name, value, len(self.batch), self.examples)

    def _is_of_each(self, name: str, shape: tuple[int, ...]) -> bool:
        return name not in self.batch.shared and shape[:1] == (len(self.batch),)

    def has_positions(self, name: str, leaf: Any) -> bool:
        """Return whether an array in an input has as many entries as the text has positions."""
        shape = _shape(leaf)
        return self.batch.shape[1] in shape[int(self._is_of_each(name, shape)) :]

    def _copy(self, name: str, value: Any) -> np.ndarray | None:
        """Return the mask, the types or the positions' numbers of the texts where an input is a copy of those of the batch."""
        batch, numbers = self.batch, _whole(value)
        if numbers is None or name in batch.shared or numbers.shape != batch.shape or not hasattr(value, "shape"):
            return None
        dtype = to_numpy(value).dtype
        if self._belongs_to_other(name, None):
            return None
        if (batch.padded or "mask" in _words(name)) and np.array_equal(numbers, batch.real):
            return self.real.astype(dtype)
        if batch.padded and np.array_equal(numbers, ~batch.real):
            return np.asarray(~self.real, dtype)
        own, types = batch.types, self.types
        if own is not None and types is not None and np.ptp(own) and np.array_equal(numbers, own):
            return types.astype(dtype)
        if _has(_words(name), NUMBERED) and _is_numbered(numbers, batch.real) is None:
            return self._number_positions(numbers).astype(dtype)
        return None

    def _number_positions(self, numbers: np.ndarray) -> np.ndarray:
        """Return the numbers of the texts' positions, which count on from that of their examples' first real ones."""
        first = numbers[np.arange(len(numbers)), self.batch.real.argmax(1)][self.examples]
        return np.asarray(first[:, None] + np.maximum(self.real.cumsum(1) - 1, 0))

    def _belongs_to_other(self, name: str, most: int | None) -> bool:
        """Return whether an input describes another one that is no part of the text, as `doc_lengths` describes `doc_ids`.

        Args:
            most: the largest number in it, where it may be a length.
        """
        unspecific = (LENGTH, POSITION, CATEGORY, GENERAL)
        own = {word for word in _words(name) if not any(pattern.fullmatch(word) for pattern in unspecific)}
        for other, value in self.batch.extras.items():
            if other != name and own & _words(other):
                shape = _shape(value)
                if len(shape) > 1 and shape[1] != self.batch.shape[1] and (most is None or most <= shape[1]):
                    return True
        return False

    def _leaf(self, name: str, words: set[str], leaf: Any) -> np.ndarray | None:
        """Return an array, list or number in an input for the texts; None where it stays.

        Args:
            words: those of the name, and of the keys in the input.

        Raises:
            _UnknownError: it may describe the text, and what it is for the texts is not known.
        """
        numbers = _whole(leaf)
        is_length, is_position = _has(words, LENGTH), _has(words, POSITION)
        is_category = _has(words, CATEGORY) and not is_length and not is_position
        if numbers is None or not numbers.size or is_category or to_numpy(leaf).dtype == bool:
            return None
        if numbers.ndim > 2 and (numbers.ndim > 3 or numbers.shape[-1] != 2):  # no lengths, positions or spans
            return None
        if self._belongs_to_other(name, int(numbers.max())):
            return None
        if not numbers.ndim:
            return self._number(int(numbers), is_length or is_position)
        made = self._count(name, words, numbers)
        if made is not None:
            return made
        known = numbers[numbers >= 0]
        in_text = bool(known.size) and bool((known <= self.batch.shape[1]).all())
        is_integer = to_numpy(leaf).dtype.kind in "iu" and name not in self.batch.shared
        if is_length or _has(words, RUNNING) or (in_text and (is_integer or is_position)):
            raise _UnknownError(brief(numbers.tolist()))
        return None

    def _number(self, number: int, is_named: bool) -> np.ndarray | None:
        """Return what `_leaf` does for a single number, which describes the text only where it equals its length."""
        width, longest = self.batch.shape[1], int(self.batch.real.sum(1).max())
        if number not in (width, longest):
            return None
        if not is_named:
            raise _UnknownError(str(number))
        return np.array(self.real.shape[1] if number == width else int(self.real.sum(1).max()))

    def _count(self, name: str, words: set[str], numbers: np.ndarray) -> np.ndarray | None:
        """Return the counts of the texts, or their last positions, where an input is these of the batch; None where it is not."""
        counts, new = self.batch.real.sum(1), self.real.sum(1)
        is_length = _has(words, LENGTH)
        is_running = is_length or _has(words, RUNNING) or len(counts) > 1
        if is_running and np.array_equal(numbers, np.append(0, counts.cumsum())):
            return np.append(0, new.cumsum())
        if not self._is_of_each(name, numbers.shape) or numbers.size != len(counts):
            return None
        is_certain = len(np.unique(counts)) > 1 and numbers.min() >= LEAST and not _has(words, POSITION)
        if not is_length and not is_certain:
            return None
        for former, present in ((counts, new), (_last(self.batch.real), _last(self.real))):
            if np.array_equal(numbers.ravel(), former):
                return np.asarray(present).reshape(len(new), *numbers.shape[1:])
        return None


def _texts_of(batch: TokenBatch, real: np.ndarray) -> _Texts:
    return _Texts(batch, np.arange(len(batch)), real, batch.types)


def _words(name: str) -> set[str]:
    """Return the words of a name in lower case, of `seqLens` and `seq_lens` alike."""
    return set(re.findall("[a-z]+", re.sub("([a-z])([A-Z])", r"\1_\2", name).lower()))


def _has(words: set[str], pattern: re.Pattern[str]) -> bool:
    return any(map(pattern.fullmatch, words))


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


def _leaves(name: str, value: Any) -> list[tuple[str, Any]]:
    """Return the arrays, lists and numbers in an input with their names, in the order of `every`."""
    if _is_leaf(value):
        return [(name, value)]
    named = isinstance(value, Mapping)
    return [leaf for key, entry in entries(value) for leaf in _leaves(f"{name}.{key}" if named else name, entry)]


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


def _last(real: np.ndarray) -> np.ndarray:
    """Return the last real position of each text."""
    return np.asarray(real.shape[1] - 1 - real[:, ::-1].argmax(1))


def _is_numbered(numbers: np.ndarray, real: np.ndarray) -> int | None:
    """Return the first example whose numbers do not rise by 1 from real position to real position; None where all do."""
    wrong = (example for example, own in enumerate(real) if (np.diff(numbers[example, own]) != 1).any())
    return next(wrong, None)


def _position_ids(batch: TokenBatch, instead: str) -> np.ndarray:
    """Return the numbers of the positions, (example, position).

    Raises:
        UnsupportedError: they do not count the real positions.
    """
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
