"""Slopes of `check=True`: their tolerances, what kinks excuse, and which of them are no test."""

from __future__ import annotations

import contextlib
import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.engine.check import _excuse, _is_rough, _judge, _length, _Line
from embgrad.engine.company import Company, company_of, differs, rows_of_test, tolerance_of
from embgrad.engine.finite_differences import PRECISION
from embgrad.engine.weights import weights_of
from embgrad.results.certificate import Slope
from embgrad.testing.reference import ReferenceBackend, ReferenceModel, Tensor, lookup

DOUBLE = PRECISION["float64"]
DIM, COUNT, LENGTH = 4, 3, 2
IDS = np.array([[3, 5], [2, 9], [7, 1]])
WEIGHTS = {
    name: np.random.default_rng(seed).normal(size=shape)
    for seed, (name, shape) in enumerate({"E": (12, DIM), "H": (DIM, 3)}.items())
}
PROJECTION = embgrad.Projection(np.random.default_rng(4).normal(size=3))


def forward(model: Any, input_ids: np.ndarray) -> Tensor:
    return lookup(model["E"], input_ids).tanh().mean(1) @ model["H"]


def line(found: float, *, own: bool = True, moves: bool = True, kink: float = 0.0, stairs: bool = False) -> _Line:
    """Return a slope that is expected to be 1, with a tolerance of 0.1."""
    return _Line(Slope("gradient" if own else "random 1", 1.0, found, 0.01, 0.1), moves, kink, stairs)


def test_a_tolerance_is_a_share_of_a_typical_slope_of_the_gradient() -> None:
    result = embgrad.gradients(ReferenceModel(forward, WEIGHTS), IDS, PROJECTION, check=True)
    typical = np.linalg.norm(result.values) * np.linalg.norm(result.activations) / (COUNT * LENGTH * DIM) ** 0.5
    for slope in result.certificate.slopes:
        large = max(abs(slope.expected), abs(slope.found), typical)
        assert slope.tolerance - 4 * slope.uncertainty == pytest.approx(1e-6 * large, rel=1e-6)


def test_by_split_a_tolerance_is_of_each_example() -> None:
    result = embgrad.gradients(ReferenceModel(forward, WEIGHTS), IDS, PROJECTION, check=True, split=True)
    assert len(result.certificate.slopes) == 3 * COUNT
    for slope in result.certificate.slopes:
        example = int(slope.direction.rpartition(" ")[2])
        lengths = (np.linalg.norm(array[example]) for array in (result.values, result.activations))
        typical = np.prod(list(lengths)) / (LENGTH * DIM) ** 0.5
        large = max(abs(slope.expected), abs(slope.found), typical)
        assert slope.tolerance - 4 * slope.uncertainty == pytest.approx(1e-6 * large, rel=1e-6)


def test_small_activations_are_moved_by_a_least_step() -> None:
    tiny = {**WEIGHTS, "E": WEIGHTS["E"] * 1e-6}
    result = embgrad.gradients(ReferenceModel(forward, tiny), IDS, PROJECTION, check=True)
    size = COUNT * LENGTH * DIM
    assert result.certificate.slopes[0].expected == pytest.approx(np.linalg.norm(result.values) * 1e-2 * size**0.5)


def test_a_kink_excuses_a_slope_by_its_size() -> None:
    slopes = _judge([line(4.0, kink=0.5), line(4.0, own=False)], 16, DOUBLE)
    # Ten kinks, in the gradient's own direction of 16 entries four times as much; the uncertainty is a fourth of it.
    assert [slope.tolerance for slope in slopes] == pytest.approx([0.1 + 10 * 0.5 * 4, 0.1 + 10 * 0.5])
    assert [slope.uncertainty for slope in slopes] == pytest.approx([0.01 + 5.0, 0.01 + 1.25])
    assert all(slope.holds for slope in slopes)
    assert not _judge([line(7.0, own=False, kink=0.5)], 16, DOUBLE)[0].holds


def test_stairs_excuse_any_slope_and_what_holds_is_left() -> None:
    slopes = _judge([line(4.0, stairs=True), line(1.05, kink=9.0)], 16, DOUBLE)
    assert (slopes[0].uncertainty, slopes[0].tolerance) == pytest.approx((0.01 + 3, 0.1 + 4 * 3))
    assert slopes[1] == line(1.05).slope
    assert _judge([line(4.0)], 16, DOUBLE) == [line(4.0).slope]


def test_a_direction_in_which_nothing_moves_is_no_test() -> None:
    assert _judge([line(4.0, moves=False), line(1.0)], 16, DOUBLE) == [line(1.0).slope]
    assert _judge([], 16, DOUBLE) == []


def test_only_a_gradient_of_zeros_is_excused_by_other_directions() -> None:
    lines = [line(4.0, own=False, kink=0.5), line(1.0, own=False)]
    judged = _judge(lines, 16, DOUBLE)
    assert _excuse(lines, judged) == judged[:1]
    lines.append(line(1.0))
    assert _excuse(lines, _judge(lines, 16, DOUBLE)) == []
    unmoved = [*lines[:2], line(1.0, moves=False)]
    assert _excuse(unmoved, judged) == judged[:1]


@pytest.mark.parametrize(
    ("expected", "found", "uncertainty", "tolerance", "rough"),
    [
        (1.0, 1.0, 0.19, 0.1, False),
        (1.0, 1.0, 0.21, 0.1, True),
        (-1.0, 3.0, 0.21, 0.1, True),  # of the smaller
        (-1.0, 3.0, 0.19, 0.1, False),
        (1.0, 1.0, 0.0, 0.5, True),  # half of the larger
        (1.0, 1.0, 0.0, 0.49, False),
        (0.0, 0.0, 0.0, 0.5, False),
    ],
)
def test_a_slope_that_is_too_uncertain_is_rough(
    expected: float, found: float, uncertainty: float, tolerance: float, rough: bool
) -> None:
    assert _is_rough(Slope("gradient", expected, found, uncertainty, tolerance)) is rough


