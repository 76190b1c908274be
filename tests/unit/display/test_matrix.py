"""Matrices of output tokens as HTML: each output's figures, and a table of all scores."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np

from embgrad.display.colours import LEVELS, tint
from embgrad.display.html import Html
from embgrad.display.lines import TokenMatrix
from embgrad.display.matrix import matrices_html, matrices_page
from tests.unit.display.test_html import Parsed
from tests.unit.display.test_lines import matrix

MATRIX = matrix()


def rendered(made: TokenMatrix) -> Html:
    return matrices_html([made], "m")


def of(html: str, tag: str) -> list[dict[str, str | None]]:
    """Return the attributes of the elements of a name."""
    return [attributes for name, attributes in Parsed(html).tags if name == tag]


def plain(html: str) -> str:
    return Parsed(re.sub("<style>.*?</style>", "", html, flags=re.DOTALL)).text


def test_each_output_has_a_button_and_its_first_is_chosen() -> None:
    html = rendered(MATRIX)
    assert [(item["id"], item["name"], "checked" in item) for item in of(html, "input")] == [
        ("m-0-0", "m-0", True),
        ("m-0-1", "m-0", False),
    ]
    labels = of(html, "label")
    assert [item["for"] for item in labels] == ["m-0-0", "m-0-1"] * 2
    assert [item.get("title") for item in labels] == ["L = -1.5, position 1", "L = -2, position 2", None, None]


def test_the_parts_have_the_classes_of_the_style_sheet() -> None:
    html = rendered(MATRIX)
    assert [item["class"] for item in of(html, "div") if "class" in item] == [*"ehoiin"]
    assert [item["class"] for item in of(html, "details")] == ["m"]
    assert [item["class"] for item in of(html, "b") if item] == ["k"] * 3
    assert [item.get("role") for item in of(html, "div") if item.get("class") == "n"] == ["status"]


def test_an_output_of_several_tokens_says_so() -> None:
    outputs = (MATRIX.outputs[0]._replace(positions=(1, 2, 3)), MATRIX.outputs[1])
    title = of(rendered(replace(MATRIX, outputs=outputs)), "label")[0]["title"]
    assert title == "L = -1.5 together, 3 tokens, positions 1 to 3"


def test_inputs_are_numbered_by_their_columns() -> None:
    classes = [item.get("class") for item in of(rendered(MATRIX), "span") if "class" in item]
    assert classes == [f"c{column}" for column in range(5)]
    special = tuple(piece._replace(special=True) for piece in MATRIX.texts[0])
    with_special = of(rendered(replace(MATRIX, texts=(special, MATRIX.texts[1]))), "span")
    assert [item["class"] for item in with_special if "class" in item][:2] == ["c0 s", "c1 s"]


def test_the_rules_of_an_output_colour_its_inputs_on_its_own_scale() -> None:
    rules = re.findall(r"#m-0-(\d):checked~\.i :is\((.*?)\)\{(.*?)\}", rendered(MATRIX))
    quarter, half, full = LEVELS // 4, LEVELS // 2, LEVELS
    assert rules == [
        ("0", ".c0", f"background:var(--p{quarter})"),
        ("0", ".c1", f"background:var(--m{full})"),
        ("0", ".c2", f"background:var(--p{half})"),
        ("0", ".c3,.c4", "opacity:.35"),
        ("1", ".c0", f"background:var(--p{LEVELS // 16})"),
        ("1", ".c2", f"background:var(--p{LEVELS // 8})"),
        ("1", ".c3", f"background:var(--p{full})"),
        ("1", ".c4", "opacity:.35"),
    ]
    assert not re.search(r"[npm]0\b", rendered(MATRIX)), "no colour for no level"
    assert f"--p{full}:{tint('p', full)};" in rendered(MATRIX)
    assert f"#m td.p{full}{{background:{tint('p', full, 1.0)}}}" in rendered(MATRIX)


def test_the_figures_of_an_output_name_the_largest_inputs() -> None:
    text = plain(rendered(MATRIX))
    assert "x: L = -1.5, position 1; full colour is 4.Largest: b -4 c +2 a +1" in text
    assert "y: L = -2, position 2; full colour is 8.Largest: d +8 c +1 a +0.5" in text
    broken = MATRIX.scores.copy()
    broken[0, :2] = math.nan, math.inf
    broken[1, 3] = math.nan
    text = plain(rendered(replace(MATRIX, scores=broken)))
    assert "2 scores are not finite.Largest: c +2" in text
    assert "1 score is not finite.Largest: c +1" in text
    none = plain(rendered(replace(MATRIX, scores=np.zeros((2, 5)))))
    assert none.count("All scores are zero or not finite.") == 2
    assert "full colour" not in none
    wide = replace(
        MATRIX,
        texts=(tuple(MATRIX.texts[0][0]._replace(text=f"w{at}") for at in range(7)),),
        scores=np.arange(14.0).reshape(2, 7),
        earlier=np.ones((2, 7), bool),
        signed=False,
    )
    assert "Largest: w6 6 w5 5 w4 4 w3 3 w2 2y:" in plain(rendered(wide))


def test_the_table_has_the_score_and_both_tokens_of_each_cell_on_one_scale() -> None:
    cells = of(rendered(MATRIX), "td")[1:]  # after the corner
    assert [cell.get("title") for cell in cells] == [
        *["+1: a → x", "-4: b → x", "+2: c → x", None, None],
        *["+0.5: a → y", "+0: b → y", "+1: c → y", "+8: d → y", None],
    ]
    eighth = LEVELS // 8
    assert [cell.get("class") for cell in cells[:5]] == [
        f"p{eighth}",
        f"m{LEVELS // 2}",
        f"p{LEVELS // 4} d",
        None,
        None,
    ]
    assert cells[6].get("class") is None
    alone = replace(MATRIX, texts=(MATRIX.texts[0] + MATRIX.texts[1],))
    assert not [cell for cell in of(rendered(alone), "td") if (cell.get("class") or "").endswith("d")]
    assert "matrix: 2 outputs × 5 inputs, full colour is 8" in plain(rendered(MATRIX))
    scores = MATRIX.scores.copy()
    scores[0, 0] = math.nan
    assert 'title="+nan: a → x">?</td>' in rendered(replace(MATRIX, scores=scores))


def test_a_matrix_of_very_many_cells_is_left_out() -> None:
    (piece,) = MATRIX.texts[0][:1]

    def wide(columns: int) -> str:
        texts = (tuple(piece for _ in range(columns)),)
        scores = np.zeros((2, columns))
        return rendered(replace(MATRIX, texts=texts, scores=scores, earlier=scores == 0))

    assert len(of(wide(25_000), "td")) == 50_001
    assert of(wide(25_001), "td") == []
    assert "the matrix, 2 outputs × 25,001 inputs, is left out for its size; matrix() returns it" in wide(25_001)


def test_long_tokens_are_cut_in_the_margin() -> None:
    outputs = tuple(
        piece._replace(text=letter * length)
        for piece, letter, length in zip(MATRIX.outputs, "xy", (24, 25), strict=True)
    )
    heads = plain(rendered(replace(MATRIX, outputs=outputs)))
    assert "x" * 24 + ": L" in heads
    assert "y" * 23 + "…: L" in heads


def test_examples_have_numbers_where_there_are_several() -> None:
    assert plain(rendered(MATRIX)).startswith("summaryoutputs")
    several = matrices_html([MATRIX, replace(MATRIX, example=4)], "m", "a note")
    assert re.findall(r"example \d: summary", plain(several)) == ["example 3: summary", "example 4: summary"]
    assert plain(several).endswith("a note")
    assert [item.get("class") for item in of(several, "div")][-1] == "h"
    assert [item["id"] for item in of(several, "div") if "id" in item] == ["m", "m-0", "m-1"]
    assert "<title>summary</title>" in matrices_page([MATRIX, MATRIX])
    assert "<title>summary · other</title>" in matrices_page([MATRIX, replace(MATRIX, summary="other")])


def test_the_texts_of_an_encoder_and_a_decoder_have_headings() -> None:
    spaced = tuple(piece._replace(before="~") for piece in MATRIX.texts[0])
    assert "inputs of the encodera~ ~b" in plain(rendered(replace(MATRIX, texts=(spaced, MATRIX.texts[1]))))
    assert re.findall(r"inputs[ a-z]*?coder", plain(rendered(MATRIX))) == [
        "inputs of the encoder",
        "inputs of the decoder",
    ]
    white = replace(MATRIX, outputs=(MATRIX.outputs[0]._replace(text="\n"), MATRIX.outputs[1]._replace(before="  ")))
    assert ">\\n</label>" in rendered(white)
    assert "</label>  <label" in rendered(white)
