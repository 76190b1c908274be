"""Measures, tolerances, conversions of arrays and checks of options, by closed forms."""

from __future__ import annotations

import io
import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from embgrad.common import memory_meter
from embgrad.common.arrays import as_asked, copy_owned, exact_below, is_traced, take_owned, to_numpy, whole_numbers
from embgrad.common.finite import not_finite
from embgrad.common.memory_meter import MemoryMeter, process_meter
from embgrad.common.metrics import _unit, figures_of, length, lengths, position_figures
from embgrad.common.options import count_or_none, expect_flag, expect_flags
from embgrad.common.progress import reporter
from embgrad.common.pytree import copy_nest
from embgrad.common.token_text import direction, show_token, token_text
from embgrad.common.tolerance import check_tolerance, coarsest, tolerance_for, tolerance_of, unit_roundoff
from embgrad.errors import BatchError, EmbgradError, UnsupportedError
from tests.unit.refusals import refused

SCALES = [1.0, 1e-300, 1e300, 3.7]


@pytest.mark.parametrize("scale", SCALES)
def test_norms_are_those_of_right_triangles_at_any_size(scale: float) -> None:
    array = np.array([[3.0, 4.0], [5.0, -12.0], [0.0, 0.0], [-8.0, 15.0]]) * scale
    np.testing.assert_allclose(lengths(array), np.array([5, 13, 0, 17]) * scale, rtol=1e-15)
    assert length(array) == pytest.approx(math.sqrt(25 + 169 + 289) * scale, rel=1e-15)
    assert length(np.zeros((2, 0))) == 0


@pytest.mark.parametrize("scale", SCALES)
def test_the_measures_of_two_arrays_are_those_of_the_plane(scale: float) -> None:
    figures = figures_of(np.array([3.0, 4.0]) * scale, np.array([3.0, -4.0]) * scale)
    assert figures.relative_l2 == pytest.approx(8 / 5)
    assert figures.largest == pytest.approx(8 * scale)
    assert figures.cosine == pytest.approx((9 - 16) / 25)
    alike = figures_of(np.array([3.0, 4.0]) * scale, np.array([6.0, 8.0]) * scale)
    assert (alike.relative_l2, alike.cosine) == (pytest.approx(1.0), pytest.approx(1.0))


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [([0, 0], [0, 0], (0, 0, 1)), ([0, 0], [3, 4], (math.inf, 4, 0)), ([3, 4], [0, 0], (1, 4, 0)), ([], [], (0, 0, 1)),
        ([1e200, 0], [1e-200, 0], (1, 1e200, 1)), ([1e-200, 0], [1e200, 0], (math.inf, 1e200, 1)),
        ([2, 0], [0, 5], (math.sqrt(29) / 2, 5, 0))],
)  # fmt: skip
@pytest.mark.filterwarnings("error")
def test_the_measures_of_zeros_and_of_very_different_sizes(a: Any, b: Any, expected: tuple[float, ...]) -> None:
    figures = figures_of(np.array(a, float), np.array(b, float))
    assert (figures.relative_l2, figures.largest, figures.cosine) == pytest.approx(expected)
    assert figures.to_dict() == {
        "relative_l2": None if expected[0] == math.inf else pytest.approx(expected[0]),
        "largest": pytest.approx(expected[1]),
        "cosine": pytest.approx(expected[2]),
    }


def test_the_measures_of_each_position() -> None:
    random = np.random.default_rng(0)
    a, b = random.normal(size=(2, 3, 4)), random.normal(size=(2, 3, 4))
    matched = np.array([[True, True, False], [True, True, True]])
    found = position_figures(a, b, matched)
    for index in np.ndindex(2, 3):
        alone = figures_of(a[index], b[index])
        for name in ("relative_l2", "largest", "cosine"):
            value = getattr(found, name)[index]
            assert np.isnan(value) if not matched[index] else value == pytest.approx(getattr(alone, name))


