"""A part that one side computes in half precision is found by the digits of what it returns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from embgrad.comparison.hypotheses.in_half import InHalf, has_digits_of
from embgrad.comparison.hypotheses.site import Site
from embgrad.comparison.sites import Pair
from embgrad.comparison.weight_values import rounded
from tests.unit.comparison.hypotheses.modules import module_site
from tests.unit.comparison.recorded import tensor

X, A = np.random.default_rng(0).normal(size=(2, 2, 5, 6)).astype(np.float32)


def coarse(values: np.ndarray, dtype: str = "bfloat16") -> np.ndarray:
    return rounded(values, dtype)


def texts(site: Site) -> list[str]:
    return [found.text for found in InHalf().explain(site)]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_side_with_few_digits_is_named_with_its_dtype(dtype: str) -> None:
    (found,) = InHalf().explain(module_site(A, coarse(A, dtype), {}))
    assert (found.cause, found.values) == ("half-precision", ("float32", dtype))
    assert found.text == f"b computes parts in {dtype}, up first"
    (other,) = InHalf().explain(module_site(coarse(A, dtype), A, {}))
    assert (other.text, other.values) == (f"a computes parts in {dtype}, up first", (dtype, "float32"))


def test_both_sides_in_half_precision_neither_and_far_numbers_are_not_named() -> None:
    for a, b in ((coarse(A), coarse(1.001 * A)), (A, 1.001 * A), (A, coarse((1 + 8.5 / 256) * A)), (A, 0 * A)):
        assert texts(module_site(a, b, {})) == []
    assert texts(module_site(A, coarse((1 + 7.5 / 256) * A), {})) == ["b computes parts in bfloat16, up first"]


@pytest.mark.parametrize(
    ("key", "held", "size", "named"),
    [
        ("down:output#0", coarse(X), 1.001, True),
        ("down:output#0", X, 1.001, False),
        ("down:output#0", coarse(X), 1.005, False),
    ],
)
def test_what_b_computes_from_a_tensor_in_half_precision_is_off_by_its_rounding(
    key: str, held: np.ndarray, size: float, named: bool
) -> None:
    at = module_site(A, A * size, {"down": X}, others=[tensor(key, held)])
    at = replace(at, pairs=[Pair("down", key, key)])
    assert bool(texts(at)) is named
    assert texts(replace(at, before=[replace(it, values=coarse(X)) for it in at.before])) == []
    assert texts(replace(at, pairs=[])) == []
    for rows, is_named in ((coarse(X), False), (X, True)):
        table = tensor("table#0", rows, ids=np.zeros((2, 5), int))
        looked_up = module_site(A, A * size, {"down": X}, others=[tensor(key, held), table])
        assert bool(texts(replace(looked_up, pairs=at.pairs))) is (named and is_named)
    far = [[*[replace(at.before[0], name="other")] * number, *at.before] for number in (11, 12)]
    assert [bool(texts(replace(at, before=before))) for before in far] == [named, False]


def test_zeros_have_no_digits_that_show_a_dtype() -> None:
    assert not has_digits_of("float16", np.zeros(3))
    assert has_digits_of("float16", np.array([0.0, 0.5]))
    assert not has_digits_of("float16", np.array([0.5, 0.1]))
