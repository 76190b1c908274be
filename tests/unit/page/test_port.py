"""The page of a report on a port in a browser: curves, the band, marks and tables, on screens of all kinds, without scripts."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from tests.unit.page.browser import Page
from tests.unit.results.ported import agreeing, point, report

DEEP = report(
    points=tuple(point(f"layers.{layer}.a_rather_long_name_{n}", layer, 0.1) for layer in range(90) for n in range(9))
)


@pytest.mark.parametrize("dark", [False, True])
def test_curves_and_faults_have_colours_of_their_own(shown: Callable[..., Page], dark: bool) -> None:
    page = shown(report().to_html(), dark=dark)
    colours = page.evaluate("""[...document.querySelectorAll('figure > svg > g[class]')].map(
        item => [item.className.baseVal, getComputedStyle(item).color])""")
    assert [name for name, _ in colours] == ["c0", "c1", "no", "no"]
    assert len({colour for _, colour in colours}) == 3
    assert page.evaluate("document.querySelector('figure > svg').getBoundingClientRect().width") > 600
    assert page.complaints() == []
    assert len(page.requests()) == 1


def test_the_verdict_has_the_colour_of_its_outcome(shown: Callable[..., Page]) -> None:
    def edge(html: str) -> str:
        page = shown(html)
        return str(page.evaluate("getComputedStyle(document.querySelector('.verdict')).borderLeftColor"))

    assert edge(report().to_html()) != edge(agreeing().to_html())


@pytest.mark.parametrize("shown_report", [report(), DEEP, agreeing()])
def test_the_page_is_as_wide_as_a_phone(shown: Callable[..., Page], shown_report: object) -> None:
    page = shown(shown_report.to_html(), width=360)  # type: ignore[attr-defined]
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_numbers_of_layers_do_not_overlap(shown: Callable[..., Page]) -> None:
    page = shown(DEEP.to_html())
    boxes = page.evaluate("""[...document.querySelectorAll('figure svg text')].filter(item => /^\\d+$/.test(item.textContent))
        .map(item => (({left, right}) => [left, right])(item.getBoundingClientRect()))""")
    assert len(boxes) > 10
    assert all(right < left for (_, right), (left, _) in itertools.pairwise(boxes))


def test_all_points_are_behind_a_line_to_open(shown: Callable[..., Page]) -> None:
    page = shown(report().to_html())
    assert page.evaluate("document.querySelector('details table').checkVisibility()") is False
    page.evaluate("document.querySelector('details').open = true")
    assert page.evaluate("document.querySelectorAll('details tbody tr').length") == 6


def test_a_notebook_shows_curves_and_sentences(shown: Callable[..., Page]) -> None:
    page = shown(f"<!doctype html><meta charset=utf-8><p>before</p>{report()._repr_html_()}")
    assert page.evaluate("document.querySelector('.embgrad strong').textContent") == report().verdict
    assert page.evaluate("document.querySelectorAll('svg polyline').length") == 2
