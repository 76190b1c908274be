"""Of the explanations of a site the one that leaves least is taken, within limits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from embgrad.comparison.hypotheses.explain import EXPLAINING, Hypothesis, explain
from embgrad.comparison.hypotheses.site import Explanation, Site, real_of, together
from embgrad.comparison.hypotheses.sources import Source, first_that_explains, most_off, sample_of, sources
from embgrad.comparison.recording import Tensor
from embgrad.comparison.settings import Declared
from embgrad.errors import EmbgradWarning
from tests.unit.comparison.hypotheses.modules import module_site
from tests.unit.comparison.hypotheses.planted import site_of
from tests.unit.comparison.recorded import BATCH

X = np.random.default_rng(0).normal(size=(2, 5, 6))


class Leaving:
    """A hypothesis whose explanations leave these shares of b's output, which a has half of."""

    def __init__(self, *left: float) -> None:
        self.left, self.sites = left, 0

    def explain(self, site: Site) -> list[Explanation]:
        self.sites += 1
        return [Explanation("dropout", f"{left}", ("", ""), site.b * (1 + left)) for left in self.left]


class Failing:
    """A hypothesis that cannot read a site."""

    def explain(self, site: Site) -> list[Explanation]:
        raise IndexError("index 3 is out of bounds")


def site(floor: float = 1e-9) -> Site:
    return site_of(X, 2 * X, {}, floor=floor)


def taken(*hypotheses: Hypothesis, floor: float = 1e-9) -> str | None:
    found = explain(site(floor), hypotheses)
    return None if found is None else found.setting


@pytest.mark.parametrize(
    ("left", "floor", "accepted"),
    [(0.0099, 1e-9, True), (0.0101, 1e-9, False), (0.199, 0.02, True), (0.201, 0.02, False), (0.499, 0.2, True),
        (0.501, 0.2, False)],
)  # fmt: skip
def test_an_explanation_leaves_a_hundredth_or_ten_floors_and_never_half(
    left: float, floor: float, accepted: bool
) -> None:
    assert (taken(Leaving(left), floor=floor) is not None) is accepted


def test_a_hypothesis_that_fails_costs_no_more_than_its_cause() -> None:
    message = r"^the hypothesis Failing failed at layers.0.last:input \(IndexError: index 3 is out of bounds\), so that a cause"
    with pytest.warns(EmbgradWarning, match=message) as warned:
        assert taken(Failing(), Leaving(0.001)) == "0.001"
    assert warned[0].filename == __file__


@pytest.mark.parametrize(("wrong", "accepted"), [(5, True), (6, False)])
def test_an_explanation_suits_most_tokens_and_not_only_one_of_large_numbers(wrong: int, accepted: bool) -> None:
    size = np.ones((10, 1))
    size[-1] = 1e4
    large = X.reshape(10, 6) * size
    predicted = 2 * large
    predicted[:wrong] = 1.4 * large[:wrong]
    at = replace(site(), a=large.reshape(X.shape), b=2 * large.reshape(X.shape), real=np.ones((2, 5), bool))
    named = Explanation("dropout", "", ("", ""), predicted.reshape(X.shape))
    hypothesis = Leaving()
    hypothesis.explain = lambda site: [named]  # type: ignore[method-assign]
    assert (explain(at, [hypothesis]) is not None) is accepted


def test_only_tokens_that_differ_or_would_differ_count() -> None:
    few = np.arange(10).reshape(2, 5, 1) < 2
    at = replace(site(), b=np.where(few, 2 * X, X * (1 + 0.9e-8)), real=np.ones((2, 5), bool))
    assert at.suits_most_tokens(np.where(few, 2 * X, X))
    assert not replace(at, floor=0.8e-9).suits_most_tokens(np.where(few, 2 * X, X))
    assert not at.suits_most_tokens(np.where(few, 2 * X, X + 1))
    assert replace(at, b=X.copy()).suits_most_tokens(X)


def test_another_explanation_must_leave_less_than_half() -> None:
    assert taken(Leaving(0.004, 0.0021)) == taken(Leaving(0.004), Leaving(0.0021)) == "0.004"
    assert taken(Leaving(0.004, 0.0019)) == taken(Leaving(0.004), Leaving(0.0019)) == "0.0019"
    assert taken(Leaving(0.2), Leaving(0.005), Leaving()) == "0.005"
    assert taken() is taken(Leaving()) is None


@pytest.mark.parametrize(
    ("left", "floor", "asked"), [(0.9e-7, 1e-9, 0), (1.1e-7, 1e-9, 1), (1e-4, 2e-4, 0), (1e-4, 9e-5, 1)]
)
def test_no_other_hypothesis_is_tried_where_one_is_exact(left: float, floor: float, asked: int) -> None:
    second = Leaving(0.0)
    at = site(floor)
    explain(at, (Leaving(left), second))
    assert second.sites == asked


