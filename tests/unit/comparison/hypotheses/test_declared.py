"""The declared settings of an attention are read as they are used."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from embgrad.comparison.hypotheses.core_parts import Scaling
from embgrad.comparison.hypotheses.declared import declared_by, number_in
from tests.unit.comparison.hypotheses.planted import site_of

X = np.ones((1, 2, 4))


@pytest.mark.parametrize(
    ("declared", "wanted"),
    [
        ({}, None),
        ({"rotary_scaling": "default"}, None),
        ({"rotary_scaling": "linear"}, None),
        ({"rotary_scaling": "unknown", "rotary_factor": 2}, None),
        ({"rotary_factor": 1.0}, None),
        ({"rotary_factor": 2}, Scaling("linear", 2.0)),
        ({"rotary_scaling": "linear", "rotary_factor": 2}, Scaling("linear", 2.0)),
        ({"rotary_scaling": "llama3", "rotary_factor": 32.0}, Scaling("llama3", 32.0, 1.0, 4.0, 8192.0)),
        (
            {"rotary_scaling": "llama3", "rotary_factor": 32.0, "rotary_low": 2.0, "rotary_high": 8.0,
                "rotary_original": 1024},
            Scaling("llama3", 32.0, 2.0, 8.0, 1024.0),
        ),
        ({"rotary_scaling": "yarn", "rotary_factor": 4.0}, Scaling("yarn", 4.0, 1.0, 32.0, 2048.0)),
        ({"rotary_scaling": "yarn", "rotary_factor": 4.0, "positions": 512}, Scaling("yarn", 4.0, 1.0, 32.0, 512.0)),
        (
            {"rotary_scaling": "yarn", "rotary_factor": 4.0, "positions": 512, "rotary_rounded": False},
            Scaling("yarn", 4.0, 1.0, 32.0, 512.0, rounded=False),
        ),
    ],
)  # fmt: skip
def test_scalings_have_all_of_their_numbers(declared: dict[str, Any], wanted: Scaling | None) -> None:
    assert declared_by(site_of(X, X, {}, settings=({}, declared)), 1)["rotary_scaling"] == wanted


def test_the_scale_is_what_scores_are_multiplied_by() -> None:
    site = site_of(X, X, {}, settings=({"attention_scale": 0.5}, {}))
    assert declared_by(site, 0)["attention_scale"] == 0.5
    site = site_of(X, X, {}, settings=({"attention_scale": 1.0}, {"attention_scale": 2.0}))
    assert declared_by(site, 0)["attention_scale"] == 1.0
    assert declared_by(site, 1)["attention_scale"] == pytest.approx(0.5**0.5)
    site = site_of(X, X, {}, settings=({"attention_scale": 256}, {}))
    assert declared_by(site, 0)["attention_scale"] == 1 / 16


@pytest.mark.parametrize("value", [None, "much", True, 0, -1.0, float("inf"), [2.0]])
def test_other_values_are_no_numbers(value: object) -> None:
    assert number_in({"heads": value}, "heads") is None
