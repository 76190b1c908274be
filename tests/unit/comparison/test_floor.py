"""The differences that rounding causes are measured by passes with rounding errors put in."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from embgrad.comparison.floor import (
    LEAST_FLOOR,
    accumulated_floors,
    coarser_half,
    estimated_floors,
    local_floors,
    name_of_roundoff,
    precision_of,
    roundoff_for,
)
from embgrad.comparison.led_pass import lead
from embgrad.comparison.recording import FINAL
from embgrad.comparison.sites import Pair
from embgrad.comparison.weight_values import rounded
from tests.unit.comparison.recorded import BATCH, Pass, Steps, recording, tensor

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(2, 4, 50))
UNIT = 1e-6


@pytest.mark.parametrize(
    ("a", "b", "floor", "wanted", "name"),
    [
        ("float64", "float64", None, 2.0**-53, "float64"),
        ("float64", "float32", None, 2.0**-24, "float32"),
        ("float32", "float64", None, 2.0**-24, "float32"),
        ("bfloat16", "bfloat16", None, 2.0**-24, "float32"),
        ("float64", "float64", "bfloat16", 2.0**-8, "bfloat16"),
        ("float32", "float32", "float64", 2.0**-53, "float64"),
        ("float32", "float32", "tfloat32", 2.0**-11, "tfloat32"),
        ("float32", "float32", "float16", 2.0**-11, "tfloat32"),
    ],
)
def test_single_precision_is_expected_unless_both_compute_in_double(
    a: str, b: str, floor: str | None, wanted: float, name: str
) -> None:
    first, second = (recording([], dtype=dtype) for dtype in (a, b))
    roundoff = roundoff_for(first, second, floor)
    assert roundoff == wanted  # half of the distance from 1 to the next number
    assert name_of_roundoff(roundoff) == name


@pytest.mark.parametrize(
    ("dtypes", "wanted"),
    [(["bfloat16", "bfloat16", "float32"], "bfloat16"), (["float16", "float32", "float16"], "float16"),
        (["bfloat16", "float16", "float16"], "float16"), (["bfloat16", "float32"], "float32"),
        (["float32", "float32", "bfloat16"], "float32"), ([], "float32")],
)  # fmt: skip
def test_a_side_computes_in_half_precision_where_most_of_its_values_have_no_more_digits(
    dtypes: list[str], wanted: str
) -> None:
    values = {name: rounded(X, name) if name != "float32" else X.astype(np.float32) for name in dtypes}
    modules = [tensor(f"{number}:output#0", values[name]) for number, name in enumerate(dtypes)]
    tables = [tensor(f"table{number}#0", rounded(X, "bfloat16")) for number in range(9)]
    assert precision_of(recording([*tables, *modules], dtype="float32")) == wanted


def test_the_coarser_of_two_half_precisions() -> None:
    assert coarser_half(("float16", "bfloat16")) == "bfloat16"
    assert coarser_half(("float16", "float32")) == "float16"
    assert coarser_half(("float32", "float64")) is None


#: The sum and the difference of two nearly equal numbers: the second is 1e3 times as sensitive as its inputs.
STEPS: Steps = {
    "one": lambda at: X,
    "two": lambda at: X * 1.001,
    "same": lambda at: at["one"] * 3,
    "less": lambda at: at["two"] - at["one"],
    FINAL: lambda at: at["less"] * 2,
}
PAIRS = [Pair(key, key, key, time=float(number)) for number, key in enumerate(STEPS)]


def test_the_local_floor_is_the_effect_of_rounded_inputs() -> None:
    a, b = Pass(STEPS).record(), Pass(STEPS)
    follower = b.record()
    led = lead(PAIRS, a, follower, "b")
    before = b.passes
    floors = local_floors(PAIRS, a, follower, led, UNIT)
    assert b.passes == before + 1
    # An error that is uniform between -u and u has the mean square u² / 3.
    assert floors[:2] == [LEAST_FLOOR * UNIT] * 2
    assert floors[2] == LEAST_FLOOR * UNIT
    assert floors[3] == pytest.approx(1e3 * np.sqrt(2 / 3) * UNIT, rel=0.1)
    assert floors[4] == LEAST_FLOOR * UNIT


def test_the_local_floor_leaves_the_leader_as_it_was() -> None:
    a, b = Pass(STEPS).record(), Pass(STEPS).record()
    led = lead(PAIRS, a, b, "b")
    local_floors(PAIRS, a, b, led, 0.5)
    np.testing.assert_array_equal(a.tensors["one"].values, X)


def test_a_pair_that_was_not_reached_has_no_local_floor() -> None:
    steps = {key: step for key, step in STEPS.items() if key != FINAL}
    a, b = Pass(STEPS).record(), Pass(steps).record()
    led = lead(PAIRS, a, b, "b")
    assert local_floors(PAIRS, a, b, led, UNIT)[4] == 0


def test_a_random_model_has_a_large_local_floor() -> None:
    random = np.random.default_rng(1)
    drawn: Steps = {**STEPS, "same": lambda at: at["one"] * random.normal(size=X.shape)}
    a, b = Pass(STEPS).record(), Pass(drawn).record()
    led = lead(PAIRS, a, b, "b")
    floors = local_floors(PAIRS, a, b, led, UNIT)
    assert floors[2] > 0.5
    assert floors[0] == LEAST_FLOOR * UNIT


def test_accumulated_floors_grow_with_the_depth() -> None:
    steps: Steps = {f"layer{number}": lambda at, n=number: at[f"layer{n - 1}"] if n else X for number in range(12)}  # type: ignore[misc]
    steps = {**steps, FINAL: lambda at: at["layer11"]}
    pairs = [Pair(key, key, key, time=float(number)) for number, key in enumerate(steps)]
    model = Pass(steps)
    floors = accumulated_floors(pairs, model.record(), UNIT)
    assert floors[0] == 0  # what arrives there has no error yet
    for number in (1, 4, 11, 12):
        assert floors[number] == pytest.approx(np.sqrt(number / 3) * UNIT, rel=0.15)
    assert model.passes == 1


def test_accumulated_floors_are_of_the_pairs_features_at_real_positions() -> None:
    def second(at: dict[str, np.ndarray]) -> np.ndarray:
        values = np.array(at["one"])
        values[~BATCH.real] *= np.where(values[~BATCH.real] == X[~BATCH.real], 1, 1e6)  # the padding alone is sensitive
        values[..., 10:] *= np.where(values[..., 10:] == X[..., 10:], 1, 1e6)
        return values

    steps: Steps = {"one": lambda at: X, "two": second, FINAL: lambda at: at["two"]}  # type: ignore[dict-item]
    pairs = [Pair("one", "one", "one"), Pair("two[0:10]", "two", "two", np.arange(10), None)]
    floors = accumulated_floors(pairs, Pass(steps).record(), UNIT)
    assert floors[1] == pytest.approx(UNIT / np.sqrt(3), rel=0.2)


def test_floors_of_a_reference_that_cannot_be_changed_are_estimated_from_the_number_of_points() -> None:
    wanted = [4e-6 * number**0.5 for number in (1, 2, 3, 4, 5)]
    assert accumulated_floors(PAIRS, Pass(STEPS, can_be_led=False).record(), UNIT) == pytest.approx(wanted)
    assert accumulated_floors(PAIRS, recording([]), UNIT) == pytest.approx(wanted)
    assert estimated_floors(PAIRS[:2], UNIT) == pytest.approx(wanted[:2])


def test_a_pair_that_the_reference_does_not_reach_has_no_accumulated_floor() -> None:
    steps = {key: step for key, step in STEPS.items() if key != FINAL}
    a = Pass(STEPS).record()
    floors = accumulated_floors(PAIRS, replace(a, live=Pass(steps).record().live), UNIT)
    assert floors[4] == 0
    assert floors[3] > 0
