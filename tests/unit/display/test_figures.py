"""Figures of comparisons: numbers in three digits, tables, and the plot of the differences by point."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from embgrad.display.figures import FigureRow, figure, picture, plot, rows_html
from tests.unit.pages import Reader


def lines(**figures: list[float]) -> dict[str, list[FigureRow]]:
    return {
        name: [FigureRow(f"layer.{i}", True, item, item, 1.0) for i, item in enumerate(each)]
        for name, each in figures.items()
    }


def test_the_axis_is_logarithmic() -> None:
    drawn = plot(lines(b=[1e-6, 1e-4, 1e-2]), [1e-5])
    assert drawn is not None
    first, second, third = drawn.series[0].marks
    assert first.y - second.y == pytest.approx(second.y - third.y, abs=0.2)
    assert first.x < second.x < third.x
    ((height, name),) = drawn.bounds
    assert height == pytest.approx((first.y + second.y) / 2, abs=0.2)
    assert name == "tolerance 1.00e-05"
    assert {text: y for y, text in drawn.rungs}["1e-04"] == second.y


def test_zero_and_infinity_have_their_own_rungs() -> None:
    drawn = plot(lines(b=[0.0, 1e-3, np.inf, np.nan]), [1e-5])
    assert drawn is not None
    zero, some, infinite, nothing = drawn.series[0].marks
    assert zero.y == drawn.rungs[0][0] == drawn.bottom
    assert drawn.rungs[0][1] == "0"
    assert drawn.rungs[-1][1] == "∞"
    assert infinite.y == nothing.y == drawn.rungs[-1][0] < some.y < zero.y


@pytest.mark.parametrize("figures", [[0.0, 0.0], [1e-300, 1e300], [1.0, 1.0], [np.inf, np.inf]])
def test_every_mark_lies_in_the_picture(figures: list[float]) -> None:
    drawn = plot(lines(b=figures), [])
    assert drawn is not None
    for mark in drawn.series[0].marks:
        assert drawn.left <= mark.x <= drawn.right
        assert 0 <= mark.y <= drawn.bottom
    assert len(drawn.rungs) <= 12


def test_names_along_the_bottom_do_not_overlap() -> None:
    drawn = plot(lines(b=[1e-3] * 200), [])
    assert drawn is not None
    positions = [x for x, _ in drawn.names]
    assert min(after - before for before, after in itertools.pairwise(positions)) >= 12
    assert len(drawn.series[0].marks) == 200
    path = plot(
        {"b": [FigureRow("encoder.layer.11.attention.self.query", True, 1, 1, 1), FigureRow("x", True, 1, 1, 1)]}, []
    )
    assert path is not None
    assert path.names[0][1] == "…ion.self.query"
    assert plot(lines(b=[1.0]), []) is None


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.0, "0"),
        (0.5, "0.5"),
        (0.01, "0.01"),
        (0.009, "9.00e-03"),
        (999.4, "999"),
        (1000.0, "1.00e+03"),
        (np.inf, "∞"),
    ],
)
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


def test_the_picture_draws_what_is_laid_out() -> None:
    drawn = plot(lines(b=[1e-6, 1e-2]), [1e-5])
    assert drawn is not None
    page = Reader(picture(drawn, "<first>", inline=True))
    assert "Relative L2 of the gradient against <first>, by point" in page.seen
    assert page.attributes("points") == [drawn.series[0].line]
    assert page.attributes("transform")[-1] == f"translate({drawn.series[0].marks[-1].x} {drawn.series[0].marks[-1].y})"
    heights = [attributes["y1"] for tag, attributes in page.tags if tag == "line"]
    assert heights == [str(y) for y, _ in (*drawn.rungs, *drawn.bounds)]
    labels = [float(attributes["y"] or 0) for tag, attributes in page.tags if tag == "text"]
    below = [drawn.bottom + 12] * len(drawn.names)
    assert labels == [*(y + 3.5 for y, _ in drawn.rungs), *below, *(y - 4 for y, _ in drawn.bounds)]
