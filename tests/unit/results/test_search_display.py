"""Searches as text, in the terminal, as HTML and as plots: changed tokens are marked, texts of any origin stay text."""

from __future__ import annotations

import sys
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.display.colours import LEVELS, tint
from embgrad.results.history import History
from embgrad.results.search import Search
from tests.unit.hostile import TEXTS, expect_harmless
from tests.unit.refusals import refused
from tests.unit.results.searched import search_of

BEFORE = [["[CLS]", "a", "grip", "##ping", "film", "."], ["[CLS]", "fine", "."]]
AFTER = [["[CLS]", "a", "bor", "##ing", "film", "."], ["[CLS]", "fine", "."]]
SEARCH = search_of(BEFORE, AFTER, until=0.0)
RESIZED = search_of(
    [["a", "film", "again", "."]], [["a", "poor", "film", "again"]], method={"delete": True}, until=None
)


class Marks(HTMLParser):
    """The texts of a page's marked tokens, with their tags, titles and backgrounds."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.marked: list[tuple[str, str, str, str]] = []
        self._open: list[Any] = []
        self.tags: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attributes: Any) -> None:
        self.tags.append(tag)
        if tag in ("ins", "del"):
            self._open = [tag, dict(attributes), ""]

    def handle_data(self, data: str) -> None:
        if self._open:
            self._open[2] += data

    def handle_endtag(self, tag: str) -> None:
        if self._open and tag == self._open[0]:
            attributes = self._open[1]
            background = attributes["style"].rpartition("background:")[2]
            self.marked.append((tag, self._open[2], attributes["title"], background))
            self._open = []


def shown(search: Search, capsys: Any, **how: Any) -> str:
    search.show(**how)
    return capsys.readouterr().out


def test_the_repr_is_one_line() -> None:
    assert repr(SEARCH) == (
        "Search(2 × 6, GCG, maximize Logit, 2 of 2 met, mean L -0.5 → 0.5, 2 tokens changed: some.Model (reference))"
    )
    assert "met" not in repr(RESIZED)
    assert repr(SEARCH.history) == "History(2 steps, 2 examples, 1.5 seconds)"


def test_the_trigger_is_in_the_title() -> None:
    search = search_of([["a", "b"]], [["zoning", "tapping", "a", "b"]], trigger=np.array([3, 4, 99]))
    assert search.figures().title.endswith("; trigger: zoning tapping 99")
    assert "trigger: zoning tapping 99" in search.to_html()


def test_the_table_has_a_row_for_each_example() -> None:
    assert SEARCH.table().splitlines() == [
        "example  L before  L  changed  evaluations  gradients     met",
        "      0        -1  1        2           21          2     yes",
        "      1         0  0        0            1          0  before",
    ]
    assert SEARCH.table(1).splitlines()[1].split() == ["1", "0", "0", "0", "1", "0", "before"]
    failed = search_of(BEFORE, AFTER, until=9.0)
    assert [row.split()[-1] for row in failed.table().splitlines()[1:]] == ["no", "no"]
    assert RESIZED.table().splitlines()[1].endswith("–")
    with refused(embgrad.EmbgradError, "examples is 2: expected an index from 0 to 1"):
        SEARCH.table(2)


def test_the_terminal_without_colours_has_the_brackets_of_wdiff(capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    expected = [
        "GCG, maximize Logit(index=1) until 0",
        "example 0: L = -1 → 1, 2 tokens changed, 21 evaluations, 2 gradients; met",
        "before  [CLS] a [-grip-][-ping-] film .",
        "after   [CLS] a {+bor+}{+ing+} film .",
        "example 1: L = 0 → 0, 0 tokens changed, 1 evaluation, 0 gradients; met before",
        "before  [CLS] fine .",
        "after   [CLS] fine .",
        "[-…-]: replaced or deleted, {+…+}: put in",
    ]
    assert shown(SEARCH, capsys).splitlines() == expected
    bare = replace(SEARCH, batch=SEARCH.batch.replace(tokens=None))
    assert shown(bare, capsys).splitlines()[2:4] == [expected[2], "after   [CLS] a {+8+} {+9+} film ."]
    assert shown(RESIZED, capsys).splitlines()[2:4] == ["before  a film again [-.-]", "after   a {+poor+} film again"]
    monkeypatch.setitem(sys.modules, "rich.console", None)
    assert shown(SEARCH, capsys).splitlines() == expected
    assert shown(SEARCH, capsys, examples=[1]).splitlines() == [expected[0], *expected[4:]]


def test_the_terminal_in_colours(capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in {"FORCE_COLOR": "1", "COLORTERM": "truecolor", "TERM": "xterm-256color"}.items():
        monkeypatch.setenv(name, value)
    out = shown(SEARCH, capsys)
    assert "48;2;0;114;178mgrip\x1b[0m" in out
    assert "\x1b[38;2;0;0;0;48;2;213;94;0mbor\x1b[0m" in out
    assert "[-" not in out.replace("\x1b[", "")


def test_html_marks_the_tokens_on_both_sides() -> None:
    removed, put = tint("m", LEVELS), tint("p", LEVELS)
    for html in (SEARCH.to_html(), SEARCH._repr_html_()):
        assert Marks(html).marked == [
            ("del", "grip", "position 2: grip → bor", removed),
            ("del", "ping", "position 3: ##ping → ##ing", removed),
            ("ins", "bor", "position 2: grip → bor", put),
            ("ins", "ing", "position 3: ##ping → ##ing", put),
        ]
        assert html.count("<svg") == 2
    assert [mark[:3] for mark in Marks(RESIZED.to_html()).marked] == [
        ("del", ".", "deleted from position 3"),
        ("ins", "poor", "inserted at position 1"),
    ]
    assert "attack success rate" in SEARCH.to_html()
    assert "a bor ##ing film" in SEARCH.to_html(0)
    assert "the text that was found" not in replace(SEARCH, texts=None).to_html()


def course(objective: list[float], until: float | None = None) -> Search:
    steps = len(objective)
    values = np.array(objective)[:, None]
    counts = np.zeros((steps, 1), np.int64)
    history = History(values, np.full((steps, 1, 3), 1), counts, counts, np.arange(steps) * 1.0)
    return search_of([["a", "b", "c"]], [["a", "b", "d"]], until=until, history=history)


def drawn(search: Search) -> list[tuple[float, float]]:
    points = search.to_html().partition('points="')[2].partition('"')[0]
    return [tuple(map(float, point.split(","))) for point in points.split()]  # type: ignore[misc]


def test_the_picture_of_l_by_step_rises_with_l() -> None:
    assert drawn(course([0.0, 1.0, 3.0])) == [(4.0, 30.0), (75.0, 21.3), (146.0, 4.0)]
    assert drawn(course([1.0, 2.0, 4.0])) == drawn(course([0.0, 1.0, 3.0]))
    assert "L by step: 0 at first, 3 after 2 steps" in course([0.0, 1.0, 3.0]).to_html()
    ends = course([0.0, 1.0, 3.0]).to_html().split("<circle")[1:]
    assert [end.partition(">")[0] for end in ends] == [' cx="146.0" cy="4.0" r="2.5" fill="currentColor"']
    assert "stroke-dasharray" in course([0.0, 1.0], until=2.0).to_html()
    assert 'stroke="currentColor"' in course([0.0, 1.0]).to_html().partition("<polyline")[2].partition(">")[0]
    assert drawn(course([0.0, 1.0], until=2.0)) == [(4.0, 30.0), (146.0, 17.0)]


@pytest.mark.parametrize("values", [[1.0, 1.0], [float("nan"), 1.0, float("inf")], [-1.7e308, 1.7e308]])
def test_the_picture_of_odd_values_is_sound(values: list[float]) -> None:
    points = drawn(course(values))
    assert len(points) == np.isfinite(values).sum()
    assert np.isfinite(points).all()
    assert drawn(course([values[1]] * 2)) == [(4.0, 17.0), (146.0, 17.0)]  # in the middle


def test_no_picture_where_there_are_no_steps_or_no_numbers() -> None:
    assert "<svg" not in course([1.0]).to_html()
    assert "<svg" not in course([float("nan")] * 3).to_html()


def test_notebooks_show_the_first_examples() -> None:
    many = search_of([["a"]] * 12, [["b"]] * 12)
    html = many._repr_html_()
    assert "the first 10 of 12 examples; to_html() returns all" in html
    assert html.count("<del") == 10
    assert "the first" not in SEARCH._repr_html_()


@pytest.mark.parametrize("name", TEXTS)
def test_texts_of_any_origin_stay_text(name: str, capsys: Any, monkeypatch: Any) -> None:
    text = TEXTS[name]
    search = search_of([["a", "b"]], [[text, "b"]], until=0.0)
    search = replace(
        search, provenance={**search.provenance, "model": text, "goal": text, "objective": {"class": text, text: text}}
    )
    html = search.to_html()
    html.encode("utf-8")
    assert "script" not in Marks(html).tags
    assert "img" not in Marks(html).tags
    assert len(Marks(html).marked) == (0 if text == "a" else 2)
    monkeypatch.setenv("NO_COLOR", "1")
    expect_harmless(shown(search, capsys), lines=True)
    expect_harmless(repr(search))
    expect_harmless(str(search.figures()), lines=True)


def test_l_by_step_is_plotted(plt: Any) -> None:
    ax = SEARCH.plot()
    assert [line.get_ydata().tolist() for line in ax.lines[:2]] == [[-1, 0, 1], [0, 0, 0]]
    assert ax.lines[2].get_linestyle() == "--"
    assert ax.lines[2].get_ydata()[0] == 0.0
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["example 0", "example 1"]
    alone = course([2.0]).plot(ax=ax)
    assert alone is ax
    assert ax.lines[-1].get_marker() == "o"


def test_a_text_that_met_the_rule_before_and_no_longer_does_counts_as_right_under_attack() -> None:
    """A trigger stands in every text, also in those that were wrong without it."""
    search = replace(SEARCH, objective=np.array([1.0, -1.0]), success=np.array([True, False]))
    figures = search.figures()
    assert (figures.met_before, figures.successes, figures.attack_success_rate) == (1, 1, 1.0)
    assert (figures.clean_accuracy, figures.accuracy_under_attack) == (0.5, 0.5)
