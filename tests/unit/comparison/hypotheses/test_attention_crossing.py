"""Another setting of attention to another text is named with its two values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from embgrad import TokenBatch
from embgrad.comparison.hypotheses.attention import AttentionCore
from embgrad.comparison.hypotheses.site import Site
from tests.unit.comparison.hypotheses.attended import (
    HEADS,
    QUERY,
    RANDOM,
    REAL,
    SIZE,
    attended,
    everywhere,
)
from tests.unit.comparison.hypotheses.planted import expect_exact, site_of

LONGER = np.array([[True] * 12, [True] * 4 + [False] * 8])
OTHER_KEY, OTHER_VALUE = RANDOM.normal(size=(2, 2, 12, HEADS * SIZE))


def crossing(first: dict[str, Any], second: dict[str, Any]) -> Site:
    """Return a site at which queries take the values of another text, of twelve positions, four of them real in the second."""
    options = {"key": OTHER_KEY, "value": OTHER_VALUE, "seen": everywhere, "real": LONGER}
    before = {"cross.v": OTHER_VALUE, "cross.k": OTHER_KEY, "cross.q": QUERY}
    at = site_of(attended(**{**options, **first}), attended(**{**options, **second}), before, real=REAL)
    batch = TokenBatch(np.ones(LONGER.shape, int), LONGER.astype(int))
    return replace(at, recordings=(replace(at.recordings[0], batch=batch), at.recordings[1]))


CROSSING: Mapping[str, tuple[dict[str, Any], dict[str, Any], str, str]] = {
    "padding": ({}, {"padding": False}, "mask-ignored", "padding is hidden in a and attended to in b"),
    "padding in a": ({"padding": False}, {}, "mask-ignored", "padding is attended to in a and hidden in b"),
    "scale": ({"scale": 1.0}, {}, "attention-scale", "attention scale 1 in a and 0.353553 in b"),
    "cap": ({}, {"cap": 1.5}, "attention-cap", "soft cap of the attention's scores none in a and 1.5 in b"),
}


@pytest.mark.parametrize(("first", "second", "cause", "text"), CROSSING.values(), ids=CROSSING)
def test_settings_of_attention_to_another_text_are_named(
    first: dict[str, Any], second: dict[str, Any], cause: str, text: str
) -> None:
    at = crossing(first, second)
    found = AttentionCore().explain(at)[0]
    assert (found.cause, found.text) == (cause, text)
    expect_exact(at, found)


def test_keys_at_padding_in_the_place_of_those_of_the_text_are_an_inverted_mask() -> None:
    (found,) = AttentionCore().explain(crossing({}, {"real": ~LONGER}))
    assert found.text == "padding is hidden in a and seen in place of the text in b"
    other = ~LONGER
    other[:, 0] = True  # and one key of the text
    assert not AttentionCore().explain(crossing({}, {"real": other}))