@pytest.mark.parametrize("number", [1.0, 0.75, 4.0, 5e-324, 1e308, np.finfo(float).max, 2.2e-308, 0.0])
def test_units_are_powers_of_two_in_which_numbers_are_about_one(number: float) -> None:
    (unit,) = _unit(np.array([number, -number / 3]))
    assert math.frexp(unit)[0] == 0.5
    assert np.isfinite(unit)
    if 1e-300 < number < 1e300:
        assert 0.5 <= number / unit < 1
    elif number:
        assert number / unit <= 2
        assert unit >= 2.0**-1021
    else:
        assert unit in (1.0, 2.0)


@pytest.mark.parametrize(("dtype", "digits"), [("float16", 11), ("bfloat16", 8), ("float32", 24), ("float64", 53)])
def test_the_unit_roundoff_is_half_the_gap_after_one(dtype: str, digits: int) -> None:
    assert unit_roundoff(dtype) == 2.0**-digits
    assert tolerance_for(dtype, 0) == 24 * 2.0**-digits
    assert tolerance_for(dtype, 3) == 48 * 2.0**-digits
    assert tolerance_for(dtype) == pytest.approx(24 * 2.0**-digits * math.sqrt(77))
    assert unit_roundoff("unknown") == 2.0**-24


def test_the_coarsest_dtype_has_the_fewest_digits() -> None:
    assert coarsest(["float64", "bfloat16", "float16", "float32"]) == "bfloat16"
    assert coarsest(["float64", "float32"]) == "float32"


@pytest.mark.parametrize("value", [True, -1, -1e-9, float("inf"), float("nan"), "1", [1]])
def test_tolerances_that_are_refused(value: Any) -> None:
    with refused(EmbgradError, "tolerance is ", "expected a number of at least 0, such as 1e-5, or None"):
        check_tolerance(value)


def test_tolerances_that_are_taken() -> None:
    assert (check_tolerance(None), check_tolerance(0), check_tolerance(np.float32(0.5))) == (None, 0.0, 0.5)


@pytest.mark.parametrize(("given", "kept"), [("float16", "float32"), ("float32", "float32"), ("float64", "float64")])
def test_owned_arrays_are_copies_in_single_or_double_precision(given: str, kept: str) -> None:
    array = np.asfortranarray(np.arange(6.0).reshape(2, 3).astype(given))
    for made in (copy_owned(array), take_owned(array)):
        assert made.dtype == kept
        assert made.flags.c_contiguous
        assert made.flags.writeable
        assert not np.shares_memory(made, array)
        np.testing.assert_array_equal(made, array)
    fitting = np.arange(6, dtype=np.float32)
    assert take_owned(fitting) is fitting
    assert not np.shares_memory(copy_owned(fitting), fitting)
    for other in (fitting[::2], fitting[1:]):
        assert not np.shares_memory(take_owned(other), fitting)
    fitting.flags.writeable = False
    assert take_owned(fitting).flags.writeable


@pytest.mark.parametrize(("dtype", "bits"), [("float16", 11), ("float32", 24), ("float64", 53)])
def test_floats_are_whole_numbers_below_those_that_are_rounded(dtype: str, bits: int) -> None:
    most = 2.0**bits
    assert exact_below(np.dtype(dtype)) == most
    below = whole_numbers(np.array([most - 1, 1 - most, 0], dtype))
    assert below is not None
    assert below.tolist() == [2**bits - 1, 1 - 2**bits, 0]
    assert below.dtype == np.int64
    for wrong in (most, -most, 0.5, np.nan, np.inf):
        assert whole_numbers(np.array([1, wrong], dtype)) is None
    assert exact_below(np.dtype(np.longdouble)) == 2.0**62


def test_integers_are_whole_numbers_up_to_the_largest_of_int64() -> None:
    largest = whole_numbers(np.array([0, 2**63 - 1], np.uint64))
    assert largest is not None
    assert largest.tolist() == [0, 2**63 - 1]
    assert whole_numbers(np.array([2**63], np.uint64)) is None
    assert whole_numbers(np.array([True])) is None
    empty = whole_numbers(np.zeros(0, np.uint8))
    assert empty is not None
    assert empty.dtype == np.int64


