"""The text of the page: tokens joined into words, in the direction of their script."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from embgrad.common.token_text import token_text
from embgrad.report import render_page
from tests.unit.pages import SENTENCE, read, result


def test_words_are_joined() -> None:
    page = read(result([["Ġgrip", "ping", "Ġfilm", "Ġ", "##"]]))
    assert page.texts() == ["grip", "ping", "film", "␣", "##"]
    assert ["j" in token.classes for token in page.panels[0].tokens] == [False, True, False, False, True]
    assert page.panels[0].line == "  "  # a space before each word but the first, and no other text
    page = read(result(SENTENCE))
    assert page.texts() == ["[CLS]", "a", "grip", "ping", "film", "[SEP]"]
    assert page.panels[0].tokens[3].figures.startswith("##ping · position 3 · "), "as the tokenizer has it"
    assert ["s" in token.classes for token in page.panels[0].tokens] == [True, False, False, False, False, True]


def test_unknown_tokens_are_their_ids() -> None:
    page = read(result(None, shape=(2, 3), ids=[[7, 8, 9], [4, 5, 6]], mask=[[1, 1, 1], [0, 1, 1]]))
    assert page.texts(0) == ["7", "8", "9"]
    assert page.texts(2) == ["5", "6"]
    assert page.panels[0].tokens[0].figures.startswith("position 0 · id 7 · magnitude ")


def test_segments_are_shown_where_there_are_two() -> None:
    gradient = result([["a", "b"]], types=np.array([[0, 1]]))
    assert [re.findall(r"segment (\d)", token.figures) for token in read(gradient).panels[0].tokens] == [["0"], ["1"]]
    assert "segment" not in read(replace(gradient, types=np.array([[0, 0]]))).seen


@settings(max_examples=60)
@given(st.lists(st.text(st.characters(), max_size=12), min_size=1, max_size=5))
def test_any_token_is_shown(tokens: list[str]) -> None:
    gradient = result([tokens])
    page = read(gradient)
    for shown, token in zip(page.panels[0].tokens, tokens, strict=True):
        bare = token.removeprefix("##").lstrip("Ġ▁")
        if bare:
            assert shown.text == token_text(bare)
        assert shown.text.isprintable() or set("\u200c\u200d") & set(shown.text) or any(c.isspace() for c in shown.text)
        assert shown.text.strip(), "never invisible"
    render_page(gradient).encode("utf-8")


def test_a_sentence_runs_in_its_direction() -> None:
    page = read(result([["[CLS]", "שלום", "[SEP]"], ["[CLS]", "hello", "[SEP]"]]))
    assert page.attributes("dir") == ["rtl", "rtl", "ltr", "ltr"]