def test_lengths_are_of_all_examples_or_of_each() -> None:
    array = np.array([[[3.0, 0], [0, 4]], [[6, 0], [0, 8]]])
    assert _length(array, each=False) == pytest.approx(125**0.5)
    assert _length(array, each=True).tolist() == [[[5.0]], [[10.0]]]


@pytest.mark.parametrize(
    ("own", "now", "moved", "tolerance", "another"),
    [
        ([100.0, 1.0], [100.0, 1.5], [False, False], 1e-2, False),  # relative to the largest objective
        ([100.0, 1.0], [100.0, 2.5], [False, False], 1e-2, True),
        ([100.0, 1.0], [100.0, 2.5], [False, True], 1e-2, False),  # the example itself was changed
        ([1.0, 1.0], [1.5, 1.0], [False, False], 0.5, False),  # as much as the tolerance is none
        ([0.01, 0.01], [5.0, 0.02], [True, False], 1e-2, False),  # relative to the largest change
        ([0.01, 0.01], [0.5, 0.02], [True, False], 1e-2, True),
    ],
)
def test_a_change_counts_beside_the_objectives_and_their_changes(
    own: list[float], now: list[float], moved: list[bool], tolerance: float, another: bool
) -> None:
    assert differs(np.array(now), np.array(own), np.array(moved), tolerance) is another


@pytest.mark.parametrize(
    ("count", "size", "rows", "moved"),
    [
        (4, 8, [0, 0, 1, 2, 3, 0], [True, False, True, False, True, False]),
        (4, 4, [0, 0, 1], [True, False, True]),  # three would make as many rows as examples
        (4, 3, [0, 0, 1], [True, False, True]),
        (2, 2, [0, 0], [True, False]),
        (1, 2, [0, 0], [True, False]),
    ],
)
def test_the_rows_of_the_first_test(count: int, size: int, rows: list[int], moved: list[bool]) -> None:
    actual = rows_of_test(count, size)
    assert [array.tolist() for array in actual] == [rows, moved]


@pytest.mark.parametrize(
    ("partners", "company"),
    [([0, 1], Company.FIXED), ([1, 0], Company.HELD), ([0, 1, 2, 3], Company.FIXED), ([1, 0, 3, 2], Company.HELD),
        ([2, 3, 0, 1], Company.HELD), ([3, 2, 1, 0], Company.HELD), ([0], Company.FIXED)],
)  # fmt: skip
def test_examples_that_depend_on_a_partner_keep_its_values(partners: list[int], company: Company) -> None:
    def evaluate(examples: np.ndarray, mixed: np.ndarray) -> np.ndarray:
        sums: np.ndarray = mixed.sum((1, 2))
        return sums * sums[partners]

    values = np.random.default_rng(0).normal(size=(len(partners), 2, 3)) + 1
    objective = evaluate(np.arange(len(partners)), values)
    own: Any = SimpleNamespace(objective=objective, activations=values, provenance={"compute_dtype": "float64"})
    assert company_of(evaluate, own, None) is company


def test_an_unknown_dtype_may_change_as_much_as_the_coarsest() -> None:
    assert [tolerance_of(dtype) for dtype in ("float64", "float32", "float16", "bfloat16", "int8")] == [
        1e-6,
        1e-4,
        2e-2,
        1e-1,
        1e-1,
    ]


@pytest.mark.parametrize(("leak", "warns"), [(0.9e-3, False), (1.1e-3, True)])
@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_padding_that_is_read_is_warned_of_from_a_share_of_the_largest_gradient_on(
    leak: float, warns: bool, scale: float
) -> None:
    def leaking(model: Any, input_ids: np.ndarray, attention_mask: np.ndarray) -> Tensor:
        weights = np.where(attention_mask == 1, 1.0, leak)[..., None] * scale
        return (lookup(model["E"], input_ids) * Tensor(weights)).sum(1)

    batch = embgrad.TokenBatch([[3, 5], [2, 0]], [[1, 1], [1, 0]])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        embgrad.gradients(ReferenceModel(leaking, WEIGHTS), batch, embgrad.Sum())
    assert ["the model reads padding" in str(item.message) for item in caught] == [True] * warns


@pytest.mark.parametrize(("factor", "warns"), [(2.25e-6, False), (2.75e-6, True)])
def test_examples_are_another_from_five_times_the_tolerance_on(factor: float, warns: bool) -> None:
    def counting(model: Any, input_ids: np.ndarray) -> Tensor:
        return forward(model, input_ids) * (1 + factor * (len(input_ids) - 1))

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = embgrad.gradients(ReferenceModel(counting, WEIGHTS), IDS, PROJECTION, check=True)
    assert result.certificate.independence == pytest.approx(2 * factor, rel=1e-2)
    assert [item.category for item in caught] == [embgrad.EmbgradWarning] * warns


def test_weights_are_read_while_no_other_thread_runs_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[str] = []

    def alone(self: Any, model: Any) -> Any:
        held.append("alone")
        return contextlib.nullcontext()

    monkeypatch.setattr(ReferenceBackend, "alone", alone)
    weight = weights_of(ReferenceModel(forward, WEIGHTS))[0]
    assert held == []
    weight.get()
    assert held == ["alone"]
    weight.rows(np.array([0]))
    assert held == ["alone"] * 2