@pytest.mark.parametrize(
    ("left", "floor", "asked"), [(0.9e-3, 1e-9, 0), (1.1e-3, 1e-9, 1), (1.1e-3, 1e-2, 0), (1.1e-3, 1e-4, 1)]
)
def test_late_hypotheses_are_tested_where_others_leave_more_than_a_share(
    left: float, floor: float, asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Late(Leaving):
        pass

    monkeypatch.setattr("embgrad.comparison.hypotheses.explain.LATE", {Late: 1e-3})
    at = site(floor)
    other, second = Leaving(), Late(0.0)
    explain(at, (Leaving(left * at.difference), other, second))
    assert (other.sites, second.sites) == (int(left * at.difference > floor), asked)


def test_what_explains_a_site_is_remembered() -> None:
    first, second = Leaving(0.004), Leaving(0.3)
    at = site()
    explain(at, (second, first))
    explain(at, (first,))
    assert at.memory[EXPLAINING] == [first, first]
    assert EXPLAINING not in site().memory


def test_explanations_that_hold_at_once_stand_together() -> None:
    found = [Explanation("dropout", name, ("", ""), X) for name in "abc"]
    (first,) = together(found)
    assert (first.setting, [other.setting for other in first.also]) == ("a", ["b", "c"])
    assert together([]) == []
    assert found[0].text == "a  in a and  in b"
    assert replace(found[0], sentence="a sentence").text == "a sentence"


def test_the_first_explanations_that_predict_most_are_taken() -> None:
    at = site()

    def leaving(left: float) -> list[Explanation]:
        return [Explanation("dropout", f"{left}", ("", ""), at.b * (1 + left))]

    near, far = leaving(0.24), leaving(0.26)
    assert first_that_explains(at, [far, near]) is near
    assert first_that_explains(at, [[], far, leaving(0.5)]) is far
    assert first_that_explains(at, []) == []


def test_broken_tensors_are_no_sources() -> None:
    broken = X.copy()
    broken[0, 1, 2] = np.nan
    found = sources(site_of(X, X, {"broken": broken, "x": X, "again": X.copy(), "y": X + 1}), 9)
    assert [source.name for source in found] == ["x", "y"]


def test_a_source_reads_its_product_and_its_features() -> None:
    matrix, bias = np.arange(12.0).reshape(6, 2), np.array([1.0, 2.0])
    source = Source("up", X @ matrix + bias, label="w", matrix=matrix, bias=bias)
    np.testing.assert_allclose(source.read(lambda name: X), X @ matrix + bias)
    np.testing.assert_allclose(source.part(np.array([1])).read(lambda name: X), (X @ matrix + bias)[..., [1]])
    assert source.text == "the product with w"


def test_a_few_entries_are_the_same_of_all_tensors_of_a_shape() -> None:
    real = np.ones((3, 40), bool)
    real[2, 20:] = False
    values = np.arange(3 * 40 * 6.0).reshape(3, 40, 6)
    at = site_of(values, values + 1, {}, real=real)
    sample = sample_of(at, values)
    assert sample[:3].tolist() == [0, 2, 4]  # every second of 600 real entries
    assert len(sample) == 300
    assert sample.max() < 2 * 240 + 120
    np.testing.assert_array_equal(sample_of(at, values + 1), sample + 1)
    assert len(sample_of(at, np.zeros((2, 7, 6)))) == 84
    assert len(sample_of(at, np.zeros((3, 40, 1)))) == 100


def test_a_function_is_told_from_the_ports() -> None:
    assert most_off(site()) == pytest.approx(1e-4)
    assert most_off(site(1e-4)) == pytest.approx(1e-3)
    assert most_off(site_of(X, X * (1 + 1e-5), {}, floor=1e-9)) == pytest.approx(0.25e-5)
    assert most_off(site_of(X, X * (1 + 1e-5), {}, floor=2e-6)) == pytest.approx(4e-6)


@pytest.mark.parametrize(("value", "wanted"), [(1e-5, 1e-5), (3, 3.0), (True, None), ("1e-5", None)])
def test_numbers_that_are_declared(value: Any, wanted: float | None) -> None:
    at = module_site(X, X, {}, declared=({"epsilon": value}, {}))
    assert at.declared("epsilon") == wanted
    assert at.declared("epsilon", of_a=False) is None
    assert Declared(value, "eps").value is value


def test_modules_whose_output_a_site_has() -> None:
    other = Tensor("norm:output#1", "norm", "output", 1, (), 5.0, X)
    later = Tensor("late:output#0", "late", "output", 0, (), 9.5, X)
    wrong = Tensor("near:output#0", "near", "output", 0, (), 4.0, X + 1)
    before = dict.fromkeys(("up:input", "norm#1:input", "late:input", "near:input"), X)
    at = module_site(X, X + 1, before, others=[other, later, wrong])
    assert [(path, entry.name) for path, entry in at.modules] == [("up", "up:input"), ("norm", "norm#1:input")]
    assert at.entry is not None
    inside = module_site(X, X + 1, before, key="up:input#0", others=[other])
    assert (inside.entry, [path for path, _ in inside.modules]) == (None, ["norm"])
    assert (at.is_output, inside.is_output, at.path, at.name) == (True, False, "up", "up")


def test_rows_are_those_of_real_positions() -> None:
    at = module_site(X, X + 1, {})
    assert at.rows(X).shape == (8, 6)
    assert at.rows(X[:, :3]).shape == (6, 6)  # of other positions all count
    np.testing.assert_array_equal(at.real_of(X), at.real)
    assert at.real_of(X[:, :3]).shape == (2, 3)
    np.testing.assert_array_equal(real_of(BATCH, np.zeros((2, 4, 1))), BATCH.real)
