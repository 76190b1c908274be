"""The batch: token ids, mask and types, validated once and passed to each framework in its own convention."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from embgrad.common.arrays import to_numpy
from embgrad.common.options import expect_flag
from embgrad.common.pytree import entries, is_nest
from embgrad.errors import BatchError, brief, did_you_mean, quote
from embgrad.inputs.checks import (
    Text,
    check_ids,
    check_integers,
    check_mask,
    check_offsets,
    check_texts,
    check_tokens,
    read_only,
)
from embgrad.inputs.extras import cut, is_of_each

__all__ = ["CONVENTIONS", "ID_NAMES", "MASK_NAMES", "PACKED", "TYPE_NAMES", "TokenBatch"]

#: The keys of each known convention of dicts, as (ids, mask, types).
CONVENTIONS: Final[Mapping[str, tuple[str, str, str]]] = {
    "huggingface": ("input_ids", "attention_mask", "token_type_ids"),
    "tfhub": ("input_word_ids", "input_mask", "input_type_ids"),
    "keras_hub": ("token_ids", "padding_mask", "segment_ids"),
    "keras_hub_seq2seq": ("encoder_token_ids", "encoder_padding_mask", "encoder_segment_ids"),
}

#: The convention of one row of the ids at real positions, one example after another, with `offsets`, where each begins.
PACKED: Final = "packed"

#: The names that models have for the ids beside those of a convention, in order.
ID_NAMES: Final = ("ids", "tokens", "inputs", "x")

#: The names that models have for a mask that is 1 at real positions, and for types.
MASK_NAMES: Final = ("attention_mask", "input_mask", "mask")
TYPE_NAMES: Final = ("token_type_ids", "input_type_ids", "segment_ids", "token_types", "type_ids", "types")

#: The fields that are arrays with one entry for each example, or None.
_ARRAYS: Final = ("ids", "mask", "types", "words", "truncated", "offsets", "parts")


class TokenBatch:
    """Token ids of several examples, with the mask, types and further inputs of the model. Immutable.

    Args:
        ids: non-negative integers, shape (example, position).
        mask: 1 at real positions, 0 at padding, same shape as `ids`; float, bool or integer. None passes no mask to
            the model; every position then counts as real.
        types: segment numbers, same shape as `ids`. None passes no types to the model.
        tokens: the tokens' texts, one list for each example.
        words: for each position the number of the word that it belongs to, -1 where it belongs to none,
            same shape as `ids`.
        truncated: how many tokens were cut off each example, shape (example,).
        texts: the user's text of each example: a str, or a pair of str.
        offsets: where each token stands in its text, as the characters from `start` up to `end`, whole numbers of shape (example,
            position, 2); equal or -1 where a token has no characters, as special tokens and padding have none. Needs `texts`.
        parts: for each position the text that its offsets count in: 0, or 1 for the second text of a pair; -1 where it has no
            characters. Same shape as `ids`. None where no example is a pair.
        extras: further inputs by name, passed to the model unchanged.
        convention: the form in which `inputs` returns the batch: a key of `CONVENTIONS`, "gluonnlp", "ids" or "packed".
        mask_is_bool: whether the model receives the mask as bool, since a model may index with it or invert it.
        shared: the names of those extras that all examples share. Any other extra is sliced along the examples if it has
            one entry for each example: an array whose first axis has the batch's length, alone or inside dicts, tuples and
            model outputs, or a list of that length.

    Attributes:
        ids: int64, shape (example, position), read-only. So are `mask`, `types` and `words` where given.
        truncated: int64, shape (example,), zeros where nothing was cut off.
        offsets: int64, shape (example, position, 2), read-only, (-1, -1) where a token has no characters; None where not given.
        parts: int64, shape (example, position), read-only; None where there are no offsets.

    Raises:
        BatchError: ids are ragged, empty, negative or not whole numbers; a mask or types have another shape; a mask has
            values other than 0 and 1; the number of tokens is wrong; offsets lie outside of their texts; `shared` names an
            input that is not in `extras`; or an extra has a name that the convention uses for the ids, the mask or the types.
    """

    __slots__ = (
        "convention",
        "extras",
        "ids",
        "mask",
        "mask_is_bool",
        "offsets",
        "parts",
        "shared",
        "texts",
        "tokens",
        "truncated",
        "types",
        "words",
    )

    ids: np.ndarray
    mask: np.ndarray | None
    types: np.ndarray | None
    tokens: tuple[tuple[str, ...], ...] | None
    words: np.ndarray | None
    truncated: np.ndarray
    texts: tuple[Text, ...] | None
    offsets: np.ndarray | None
    parts: np.ndarray | None
    extras: Mapping[str, Any]
    convention: str
    mask_is_bool: bool
    shared: frozenset[str]

    def __init__(
        self,
        ids: Any,
        mask: Any = None,
        types: Any = None,
        *,
        tokens: Sequence[Sequence[str]] | None = None,
        words: Any = None,
        truncated: Any = None,
        texts: Sequence[Text] | None = None,
        offsets: Any = None,
        parts: Any = None,
        extras: Mapping[str, Any] | None = None,
        convention: str = "huggingface",
        mask_is_bool: bool = False,
        shared: Iterable[str] = (),
    ) -> None:
        put = object.__setattr__
        put(self, "ids", check_ids(ids))
        shape = self.ids.shape
        put(self, "mask", None if mask is None else check_mask(mask, shape))
        put(self, "types", None if types is None else check_integers(types, "types", shape))
        put(self, "words", None if words is None else check_integers(words, "words", shape, least=-1))
        put(self, "tokens", None if tokens is None else check_tokens(tokens, self.ids, self.mask))
        cut = np.zeros(len(self.ids), np.int64) if truncated is None else truncated
        put(self, "truncated", check_integers(cut, "truncated", shape[:1]))
        put(self, "texts", None if texts is None else check_texts(texts, len(self.ids)))
        put(self, "offsets", None)
        put(self, "parts", None)
        if offsets is not None or parts is not None:
            checked = check_offsets(offsets, parts, self.texts, shape)
            put(self, "offsets", checked[0])
            put(self, "parts", checked[1])
        put(self, "extras", MappingProxyType(_check_extras(extras)))
        put(self, "convention", _find_convention(convention))
        expect_flag(mask_is_bool, "mask_is_bool")
        put(self, "mask_is_bool", bool(mask_is_bool) and mask is not None)
        put(self, "shared", _check_shared(shared, self.extras))
        self._expect_no_collision()

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a TokenBatch is immutable: cannot set {name!r}; build a new one instead")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a TokenBatch is immutable: cannot delete {name!r}")

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self._fields(),)

    def __len__(self) -> int:
        """Return the number of examples."""
        return len(self.ids)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TokenBatch):
            return NotImplemented
        return (
            all(_same(getattr(self, name), getattr(other, name)) for name in _ARRAYS)
            and (self.tokens, self.texts) == (other.tokens, other.texts)
            and (self.convention, self.mask_is_bool) == (other.convention, other.mask_is_bool)
            and self.extras.keys() == other.extras.keys()
            and all(_same(value, other.extras[key]) for key, value in self.extras.items())
            and self.shared == other.shared
        )

    __hash__ = None  # type: ignore[assignment]  # equality is by value over arrays

    def __repr__(self) -> str:
        examples, positions = self.ids.shape
        parts = [f"{examples} examples × {positions} positions"]
        if self.mask is not None:
            parts.append(f"{int((self.mask == 0).sum())} of them padding")
        if self.types is not None:
            parts.append("with types")
        if self.truncated.any():
            parts.append(f"{int(self.truncated.sum())} tokens cut off {int((self.truncated > 0).sum())} examples")
        if self.extras:
            parts.append(f"also {quote(self.extras)}")
        return f"TokenBatch({', '.join(parts)})"

    @property
    def shape(self) -> tuple[int, int]:
        """The ids' shape, (examples, positions)."""
        examples, positions = self.ids.shape
        return examples, positions

    @property
    def real(self) -> np.ndarray:
        """A bool array, shape (example, position): true at real positions, true everywhere where there is no mask."""
        return np.ones(self.shape, bool) if self.mask is None else np.asarray(self.mask, dtype=bool)

    @property
    def padded(self) -> bool:
        """True where the mask holds a zero."""
        return self.mask is not None and not self.mask.all()

    def model_mask(self) -> np.ndarray:
        """Return the mask as models receive it, int64, or bool where it was given so; ones where there is none."""
        if self.mask is None:
            return np.ones_like(self.ids)
        return self.mask.astype(bool) if self.mask_is_bool else self.mask

    def lengths(self) -> np.ndarray:
        """Return the number of real positions of each example, int64, shape (example,).

        Raises:
            BatchError: the padding is not all on the right, so that a length cannot describe it.
        """
        lengths = self.real.sum(1)
        right = np.arange(self.ids.shape[1]) < lengths[:, None]
        wrong = np.flatnonzero((right != self.real).any(1))
        if wrong.size:
            raise BatchError(
                f"example {wrong[0]} is not padded on the right only, and a valid length can say no more than "
                "how many positions from the left are real; pad on the right (padding_side='right')"
            )
        return np.asarray(lengths, np.int64)

    def replace(self, **changes: Any) -> TokenBatch:
        """Return a new batch with these fields changed and the others unchanged.

        New ids are of no text that is known: `tokens`, `words`, `texts`, `offsets` and `parts` are None then, unless they are
        among the changes. New texts have no offsets that are known, likewise.
        """
        if "ids" in changes:
            changes = {"tokens": None, "words": None, "texts": None, **changes}
        if "texts" in changes:
            changes = {"offsets": None, "parts": None, **changes}
        if "extras" in changes:
            changes = {"shared": self.shared & set(changes["extras"] or ()), **changes}
        return TokenBatch(**{**self._fields(), **changes})

    def __getitem__(self, examples: slice) -> TokenBatch:
        """Return the batch of the examples in a slice.

        Extras that have an entry for each example are sliced as well, except `shared` ones.
        """
        if not isinstance(examples, slice):
            raise TypeError(f"a TokenBatch is cut by a slice of examples, not by {type(examples).__name__}")
        return self._select(examples)

    def take(self, examples: Any) -> TokenBatch:
        """Return the batch of the examples with these indices, in their order; an index may occur several times.

        Args:
            examples: whole numbers from 0 to the number of examples, shape (n,).

        Raises:
            BatchError: an index is not the number of an example, or there is none.
        """
        try:
            indices = np.asarray(examples)
        except ValueError:  # of several lengths
            indices = np.zeros(0)
        outside = indices.ndim != 1 or not indices.size or indices.dtype.kind not in "iu"
        if outside or indices.min() < 0 or indices.max() >= len(self):
            raise BatchError(f"examples is {brief(examples)}: expected indices from 0 to {len(self) - 1}")
        return self._select(indices)

    def _select(self, examples: slice | np.ndarray) -> TokenBatch:
        numbers = np.arange(len(self))[examples]
        fields: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__}
        if not numbers.size:
            return TokenBatch(self.ids[examples])  # raises the error of an empty batch
        for name in _ARRAYS:
            if fields[name] is not None:
                fields[name] = read_only(np.array(fields[name][examples]))
        for name in ("tokens", "texts"):
            if fields[name] is not None:
                fields[name] = tuple(fields[name][index] for index in numbers.tolist())
        extras = {name: cut(name, self.extras[name], len(self), examples) for name in self.of_each}
        selected = object.__new__(TokenBatch)
        for name, value in {**fields, "extras": MappingProxyType({**self.extras, **extras})}.items():
            object.__setattr__(selected, name, value)  # the parts of a valid batch are valid
        return selected

    @property
    def of_each(self) -> list[str]:
        """The names of the extras that have one entry for each example, or hold arrays that have: those that are not `shared`.

        An array has if its first axis has the batch's length; so has a list or tuple of that length, unless it is a nest of
        such arrays itself.
        """
        return [name for name, value in self.extras.items() if name not in self.shared and is_of_each(value, len(self))]

    def to_huggingface(self) -> dict[str, np.ndarray]:
        """Return a dict of `input_ids`, and of `attention_mask` and `token_type_ids` where given, int64."""
        return self._named_arrays("huggingface", np.int64, complete=False)

    def to_tfhub(self) -> dict[str, np.ndarray]:
        """Return a dict of `input_word_ids`, `input_mask` and `input_type_ids`, int32; the format requires all three."""
        return self._named_arrays("tfhub", np.int32, complete=True)

    def to_keras_hub(self) -> dict[str, np.ndarray]:
        """Return a dict of `token_ids` and `padding_mask`, which the format requires, and of `segment_ids` where given, int32.

        Only some models of keras-hub take `segment_ids`, such as BERT's; a functional Keras model mistakes its inputs when
        it receives others than it declares.
        """
        mask = np.ones_like(self.ids) if self.mask is None else self.mask
        return self.replace(mask=mask)._named_arrays("keras_hub", np.int32, complete=False)

    def to_gluonnlp(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return (ids, types, valid lengths): int32, int32, float32 of shape (example,); the format requires all three.

        Raises:
            BatchError: the padding is not all on the right.
        """
        types = np.zeros_like(self.ids) if self.types is None else self.types
        return (
            _cast(self.ids, "ids", np.int32),
            _cast(types, "types", np.int32),
            self.lengths().astype(np.float32),
        )

    def pack(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids at real positions in one row, int64, and where in it each example begins, int64, shape (example,)."""
        return self.ids[self.real], np.append(0, self.real.sum(1).cumsum()[:-1])

    def inputs(self) -> Any:
        """Return the batch in its own convention, with the extras: a dict, gluonnlp's triple, or the bare ids.

        A dict has no keys for values that were not given. gluonnlp's triple always has types; they are zeros then.
        """
        if self.convention == PACKED:
            ids, starts = self.pack()
            return {"input_ids": ids, "offsets": starts, **self.extras}
        if self.convention == "ids":
            return self.ids
        if self.convention == "gluonnlp":
            return self.to_gluonnlp()
        dtype = np.int64 if self.convention == "huggingface" else np.int32
        inputs: dict[str, Any] = self._named_arrays(self.convention, dtype, complete=False)
        if self.mask_is_bool:
            inputs[CONVENTIONS[self.convention][1]] = self.model_mask()
        return {**inputs, **self.extras}

    def _expect_no_collision(self) -> None:
        """Raise an error if an extra has a name that the batch's convention uses for the ids, the mask or the types."""
        names = CONVENTIONS.get(self.convention, ())
        for name, field, value in zip(names, ("ids", "mask", "types"), (self.ids, self.mask, self.types), strict=False):
            is_used = value is not None or self.convention != "huggingface"  # the other formats may require all three
            if is_used and name in self.extras:
                raise BatchError(
                    f"extras holds {name!r}, the name of the batch's own {field} in the convention {self.convention!r}: "
                    f"expected it as {field}=..., or under the name of another input"
                )

    def _fields(self) -> dict[str, Any]:
        return {**{name: getattr(self, name) for name in self.__slots__}, "extras": dict(self.extras)}

    def _named_arrays(self, convention: str, dtype: Any, *, complete: bool) -> dict[str, np.ndarray]:
        ids, mask, types = CONVENTIONS[convention]
        named = {ids: self.ids, mask: self.mask, types: self.types}
        if complete:
            named[mask] = np.ones_like(self.ids) if self.mask is None else self.mask
            named[types] = np.zeros_like(self.ids) if self.types is None else self.types
        return {key: _cast(value, key, dtype) for key, value in named.items() if value is not None}


def _check_extras(extras: Any) -> dict[str, Any]:
    if extras is None:
        return {}
    if not isinstance(extras, Mapping) or not all(isinstance(name, str) for name in extras):
        raise BatchError(
            f"extras is {brief(extras)}: expected a dict of further inputs by the names that the model has for them"
        )
    return dict(extras)


def _check_shared(shared: Any, extras: Mapping[str, Any]) -> frozenset[str]:
    names = [shared] if isinstance(shared, str) or not isinstance(shared, Iterable) else list(shared)
    for name in names:
        if not isinstance(name, str) or name not in extras:
            raise BatchError(
                f"shared names {name!r}: expected names of extras{f', which are {quote(extras)}' if extras else ''}."
                f"{did_you_mean(str(name), extras)}"
            )
    return frozenset(names)


def _find_convention(name: str) -> str:
    known = [*CONVENTIONS, "gluonnlp", "ids", PACKED]
    if not isinstance(name, str) or name not in known:
        raise BatchError(f"convention is {name!r}: expected one of {quote(known)}.{did_you_mean(str(name), known)}")
    return name


def _same(a: Any, b: Any) -> bool:
    if a is None or b is None:
        return a is b
    if is_nest(a) and is_nest(b):
        left, right = dict(entries(a)), dict(entries(b))
        return left.keys() == right.keys() and all(_same(entry, right[key]) for key, entry in left.items())
    try:
        return np.array_equal(to_numpy(a), to_numpy(b))
    except ValueError:  # an extra that is not an array
        return bool(a == b)


def _cast(array: np.ndarray, name: str, dtype: Any) -> np.ndarray:
    """Return the array in the integer type that the format requires; raise an error where a number does not fit."""
    if array.max() > np.iinfo(dtype).max:
        raise BatchError(
            f"{name} holds {array.max()}, which {np.dtype(dtype)} cannot hold: expected numbers up to {np.iinfo(dtype).max}"
        )
    return array.astype(dtype)


def _rebuild(fields: dict[str, Any]) -> TokenBatch:
    return TokenBatch(**fields)
