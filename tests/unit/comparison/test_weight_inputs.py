"""Norms that b applies with each other's weights are paired by what they are given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from embgrad.comparison.recording import HeldWeight, Recording
from embgrad.comparison.weight_inputs import with_exchanged_in_place
from embgrad.comparison.weights import match_weights
from tests.unit.comparison.recorded import recording, tensor

RANDOM = np.random.default_rng(7)
QUERY, KEY = (RANDOM.normal(size=(2, 4, 6)) for _ in range(2))
ARRAYS = {
    **{f"{name}.W": RANDOM.normal(size=(6, 6)) for name in "qk"},
    **{f"{name}_norm.{kind}": RANDOM.normal(size=6) for name in "qk" for kind in ("gain", "bias")},
}
ALL = ("q.W", "k.W", "q_norm.gain", "q_norm.bias", "k_norm.gain", "k_norm.bias")


def side(given: Mapping[str, np.ndarray], names: tuple[str, ...] = ALL, layer: int | None = 0) -> Recording:
    """Return a recording of two products, and of two norms that are given tensors."""
    tensors = [tensor("q:output#0", QUERY, 1.0), tensor("k:output#0", KEY, 2.0)]
    tensors += [tensor(f"{path}:input#0", values, 3.0) for path, values in given.items()]
    held = (
        HeldWeight(name, name.partition(".")[0], ARRAYS[name].shape, partial(np.asarray, ARRAYS[name]), 0.5, layer)
        for name in names
    )
    return replace(recording(tensors), weights=tuple(held))


def partners(a: Recording, b: Recording) -> dict[str, tuple[str, str]]:
    matching = with_exchanged_in_place(match_weights(a.weights, b.weights), a, b)
    return {match.a: (match.b, match.relation) for match in matching.matches}


OWN = {name: (name, "equal") for name in ALL}
RIGHT = {"q_norm": QUERY, "k_norm": KEY}
SUM = RANDOM.normal(size=(2, 4, 6))


@pytest.mark.parametrize(
    ("mine", "its"),
    [
        (RIGHT, {"q_norm": KEY, "k_norm": QUERY}),
        ({"q_norm": QUERY, "k_norm": SUM}, {"q_norm": SUM + 1, "k_norm": QUERY}),  # of which one is given a sum
    ],
)
def test_norms_that_are_given_each_others_products_are_paired_by_place(
    mine: Mapping[str, np.ndarray], its: Mapping[str, np.ndarray]
) -> None:
    found = partners(side(mine), side(its))
    for name, other in (("q_norm", "k_norm"), ("k_norm", "q_norm")):
        for kind in ("gain", "bias"):
            assert found[f"{name}.{kind}"] == (f"{other}.{kind}", f"equal to {other}.{kind}")
    assert [found[f"{name}.W"] for name in "qk"] == [("q.W", "equal"), ("k.W", "equal")]


def test_other_norms_stay_with_their_equals() -> None:
    exchanged = {"q_norm": KEY, "k_norm": QUERY}
    assert partners(side(RIGHT), side(RIGHT, ALL[::-1])) == OWN  # in another order
    assert partners(side(RIGHT), side({"q_norm": KEY, "k_norm": SUM})) == OWN  # of one alone
    assert partners(side({"q_norm": SUM, "k_norm": SUM}), side({"q_norm": SUM, "k_norm": SUM})) == OWN
    assert partners(side(RIGHT, layer=None), side(exchanged, layer=None)) == OWN
    assert partners(side({}), side({})) == OWN


def test_a_norm_that_is_not_called_has_no_place() -> None:
    """A port without the first of two norms gives its input to the second."""
    both = {"q_norm": QUERY, "k_norm": SUM}
    assert partners(side(both), side({"k_norm": QUERY})) == OWN
    assert partners(side({"k_norm": QUERY}), side(both)) == OWN
