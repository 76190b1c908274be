"""Figures of comparisons: numbers in three digits, tables, and the plot of the differences by point."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest

from embgrad.display.figures import FigureRow, Scale, figure, key, picture, rows_html
from tests.unit.pages import Reader


def lines(**figures: list[float]) -> dict[str, list[FigureRow]]:
    return {
        name: [FigureRow(f"layer.{i}", True, item, item, 1.0) for i, item in enumerate(each)]
        for name, each in figures.items()
    }


class Drawn:
    """A picture as it is read: the places of the marks of each line, and the heights and texts of the labels."""

    def __init__(self, figures: dict[str, list[FigureRow]], bounds: list[float], inline: bool = True) -> None:
        html = picture(figures, bounds, "<first>", inline=inline)
        assert html is not None
        self.page = Reader(html)
        of_marks = [attributes["transform"] or "" for tag, attributes in self.page.tags if tag == "path"]
        self.marks = [tuple(map(float, re.findall(r"[\d.]+", text))) for text in of_marks]
        texts = re.findall(r"<text x=\"([\d.]+)\" y=\"([\d.]+)\"[^>]*>([^<]*)</text>", html)
        self.labels = {text: (float(x), float(y)) for x, y, text in texts}
        heights = [attributes["y1"] for tag, attributes in self.page.tags if tag == "line"]
        self.heights = [float(height or 0) for height in heights]


def test_the_axis_is_logarithmic() -> None:
    drawn = Drawn(lines(b=[1e-6, 1e-4, 1e-2]), [1e-5])
    first, second, third = drawn.marks
    assert first[1] - second[1] == pytest.approx(second[1] - third[1], abs=0.2)
    assert first[0] < second[0] < third[0]
    tolerance = drawn.heights[-1]
    assert tolerance == pytest.approx((first[1] + second[1]) / 2, abs=0.2)
    assert drawn.labels["tolerance 1.00e-05"] == (390.0, round(tolerance - 4, 1))
    assert drawn.labels["1e-04"] == (41.0, second[1] + 3.5)
    assert [drawn.page.attributes(name)[0] for name in ("stroke", "font-size", "text-anchor")] == [
        "currentColor",
        "10",
        "end",
    ]
    assert drawn.page.attributes("fill") == ["currentColor", "none", *["currentColor"] * 3]
    assert drawn.page.attributes("points") == [" ".join(f"{x},{y}" for x, y in drawn.marks)]


def test_zero_and_infinity_have_their_own_rungs() -> None:
    drawn = Drawn(lines(b=[0.0, 1e-3, np.inf, np.nan]), [1e-5])
    zero, some, infinite, nothing = (height for _, height in drawn.marks)
    assert zero == drawn.labels["0"][1] - 3.5 == 220
    assert infinite == nothing == drawn.labels["∞"][1] - 3.5 == 12
    assert infinite < some < zero


@pytest.mark.parametrize("figures", [[0.0, 0.0], [1e-300, 1e300], [1.0, 1.0], [np.inf, np.inf]])
def test_every_mark_lies_in_the_picture(figures: list[float]) -> None:
    drawn = Drawn(lines(b=figures), [])
    for x, y in drawn.marks:
        assert 46 <= x <= 390
        assert 12 <= y <= 220
    assert len(drawn.heights) <= 12


def test_names_along_the_bottom_do_not_overlap() -> None:
    drawn = Drawn(lines(b=[1e-3] * 200), [])
    positions = [x for text, (x, _) in drawn.labels.items() if text.startswith("layer.")]
    assert min(after - before for before, after in itertools.pairwise(positions)) >= 13
    assert positions[0] == 46.9
    assert len(drawn.marks) == 200
    long = "encoder.layer.11.attention.self.query"
    labels = Drawn({"b": [FigureRow(long, True, 1, 1, 1), FigureRow("x" * 15, True, 1, 1, 1)]}, []).labels
    assert {"…ion.self.query", "x" * 15} <= {*labels}
    assert labels["x" * 15][1] == 232
    assert picture(lines(b=[1.0]), [], "a", inline=True) is None


@pytest.mark.parametrize(
    ("zero", "infinite", "heights"),
    [(False, False, {1e-3: 220, 1.0: 12}), (True, False, {0.0: 220, 1e-3: 168, 1.0: 12}),
        (False, True, {1e-3: 220, 1.0: 64, np.inf: 12}), (True, True, {0.0: 220, 1e-3: 178.4, 1.0: 53.6, np.inf: 12})],
)  # fmt: skip
def test_zero_and_infinity_have_rungs_of_their_own(zero: bool, infinite: bool, heights: dict[float, float]) -> None:
    scale = Scale(-3, 0, zero, infinite)
    assert {value: scale.height(value) for value in heights} == heights


def test_lines_differ_in_shape_and_colour_and_say_what_they_are() -> None:
    figures = {f"<{number}>": lines(b=[1e-3, 1e-2 * (number + 1)])["b"] for number in range(7)}
    inline, page = Drawn(figures, [1e-5]).page, Drawn(figures, [1e-5], inline=False).page
    shapes, colours, classes = inline.attributes("d")[::2], inline.attributes("style")[1:], page.attributes("class")
    assert [len({*names}) for names in (shapes, colours, classes)] == [6, 6, 6]
    assert classes == [f"c{number % 6}" for number in range(7)]
    places = [place or "" for place in inline.attributes("transform")]
    assert all(re.fullmatch(r"translate\([\d.]+ \d+\.\d\)", place) for place in places if "translate" in place)
    assert inline.attributes("y1") == inline.attributes("y2")
    assert [{*inline.attributes(name)} for name in ("x1", "x2")] == [{"46.0"}, {"390.0"}]
    assert inline.attributes("viewbox") == ["0 0 400.0 294.0"]
    assert (colours[0], shapes[0]) == (colours[6], shapes[6])
    assert "Relative L2 of the gradient against <first>, by point" in page.seen
    assert "<0> from 1.00e-03 at layer.0 to 0.01 at layer.1; <1> from" in page.seen
    assert "<6>, layer.1: relative L2 0.07" in page.seen
    named = Reader(key(7, "<name>"))
    assert named.seen == " <name>"
    assert named.attributes("d") == [shapes[1]]
    assert named.attributes("class") == ["key", "c1"]
    assert named.attributes("aria-hidden") == ["true"]


@pytest.mark.parametrize(
    ("number", "text"),
    [(0.0, "0"), (0.5, "0.5"), (0.01, "0.01"), (0.009, "9.00e-03"), (999.4, "999"), (1000.0, "1.00e+03"),
        (np.inf, "∞")],
)  # fmt: skip
def test_a_figure_has_three_digits(number: float, text: str) -> None:
    assert figure(number) == text


def test_a_table_has_verdicts_as_signs_and_for_readers_aloud_as_words() -> None:
    rows = [
        FigureRow("word", True, 0.5, 2.0, 0.25),
        FigureRow("<b>", False, 0.0, 0.0, 1.0),
        FigureRow("x", None, 0, 0, 1),
    ]
    page = Reader(rows_html("point", rows, "the caption", inline=False))
    assert [row[0] for row in page.rows] == ["point", "✓ agrees word", "✗ differs <b>", "x"]
    assert page.rows[1][1:] == ["0.5", "2", "0.25000000"]
    assert ("th", {"scope": "row"}) in page.tags
    assert page.attributes("class") == ["yes", "unseen", "no", "unseen"]
    inline = Reader(rows_html("", rows, inline=True))
    assert [row[0] for row in inline.rows] == ["", "✓ word", "✗ <b>", "x"]
    assert "caption" not in [tag for tag, _ in inline.tags]
    assert all("text-align" in (attributes["style"] or "") for tag, attributes in inline.tags if tag in ("td", "th"))