def test_arrays_as_numpy_asks_for_them() -> None:
    array = np.arange(3.0)
    assert as_asked(array, None, None) is array
    assert as_asked(array, np.float64, False) is array
    assert not np.shares_memory(as_asked(array, None, True), array)
    assert as_asked(array, np.float32, None).dtype == np.float32
    with refused(ValueError, "the values are float64: expected that dtype with copy=False, not float32"):
        as_asked(array, np.float32, False)
    with refused(ValueError, "it is a masked array, whose mask would be lost"):
        to_numpy(np.ma.masked_array([1, 2], [True, False]))


def test_the_first_number_that_is_not_finite() -> None:
    array = np.zeros((2, 3, 4))
    assert not_finite(array) is None
    array[0, 2, 1], array[1, 0, 0] = np.nan, np.inf
    found = not_finite(array)
    assert found is not None
    assert (found.index, found.count, found.size) == ((0, 2, 1), 2, 24)
    assert found.at("example", "position") == "nan at example 0, position 2, and in 2 of 24 entries"
    assert found.at() == "nan at (0, 2, 1), and in 2 of 24 entries"


def test_flags_and_counts() -> None:
    expect_flags(one=True, two=np.bool_(False))
    for value in (1, 0, "False", None):
        with refused(BatchError, "flag is ", "expected True or False"):
            expect_flag(value, "flag")
    with refused(BatchError, "second is 1: expected True or False"):
        expect_flags(first=False, second=1)
    assert [count_or_none(value, "n") for value in (None, 1, np.int32(7))] == [None, 1, 7]
    assert type(count_or_none(np.int64(7), "n")) is int
    for value in (0, -1, True, 1.0, "1", np.bool_(True)):
        with refused(BatchError, "n is ", "expected a whole number of at least 1, or None"):
            count_or_none(value, "n")


@pytest.mark.parametrize(
    ("token", "shown"),
    [
        ("", "∅"),
        ("film", "film"),
        ("   ", "␣␣␣"),
        ("\u0301a", "◌\u0301a"),
        ("a" * 48, "a" * 48),
        ("a" * 49, "a" * 48 + "… (49 characters)"),
        ("a\nb", "a\\nb"),
        ("\x00\x1b[31m", "\\x00\\x1b[31m"),
        ("\u202eevil", "\\u202eevil"),
        ("e\u0301", "e\u0301"),
        ("👩\u200d🔬", "👩\u200d🔬"),
        ("\u200d", "\\u200d"),
        ("\ud800", "\\ud800"),
    ],
)
def test_tokens_are_never_empty_and_not_too_long(token: str, shown: str) -> None:
    assert token_text(token) == shown


def test_marks_of_tokenizers_are_not_shown() -> None:
    shown = [show_token(token) for token in ("##ing", "Ġfilm", "▁film", "##", "Ġ", "▁▁", "", "film")]
    assert shown == ["ing", "film", "film", "##", "␣", "␣", "∅", "film"]


def test_the_direction_of_a_text_is_that_of_its_first_letter() -> None:
    assert [direction(tokens) for tokens in (["1", "שלום", "a"], ["a", "שלום"], ["12"], ["مرحبا"], [])] == [
        "rtl",
        "ltr",
        "ltr",
        "rtl",
        "ltr",
    ]


def made_in(dtype: str | None, values: str = "float32", **provenance: Any) -> Any:
    computed = {} if dtype is None else {"compute_dtype": dtype}
    return SimpleNamespace(values=np.zeros(1, values), provenance={**computed, **provenance})


@pytest.mark.parametrize(
    ("first", "second", "digits"),
    [("float32", "float32", 24), ("float64", "float64", 53), ("float64", "float32", 24), ("float16", "float16", 11),
        ("float16", "bfloat16", 8), ("float16", "float32", 24), ("bfloat16", "float64", 24)],
)  # fmt: skip
def test_the_tolerance_of_two_results_is_of_half_precision_only_where_both_are(
    first: str, second: str, digits: int
) -> None:
    expected = 24 * 2.0**-digits * math.sqrt(77)
    assert tolerance_of(made_in(first), made_in(second)) == pytest.approx(expected)
    assert tolerance_of(made_in(second), made_in(first)) == pytest.approx(expected)


