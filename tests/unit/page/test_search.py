"""The page of a search in a browser: changed tokens have their colours, and the page fits a phone, without scripts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from embgrad.display.colours import LEVELS, tint
from tests.unit.page.browser import Page
from tests.unit.results.searched import search_of

BEFORE = [["[CLS]", "a", "grip", "##ping", "film", ".", "[SEP]"], ["[CLS]", "fine", ".", "[SEP]"]]
AFTER = [["[CLS]", "a", "bor", "##ing", "film", ".", "[SEP]"], ["[CLS]", "fine", ".", "[SEP]"]]
SEARCH = search_of(BEFORE, AFTER, until=0.0)
LONG = search_of([["word"] * 60 + ["w" * 300]], [["word"] * 59 + ["other", "v" * 300]], until=0.0)


def colour(scale: str) -> str:
    """Return the strongest colour of a scale as the browser spells it."""
    red, green, blue, opacity = tint(scale, LEVELS)[5:-1].split(",")
    return f"rgba({red}, {green}, {blue}, {float(opacity):g})"


def backgrounds(page: Page, tag: str) -> list[list[str]]:
    """Return the text, the background and the decoration of each element with this tag."""
    return page.evaluate(
        f"""[...document.querySelectorAll('{tag}')].map(item => {{ const style = getComputedStyle(item);
        return [item.textContent, style.backgroundColor, style.textDecorationLine] }})"""
    )


@pytest.mark.parametrize("dark", [False, True])
def test_changed_tokens_are_coloured_in_both_texts(shown: Callable[..., Page], dark: bool) -> None:
    page = shown(SEARCH.to_html(), dark=dark)
    assert backgrounds(page, "del") == [["grip", colour("m"), "none"], ["ping", colour("m"), "none"]]
    assert backgrounds(page, "ins") == [["bor", colour("p"), "none"], ["ing", colour("p"), "none"]]
    assert page.evaluate("document.body.innerText").count("a gripping film .") == 1
    assert page.evaluate("getComputedStyle(document.querySelector('del')).color") == page.evaluate(
        "getComputedStyle(document.body).color"
    )
    assert page.complaints() == []
    assert len(page.requests()) == 1


def test_a_deleted_token_is_struck_through(shown: Callable[..., Page]) -> None:
    page = shown(search_of([["a", "fine", "film"]], [["a", "film"]], method={"delete": True}).to_html())
    assert backgrounds(page, "del") == [["fine", colour("m"), "line-through"]]
    assert backgrounds(page, "ins") == []


def test_l_by_step_is_a_picture_with_a_name(shown: Callable[..., Page]) -> None:
    page = shown(SEARCH.to_html())
    assert page.evaluate("[...document.querySelectorAll('svg')].map(item => item.getAttribute('aria-label'))") == [
        "L by step: -1 at first, 1 after 2 steps",
        "L by step: 0 at first, 0 after 2 steps",
    ]
    box = page.evaluate(
        "(({left, right, width}) => [left, right, width])(document.querySelector('svg').getBoundingClientRect())"
    )
    assert box[2] == 150


@pytest.mark.parametrize("search", [SEARCH, LONG])
def test_the_page_is_as_wide_as_a_phone(shown: Callable[..., Page], search: Any) -> None:
    page = shown(search.to_html(), width=360)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_the_text_that_was_found_is_behind_a_line_to_open(shown: Callable[..., Page]) -> None:
    page = shown(SEARCH.to_html())
    assert page.evaluate("document.querySelector('code').checkVisibility()") is False
    page.evaluate("document.querySelector('details').open = true")
    assert page.evaluate("document.querySelector('code').innerText") == "[CLS] a bor ##ing film . [SEP]"


def test_fragments_do_not_affect_the_page_around_them(shown: Callable[..., Page]) -> None:
    page = shown(f"<!doctype html><meta charset=utf-8><p><del>old</del></p>{SEARCH._repr_html_()}")
    assert backgrounds(page, "p del") == [["old", "rgba(0, 0, 0, 0)", "line-through"]]
    assert page.evaluate("document.querySelectorAll('style, script, [id]').length") == 0


def test_hostile_texts_run_nothing_and_stay_text(shown: Callable[..., Page]) -> None:
    hostile = ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "</del></svg>", "' onclick='alert(1)"]
    page = shown(search_of([["a", "b", "c", "d"]], [hostile], until=0.0).to_html())
    assert [row[0] for row in backgrounds(page, "ins")] == hostile
    assert page.evaluate("document.querySelectorAll('script, img, [onclick], [onerror]').length") == 0
    assert page.evaluate("document.querySelector('code').textContent") == " ".join(hostile)
    assert page.complaints() == []
