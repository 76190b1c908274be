"""Encodes with the library `tokenizers`, alone or inside Hugging Face's, and leaves its settings as they are."""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Final

from embgrad.errors import BatchError
from embgrad.inputs.collate import Encoded, Padding

__all__ = [
    "apart",
    "description_of",
    "padding_of_huggingface",
    "padding_of_tokenizers",
    "with_huggingface",
    "with_tokenizers",
    "words_of",
]

#: The tokens that pad where a tokenizer does not say.
PADS: Final = ("[PAD]", "<pad>")

#: Held while a tokenizer is set up, which may be that of several streams.
_setting: Final = threading.RLock()


def padding_of_huggingface(tokenizer: Any) -> Padding:
    """A Hugging Face tokenizer's own padding; GPT-2's has none, and under the mask any id serves."""
    return Padding(
        id=0 if tokenizer.pad_token_id is None else int(tokenizer.pad_token_id),
        type=int(tokenizer.pad_token_type_id),
        token=str(tokenizer.pad_token or "[PAD]"),
        side=str(tokenizer.padding_side),
    )


def padding_of_tokenizers(tokenizer: Any) -> Padding:
    """The own padding of a `tokenizers.Tokenizer`, or that of its vocabulary."""
    own = tokenizer.padding
    if own:
        return Padding(int(own["pad_id"]), int(own["pad_type_id"]), str(own["pad_token"]), str(own["direction"]))
    for token in PADS:
        found = tokenizer.token_to_id(token)
        if found is not None:
            return Padding(id=int(found), token=token)
    return Padding()


def apart(tokenizer: Any) -> Any:
    """The same with settings of its own, for a thread of its own: who uses a tokenizer at the same time may set it up anew.

    A tokenizer without this library is itself, and so is one that cannot be copied, having parts that are written in Python.
    """
    inner = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if not hasattr(inner, "encode_batch") or not hasattr(inner, "to_str"):
        return tokenizer
    own = _copied(inner)
    if own is None:
        return tokenizer
    if inner is tokenizer:
        return own
    made = copy.copy(tokenizer)
    made._tokenizer = own
    return made if made.backend_tokenizer is own else tokenizer


def description_of(tokenizer: Any) -> str | None:
    """What a `tokenizers.Tokenizer` says of itself; None where a part of it is written in Python, which it cannot write down."""
    try:
        told: str = tokenizer.to_str()
    except Exception as error:
        if type(error) is not Exception:  # which is the library's
            raise
        return None
    return told


def _copied(tokenizer: Any) -> Any | None:
    """A `tokenizers.Tokenizer` like it; None where there can be none."""
    told = description_of(tokenizer)
    if told is None:
        return None
    own = type(tokenizer).from_str(told)
    if getattr(tokenizer, "encode_special_tokens", False):  # of which its description says nothing
        own.encode_special_tokens = True
    return own


def with_huggingface(tokenizer: Any, examples: list[tuple[str, ...]], max_length: int | None) -> list[Encoded]:
    """Each example by a Hugging Face tokenizer, which sets up the `tokenizers.Tokenizer` in it at each call."""
    with _setting, _settings_kept(getattr(tokenizer, "backend_tokenizer", None)), _failures_told():
        return [_one_with_huggingface(tokenizer, example, max_length) for example in examples]


@contextlib.contextmanager
def _settings_kept(tokenizer: Any) -> Iterator[None]:
    """Give a `tokenizers.Tokenizer` its truncation and padding back, where they are others: none can be set while it encodes."""
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
def _failures_told() -> Iterator[None]:
    """As an error of ours what the library `tokenizers` raises where its file is broken: a bare Exception, or none at all."""
    try:
        yield
    except BaseException as error:
        if type(error) is not Exception and type(error).__module__ != "pyo3_runtime":  # which is Rust's panic
            raise
        raise BatchError(
            f"the tokenizer cannot encode the texts: {error}; expected a tokenizer whose vocabulary holds its special tokens; "
            "fetch its tokenizer.json again"
        ) from error


def _one_with_huggingface(tokenizer: Any, example: tuple[str, ...], max_length: int | None) -> Encoded:
    whole = tokenizer(*example, padding=False, truncation=False, verbose=False)
    cut = whole
    if max_length is not None and len(whole["input_ids"]) > max_length:
        cut = tokenizer(*example, padding=False, truncation=True, max_length=max_length)
    ids = list(cut["input_ids"])
    types = cut.get("token_type_ids")
    words = None
    if getattr(tokenizer, "is_fast", False):
        words = words_of(cut.word_ids(0), cut.sequence_ids(0))
    tokens = tokenizer.convert_ids_to_tokens(ids)
    return Encoded(ids, types, [str(token) for token in tokens], words, len(whole["input_ids"]) - len(ids))


def with_tokenizers(tokenizer: Any, examples: list[tuple[str, ...]], max_length: int | None) -> list[Encoded]:
    """Each example by a `tokenizers.Tokenizer`, cut off to `max_length` or as it is set up itself."""
    inputs: list[Any] = [example if len(example) == 2 else example[0] for example in examples]
    truncation = getattr(tokenizer, "truncation", None)
    limits = dict(truncation or {})
    if max_length is not None:
        limits = {"max_length": max_length, **{name: limits[name] for name in ("direction",) if name in limits}}
    with _failures_told(), _unlimited(tokenizer, bool(truncation or tokenizer.padding or limits)) as own:
        whole = found = own.encode_batch(inputs)
        if limits and any(len(one.ids) > limits["max_length"] for one in whole):
            own.enable_truncation(**limits)
            # What is short enough is as it was found: of some tokenizers no two encodings of a text are the same.
            found = [
                one if len(one.ids) <= limits["max_length"] else own.encode_batch([given])[0]
                for given, one in zip(inputs, whole, strict=True)
            ]
    return [
        Encoded(
            one.ids, types, one.tokens, words_of(one.word_ids, one.sequence_ids), max(0, len(full.ids) - len(one.ids))
        )
        for one, full, types in zip(found, whole, _types_that_tell(found), strict=True)
    ]


@contextlib.contextmanager
def _unlimited(tokenizer: Any, limited: bool) -> Iterator[Any]:
    """The tokenizer without padding and truncation, which it may be given: a copy, or where there is none the user's own."""
    if not limited:
        yield tokenizer
        return
    own = _copied(tokenizer)
    with _setting, _settings_kept(tokenizer) if own is None else contextlib.nullcontext():
        own = tokenizer if own is None else own
        own.no_padding()
        own.no_truncation()
        yield own


def _types_that_tell(encoded: Sequence[Any]) -> list[Sequence[int] | None]:
    """The types of each encoding, or None where all are zero: these tokenizers give zeros whether the model has types or not."""
    tell = any(any(one.type_ids) for one in encoded)
    return [one.type_ids if tell else None for one in encoded]


def words_of(words: Sequence[int | None], sequences: Sequence[int | None]) -> list[int]:
    """Word numbers that go on from the first text of a pair to the second; -1 for special tokens."""
    first = max(
        (word for word, text in zip(words, sequences, strict=True) if text == 0 and word is not None), default=-1
    )
    return [
        -1 if word is None or text is None else word + (first + 1 if text else 0)
        for word, text in zip(words, sequences, strict=True)
    ]
