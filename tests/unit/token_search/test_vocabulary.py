"""The ids that may replace others, and functions of tokens."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.token_search.vocabulary import _name, allowed_ids, is_ascii, is_word, names_of, text_of_token
from tests.unit.refusals import refused

TOKENS = ["[PAD]", "[CLS]", "[UNK]", "film", "##ing", "café", "7", "a", "[unused1]"]
VOCAB = 12  # three rows more than tokens, as of a table that was made longer


class HuggingFace:
    """A tokenizer with the attributes of Hugging Face's."""

    all_special_ids, unk_token_id = (0, 1, 2), 2

    def get_vocab(self) -> dict[str, int]:
        return {token: id_ for id_, token in enumerate(TOKENS)}


class Added:
    """A special token of the library `tokenizers`."""

    def __init__(self, content: str) -> None:
        self.content, self.special = content, True


class Tokenizers:
    """A tokenizer with the methods of the library `tokenizers`."""

    def get_vocab(self) -> dict[str, int]:
        return {token: id_ for id_, token in enumerate(TOKENS)}

    def token_to_id(self, token: str) -> int | None:
        return self.get_vocab().get(token)

    def get_added_tokens_decoder(self) -> dict[int, Added]:
        return {0: Added("[PAD]"), 1: Added("[CLS]"), 2: Added("[UNK]")}


class Pieces:
    """A tokenizer that holds its vocabulary and does not know which tokens are special."""

    vocab = {token: id_ for id_, token in enumerate(TOKENS)}  # noqa: RUF012


def names(allowed: np.ndarray) -> list[str]:
    return [TOKENS[id_] if id_ < len(TOKENS) else str(id_) for id_ in np.flatnonzero(allowed)]


@pytest.mark.parametrize(
    ("token", "text", "word", "ascii_"),
    [
        ("film", "film", True, True),
        ("Ġfilm", " film", True, True),
        ("▁film", " film", True, True),
        ("##ing", "ing", False, True),
        ("[unused7]", "[unused7]", False, True),
        ("ĠcafÃ©", " café", True, False),
        ("café", "café", True, False),
        ("▁café", " café", True, False),
        ("ä½łå¥½", "你好", True, False),
        ("你", "你", True, False),
        ("हिन्दी", "हिन्दी", True, False),
        ("Ċ", "\n", False, False),
        ("Ġ", " ", False, False),
        ("▁", " ", False, False),
        ("", "", False, False),
        ("<0x41>", "A", True, True),
        ("<0x0A>", "\n", False, False),
        ("<0xE4>", "�", False, False),
        ("don't", "don't", False, True),
        ("Ġ2", " 2", False, True),
        ("!", "!", False, True),
        ("##", "##", False, True),
    ],
)
def test_the_text_of_a_token_and_whether_it_is_a_word_or_ascii(token: str, text: str, word: bool, ascii_: bool) -> None:
    assert text_of_token(token) == text
    assert is_word(token) is word
    assert is_ascii(token) is ascii_


def test_every_byte_has_a_character_in_byte_level_vocabularies() -> None:
    """The alphabet of GPT-2: ASCII's visible characters stand for themselves, a space is Ġ, and 256 differ."""
    assert text_of_token("Ġ") == " "
    assert text_of_token("ĉĊč") == "\t\n\r"
    assert [text_of_token(chr(code)) for code in range(0x21, 0x7F)] == [chr(code) for code in range(0x21, 0x7F)]
    assert text_of_token("ðŁĻĤ") == "🙂"
    assert text_of_token("ÂŃ") == "\xad"  # a soft hyphen, the last of those that are written from U+0100 on
    assert [text_of_token(f"Â{chr(code)}") for code in (0xA1, 0xAC, 0xAE, 0xBF)] == ["¡", "¬", "®", "¿"]


def test_without_a_tokenizer_all_ids_are_allowed() -> None:
    assert allowed_ids(None, None, 5).tolist() == [True] * 5


@pytest.mark.parametrize("tokenizer", [HuggingFace(), Tokenizers(), Pieces()])
def test_special_and_unknown_tokens_and_ids_without_a_token_are_not_allowed(tokenizer: Any) -> None:
    assert names(allowed_ids(None, tokenizer, VOCAB)) == ["film", "##ing", "café", "7", "a", "[unused1]"]


