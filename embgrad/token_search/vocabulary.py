"""The ids that may replace others: all ordinary tokens, ids that the user lists, or those whose tokens a function admits."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np

from embgrad.common.arrays import to_numpy, whole_numbers
from embgrad.errors import BatchError, EmbgradError, brief, did_you_mean
from embgrad.inputs.encode import listed_tokens
from embgrad.inputs.special_tokens import special_ids, unknown_ids
from embgrad.results.words import SPECIAL

__all__ = ["allowed_ids", "is_ascii", "is_word", "names_of", "text_of_token"]

#: A token that stands for one byte, in SentencePiece vocabularies.
BYTE: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")

#: The bytes that byte-level vocabularies write as characters of their own code; the others are written from U+0100 on.
PLAIN: Final = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
BYTES: Final = {
    **{chr(byte): byte for byte in PLAIN},
    **{chr(0x100 + number): byte for number, byte in enumerate(sorted(set(range(0x100)) - set(PLAIN)))},
}


def text_of_token(token: str) -> str:
    """Return the text that a token stands for, with the space before a word where the token has one.

    "Ġfilm" and "▁film" are " film", "##ing" is "ing", byte-level "Ã©" is "é", and "<0x41>" is "A". A part of a character stays as
    a byte-level tokenizer writes it.
    """
    byte = BYTE.fullmatch(token)
    if byte is not None:
        return bytes([int(byte[1], 16)]).decode(errors="replace")
    bare = token if token == "##" else token.removeprefix("##")
    if all(character in BYTES for character in bare):
        try:
            return bytes(BYTES[character] for character in bare).decode()
        except UnicodeDecodeError:  # part of a character, or a token of a vocabulary that is not byte-level
            pass
    return bare.replace("▁", " ")


def is_ascii(token: str) -> bool:
    """Return whether a token stands for printable ASCII characters, with or without a space before them.

    Tokens of white space alone do not count, and neither do those of bytes that are no character.
    """
    text = text_of_token(token)
    return text.isascii() and text.isprintable() and not text.isspace() and bool(text)


def is_word(token: str) -> bool:
    """Return whether a token is made of letters, of any script with its vowel signs and accents, and can begin a word.

    A token that continues a word, "##ing", is none, nor is one with a digit, punctuation or a sign, such as "[unused7]". In
    vocabularies that mark the space before a word, "Ġfilm" and "▁film", a token without the mark begins a word at the start of a
    text and after punctuation: it is one as well.
    """
    text = text_of_token(token).removeprefix(" ")
    letters = bool(text) and all(unicodedata.category(character)[0] in "LM" for character in text)
    return letters and text[0].isalpha() and not token.startswith("##")


#: The functions of tokens by name.
READY: Final[Mapping[str, Callable[[str], bool]]] = {"is_ascii": is_ascii, "is_word": is_word}


def allowed_ids(allowed: Any, tokenizer: Any, vocab: int) -> np.ndarray:
    """Return which ids may replace others, bool, shape (vocab,).

    Args:
        allowed: None for every id, but where a tokenizer is known not for special tokens, unknown words, and ids without a token;
            ids; a bool array, shape (vocab,); a function that takes a token as the tokenizer writes it and returns whether it is
            allowed, which is asked about the tokens that None allows; or a list of these, which all must allow an id.
    """
    result = _read_allowed(allowed, _Vocabulary(tokenizer, vocab))
    if not result.any():
        raise EmbgradError(
            f"allowed is {_name(allowed)}, which allows none of the {vocab} ids: expected one id at least. Special tokens are "
            "never among those that a function is asked about"
        )
    return result


def names_of(ids: np.ndarray, tokenizer: Any, vocab: int) -> dict[int, str] | None:
    """Return the tokens of ids by id, in order, as the tokenizer writes them; None where no tokenizer lists its tokens.

    Args:
        ids: ids of any shape; -1 for none.
        tokenizer: names the ids; None where there is none.
    """
    tokens = _Vocabulary(tokenizer, vocab).tokens
    if tokens is None:
        return None
    return {id_: token for id_ in np.unique(ids).tolist() if id_ >= 0 and (token := tokens[id_]) is not None}


@dataclass(frozen=True)
class _Vocabulary:
    """The ids of a table and their tokens."""

    tokenizer: Any
    count: int

    @cached_property
    def tokens(self) -> list[str | None] | None:
        """The token of each id, None where an id has none; None where no tokenizer lists its tokens."""
        listed = listed_tokens(self.tokenizer)
        return None if listed is None else [listed.get(id_) for id_ in range(self.count)]

    @cached_property
    def ordinary(self) -> np.ndarray:
        """The ids with a token that is neither special nor that of unknown words, bool; all where the tokens are not known."""
        if self.tokens is None:
            return np.ones(self.count, bool)
        special = special_ids(self.tokenizer)
        if special is None:
            special = [id_ for id_, token in enumerate(self.tokens) if SPECIAL.fullmatch(token or "")]
        excluded = np.array([*special, *unknown_ids(self.tokenizer)], np.int64)
        result = np.array([token is not None for token in self.tokens])
        result[excluded[excluded < self.count]] = False
        return result

    def admit(self, function: Callable[[str], Any]) -> np.ndarray:
        """Return the ordinary ids whose tokens a function admits, bool."""
        if self.tokens is None:
            raise BatchError(
                f"allowed is a function of tokens, {_name(function)}, and "
                f"{'no tokenizer is known' if self.tokenizer is None else 'the tokenizer does not list its tokens'}: pass "
                "tokenizer=... that has get_vocab, or ids in place of the function"
            )
        result = np.array(self.ordinary)
        for id_ in np.flatnonzero(result).tolist():
            result[id_] = bool(function(self.tokens[id_] or ""))
        return result


def _read_allowed(allowed: Any, vocabulary: _Vocabulary) -> np.ndarray:
    if allowed is None:
        return np.array(vocabulary.ordinary)
    if callable(allowed):
        return vocabulary.admit(allowed)
    entries = list(allowed) if isinstance(allowed, (list, tuple, set, frozenset)) else None
    if entries is not None and any(callable(entry) or getattr(entry, "ndim", 0) for entry in entries):
        return np.asarray(np.logical_and.reduce([_read_allowed(entry, vocabulary) for entry in entries]))
    try:
        array = to_numpy(allowed if entries is None else entries)
    except ValueError:
        array = np.array(None)
    vocab = vocabulary.count
    if array.dtype == bool and array.shape == (vocab,):
        return np.array(array)
    ids = whole_numbers(array) if array.size else None
    if ids is None or ids.ndim > 1:
        raise EmbgradError(_unusable(allowed, array, vocab))
    outside = np.atleast_1d(ids)[np.atleast_1d((ids < 0) | (ids >= vocab))]
    if outside.size:
        raise EmbgradError(f"allowed names the id {outside[0]}: expected ids of the table, from 0 to {vocab - 1}")
    result = np.zeros(vocab, bool)
    result[ids] = True
    return result


def _unusable(allowed: Any, array: np.ndarray, vocab: int) -> str:
    """Return the message for a value of `allowed` that is of no known form."""
    if array.dtype == bool and array.ndim:
        return (
            f"allowed is a bool array of shape {array.shape}: expected ({vocab},), an entry for each row of the table"
        )
    hint = did_you_mean(allowed, READY) if isinstance(allowed, str) else ""
    return (
        f"allowed is {brief(allowed)}: expected ids, a bool array of shape ({vocab},), a function of a token such as "
        f"embgrad.token_search.is_word, or a list of such functions.{hint}"
    )


def _name(allowed: Any) -> str:
    """Return a value for a message, functions by their names."""
    if isinstance(allowed, (list, tuple)) and any(map(callable, allowed)):
        return f"[{', '.join(map(_name, allowed))}]"
    return str(getattr(allowed, "__qualname__", None) or brief(allowed))
