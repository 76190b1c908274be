"""The order of the axes of products with weights."""

from __future__ import annotations

import pytest

from embgrad.toolkit import split_last_factor
from embgrad.toolkit.module_calls import order_of_product


@pytest.mark.parametrize(
    ("equation", "weight_last", "wanted"),
    [("blm,hdm->bhld", True, [0, 2, 1, 3]), ("hdm,blm->bhld", False, [0, 2, 1, 3]),
        ("ibh,hnd->nibd", True, [1, 2, 0, 3]), ("bqhd,hdm->bqm", True, None), ("bsm, mn -> bsn", True, None),
        ("...m,mn->...n", True, None), ("bsm,mn", True, None), ([0, 1], True, None)],
)  # fmt: skip
def test_the_axes_of_a_weight_come_last(equation: object, weight_last: bool, wanted: list[int] | None) -> None:
    assert order_of_product(equation, weight_last=weight_last) == wanted


@pytest.mark.parametrize(
    ("equation", "wanted"),
    [
        ("bhqk,bkhd,hdm->bqm", ("bhqk,bkhd->bqhd", "bqhd,hdm->bqm")),
        ("bhqk, bhkd, hdm -> bqm", ("bhqk,bhkd->bqhd", "bqhd,hdm->bqm")),
        ("bsm,mn->bsn", None),
        ("...k,kd,dm->...m", None),
        ("bs,sk,km", None),
        ([0, 1], None),
    ],
)
def test_the_last_of_several_factors_is_multiplied_by_itself(equation: object, wanted: tuple[str, str] | None) -> None:
    assert split_last_factor(equation) == wanted