def test_a_tokenizer_that_lists_no_tokens_allows_all() -> None:
    assert allowed_ids(None, lambda text: [1], 5).all()


def test_a_vocabulary_may_be_longer_than_the_table() -> None:
    assert names(allowed_ids(None, HuggingFace(), 5)) == ["film", "##ing"]


@pytest.mark.parametrize(
    ("allowed", "expected"),
    [
        (is_word, ["film", "café", "a"]),
        ([is_word, is_ascii], ["film", "a"]),
        (re.compile(r"\w+").fullmatch, ["film", "café", "7", "a"]),
        ([3, 5, 11], ["film", "café", "11"]),
        (np.array([3, 5]), ["film", "café"]),
        ({0, 3}, ["[PAD]", "film"]),
        (7, ["a"]),
        (np.arange(VOCAB) == 1, ["[CLS]"]),
        ((np.arange(VOCAB) < 5).tolist(), ["[PAD]", "[CLS]", "[UNK]", "film", "##ing"]),
        ([is_word, np.arange(VOCAB) < 5], ["film"]),
        ([is_word, [3, 4, 6]], ["film"]),
    ],
)
def test_the_tokens_that_are_allowed(allowed: Any, expected: list[str]) -> None:
    assert names(allowed_ids(allowed, HuggingFace(), VOCAB)) == expected


def test_functions_are_not_asked_about_special_tokens() -> None:
    asked: list[str] = []
    allowed_ids(lambda token: asked.append(token) or True, HuggingFace(), VOCAB)
    assert asked == ["film", "##ing", "café", "7", "a", "[unused1]"]


@pytest.mark.parametrize(
    ("allowed", "tokenizer", "kind", "message"),
    [
        (is_word, None, embgrad.errors.BatchError, "a function of tokens, is_word, and no tokenizer is known: pass tokenizer="),
        (is_word, print, embgrad.errors.BatchError, "does not list its tokens: pass tokenizer=... that has get_vocab"),
        ("is_wrod", None, embgrad.EmbgradError, "allowed is 'is_wrod': expected ids, a bool array of shape (12,)"),
        ("is_wrod", None, embgrad.EmbgradError, "Did you mean 'is_word'?"),
        (3.5, None, embgrad.EmbgradError, "allowed is 3.5: expected ids"),
        ([[1, 2]], None, embgrad.EmbgradError, "allowed is [[1, 2]]: expected ids"),
        ([], None, embgrad.EmbgradError, "allowed is []: expected ids"),
        ([1, [2, 3]], None, embgrad.EmbgradError, "allowed is [1, [2, 3]]: expected ids"),
        (np.ones(3, bool), None, embgrad.EmbgradError, "a bool array of shape (3,): expected (12,), an entry for each row"),
        ([12], None, embgrad.EmbgradError, "allowed names the id 12: expected ids of the table, from 0 to 11"),
        (-1, None, embgrad.EmbgradError, "allowed names the id -1"),
        (np.zeros(12, bool), None, embgrad.EmbgradError, "which allows none of the 12 ids: expected one id at least"),
        (str.isupper, HuggingFace(), embgrad.EmbgradError, "allowed is str.isupper, which allows none"),
        ([is_word, str.isdigit], HuggingFace(), embgrad.EmbgradError, "allowed is [is_word, str.isdigit], which allows none"),
    ],
)  # fmt: skip
def test_other_values_are_refused(allowed: Any, tokenizer: Any, kind: type[Exception], message: str) -> None:
    with refused(kind, message):
        allowed_ids(allowed, tokenizer, VOCAB)


def test_the_names_of_ids() -> None:
    assert names_of(np.array([[3, 11], [-1, 4]]), HuggingFace(), VOCAB) == {3: "film", 4: "##ing"}
    assert names_of(np.array([3]), None, VOCAB) is None


def test_functions_are_named_in_messages() -> None:
    assert _name(is_word) == "is_word"
    assert _name([is_word, [1, 2]]) == "[is_word, [1, 2]]"
    assert _name([1, 2]) == "[1, 2]"
    assert _name((str.isupper,)) == "[str.isupper]"
