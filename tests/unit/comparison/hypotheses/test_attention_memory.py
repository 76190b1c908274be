"""What an attention's hypothesis remembers of the sites of a check: searches in vain, and cores that were found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from embgrad.comparison.hypotheses.attention import AttentionCore
from embgrad.comparison.hypotheses.site import FAINT_MEMORY, Explanation, Site
from tests.unit.comparison.hypotheses.attended import BEFORE, REAL, attended
from tests.unit.comparison.hypotheses.planted import site_of

A = attended()


class Watching(AttentionCore):
    """A hypothesis that explains nothing, or every site, and tells how deep it was to search."""

    def __init__(self, found: list[Explanation]) -> None:
        self.seen: list[bool] = []
        self.found = found

    def _explained(self, site: Site, deep: bool) -> list[Explanation]:
        self.seen.append(deep)
        return self.found


def sites(count: int, memory: dict[str, Any], name: str = "layers.{}.o:input") -> list[Site]:
    """Return sites of so many layers in one check."""
    one = site_of(A, 2 * A, BEFORE, real=REAL, memory=memory)
    return [replace(one, pair=replace(one.pair, name=name.format(number))) for number in range(count)]


def searched(hypothesis: Watching, found: list[Site]) -> list[bool]:
    hypothesis.seen = []
    for site in found:
        hypothesis.explain(site)
    return hypothesis.seen


def test_sites_of_one_kind_are_searched_less_and_less_in_vain() -> None:
    in_vain, memory = Watching([]), dict[str, Any]()
    assert searched(in_vain, sites(8, memory)) == [True, True, False, False, False, False]
    assert searched(in_vain, sites(1, memory, "cross.{}.o:input")) == [True]
    assert searched(in_vain, sites(1, {})) == [True]
    assert searched(in_vain, sites(3, {FAINT_MEMORY: True})) == [False] * 3
    known = Watching([Explanation("attention-scale", "scale", ("1", "2"), A)])
    assert searched(known, sites(8, {})) == [True] * 8


def test_two_positions_are_searched_and_one_is_not() -> None:
    in_vain = Watching([])
    two, one = ({name: values[:, :count] for name, values in BEFORE.items()} for count in (2, 1))
    assert searched(in_vain, [site_of(A[:, :2], 2 * A[:, :2], two)]) == [True]
    assert searched(in_vain, [site_of(A[:, :1], 2 * A[:, :1], one)]) == []


def test_the_cores_of_one_layer_are_tried_at_the_next() -> None:
    memory: dict[str, Any] = {}
    first = site_of(attended(scale=0.3), attended(scale=0.7), BEFORE, real=REAL, memory=memory)
    (found,) = AttentionCore().explain(first)
    assert found.values == ("0.3", "0.7")
    assert len(memory["attention cores"]) == 1
    after = {name.replace("layers.0", "layers.1"): values for name, values in BEFORE.items()}
    second = site_of(attended(scale=0.3), attended(scale=0.7), after, real=REAL, memory=memory)
    (again,) = AttentionCore()._explained(second, deep=False)  # without a search
    assert (again.values, again.inputs[0]) == (found.values, "layers.1.attention.q")
    assert len(memory["attention cores"]) == 1
    third = site_of(attended(scale=0.3), attended(scale=0.9), after, real=REAL, memory=memory)
    (other,) = AttentionCore().explain(third)
    assert other.values == ("0.3", "0.9")
    assert len(memory["attention cores"]) == 2
    assert AttentionCore()._explained(replace(second, memory={}), deep=False) == []
    np.testing.assert_array_equal(second.a, first.a)