def test_the_tolerance_of_two_results_grows_with_the_deeper_model_up_to_a_limit() -> None:
    def of(*depths: Any) -> float:
        return tolerance_of(*(made_in(None, "float64", matrices=depth) for depth in depths)) / 24 * 2**53

    assert of(8, 3) == of(3, 8) == of(8, None) == pytest.approx(3)
    assert of(0, 0) == pytest.approx(1)
    assert of(99_999, 100_000) == pytest.approx(math.sqrt(100_001))
    for implausible in (100_001, -1, True, 3.0, "3", None):
        assert of(implausible, implausible) == pytest.approx(math.sqrt(77))


@pytest.mark.parametrize("progress", [None, False, np.bool_(False)])
def test_no_progress_is_reported_where_none_is_asked_for(progress: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with reporter(progress) as report:
        report(1, 2)
    assert capsys.readouterr() == ("", "")


def test_progress_is_reported_to_a_function_and_on_a_terminal_alone() -> None:
    seen: list[Any] = []
    with reporter(lambda done, total: seen.append((done, total))) as report:
        report(1, None)
    assert seen == [(1, None)]
    with refused(EmbgradError, "progress is 1: expected True, or a function that takes (done, total)"), reporter(1):
        pass


def test_a_line_of_numbers_is_overwritten_and_erased(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setitem(sys.modules, "rich.progress", None)
    for stream, expected in (
        (Terminal(), "\rtexts: 10 of 12\rtexts: 7\r" + " " * 15 + "\r"),
        (io.StringIO(), ""),
    ):
        monkeypatch.setattr(sys, "stderr", stream)
        with reporter(True, "texts") as report:
            report(10, 12)
            report(7, None)
        assert stream.getvalue() == expected


def test_copies_of_inputs_are_apart_but_for_plain_values_and_functions() -> None:
    inner = {"b": [1, 2], "array": np.zeros(2)}
    given = [inner, (inner["b"], "text"), len, (number for number in [1])]
    made = copy_nest(given)
    assert made[0]["b"] == [1, 2]
    assert made[0]["b"] is not inner["b"]
    assert made[1][0] is not inner["b"]
    assert not np.shares_memory(made[0]["array"], inner["array"])
    assert made[2] is len
    assert made[3] is given[3], "it cannot be copied"
    kept = copy_nest(given, lambda value: isinstance(value, np.ndarray))
    assert kept[0]["array"] is inner["array"]
    assert kept[0]["b"] is not inner["b"]


def test_only_what_jax_traces_with_is_traced() -> None:
    traced = type("Tracer", (), {"__module__": "jax._src.core"})
    for kind, expected in (
        (traced, True),
        (type("Child", (traced,), {}), True),
        (type("Tracer", (), {"__module__": "other"}), False),
        (type("Array", (), {"__module__": "jax.numpy"}), False),
    ):
        assert is_traced(kind()) == expected
    with refused(ValueError, "embgrad was called inside jax.jit (or grad, vmap)"):
        to_numpy(traced())


@pytest.mark.parametrize(
    ("missing", "reason"), [("CLEAR", "FileNotFoundError: .*absent"), ("STATUS", "KeyError: 'VmRSS'")]
)
def test_a_process_whose_memory_cannot_be_measured_is_refused(
    missing: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CLEAR", "STATUS"):
        (tmp_path / name).write_text("VmRSS: 1 kB\nVmHWM: 2 kB\n")
        monkeypatch.setattr(memory_meter, name, tmp_path / name)
    assert process_meter().read() == (1024, 2048)
    if missing == "STATUS":
        (tmp_path / missing).write_text("VmHWM: 2 kB\n")
    else:
        monkeypatch.setattr(memory_meter, missing, tmp_path / "absent" / missing)
    with pytest.raises(UnsupportedError, match=f"memory cannot be measured here .{reason}"):
        process_meter()


def test_the_memory_of_a_process_holds_results() -> None:
    meter = process_meter()
    meter.restart()
    before, _ = meter.read()
    array = np.ones(2**22)
    now, peak = meter.read()
    assert now - before > array.nbytes / 2
    assert peak >= now > 2**20
    assert (meter.device, meter.holds_results) == ("cpu", True)
    assert not MemoryMeter("gpu", meter.restart, meter.read).holds_results
