"""Encode texts with the library `tokenizers`, directly or inside a Hugging Face tokenizer, and restore its settings."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, Final

import numpy as np

from embgrad.errors import BatchError
from embgrad.inputs.collate import Encoded, Padding

__all__ = [
    "description_of",
    "padding_of_huggingface",
    "padding_of_tokenizers",
    "with_huggingface",
    "with_tokenizers",
    "words_of",
]

#: The tokens used as padding where a tokenizer declares none.
PADS: Final = ("[PAD]", "<pad>")

#: A lock, held while a tokenizer's settings are changed: several threads may share a tokenizer.
_setting: Final = threading.RLock()


def padding_of_huggingface(tokenizer: Any) -> Padding:
    """Return a Hugging Face tokenizer's own padding. Where it has none, as GPT-2's, any id serves, since it is masked."""
    return Padding(
        id=0 if tokenizer.pad_token_id is None else int(tokenizer.pad_token_id),
        type=int(tokenizer.pad_token_type_id),
        token=str(tokenizer.pad_token or "[PAD]"),
        side=str(tokenizer.padding_side),
    )


def padding_of_tokenizers(tokenizer: Any) -> Padding:
    """Return the padding of a `tokenizers.Tokenizer`: as set up, or else from the padding token in its vocabulary."""
    padding = tokenizer.padding
    if padding:
        return Padding(
            int(padding["pad_id"]), int(padding["pad_type_id"]), str(padding["pad_token"]), str(padding["direction"])
        )
    for token in PADS:
        token_id = tokenizer.token_to_id(token)
        if token_id is not None:
            return Padding(id=int(token_id), token=token)
    return Padding()


def description_of(tokenizer: Any) -> str | None:
    """Return the JSON serialization of a `tokenizers.Tokenizer`; None where a component is written in Python."""
    try:
        description: str = tokenizer.to_str()
    except Exception as error:
        if type(error) is not Exception:  # the library raises a plain Exception
            raise
        return None
    return description


def _copy(tokenizer: Any) -> Any | None:
    """Return a copy of a `tokenizers.Tokenizer`; None where it cannot be copied."""
    description = description_of(tokenizer)
    if description is None:
        return None
    copied_tokenizer = type(tokenizer).from_str(description)
    if getattr(tokenizer, "encode_special_tokens", False):  # this setting is not serialized
        copied_tokenizer.encode_special_tokens = True
    return copied_tokenizer


def with_huggingface(tokenizer: Any, examples: list[tuple[str, ...]], max_length: int | None) -> list[Encoded]:
    """Return each example as encoded by a Hugging Face tokenizer, which configures its `tokenizers.Tokenizer` at each call."""
    with _setting, _preserve_settings(getattr(tokenizer, "backend_tokenizer", None)), _translate_errors():
        return [_encode_with_huggingface(tokenizer, example, max_length) for example in examples]


@contextlib.contextmanager
def _preserve_settings(tokenizer: Any) -> Iterator[None]:
    """Restore the truncation and padding of a `tokenizers.Tokenizer` on exit, where they have changed.

    Unchanged settings are left alone: they cannot be set while the tokenizer encodes in another thread.
    """
    if tokenizer is None:
        yield
        return
    truncation, padding = tokenizer.truncation, tokenizer.padding
    try:
        yield
    finally:
        if tokenizer.truncation != truncation:
            tokenizer.no_truncation() if truncation is None else tokenizer.enable_truncation(**truncation)
        if tokenizer.padding != padding:
            tokenizer.no_padding() if padding is None else tokenizer.enable_padding(**padding)


@contextlib.contextmanager
def _translate_errors() -> Iterator[None]:
    """Raise a BatchError for what the library `tokenizers` raises on a broken file: a bare Exception, or a panic."""
    try:
        yield
    except BaseException as error:
        if type(error) is not Exception and type(error).__module__ != "pyo3_runtime":  # a panic in Rust
            raise
        raise BatchError(
            f"the tokenizer cannot encode the texts: {error}; expected a tokenizer whose vocabulary holds its special tokens; "
            "fetch its tokenizer.json again"
        ) from error


def _encode_with_huggingface(tokenizer: Any, example: tuple[str, ...], max_length: int | None) -> Encoded:
    whole = tokenizer(*example, padding=False, truncation=False, verbose=False)
    cut = whole
    if max_length is not None and len(whole["input_ids"]) > max_length:
        cut = tokenizer(*example, padding=False, truncation=True, max_length=max_length)
    ids = list(cut["input_ids"])
    types = cut.get("token_type_ids")
    words = offsets = parts = None
    if getattr(tokenizer, "is_fast", False):
        offsets, parts = _offsets(cut.encodings[0]), cut.sequence_ids(0)
        words = words_of(cut.word_ids(0), parts)
    tokens = [str(token) for token in tokenizer.convert_ids_to_tokens(ids)]
    truncated = len(whole["input_ids"]) - len(ids)
    return Encoded(ids, types, tokens, words, truncated, texts=example, offsets=offsets, parts=parts)


def with_tokenizers(tokenizer: Any, examples: list[tuple[str, ...]], max_length: int | None) -> list[Encoded]:
    """Return each example as encoded by a `tokenizers.Tokenizer`, cut to `max_length` or to its own truncation."""
    inputs: list[Any] = [example if len(example) == 2 else example[0] for example in examples]
    truncation = getattr(tokenizer, "truncation", None)
    limits = dict(truncation or {})
    if max_length is not None:
        limits = {"max_length": max_length, **{name: limits[name] for name in ("direction",) if name in limits}}
    with _translate_errors(), _without_limits(tokenizer, bool(truncation or tokenizer.padding or limits)) as unlimited:
        whole = encodings = unlimited.encode_batch(inputs)
        if limits and any(len(encoding.ids) > limits["max_length"] for encoding in whole):
            unlimited.enable_truncation(**limits)
            # Reuse encodings that are short enough: some tokenizers encode the same text differently each time.
            encodings = [
                encoding if len(encoding.ids) <= limits["max_length"] else unlimited.encode_batch([text])[0]
                for text, encoding in zip(inputs, whole, strict=True)
            ]
    return [
        Encoded(
            encoding.ids,
            types,
            encoding.tokens,
            words_of(encoding.word_ids, parts := encoding.sequence_ids),
            len(full.ids) - len(encoding.ids),
            texts=example,
            offsets=_offsets(encoding),
            parts=parts,
        )
        for example, encoding, full, types in zip(examples, encodings, whole, _types_or_none(encodings), strict=True)
    ]


@contextlib.contextmanager
def _without_limits(tokenizer: Any, limited: bool) -> Iterator[Any]:
    """Yield the tokenizer without padding and truncation: a copy, or the tokenizer itself where it cannot be copied.

    Args:
        limited: whether it may have padding or truncation, or will get them; if not, it is yielded as it is.
    """
    if not limited:
        yield tokenizer
        return
    unlimited = _copy(tokenizer)
    with _setting, _preserve_settings(tokenizer) if unlimited is None else contextlib.nullcontext():
        unlimited = tokenizer if unlimited is None else unlimited
        unlimited.no_padding()
        unlimited.no_truncation()
        yield unlimited


def _types_or_none(encoded: Sequence[Any]) -> list[Sequence[int] | None]:
    """Return each encoding's types; None if all are zero, which these tokenizers return whether or not the model has types."""
    has_types = any(any(encoding.type_ids) for encoding in encoded)
    return [encoding.type_ids if has_types else None for encoding in encoded]


def _offsets(encoding: Any) -> np.ndarray | None:
    """Return the characters of each token, (token, 2), in little memory; None where the encoding has none."""
    offsets = getattr(encoding, "offsets", None)
    return None if offsets is None else np.fromiter(chain.from_iterable(offsets), np.int64).reshape(-1, 2)


def words_of(words: Sequence[int | None], sequences: Sequence[int | None]) -> list[int]:
    """Return word numbers that continue from the first text of a pair to the second; -1 for special tokens."""
    if 1 not in sequences:
        return [-1 if word is None or text is None else word for word, text in zip(words, sequences, strict=True)]
    first = max(
        (word for word, text in zip(words, sequences, strict=True) if text == 0 and word is not None), default=-1
    )
    return [
        -1 if word is None or text is None else word + (first + 1 if text else 0)
        for word, text in zip(words, sequences, strict=True)
    ]
