"""The page's text: tokens joined into words, hostile ones shown and never taken for markup, in their direction."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import embgrad
from embgrad.common.text import visible
from embgrad.report import render_page
from embgrad.report.text import direction, token_text
from tests.unit.pages import HOSTILE, SENTENCE, Reader, read, result, times


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


def test_segments_are_told_where_there_are_two() -> None:
    one = result([["a", "b"]], types=np.array([[0, 1]]))
    assert [re.findall(r"segment (\d)", token.figures) for token in read(one).panels[0].tokens] == [["0"], ["1"]]
    assert "segment" not in read(replace(one, types=np.array([[0, 0]]))).seen


@pytest.mark.parametrize("hostile", HOSTILE)
def test_hostile_text_is_shown_and_never_taken_for_markup(hostile: str) -> None:
    clean = read({"a": result([["x", "y"]]), "b": times(result([["x", "y"]]), 2)}, title="t")
    source = result(
        [["x", hostile]], provenance={"backend": hostile, "point": hostile, "model": hostile, hostile: [hostile]}
    )
    comparison = replace(
        embgrad.compare(result([["x", "y"]]), times(result([["x", "y"]]), 2)),
        notes=(hostile,),
        advice=hostile,
        labels=(hostile, hostile),
    )
    page = read({hostile: source, "b": times(source, 2)}, {"b": comparison}, title=hostile)
    assert page.panels[0].tokens[1].text == hostile
    assert page.panels[0].legend == f"Magnitude, {hostile}"
    kinds = {tag for tag, _ in page.tags}
    assert kinds <= {tag for tag, _ in clean.tags} | {"ul", "li"}
    assert {"script", "img", "b", "link", "iframe"} & kinds == set()
    names = {name for _, attributes in page.tags for name in attributes}
    assert not {name for name in names if name.startswith("on")}
    assert set(page.attributes("href")) == {"#sentences"}
    assert not page.attributes("src") + page.attributes("style")
    fragments = [
        source._repr_html_(),
        comparison._repr_html_(),
        embgrad.Comparisons({hostile: comparison})._repr_html_(),
    ]
    for fragment in fragments:
        seen = Reader(fragment)
        assert hostile in seen.seen
        assert {tag for tag, _ in seen.tags} <= {
            "div",
            "p",
            "strong",
            "span",
            "sup",
            "table",
            "thead",
            "tbody",
            "tr",
            "th",
            "td",
        }


@settings(max_examples=60)
@given(st.lists(st.text(st.characters(), max_size=12), min_size=1, max_size=5))
def test_any_token_is_shown_as_one(tokens: list[str]) -> None:
    one = result([tokens])
    page = read(one)
    for shown, token in zip(page.panels[0].tokens, tokens, strict=True):
        bare = token.removeprefix("##").lstrip("Ġ▁")
        if bare:
            assert shown.text == token_text(bare)
        assert shown.text.isprintable() or set("\u200c\u200d") & set(shown.text) or any(c.isspace() for c in shown.text)
        assert shown.text.strip(), "never invisible"
    render_page(one).encode("utf-8")


@pytest.mark.parametrize(
    ("token", "shown"),
    [
        ("", "∅"),
        (" ", "␣"),
        ("  ", "␣␣"),
        ("\n\t", "\\n\\t"),
        ("\x00\x1b[31m", "\\x00\\x1b[31m"),
        ("\u202eevil", "\\u202eevil"),
        ("\ud800", "\\ud800"),
        ("\u200b", "\\u200b"),
        ("\u0301", "◌\u0301"),
        ("e\u0301", "e\u0301"),
        ("👩\u200d🔬", "👩\u200d🔬"),
        ("\u200d", "\\u200d"),
        ("\U000e0001", "\\U000e0001"),
        ("שלום", "שלום"),
        ("x" * 48, "x" * 48),
        ("x" * 5000, "x" * 48 + "… (5000 characters)"),
    ],
)
def test_token_text(token: str, shown: str) -> None:
    assert token_text(token) == shown


def test_visible_leaves_plain_text_alone() -> None:
    text = "naïve 电影 😀 “quoted”"
    assert visible(text) == text
    assert visible(3) == "3"


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [(["1", ",", "שלום", "abc"], "rtl"), (["مرحبا"], "rtl"), (["abc", "שלום"], "ltr"), ([], "ltr"), (["1"], "ltr")],
)
def test_direction(tokens: list[str], expected: str) -> None:
    assert direction(tokens) == expected


def test_a_sentence_runs_in_its_direction() -> None:
    page = read(result([["[CLS]", "שלום", "[SEP]"], ["[CLS]", "hello", "[SEP]"]]))
    assert page.attributes("dir") == ["rtl", "rtl", "ltr", "ltr"]
