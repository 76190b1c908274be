"""The slopes of a certificate and their tolerances, from figures made by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.engine import check
from embgrad.engine.finite_differences import PRECISION, Slopes
from embgrad.results.certificate import Certificate, Slope
from tests.unit.engine.checked import IDS

ABOVE = np.nextafter(1.0, 2.0)


def slope_of(found: float, uncertainty: float = 0.1, tolerance: float = 1.0, direction: str = "gradient") -> Slope:
    return Slope(direction, 4.0, found, uncertainty, tolerance)


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        (
            {"slopes": (slope_of(5.0), slope_of(3.0))},
            {"slopes": (slope_of(5.0), slope_of(3 - 1e-9))},
            "1 of 2 directions",
        ),
        ({"slopes": (slope_of(4.0, 0.8),)}, {"slopes": (slope_of(4.0, 0.8 * ABOVE),)}, "could not be tested"),
        ({"slopes": (slope_of(4.0, 0.1, 1.99),)}, {"slopes": (slope_of(4.0, 0.1, 2.0),)}, "could not be tested"),
        ({"slopes": (slope_of(4.0, 9.0), slope_of(4.0))}, {"slopes": (slope_of(4.0, 9.0),) * 2}, "could not be tested"),
        ({"slopes": (slope_of(4.0, 9.0, direction="random 1"),)}, {"slopes": (slope_of(-4.0),)}, "is wrong"),
        ({"slopes": (), "scatter": 1e-5}, {"slopes": (), "scatter": 1.1e-5}, "differ by 1.1e-05"),
    ],
)
def test_a_certificate_is_right_up_to_its_tolerances(right: Any, wrong: Any, message: str) -> None:
    given = {"scatter": None, "independence": None}
    check._expect_right("word", Certificate(**{**given, **right}), 1e-5)
    with pytest.raises(embgrad.errors.CertificationError, match=message):
        check._expect_right("word", Certificate(**{**given, **wrong}), 1e-5)


@pytest.mark.parametrize(
    ("chosen", "expected", "share", "values", "sizes", "kinks"),
    [
        (None, [12], [56**0.5], [29], [6], [0]),
        ([0, 1, 2], [6, 6, 0], [20**0.5, 6, 0], [1, -2, 30], [5, 6, 6], [0, 6.1e-6, 1e-12]),
        ([1], [6], [6], [-2], [6], [0]),
    ],
)
def test_the_slopes_in_a_direction(
    chosen: Any, expected: Any, share: Any, values: Any, sizes: Any, kinks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, steps = np.ones((3, 1, 2)), []

    def differences(value: Any, precision: Any, wanted: np.ndarray, counts: np.ndarray) -> Slopes:
        np.testing.assert_allclose(wanted, expected)
        np.testing.assert_allclose(counts, share)
        np.testing.assert_array_equal(value(0.5), (values, sizes))
        measured = [5.9e-6, 6.1e-6, 1e-12] if len(wanted) == 3 else [5.9e-6]
        return Slopes(wanted, 0 * wanted, np.array(measured), wanted > 6)

    def objective_with(question: Any, located: Any, key: str, moved: Any) -> Any:
        steps.append(moved(None))
        return np.array([1.0, -2, 30]), 6.0  # with the size of the numbers of all three together

    monkeypatch.setattr(check, "differences", differences)
    monkeypatch.setattr(check, "objective_with", objective_with)
    question = SimpleNamespace(batch=IDS, examples=slice(4, 7))
    located = {
        "word": SimpleNamespace(key="E#0", arrangement=SimpleNamespace(shared=False, to_native_axes=np.negative))
    }
    result = SimpleNamespace(values=np.array([[[3.0, 3.0]], [[0.0, 6.0]], [[0.0, 0.0]]]))
    result.values[:2] = [[[2.0, 4.0]], [[6.0, 0.0]]]
    trial = check._Trial(question, located, "word", result, PRECISION["float64"])  # type: ignore[arg-type]
    lines = trial._along("gradient", change, chosen)
    np.testing.assert_array_equal(steps, [-0.5 * change])
    assert [line.slope.direction for line in lines] == [
        "gradient" if chosen is None else f"gradient, example {4 + one}" for one in chosen or [0]
    ]
    assert [line.slope.found for line in lines] == expected
    assert [line.kink for line in lines] == kinks
    assert all(line.moves for line in lines)
