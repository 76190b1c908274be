"""The colours and the picture of the page."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from embgrad.common.colours import LEVELS, PALETTES, contrast, step
from embgrad.report.plot import plot
from embgrad.report.verdicts import Line
from tests.unit.pages import read, result


def test_levels_are_fractions_of_the_scale() -> None:
    values = np.zeros((1, 5, 1))
    values[0, :, 0] = [100, 4, -2, 1, 0]
    page = read(result([["[CLS]", "four", "two", "one", "none"]], values))
    assert [token.classes for token in page.panels[0].tokens] == [
        ["t", "n16", "s"],  # a special token does not set the scale, and has its full colour at most
        ["t", "n16"],
        ["t", "n8"],
        ["t", "n4"],
        ["t"],
    ]
    assert [token.classes[1:2] for token in page.panels[1].tokens] == [["p16"], ["p16"], ["m8"], ["p4"], []]
    assert "largest 100, [CLS]; full colour is 4" in page.seen


def test_all_results_share_one_scale() -> None:
    gradient = result([["a", "b"]], np.full((1, 2, 1), 4.0))
    page = read({"a": gradient, "b": replace(gradient, values=gradient.values / 4)}, {})
    assert [[token.classes[1] for token in panel.tokens] for panel in page.panels[:2]] == [["n16"] * 2, ["n4"] * 2]


@pytest.mark.parametrize(
    ("values", "kind", "classes", "said"),
    [
        ([0.0, 0.0], "norm", [[], []], "zero at every token"),
        ([np.nan, 2.0], "norm", [[], ["n16"]], "1 token has no finite figure"),
        ([np.inf, -np.inf], "norm", [[], []], "no finite figure"),
        ([1e-310, 2e-310], "dot", [["p8"], ["p16"]], "full colour is 2e-310"),
        ([1e300, -2e300], "dot", [["p8"], ["m16"]], "full colour is 2e+300"),
        ([1.0, 2.0], "norm", [["n8"], ["n16"]], "full colour is 2"),
    ],
)
@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_figures_that_are_zero_or_not_finite(
    values: list[float], kind: str, classes: list[list[str]], said: str
) -> None:
    page = read(result([["a", "b"]], np.array(values).reshape(1, 2, 1)))
    assert [token.classes[1:] for token in page.panels[["norm", "dot"].index(kind)].tokens] == classes
    assert said in page.seen


def test_a_step_is_never_paler_than_the_one_before() -> None:
    for scheme, palette in PALETTES.items():
        for scale in "npm":
            away = [contrast(step(scheme, scale, level).background, palette["paper"]) for level in range(LEVELS + 1)]
            assert away == sorted(away)


def lines(**figures: list[float]) -> dict[str, list[Line]]:
    return {
        name: [Line(f"layer.{i}", True, item, item, 1.0) for i, item in enumerate(each)]
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
    path = plot({"b": [Line("encoder.layer.11.attention.self.query", True, 1, 1, 1), Line("x", True, 1, 1, 1)]}, [])
    assert path is not None
    assert path.names[0][1] == "…ion.self.query"
    assert plot(lines(b=[1.0]), []) is None
