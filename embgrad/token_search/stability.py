"""The check that texts tokenise to their own ids, so that what a search finds can be typed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

import numpy as np

from embgrad.errors import BatchError, UnsupportedError
from embgrad.inputs.batch import TokenBatch
from embgrad.inputs.encode import BERT_SPECIAL, encode_examples
from embgrad.inputs.special_tokens import special_ids

__all__ = ["Stability", "decode", "stability_of"]

#: Takes ids, and returns for each text the ids to which it tokenises after it was decoded.
RoundTrip = Callable[[Sequence[Sequence[int]]], list[list[int]]]


@dataclass(frozen=True)
class Stability:
    """A test of which ids are those to which their own text tokenises.

    Attributes:
        round_trip: decodes ids, and encodes the text.
    """

    round_trip: RoundTrip

    def of(self, ids: Sequence[np.ndarray]) -> np.ndarray:
        """Return whether each sequence of ids, those at real positions, comes back, bool, shape (text,)."""
        rows = [row.tolist() for row in ids]
        return np.array([row == other for row, other in zip(rows, self.round_trip(rows), strict=True)], bool)


def stability_of(batch: TokenBatch, tokenizer: Any, *, some: bool = False) -> Stability:
    """Return the round trip under which the texts of a batch themselves come back; with `some` most of them, but one at least.

    The tokenizer adds special tokens to the text, or to the two texts of a pair, as it does to what users type; where they stand
    in another way, as in a chat, or in a batch without them, they are part of the text that is encoded.
    """
    if not hasattr(tokenizer, "decode"):
        raise UnsupportedError(
            f"the tokenizer is a {type(tokenizer).__name__} without a method decode(ids), so that it cannot be checked which ids "
            "a text tokenises to: pass stable=False, which keeps any ids, or a tokenizer that has decode"
        )
    rows = [row[real] for row, real in zip(batch.ids, batch.real, strict=True)]
    best, unstable = None, np.ones(len(rows), bool)
    for make in (_with_special_tokens_added, _with_special_tokens_in_text):
        found = Stability(make(tokenizer))
        wrong = ~found.of(rows)
        if not wrong.any():
            return found
        if wrong.sum() < unstable.sum() or best is None:
            best, unstable = found, wrong
    assert best is not None
    if some and not unstable.all():
        return best
    example = int(np.flatnonzero(unstable)[0])
    returned = best.round_trip([rows[example].tolist()])[0]
    raise BatchError(
        f"example {example} holds the ids {_show(rows[example].tolist())}, and its text tokenises to {_show(returned)}, so "
        "that no text near it could be kept: pass stable=False to search over any ids, or a batch encoded by the same tokenizer"
    )


def decode(batch_ids: Sequence[np.ndarray], tokenizer: Any) -> list[str]:
    """Return the text of each sequence of ids without special tokens."""
    decode = _decoder_of(tokenizer, skip_special_tokens=True)
    return [decode(row.tolist()) for row in batch_ids]


#: The most ids that a message shows.
MOST_SHOWN: Final = 12


def _show(ids: Sequence[int]) -> str:
    return f"[{', '.join(map(str, ids[:MOST_SHOWN]))}{', …' if len(ids) > MOST_SHOWN else ''}]"


def _with_special_tokens_in_text(tokenizer: Any) -> RoundTrip:
    def round_trip(rows: Sequence[Sequence[int]]) -> list[list[int]]:
        return _encode_again(tokenizer, rows, lambda row: (row,), added=False)

    return round_trip


def _with_special_tokens_added(tokenizer: Any) -> RoundTrip:
    special = set(special_ids(tokenizer) or _find_added_ids(tokenizer))

    def round_trip(rows: Sequence[Sequence[int]]) -> list[list[int]]:
        return _encode_again(tokenizer, rows, texts_of, added=True)

    def texts_of(row: Sequence[int]) -> tuple[Sequence[int], ...]:
        """Return the ids between special tokens, those of the first two texts."""
        between = [list(ids) for is_special, ids in groupby(row, special.__contains__) if not is_special]
        return tuple(between[:2]) or ((),)

    return round_trip


def _encode_again(
    tokenizer: Any,
    rows: Sequence[Sequence[int]],
    texts_of: Callable[[Sequence[int]], tuple[Sequence[int], ...]],
    *,
    added: bool,
) -> list[list[int]]:
    """Return the ids to which the texts of rows of ids tokenise; none for a text that the user's tokenizer does not take."""
    decode = _decoder_of(tokenizer, skip_special_tokens=False)
    if _takes_options(tokenizer):
        return _encode(tokenizer, [tuple(map(decode, texts_of(row))) for row in rows], added=added)
    result: list[list[int]] = []
    for row in rows:
        try:
            result.append(list(encode_examples([tuple(map(decode, texts_of(row)))], tokenizer)[0].ids))
        except (BatchError, LookupError, ValueError):  # a token that it cannot write, or a text that it cannot read
            result.append([])
    return result


def _takes_options(tokenizer: Any) -> bool:
    """Return whether a tokenizer is called as those of Hugging Face are, with lists of texts and options."""
    return hasattr(tokenizer, "encode_batch") or _accepts(tokenizer, "add_special_tokens")


def _accepts(function: Any, name: str) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # it is none, or has no signature
        return False
    return any(parameter.name == name or parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)


def _find_added_ids(tokenizer: Any) -> list[int]:
    """Return the ids of the special tokens that `embgrad.encode` adds for a tokenizer that adds none."""
    if not hasattr(tokenizer, "convert_tokens_to_ids"):
        return []
    return [int(id_) for id_ in tokenizer.convert_tokens_to_ids(list(BERT_SPECIAL))]


def _decoder_of(tokenizer: Any, *, skip_special_tokens: bool) -> Callable[[Sequence[int]], str]:
    """Return a function that returns the text of ids, with those options that the tokenizer's own method takes."""
    options: dict[str, Any] = {
        "skip_special_tokens": skip_special_tokens,
        "clean_up_tokenization_spaces": False,  # of Hugging Face, which would move spaces before punctuation
    }
    if hasattr(tokenizer, "encode_batch"):
        options.popitem()
    else:
        options = {name: value for name, value in options.items() if _accepts(tokenizer.decode, name)}
    return lambda ids: str(tokenizer.decode(list(ids), **options)) if len(ids) else ""


def _encode(tokenizer: Any, texts: Sequence[tuple[str, ...]], *, added: bool) -> list[list[int]]:
    """Return the ids of texts and of pairs of texts."""
    if hasattr(tokenizer, "encode_batch"):
        entries = [text if len(text) > 1 else text[0] for text in texts]
        encodings = tokenizer.encode_batch(entries, add_special_tokens=added)
        return [
            list(np.array(encoding.ids, np.int64)[np.array(encoding.attention_mask, bool)]) for encoding in encodings
        ]
    result: list[list[int]] = [[] for _ in texts]
    for count in sorted({len(text) for text in texts}):  # a list of both would be one of pairs
        rows = [row for row, text in enumerate(texts) if len(text) == count]
        columns = [[texts[row][part] for row in rows] for part in range(count)]
        encoded = tokenizer(*columns, add_special_tokens=added, padding=False, truncation=False)
        for row, ids in zip(rows, encoded["input_ids"], strict=True):
            result[row] = list(ids)
    return result
