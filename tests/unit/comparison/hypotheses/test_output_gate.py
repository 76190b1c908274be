"""Attention whose output is multiplied by a gate is explained, and so is another gate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from embgrad.comparison.hypotheses.attention import AttentionCore
from tests.unit.comparison.hypotheses.attended import (
    BEFORE,
    HEADS,
    KEY,
    QUERY,
    RANDOM,
    REAL,
    SIZE,
    VALUE,
    attended,
    everywhere,
)
from tests.unit.comparison.hypotheses.planted import expect_exact, site_of

GATE = RANDOM.normal(size=QUERY.shape)
SHARE = 1 / (1 + np.exp(-GATE))
#: Queries and gates of each head side by side, as Qwen3-Next has them, and all queries before all gates.
BY_HEAD = np.concatenate([QUERY.reshape(*REAL.shape, HEADS, SIZE), GATE.reshape(*REAL.shape, HEADS, SIZE)], -1)
FUSED = {"by head": BY_HEAD.reshape(*REAL.shape, -1), "whole": np.concatenate([QUERY, GATE], -1)}
A = attended()


def explained(
    a: np.ndarray, b: np.ndarray, others: Mapping[str, np.ndarray] = BEFORE, **before: np.ndarray
) -> tuple[str, str]:
    named = {f"layers.0.attention.{name}": values for name, values in before.items()}
    at = site_of(a, b, {**named, **others}, real=REAL)
    (found,) = AttentionCore().explain(at)
    expect_exact(at, found)
    return found.cause, found.text


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"rotary": {"base": 10000.0}}, "rotary positions are missing in a and of base 10000 in b"),
        ({"scale": 1.0}, "attention scale 0.353553 in a and 1 in b"),
        ({"seen": everywhere}, "the mask is causal in a and missing in b"),
    ],
    ids=["rotary", "scale", "mask"],
)
def test_what_differs_before_the_gate_is_named(settings: dict[str, Any], text: str) -> None:
    assert explained(A * SHARE, attended(**settings) * SHARE, gate=GATE)[1] == text


@pytest.mark.parametrize("fused", FUSED)
def test_the_gate_may_stand_beside_the_queries(fused: str) -> None:
    b = attended(scale=1.0) * SHARE
    assert explained(A * SHARE, b, both=FUSED[fused])[1] == "attention scale 0.353553 in a and 1 in b"


@pytest.mark.parametrize("fused", FUSED)
def test_each_head_may_have_keys_and_values_of_its_own(fused: str) -> None:
    """Then the first query shows the values, whatever the size of the heads is."""
    keys, values = (np.repeat(it.reshape(*REAL.shape, -1, SIZE), 2, 2).reshape(QUERY.shape) for it in (KEY, VALUE))
    a, b = (attended(QUERY, keys, values, scale=scale) * SHARE for scale in (None, 1.0))
    cause, text = explained(a, b, {}, both=FUSED[fused], k=keys, v=values, q=QUERY)
    assert (cause, text) == ("attention-scale", "attention scale 0.353553 in a and 1 in b")


GATES: dict[str, tuple[Callable[[np.ndarray], np.ndarray], str, str]] = {
    "none": (np.ones_like, "missing-gate",
        "the product with the logistic function of gate is computed in a and missing in b"),
    "tanh": (np.tanh, "activation", "the function of gate is the logistic function in a and tanh in b"),
    "SiLU": (lambda x: x / (1 + np.exp(-x)), "activation",
        "the function of gate is the logistic function in a and SiLU in b"),
}  # fmt: skip


@pytest.mark.parametrize(("function", "cause", "text"), GATES.values(), ids=GATES)
def test_another_gate_is_named(function: Callable[[np.ndarray], np.ndarray], cause: str, text: str) -> None:
    assert explained(A * SHARE, A * function(GATE), gate=GATE) == (cause, text)


def test_a_gate_of_something_else_is_not_explained() -> None:
    at = site_of(A * SHARE, RANDOM.normal(size=A.shape), {"layers.0.attention.gate": GATE, **BEFORE}, real=REAL)
    assert AttentionCore().explain(at) == []
