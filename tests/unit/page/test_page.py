"""The page in a browser: from disk, on a phone, in dark mode, on paper, by keyboard."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.common.text import visible
from embgrad.common.token_text import token_text
from embgrad.display.colours import LEVELS, step
from tests.unit.hostile import TEXTS
from tests.unit.page.browser import Browser, BrowserMissingError, Page, found
from tests.unit.pages import HOSTILE, result, times

LOOKS = (Path(__file__).parent / "looks.js").read_text(encoding="utf-8")
Open = Callable[..., Page]

WIDE = "w" * 300


def everything() -> tuple[dict[str, Any], dict[str, Any]]:
    tokens = [
        ["[CLS]", "a", "grip", "##ping", "film", ",", "told", "with", "un", "##forget", "##table", "warm", "##th",
            "[SEP]"],
        ["[CLS]", WIDE, "שלום", "👩‍🔬", "电影", "\x00\u202e", "", "naïve", "x", "y", "z", "[SEP]", "[PAD]", "[PAD]"],
        ["[CLS]", "שלום", "עולם", "טוב", "[SEP]", *["[PAD]"] * 9],
    ]  # fmt: skip
    mask = [[token != "[PAD]" for token in gradient] for gradient in tokens]
    gradient = result(tokens, mask=np.array(mask, np.int64), types=np.array([[0] * 7 + [1] * 7] * 3))
    points = ["word", "embeddings", *(f"layer.{n}" for n in range(12)), "encoder.layer.11.attention.self.query"]
    first = dict.fromkeys(points, gradient)
    second = {point: times(gradient, 1 + 10.0 ** (number - 9)) for number, point in enumerate(points)}
    third = {point: times(gradient, 1.0) for point in points}
    results = {"torch 2.13": first, "tensorflow": second, "a label " + 8 * "that_is_very_long_": third}
    comparisons = {label: embgrad.compare(first, each) for label, each in list(results.items())[1:]}
    found = (
        embgrad.results.Finding(("constant-factor",), "a factor 0.0625 = 1/16, the number of examples", 0.987, 0.01),
    )
    whole = dict(comparisons["tensorflow"])
    whole["layer.5"] = replace(whole["layer.5"], findings=found, notes=("b is padded to 17 positions",))
    comparisons["tensorflow"] = embgrad.results.Comparisons(whole)
    return results, comparisons


def figures_shown(page: Page) -> list[str]:
    return page.evaluate(
        """(() => {
          const seen = [...document.querySelectorAll('.f')].filter(one => getComputedStyle(one).opacity === '1');
          for (const one of seen) one.style.pointerEvents = 'auto';
          const found = seen.filter(one => {
            one.scrollIntoView({block: 'nearest'});
            const box = one.getBoundingClientRect();
            return document.elementFromPoint(box.left + box.width / 2, box.top + box.height / 2) === one;
          });
          for (const one of seen) one.style.pointerEvents = '';
          return found.map(one => one.textContent);
        })()"""
    )


def names_shown(page: Page) -> list[str]:
    return [text.partition(" · ")[0] for text in figures_shown(page)]


def boxes_of(page: Page, panel: int) -> list[list[float]]:
    return page.evaluate(
        f"""[...document.querySelectorAll('fieldset')[{panel}].querySelectorAll('.t')]
          .map(one => one.getBoundingClientRect()).map(one => [one.left, one.top, one.right])"""
    )


def test_the_page_opens_without_a_warning_or_a_request(opened: Open) -> None:
    page = opened(everything()[0])
    assert page.complaints() == []
    (address,) = page.requests()
    assert address.startswith("file:///")
    assert page.evaluate("document.compatMode") == "CSS1Compat"
    assert page.evaluate("document.scripts.length") == 0
    assert page.evaluate("document.querySelectorAll('fieldset').length") == 2 * 3 * 3
    # The style sheet is in force, so the hash in the policy is that of what the browser has read.
    assert page.evaluate("getComputedStyle(document.querySelector('.t')).display") == "inline-block"


def test_hostile_text_is_shown_as_text(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [*HOSTILE, *(text for text in TEXTS.values() if text.strip())]
    provenance = {"point": texts[9], "model": HOSTILE[0], "backend": texts[12], HOSTILE[2]: HOSTILE[1]}
    gradient = result([["[CLS]", *texts, "[SEP]"]], provenance=provenance)
    comparison = replace(
        embgrad.compare(gradient, times(gradient, 2)), notes=HOSTILE, advice=HOSTILE[0], labels=HOSTILE[:2]
    )
    compared = {HOSTILE[2]: {texts[9]: comparison}}
    monkeypatch.setattr("embgrad.report.page.comparisons_by_point", lambda by_label, points: compared)
    for title in (HOSTILE[4], list(TEXTS.values())[3]):
        page = opened({HOSTILE[0]: gradient, HOSTILE[2]: times(gradient, 2)}, title=title)
        shown = page.evaluate(
            "[...document.querySelector('fieldset').querySelectorAll('bdi')].map(one => one.textContent)"
        )
        assert shown == ["[CLS]", *(token_text(text) for text in texts), "[SEP]"]
        assert page.evaluate("document.title") == " ".join(visible(title).split())
        lines = page.evaluate(
            """[...document.querySelector('fieldset').querySelectorAll('bdi')]
              .map(one => [one.getBoundingClientRect().height, parseFloat(getComputedStyle(one).fontSize)])"""
        )
        assert all(0 < height < 12 * size for height, size in lines)
        assert page.evaluate("getComputedStyle(document.body).direction") == "ltr"
        run = "script, img, b, iframe, object, [onerror], [onmouseover]"
        assert page.evaluate(f"document.querySelectorAll('{run}').length") == 0
        page.point(600, 400)
        assert page.complaints() == []
        assert len(page.requests()) == 1


def test_the_browser_reports_scripts_and_requests(browser: Browser, tmp_path: Path) -> None:
    bad = tmp_path / "bad.html"
    bad.write_text("<script>alert(1)</script><img src=x onerror=\"console.log('ran')\">")
    page = browser.open(bad.as_uri())
    kinds = [event.get("type") or event["entry"]["level"] for event in page.complaints()]
    assert {"alert", "log"} <= set(kinds)
    assert len(page.requests()) == 2
    page.close()


def test_the_policy_blocks_injected_elements(opened: Open) -> None:
    page = opened(result([["a"]]))
    blocked = page.evaluate(
        """new Promise(done => {
          const reported = [];
          document.addEventListener('securitypolicyviolation', event => {
            reported.push(event.effectiveDirective);
            if (reported.length === 4) done(reported.sort());
          });
          for (const [kind, content] of [['script', 'window.ran = 1'], ['style', 'body { opacity: 0.5 }']]) {
            const element = document.createElement(kind);
            element.textContent = content;
            document.body.append(element);
          }
          for (const kind of ['img', 'iframe']) {
            const element = document.createElement(kind);
            element.src = 'http://127.0.0.1:9/';
            document.body.append(element);
          }
        })"""
    )
    assert blocked == ["frame-src", "img-src", "script-src-elem", "style-src-elem"]
    assert page.evaluate("[window.ran === undefined, getComputedStyle(document.body).opacity]") == [True, "1"]


@pytest.mark.parametrize("width", [360, 320, 768, 1200])
def test_nothing_overflows_the_window(opened: Open, width: int) -> None:
    page = opened(everything()[0], width=width)
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert page.evaluate("innerWidth") == width
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    beside = page.evaluate(
        f"""[...document.querySelectorAll('body *')].filter(one => !one.closest('.skip, .unseen') &&
          one.getBoundingClientRect().right > {width} + 0.5).map(one => one.outerHTML.slice(0, 80))"""
    )
    assert beside == []


def test_results_are_side_by_side_or_stacked_by_width(opened: Open) -> None:
    boxes = "[...document.querySelectorAll('.row:first-of-type')][0].querySelectorAll('fieldset')"
    where = f"[...{boxes}].map(one => [one.getBoundingClientRect().left, one.getBoundingClientRect().top])"
    page = opened(everything()[0])
    desk = page.evaluate(where)
    assert len({top for _, top in desk}) == 1
    assert len({left for left, _ in desk}) == 3
    page.resize(360, 800)
    phone = page.evaluate(where)
    assert len({left for left, _ in phone}) == 1
    assert [top for _, top in phone] == sorted({top for _, top in phone})


@pytest.mark.parametrize("width", [360, 1200])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_text_can_be_read(opened: Open, *, dark: bool, width: int) -> None:
    page = opened(everything()[0], dark=dark, width=width)
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    looks = page.evaluate(LOOKS)
    assert len(looks) > 300
    assert {"BDI", "TD", "TH", "LEGEND", "text", "SUMMARY", "LI"} <= {item["tag"] for item in looks}
    assert [item for item in looks if item["contrast"] < 4.5] == []
    papers = sorted(item["paper"] for item in looks if item["tag"] in ("P", "H1"))
    assert (papers[-1] < 0.05) if dark else (papers[0] > 0.9)


def test_every_step_of_the_scales_can_be_read_as_rendered(opened: Open) -> None:
    values = np.arange(-LEVELS, LEVELS + 1)[None, :, None] / LEVELS
    gradient = result([[f"t{number}" for number in range(2 * LEVELS + 1)]], values)
    for dark in (False, True):
        page = opened(gradient, dark=dark)
        tokens = [look for look in page.evaluate(LOOKS) if look["tag"] == "BDI"]
        assert len(tokens) == 2 * (2 * LEVELS + 1)
        assert min(look["contrast"] for look in tokens) >= 4.5
        colours = page.evaluate(
            "[...document.querySelectorAll('.t')].map(one => getComputedStyle(one).backgroundColor)"
        )
        strongest = [step("dark" if dark else "light", scale, LEVELS).background for scale in "nnmp"]
        shown = [colours[i] for i in (0, 2 * LEVELS, 2 * LEVELS + 1, -1)]
        expected = [f"rgb({', '.join(str(int(code[i : i + 2], 16)) for i in (1, 3, 5))})" for code in strongest]
        assert shown == expected


def test_saliency_is_shown_without_colour(opened: Open) -> None:
    page = opened(result([["a", "b", "c", "d"]], np.array([[[4.0], [-2.0], [1.0], [0.0]]])))
    bars = page.evaluate("[...document.querySelectorAll('.t')].map(one => getComputedStyle(one).backgroundSize)")
    assert [bar.partition(",")[0] for bar in bars] == [f"{share}% 3px" for share in (100, 50, 25, 0)] * 2
    signs = page.evaluate("[...document.querySelectorAll('.t')].map(one => getComputedStyle(one, '::before').content)")
    assert signs == ["none"] * 4 + ['"+"', '"−"', '"+"', "none"]


def test_a_printed_page_is_light_and_unfolded(opened: Open) -> None:
    page = opened(everything()[0], dark=True, media="print")
    looks = page.evaluate(LOOKS)
    assert all(look["paper"] > 0.9 for look in looks if look["tag"] in ("P", "H1"))
    assert min(look["contrast"] for look in looks) >= 4.5
    assert "compute dtype" in {look["text"] for look in looks}, "what is folded on a screen is open"
    assert page.evaluate("[...document.querySelectorAll('.f')].every(one => !one.checkVisibility())")
    assert page.ask("Page.printToPDF")["data"].startswith("JVBERi0")  # %PDF-


def test_sentences_run_in_their_direction(opened: Open) -> None:
    page = opened(everything()[0])
    lefts = "[...document.querySelectorAll('article:nth-of-type({}) fieldset')][0].querySelectorAll('bdi')"
    where = "[..." + lefts + "].slice(0, 4).map(one => one.getBoundingClientRect().left)"
    ltr, rtl = (page.evaluate(where.format(number)) for number in (1, 3))
    assert ltr == sorted(ltr)
    assert rtl == sorted(rtl, reverse=True)


def test_subwords_touch_and_words_do_not(opened: Open) -> None:
    page = opened(result([["a", "grip", "##ping", "film"]]))
    boxes = boxes_of(page, 0)
    gaps = [after[0] - before[2] for before, after in itertools.pairwise(boxes)]
    assert gaps[1] < 2 < min(gaps[0], gaps[2])


def test_the_keyboard_reaches_every_tokens_figures(opened: Open) -> None:
    page = opened(result([["a", "grip", "##ping"], ["b", "c", "d"]]))
    assert figures_shown(page) == []
    for _ in range(20):
        page.press("Tab")
        if page.evaluate("document.activeElement.type") == "radio":
            break
    assert names_shown(page) == ["a"]
    outline = "getComputedStyle(document.activeElement.closest('label')).outlineStyle"
    assert page.evaluate(outline) == "solid"
    page.press("ArrowRight")
    page.press("ArrowRight")
    assert names_shown(page) == ["##ping"]
    page.press("ArrowLeft")
    assert names_shown(page) == ["grip"]
    # One stop a panel: the next Tab is in the next one, and what was chosen stays.
    page.press("Tab")
    assert names_shown(page) == ["grip", "a"]


def test_pointing_and_tapping_show_figures(opened: Open) -> None:
    gradient = result([["a", "grip", "##ping", "film"]])
    for width in (1200, 360):
        page = opened({"x": gradient, "y": times(gradient, 1.5)}, width=width)
        page.evaluate("document.querySelectorAll('fieldset')[1].scrollIntoView()")
        places = [(left + 5, top + 5) for left, top, _ in boxes_of(page, 1)]
        page.point(*places[1])
        (text,) = figures_shown(page)
        magnitude = f"{1.5 * gradient.saliency('norm')[0, 1]:.4g}"
        assert re.fullmatch(
            rf"grip · position 1 · id 1 · magnitude {magnitude} · signed \S+ · differs from x by 5.0e-01", text
        )
        page.point(*places[3], click=True)
        page.point(0, 0)
        assert names_shown(page) == ["film"], "a tap keeps them"
        page.point(*places[0])
        assert names_shown(page) == ["a"], "what is pointed at comes first"


def test_the_accessibility_tree(opened: Open) -> None:
    results, _ = everything()
    page = opened(results)
    tree = page.ask("Accessibility.getFullAXTree")["nodes"]
    nodes = [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in tree if not node["ignored"]]
    roles = [role for role, _ in nodes]
    for landmark in ("banner", "main", "contentinfo"):
        assert roles.count(landmark) == 1
    radios = [name for role, name in nodes if role == "radio"]
    gradient = results["torch 2.13"]["word"]
    reported = f"magnitude {gradient.saliency('norm')[0, 2]:.4g} · signed {gradient.saliency('dot')[0, 2]:.4g}"
    assert f"grip grip · position 2 · id 2 · segment 0 · {reported}" in radios
    assert ("group", "Magnitude, torch 2.13") in nodes
    pictures = [name for role, name in nodes if role in ("image", "img")]
    assert pictures == ["Relative L2 of the gradient against torch 2.13, by point, on a logarithmic axis"]
    tables = [name for role, name in nodes if role == "table"]
    assert "tensorflow against torch 2.13, tolerance 1.26e-05" in tables
    assert {"rowheader", "columnheader"} <= set(roles)
    assert ("rowheader", "✓ agrees word") in nodes
    assert ("rowheader", "✗ differs layer.5") in nodes


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_notebook_fragment_restyles_nothing(browser: Browser, tmp_path: Path, *, dark: bool) -> None:
    results, comparisons = everything()
    gradient = results["torch 2.13"]["word"]
    pieces = [
        gradient._repr_html_(),
        comparisons["tensorflow"]["layer.5"]._repr_html_(),
        comparisons["tensorflow"]._repr_html_(),
    ]
    colours = ("#111111", "#d4d4d4") if dark else ("#ffffff", "#24292f")
    around = "<p id=outside class='t n7 embgrad'>text <b>b</b></p><table><tr><th>h</th><td>d</td></tr></table>"
    base = f"<!DOCTYPE html><meta charset=utf-8><body style='background:{colours[0]};color:{colours[1]}'>{around}"
    styles = """[...document.querySelectorAll('#outside, #outside b, body > table td, body > table th')].map(one =>
      [...getComputedStyle(one)].filter(name => !/inline-size|width|origin/.test(name))
        .map(name => getComputedStyle(one).getPropertyValue(name)).join())"""
    seen = []
    for number, body in enumerate(("", "".join(pieces))):
        path = tmp_path / f"{number}.html"
        path.write_text(base + body, encoding="utf-8")
        page = browser.open(path.as_uri(), dark=dark)
        seen.append(page.evaluate(styles))
        assert page.complaints() == []
    assert seen[0] == seen[1]
    looks = page.evaluate(LOOKS)
    assert len(looks) > 100
    assert [look for look in looks if look["contrast"] < 4.5] == []
    page.close()


def test_a_missing_browser_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMBGRAD_TEST_BROWSER", "no-such-browser")
    with pytest.raises(BrowserMissingError, match=r"under the names no-such-browser: install .* `make browser`"):
        found()
