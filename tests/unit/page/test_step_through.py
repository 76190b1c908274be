"""The page of attributions of output tokens in a browser: an output is chosen by pointer and keyboard, without scripts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.display.colours import LEVELS, tint
from tests.unit.page.browser import Page
from tests.unit.results.attributed import encoder_decoder, token_attribution_of

TOKENS = ["The", "Ġoven", "Ġwas", "Ġhot", "Ġso", "Ġthe", "Ġdough", "Ġrose"]
SCORES = np.array([[[4, 0.25, -2, 1, 0, 0, 0, 0], [0.5, -8, 0, 2, 0.5, 4, 0, 0], [0, 0, 0, 0, 0, -1, 0.5, 0]]])
BATCH = embgrad.TokenBatch(np.arange(8)[None] + 3, tokens=[TOKENS])
ATTRIBUTION = token_attribution_of(BATCH, [[5, 6, 7]], SCORES)

COLOURS = """[...document.querySelectorAll('{scope} .i span')].map(item => getComputedStyle(item).backgroundColor)"""
NONE = "rgba(0, 0, 0, 0)"


def colour(scale: str, level: int) -> str:
    """Return a colour as the browser spells it."""
    red, green, blue, opacity = tint(scale, level)[5:-1].split(",")
    return f"rgba({red}, {green}, {blue}, {float(opacity):g})"


def colours(page: Page, scope: str = "") -> list[str]:
    return page.evaluate(COLOURS.format(scope=scope))


def click(page: Page, selector: str) -> None:
    x, y = page.evaluate(
        f"""(() => {{ const box = document.querySelector('{selector}').getBoundingClientRect();
        return [box.left + box.width / 2, box.top + box.height / 2] }})()"""
    )
    page.point(x, y, click=True)


FIRST = [("p", LEVELS), ("p", 1), ("m", LEVELS // 2), ("p", LEVELS // 4)]
SECOND = [("p", 1), ("m", LEVELS), None, ("p", LEVELS // 4), ("p", 1), ("p", LEVELS // 2)]


def expected(steps: list[Any]) -> list[str]:
    return [NONE if step is None else colour(*step) for step in [*steps, *[None] * (len(TOKENS) - len(steps))]]


@pytest.mark.parametrize("dark", [False, True])
def test_a_click_on_an_output_colours_the_inputs_by_its_scores(shown: Callable[..., Page], dark: bool) -> None:
    page = shown(ATTRIBUTION.to_html(), dark=dark)
    assert colours(page) == expected(FIRST)
    before = page.picture(900, 250)
    click(page, ".o label:nth-of-type(2)")
    assert colours(page) == expected(SECOND)
    assert page.picture(900, 250) != before
    seen = page.evaluate(
        "[...document.querySelectorAll('.n>*')].filter(item => item.offsetHeight).map(item => item.innerText)"
    )
    assert len(seen) == 1
    assert seen[0].startswith("dough: L = -2, position 6; full colour is 8.")
    assert "oven -8" in seen[0]
    opacity = "[...document.querySelectorAll('.i span')].map(item => getComputedStyle(item).opacity)"
    assert page.evaluate(opacity) == ["1"] * 6 + ["0.35"] * 2
    assert page.complaints() == []
    assert len(page.requests()) == 1


def test_arrow_keys_step_through_the_outputs(shown: Callable[..., Page]) -> None:
    page = shown(ATTRIBUTION.to_html())
    page.press("Tab")
    assert page.evaluate("document.activeElement.type") == "radio"
    page.press("ArrowRight")
    assert colours(page) == expected(SECOND)
    assert page.evaluate("getComputedStyle(document.querySelector('.o label:nth-of-type(2)')).outlineWidth") == "3px"
    page.press("ArrowLeft")
    assert colours(page) == expected(FIRST)


def test_an_output_is_chosen_in_the_margin_of_the_matrix(shown: Callable[..., Page]) -> None:
    page = shown(ATTRIBUTION.to_html())
    click(page, ".m tbody tr:nth-child(2) label")
    assert colours(page) == expected(SECOND)


def test_two_fragments_on_a_page_do_not_affect_each_other(shown: Callable[..., Page]) -> None:
    first, second = ATTRIBUTION._repr_html_(), ATTRIBUTION._repr_html_()
    page = shown(f"<!doctype html><meta charset=utf-8><p id=own>text</p>{first}{second}")
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map(item => item.id)")
    assert len({*ids}) == len(ids)
    click(page, "body>div:last-of-type .o label:nth-of-type(2)")
    assert colours(page, "body>div:last-of-type") == expected(SECOND)
    assert colours(page, "body>div:first-of-type") == expected(FIRST)


def test_the_page_of_an_encoder_decoder_is_as_wide_as_a_phone(shown: Callable[..., Page]) -> None:
    page = shown(encoder_decoder().to_html(), width=360)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert page.evaluate("[...document.querySelectorAll('.i .k')].map(item => item.textContent)") == [
        "inputs of the encoder",
        "inputs of the decoder",
    ]


def test_hostile_texts_run_nothing_and_stay_text(shown: Callable[..., Page]) -> None:
    hostile = ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "</style></table>", "' onclick='alert(1)"]
    batch = embgrad.TokenBatch([[1, 2, 3, 4]], tokens=[hostile])
    attribution = token_attribution_of(batch, [[1, 2, 3]], np.ones((1, 3, 4)))
    page = shown(attribution.to_html())
    assert page.evaluate("[...document.querySelectorAll('.i span')].map(item => item.textContent)") == hostile
    assert page.evaluate("document.querySelectorAll('script, img, [onclick], [onerror]').length") == 0
    assert page.complaints() == []
