"""The writer of HTML: texts are escaped once, and pages and cells load nothing."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embgrad.common.text import printable, visible
from embgrad.display.colours import LEVELS, tint
from embgrad.display.html import MOST_TEXT, Html, cell, colour, join, line_html, page, prose, tag, text_html
from embgrad.display.lines import Line, Piece


class Parsed(HTMLParser):
    """The elements and texts of HTML, as a browser reads them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attributes: Any) -> None:
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data: str) -> None:
        self.text += data


@given(st.text(st.characters(exclude_characters="\n\r\t"), max_size=30))
def test_any_text_is_read_back_as_it_is_shown(text: str) -> None:
    read = Parsed(tag("p", text, title=text))
    assert read.text == visible(text)
    assert read.tags == [("p", {"title": visible(text)})]
    assert Parsed(tag("p", prose(text))).text == printable(text)


def test_texts_are_escaped_once_and_markup_is_kept() -> None:
    assert join("<&\"'>") == "&lt;&amp;&quot;&#x27;&gt;"
    assert join(join("<")) == "&lt;"
    assert tag("p", tag("b", "<"), "a\nb", 3, None, ["x", (Html("<i>"),)]) == "<p><b>&lt;</b>a\\nb3x<i></p>"
    assert prose("a\n\tb\r\x1b<") == "a\n\tb&#13;\\x1b&lt;"


def test_attributes_have_their_names_in_html() -> None:
    assert tag("input", type="radio", checked=True, disabled=False, id=None) == '<input type="radio" checked>'
    assert tag("label", "x", for_="a", aria_label='"', data_x=2) == (
        '<label for="a" aria-label="&quot;" data-x="2">x</label>'
    )
    assert tag("br") == "<br>"


def test_very_long_texts_are_cut() -> None:
    assert join("x" * MOST_TEXT) == "x" * MOST_TEXT
    assert join("x" * (MOST_TEXT + 1)) == "x" * MOST_TEXT + f"… ({MOST_TEXT + 1} characters)"
    assert prose("x" * (MOST_TEXT + 1)) == "x" * (MOST_TEXT + 1)


@pytest.mark.parametrize("inline", [True, False])
def test_a_page_is_one_file_whose_policy_lets_its_own_style_through(inline: bool) -> None:
    made = page("<title>", tag("p", "body"), style="p{color:red}", inline=inline)
    read = Parsed(made)
    assert [name for name, _ in read.tags] == ["html", "head", *["meta"] * 6, "title", "style", "body", "p"]
    assert "<title>&lt;title&gt;</title>" in made
    (sheet,) = re.findall(r"<style>(.*)</style>", made, flags=re.DOTALL)
    assert sheet.endswith("p{color:red}\n")
    names = [meta.get("name") for name, meta in read.tags if name == "meta"]
    assert names == [None, None, "viewport", "color-scheme", "referrer", "generator"]
    policy = read.tags[3][1]["content"] or ""
    digest = base64.b64encode(hashlib.sha256(sheet.encode()).digest()).decode()
    assert policy.startswith("default-src 'none'; style-src ")
    assert ("'unsafe-inline'" in policy) == inline
    assert (f"'sha256-{digest}'" in policy) == (not inline)
    assert not re.search(r"https?:|url\(|@import|<script|<link", made)


def test_a_cell_has_its_heading_first_and_its_notes_last() -> None:
    read = Parsed(cell(tag("p", "content"), heading="head", summary="more", notes=["a", "b"]))
    assert read.text == "head morecontentab"
    styles = [attributes.get("style") or "" for _, attributes in read.tags]
    assert ["opacity" in style for style in styles] == [False, False, False, False, True, True]
    assert styles[1] == "margin:.3em 0"
    assert read.tags[0] == ("div", {"class": "embgrad"})
    assert Parsed(cell("x")).text == "x"


def piece(text: str, score: float, **changes: Any) -> Piece:
    return Piece(text, (0,), score, False, " ")._replace(**changes)


def test_pieces_have_their_colours_and_titles() -> None:
    many = tuple(range(30))
    pieces = (
        piece("a", 2.0),
        piece("b", -1.0, positions=many),
        piece("c", float("nan"), before="  "),
        piece(" ", 0.0, positions=(), before=""),
        piece("[S]", 9.0, special=True),
        piece("d", 0.5, title="its own"),
        piece("e", 0.0, positions=many[:20]),
    )
    line = Line("name", "summary", 3, pieces, True)
    read = Parsed(text_html(line))
    assert read.text == "a b  c (nan)  [S] d e"
    spans = [attributes for name, attributes in read.tags if name == "span"]
    listed = ", ".join(map(str, range(20)))
    assert [span["title"] for span in spans] == [
        "+2, position 0",
        f"-1, positions {listed}, …",
        "+nan, position 0",
        "+9, position 0",
        "its own",
        f"+0, positions {listed}",
    ]
    backgrounds = [(span["style"] or "").rpartition("background:")[2] for span in spans]
    half, quarter = tint("m", LEVELS // 2), tint("p", LEVELS // 4)
    assert backgrounds == [
        tint("p", LEVELS),
        half,
        "border-radius:3px",
        tint("p", LEVELS),
        quarter,
        "border-radius:3px",
    ]
    assert [("dashed" in (span["style"] or "")) for span in spans] == [False, False, False, True, False, False]
    unsigned = Parsed(text_html(Line("", "", 0, (piece("a", 2.0),), False)))
    assert unsigned.tags[1][1]["title"] == "2, position 0"


def test_a_line_says_what_it_shows_and_its_scale() -> None:
    line = Line("name", "summary", 3, (piece("a", 2.0),), True)
    assert Parsed(line_html(line, True)).text == "name example 3: summary −2 +2a"
    assert Parsed(line_html(Line("", "s", 3, (piece("a", 2.0),), False), False)).text == "s 2a"
    assert (
        Parsed(line_html(Line("", "s", 3, (piece("a", 0.0),), False), False)).text
        == "s all scores are zero or not finitea"
    )


@pytest.mark.parametrize(
    ("mark", "element", "struck"), [("replaced", "del", False), ("deleted", "del", True), ("added", "ins", False)]
)
def test_changed_pieces_are_marked(mark: str, element: str, struck: bool) -> None:
    pieces = (
        piece("a", 1.0, mark=mark, title="<why>"),
        piece("b", 0.0, positions=()),
        piece("[S]", 0.0, positions=(), special=True),
    )
    read = Parsed(text_html(Line("", "", 0, pieces, True)))
    assert [name for name, _ in read.tags] == ["div", element, "span"]
    assert read.tags[1][1]["title"] == "<why>"
    assert ("text-decoration:none" in (read.tags[1][1]["style"] or "")) == (not struck)
    assert "title" not in read.tags[2][1]


def test_a_text_without_a_level_has_no_colour() -> None:
    assert colour("x", "", 0) == '<span style="border-radius:3px">x</span>'
    assert colour("x", "p", LEVELS, "a:b", "td", id="i") == (
        f'<td style="a:b;border-radius:3px;background:{tint("p", LEVELS)}" id="i">x</td>'
    )
