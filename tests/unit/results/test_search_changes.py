"""The changes of a search, against edit distances by a recursion, and its figures, against counts by hand."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from html import unescape

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import embgrad
from embgrad.results.search_changes import Change, changes_of
from tests.unit.results.searched import search_of

BEFORE = [["a", "fine", "film", "."], ["so", "bad"], ["fine"], ["no", "one"]]
AFTER = [["a", "poor", "film", "!"], ["so", "good"], ["fine"], ["no", "one"]]
SEARCH = search_of(BEFORE, AFTER, until=1.0)


@pytest.mark.parametrize("left", [False, True])
def test_replacements_are_found_at_their_positions(left: bool) -> None:
    pad = 2 if left else 0
    search = search_of(BEFORE, AFTER, left=left)
    assert search.changes() == [
        [Change(1, 1, "fine", "poor"), Change(3, 3, ".", "!")],
        [Change(1 + pad, 1 + pad, "bad", "good")],
        [],
        [],
    ]
    assert search.changed.tolist() == [2, 1, 0, 0]
    assert search.changed.dtype == np.int64


def test_texts_of_one_length_are_compared_by_position_where_nothing_moves() -> None:
    moved = [["a", "b", "c"]], [["b", "c", "d"]]
    assert [change.kind for change in search_of(*moved).changes()[0]] == ["substituted"] * 3
    aligned = search_of(*moved, method={"insert": True}).changes()[0]
    assert aligned == [Change(0, None, "a", None), Change(None, 2, None, "d")]
    assert [change.kind for change in aligned] == ["deleted", "inserted"]


def test_ids_stand_for_tokens_that_are_not_known() -> None:
    before, batch = embgrad.TokenBatch([[4, 5]], tokens=[["a", "b"]]), embgrad.TokenBatch([[5, 6]])
    assert changes_of(before, batch, False) == [[Change(0, 0, "a", "b"), Change(1, 1, "b", "6")]]


@given(st.lists(st.integers(1, 3), min_size=1, max_size=7), st.lists(st.integers(1, 3), min_size=1, max_size=7))
def test_an_alignment_has_the_fewest_changes_and_makes_the_one_text_the_other(
    before: list[int], after: list[int]
) -> None:
    @cache
    def distance(first: int, second: int) -> int:
        if first == len(before) or second == len(after):
            return len(before) - first + len(after) - second
        return min(
            distance(first + 1, second + 1) + (before[first] != after[second]),
            1 + distance(first + 1, second),
            1 + distance(first, second + 1),
        )

    (changes,) = changes_of(embgrad.TokenBatch([before]), embgrad.TokenBatch([after]), True)
    assert len(changes) == distance(0, 0)
    gone = {change.position_before for change in changes}
    put = {change.position: change.after for change in changes if change.position is not None}
    stay = iter([str(id_) for position, id_ in enumerate(before) if position not in gone])
    assert [put.get(position) or next(stay) for position in range(len(after))] == [str(id_) for id_ in after]
    assert next(stay, None) is None


def test_a_long_text_is_aligned_in_little_time() -> None:
    random = np.random.default_rng(0)
    before = random.integers(1, 1000, (1, 2000))
    after = np.insert(np.delete(before, 700, 1), 1200, 5, 1)
    (changes,) = changes_of(embgrad.TokenBatch(before), embgrad.TokenBatch(after), True)
    assert [change.kind for change in changes] == ["deleted", "inserted"]


def test_figures_by_hand() -> None:
    # L before is -1, 0, 1, 2, and at the end 1, 2, 1, 2: examples 2 and 3 meet the rule before, 0 and 1 afterwards.
    figures = SEARCH.figures()
    assert (figures.examples, figures.met_before, figures.successes) == (4, 2, 2)
    assert figures.attack_success_rate == 1.0
    assert figures.clean_accuracy == 0.5
    assert figures.accuracy_under_attack == 0.0
    assert figures.evaluations == (21.0, 21.0, 21.0, 21.0)
    assert figures.gradients == (2.0, 2.0, 2.0, 2.0)
    assert figures.changed == (1.5, 1.5, 1.5, 1.5)
    assert figures.changed_share.mean == pytest.approx((2 / 4 + 1 / 2) / 2)
    assert figures.seconds == 1.5


def test_successes_are_counted_apart_from_failures() -> None:
    # L at the end is 1, 2, 3: with 2 as the rule example 0 fails, and no example meets it before.
    figures = search_of([["a"], ["a", "b"], ["c"]], [["b"], ["c", "a"], ["a"]], until=2.0).figures()
    assert (figures.met_before, figures.successes) == (0, 2)
    assert figures.attack_success_rate == pytest.approx(2 / 3)
    assert figures.accuracy_under_attack == pytest.approx(1 / 3)
    assert figures.changed == (pytest.approx(4 / 3), 1.0, 1.5, 1.5)
    assert str(figures).splitlines()[:6] == [
        "GCG, maximize Logit(index=1) until 2",
        "examples                 3",
        "met the rule before      0",
        "attack success rate      66.7 % (2 of 3)",
        "accuracy under attack    33.3 %, before 100.0 %",
        "seconds                  1.5",
    ]
    assert str(figures).splitlines()[-2].split() == ["changed", "tokens", "1.3", "1", "1.5", "1.5"]
    cells = list(map(unescape, re.findall("<t[hd].*?>(.*?)</t[hd]>", figures.to_html())))
    assert cells[:4] == ["examples", "3", "met the rule before", "0"]
    assert cells[10:15] == ["an example's", "mean", "median", "mean of successes", "median of successes"]
    assert cells[-10:-5] == ["changed tokens", "1.3", "1", "1.5", "1.5"]
    assert set(re.findall('<th scope="row" style="([^;]*)', figures.to_html())) == {"text-align:left"}
    assert re.findall('style="([^;]*)[^>]*>(?:3|mean)<', figures.to_html()) == ["text-align:left", "text-align:right"]


def test_each_example_may_have_a_rule_and_the_goal_may_be_to_minimise() -> None:
    search = search_of(BEFORE, AFTER, until=[1.0, 9.0, 0.5, 3.0])  # L before is -1, 0, 1, 2, and at the end 1, 2, 1, 2
    assert search.success_before is not None
    assert search.success_before.tolist() == [False, False, True, False]
    assert (search.figures().met_before, search.figures().successes) == (1, 1)
    assert "until a number for each example" in search.figures().title
    down = replace(search, provenance={**search.provenance, "goal": "minimize", "until": 0.0})
    assert down.success_before is not None
    assert down.success_before.tolist() == [True, True, False, False]


def test_figures_without_a_rule_or_without_examples_that_do_not_meet_it() -> None:
    none = search_of(BEFORE, AFTER, until=None).figures()
    assert (none.successes, none.attack_success_rate, none.accuracy_under_attack) == (None, None, None)
    assert none.changed[:2] == (0.75, 0.5)
    assert np.isnan(none.changed[2:]).all()
    assert "success" not in str(none)
    every = search_of(BEFORE, BEFORE, until=-5.0).figures()
    assert (every.met_before, every.successes, every.attack_success_rate) == (4, 0, None)
    assert (every.clean_accuracy, every.accuracy_under_attack) == (0.0, 0.0)
    assert np.isnan(every.changed.mean)
    assert "attack success rate      – (0 of 0)" in str(every)
    assert "nan" not in str(every) + every._repr_html_()


def test_figures_as_values_and_as_html() -> None:
    figures = SEARCH.figures()
    values = figures.to_dict()
    assert values["attack_success_rate"] == 1.0
    assert values["changed"] == {"mean": 1.5, "median": 1.5, "mean_of_successes": 1.5, "median_of_successes": 1.5}
    assert "<strong>GCG, maximize Logit(index=1) until 1</strong>" in figures._repr_html_()
    assert "100.0 % (2 of 2)" in figures.to_html()
