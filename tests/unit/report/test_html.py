"""The HTML of the page's parts, as it is written."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.comparison.verdicts import Verdict
from embgrad.display.figures import FigureRow
from embgrad.display.lines import MOST_PIECES, Line, Piece
from embgrad.report import render_page, write_page
from embgrad.report.arguments import comparable, comparisons_by_point, flat, points_of, results_by_label
from embgrad.report.page import (
    Origin,
    _findings_html,
    _footer_html,
    _lines,
    _sentences_html,
    _tables_html,
    _verdict_html,
)
from embgrad.report.sentences import Example, Panel, _summary, sentences
from tests.unit.pages import SENTENCE, read, result, times
from tests.unit.results.attributed import attribution_of

ROW = FigureRow("word", True, 0.5, 1.0, 0.9)
VERDICT = Verdict(
    label="b", agrees=True, text="b agrees with a",
    sides=("first", "second"),
    tolerance="1e-5",
    points=(ROW, ROW),
    examples=(ROW, ROW),
    findings=(), notes=(), advice="", unlisted=0, point="word",
)  # fmt: skip
SAID = '<p class="said"><span aria-hidden="true">{}</span> b agrees with a (tolerance 1e-5)</p>'


def test_a_verdict() -> None:
    assert str(_verdict_html(VERDICT, "a")) == f'<div class="verdict good">{SAID.format("✓")}</div>'
    bad = replace(VERDICT, agrees=False, findings=("f",), notes=("n",), advice="look")
    sides = '<p class="small">a is a, first; b is b, second.</p>'
    assert str(_verdict_html(bad, "a")) == (
        f'<div class="verdict bad">{SAID.format("✗")}<ul><li>f</li></ul><p>look</p><ul><li>n</li></ul>{sides}</div>'
    )


def captions(html: str) -> list[str]:
    return re.findall("<(?:caption|summary|figcaption)>(.*?)</", html)


def test_tables_of_points_and_of_examples() -> None:
    html = str(_tables_html(VERDICT, "a"))
    assert captions(html) == ["b against a, tolerance 1e-5", "b against a, by example", "by example, at word"]
    assert "style=" not in html
    many = str(_tables_html(replace(VERDICT, points=(ROW,), unlisted=3), "a"))
    assert captions(many)[2] == "by example (3 more examples not listed)"
    assert captions(str(_tables_html(replace(VERDICT, examples=(ROW,)), "a"))) == ["b against a, tolerance 1e-5"]
    assert str(_tables_html(replace(VERDICT, examples=(ROW,)), "a")).startswith("<div><table>")


def test_the_findings_and_their_figure() -> None:
    findings, figures = map(str, _findings_html([VERDICT], "a", [1e-5], False))
    start = '<section aria-labelledby="findings"><h2 id="findings">Findings</h2><div class="verdict good">'
    assert findings.startswith(start)
    assert figures.startswith(
        '<section aria-labelledby="figures"><h2 id="figures">Figures</h2><div class="figures"><div><table>'
    )
    points = tuple(replace(ROW, name=name) for name in ("word", "layer.0", "layer.1"))
    for of_attributions, what in ((False, "gradient"), (True, "scores")):
        drawn = str(_findings_html([replace(VERDICT, points=points)], "a", [1e-5], of_attributions)[1])
        assert f"<figcaption>Relative L2 of the {what} against a, by point. <span" in drawn
        assert 'class="figures"><figure><svg' in drawn


def test_the_foot() -> None:
    rows = '<tbody><tr><th scope="row">x</th><td>1</td></tr></tbody>'
    table = f'<table class="plain"><caption>Provenance of b</caption>{rows}</table>'
    assert str(_footer_html([Origin("b", "brief", (("x", "1"),))])) == (
        f"<footer><h2>Provenance</h2><details><summary>b: brief</summary>{table}</details>"
        f'<p class="small">Written by embgrad {embgrad.__version__}.</p></footer>'
    )


def test_entries_of_the_provenance() -> None:
    source = {"compute_dtype": "float32", "names": ["ä", 1], "nested": {"a_b": {"c": None}}, "path": Path("x")}
    assert list(_lines(source)) == [
        ("compute dtype", "float32"),
        ("names", '["ä", 1]'),
        ("nested, a b, c", "null"),
        ("path", f'"{Path("x")!r}"'),
    ]


def test_the_section_of_sentences() -> None:
    html = str(_sentences_html([], ["a note"], "layer.0", False))
    start = '<section aria-labelledby="sentences"><h2 id="sentences">Sentences</h2><p>The gradient at <strong>layer.0</strong>'
    assert html.startswith(start)
    assert html.endswith("<p>a note</p></section>")
    assert "The contributions of the positions at" in str(_sentences_html([], [], "word", True))


def pieces(*texts: str, special: int = -1) -> tuple[Piece, ...]:
    """Return pieces that begin a word where their text begins with a space, the n-th of which has the score n."""
    return tuple(
        Piece(
            text.strip(), (number,), float(number), number == special, " " if text[0] == " " else "", f"title {number}"
        )
        for number, text in enumerate(texts)
    )


def test_tokens_of_a_word_stand_together() -> None:
    line = Line("b", "", 0, pieces(" a", "b", " c", special=2), True)
    html = str(Panel("b", line, "largest 2").html("heading", "group", "rtl"))

    def label(number: int, text: str, classes: str) -> str:
        button = '<input type="radio" name="group">'
        return f'<label class="{classes}">{button}<bdi>{text}</bdi><span class="f">title {number}</span></label>'

    word = f'<span class="w">{label(0, "a", "t")}{label(1, "b", "t p16 j")}</span>'
    assert html == (
        f'<fieldset><legend>heading</legend><p class="tokens" dir="rtl">{word} {label(2, "c", "t p16 s")}</p>'
        '<p class="strip small">largest 2; full colour is 1</p></fieldset>'
    )
    nothing = '<fieldset><legend>h</legend><p class="small">b does not hold this text</p></fieldset>'
    assert str(Panel("b").html("h", "g", "ltr")) == nothing


def test_an_example_has_a_row_for_each_kind_of_figures() -> None:
    two = str(Example(3, "ltr", ("x", "y"), {"magnitude": (Panel("a"), Panel("b"))}).html())
    start = '<article aria-labelledby="e3"><h3 id="e3">Example 3</h3><p class="small">x; y</p><div class="rows">'
    assert two.startswith(f'{start}<div class="row">')
    assert re.findall("<legend>(.*?)</legend>", two) == ["Magnitude, a", "Magnitude, b"]
    one = str(Example(0, "ltr", (), {"magnitude": (Panel("a"),), "signed": (Panel("a"),)}).html())
    assert re.findall("<legend>(.*?)</legend>", one) == ["Magnitude", "Signed"]
    assert '</h3><div class="rows single"><div class="row">' in one
    line = Line("a", "", 0, pieces(" a"), True)
    groups = Example(
        3, "ltr", (), {"magnitude": (Panel("a", line), Panel("b", line)), "signed": (Panel("a", line),) * 2}
    )
    assert re.findall('name="(.*?)"', str(groups.html())) == ["r3magnitude0", "r3magnitude1", "r3signed0", "r3signed1"]
    assert str(Example(0, "ltr", (), {}).html()).endswith('<div class="rows single"></div></article>')


@pytest.mark.parametrize(
    ("scores", "text"),
    [
        ([], "no tokens"),
        ([0.0, 0.0], "zero at every token"),
        ([1.0, -2.5], "largest -2.5, t1"),
        ([np.nan, 2.0], "largest 2, t1; 1 token has no finite figure"),
        ([np.nan, 2.0, np.inf], "largest 2, t1; 2 tokens have no finite figure"),
        ([np.nan], "no finite figure"),
    ],
)
def test_the_largest_figure_in_words(scores: list[float], text: str) -> None:
    found = tuple(Piece(f"t{number}", (number,), score, False, " ") for number, score in enumerate(scores))
    assert _summary(Line("a", "", 0, found, True)) == text


def test_the_title_of_a_page(tmp_path: Path) -> None:
    write_page(tmp_path / "page.html", result(SENTENCE), title="A ‘title’")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<title>A ‘title’</title>" in text
    assert "<h1>A ‘title’</h1>" in text
    assert '<a class="skip" href="#sentences">Skip to the sentences</a>' in text
    assert "<h1>Embedding gradients</h1>" in render_page(result(SENTENCE))
    assert "<style>" in text
    assert "Findings" not in text


RESULT = result(SENTENCE)


def test_bare_results_are_side_by_side_whatever_their_points() -> None:
    other = replace(RESULT, provenance={**RESULT.provenance, "point": "layer.3"})
    assert {label: list(held) for label, held in results_by_label({"a": RESULT, "b": other}).items()} == {
        "a": ["word"],
        "b": ["word"],
    }
    mixed = results_by_label({"a": other, "b": RESULT, 2: {"word": RESULT}})
    assert {label: list(held) for label, held in mixed.items()} == {"a": ["layer.3"], "b": ["word"], "2": ["word"]}
    assert list(results_by_label(RESULT)) == ["reference"]
    assert list(results_by_label(replace(RESULT, provenance={}))) == ["result"]


def test_methods_are_named_by_their_label_where_there_are_others() -> None:
    one = attribution_of(embgrad.TokenBatch([[1, 2]], tokens=[["a", "b"]]), [[1.0, 2.0]])
    methods = embgrad.results.Attributions({"m": one, "n": one})
    assert list(flat({"a": methods})) == ["m", "n"]
    assert list(flat({"a": methods, "b": RESULT})) == ["a, m", "a, n", "b"]


def test_the_points_that_are_shown() -> None:
    first, second = {"layer.0": RESULT, "word": RESULT, "layer.1": RESULT}, {"layer.1": RESULT, "word": RESULT}
    assert points_of({"a": first, "b": second}) == ["word", "layer.1"]


def test_results_are_compared_with_the_first_in_its_order() -> None:
    held = {"layer.0": RESULT, "word": RESULT, "extra": RESULT}
    results = {"a": held, "b": dict(reversed(held.items()))}
    found = comparisons_by_point(results, ["word", "layer.0"])
    assert {label: list(by_point) for label, by_point in found.items()} == {"b": ["layer.0", "word"]}


def test_attributions_by_other_methods_need_not_be_equal() -> None:
    assert comparable(RESULT, RESULT)
    assert comparable(SimpleNamespace(), RESULT)


def test_long_texts_are_cut_and_padding_is_counted() -> None:
    ids = np.arange(MOST_PIECES + 3)[None]
    mask = np.ones_like(ids)
    mask[0, -2:] = 0
    page = read(result([[f"w{number}" for number in range(ids.shape[1])]], ids=ids, mask=mask))
    assert "2 padded positions not shown" in page.seen
    assert f"the first {MOST_PIECES} of {MOST_PIECES + 1} tokens" in page.seen
    exact = read(result([[f"w{number}" for number in range(MOST_PIECES)]]))
    assert "the first" not in exact.seen


def test_differences_are_shown_at_the_tokens_of_a_longer_padding() -> None:
    wide = result([["a", "b", "[PAD]"]], ids=[[1, 2, 0]], mask=[[1, 1, 0]])
    narrow: Any = replace(
        times(wide, 2), **{name: getattr(wide, name)[:, :2] for name in ("ids", "mask", "activations")}
    )
    narrow = replace(narrow, values=2 * wide.values[:, :2], tokens=(("a", "b"),))
    page = read({"wide": wide, "narrow": narrow})
    assert [token.figures.rpartition(" · ")[2] for token in page.panels[1].tokens] == [
        "differs from wide by 1.0e+00"
    ] * 2


def test_examples_of_other_texts_are_counted() -> None:
    first, other = result([["a", "b"], ["c", "d"]]), result([["a", "b"], ["x", "y"]], ids=[[0, 1], [8, 9]])
    _, notes = sentences({"first": first, "other": other}, {})
    assert notes == ["1 of the examples of other are not in first and are not shown"]
    assert sentences({"first": first, "same": replace(first)}, {})[1] == []


@pytest.mark.parametrize(("most", "shown"), [(16, 2), (15, 1), (1, 1), (24, 3)])
def test_as_many_examples_are_shown_as_fit(most: int, shown: int) -> None:
    """Two kinds of figures of two results with two tokens each are eight cells."""
    three = result([["a", "b"], ["c", "d"], ["e", "f"]])
    examples, notes = sentences({"one": three, "two": replace(three)}, {}, most_cells=most)
    assert len(examples) == shown
    left = [f"the last {3 - shown} of 3 examples are not shown, to keep the page small"] if shown < 3 else []
    assert notes == left
