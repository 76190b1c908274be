"""The colours of the page."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

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
    page = read({"a": gradient, "b": replace(gradient, values=gradient.values / 4)})
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
