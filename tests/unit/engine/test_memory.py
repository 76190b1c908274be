"""`memory` on models in NumPy: by a meter that knows what a call takes, and by the process's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.common import memory_meter
from embgrad.common.memory_meter import MemoryMeter, process_meter
from embgrad.testing.reference import ReferenceModel, Tensor, lookup
from tests.unit.refusals import refused

MIB = 2**20
BASE, FIXED = 300 * MIB, 10 * MIB
WEIGHTS = {"E": np.random.default_rng(0).normal(size=(20, 4)).astype("float32")}
IDS = np.random.default_rng(1).integers(0, 20, (64, 6))
#: One example's values and activations, float32, its ids, int64, and its objective, float64.
RESULT = 2 * 6 * 4 * 4 + 6 * 8 + 8

Calls = list[int]


@pytest.fixture
def metered(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], tuple[ReferenceModel, Calls]]:
    """Return a function that makes a model whose examples take so many bytes, and the list of the batches that it ran."""

    def make(per_example: int) -> tuple[ReferenceModel, Calls]:
        calls: Calls = []

        def forward(model: Any, input_ids: np.ndarray) -> Tensor:
            calls.append(len(input_ids))
            return lookup(model["E"], input_ids).sum(1)

        def read() -> tuple[int, int]:
            return BASE, BASE + FIXED + calls[-1] * per_example

        meter = MemoryMeter("cpu", lambda: None, read, holds_results=True)
        monkeypatch.setattr("embgrad.engine.memory.process_meter", lambda: meter)
        return ReferenceModel(forward, WEIGHTS), calls

    return make


def test_a_line_through_two_runs_is_extrapolated(metered: Any) -> None:
    model, calls = metered(30 * MIB)
    found = embgrad.memory(model, IDS, embgrad.Logit(0), batch_size=32)
    assert list(found.measured) == [1, 2, 4, 8]
    assert max(calls) == 8
    assert (found.base, found.fixed, found.per_example, found.weights) == (BASE, FIXED, 30 * MIB, 20 * 4 * 4)
    assert found.activations == FIXED + 32 * 30 * MIB + (32 + 64) * found.result
    assert found.peak == BASE + found.activations
    assert found.result == RESULT


@pytest.mark.parametrize(
    ("per_example", "counts"),
    [
        (512 * MIB, [1, 2]),  # plenty already between one and two examples
        (512 * MIB - 1, [1, 2, 4]),
        (48 * MIB, [1, 2, 4]),  # enough, from more than two examples on
        (48 * MIB - 1, [1, 2, 4, 8]),
        (MIB // 2, [1, 2, 4, 8, 16, 32, 40]),  # until the batch ends
    ],
)
def test_no_more_examples_are_run_than_show_what_one_takes(metered: Any, per_example: int, counts: list[int]) -> None:
    model, calls = metered(per_example)
    found = embgrad.memory(model, IDS[:40], embgrad.Logit(0))
    assert (list(found.measured), max(calls)) == (counts, counts[-1])
    assert found.activations == FIXED + 40 * per_example


def test_arguments_with_an_entry_for_each_example_are_cut(metered: Any) -> None:
    options: dict[str, Any] = {"override": {"word": np.ones((64, 6, 4))}, "at": "word", "split": True}
    labels = embgrad.CrossEntropy(np.zeros(64, int))
    assert embgrad.memory(metered(MIB)[0], IDS, labels, **options).per_example == MIB


def test_results_of_all_sub_batches_count(metered: Any) -> None:
    model, _ = metered(4 * RESULT)
    found = replace(embgrad.memory(model, IDS, embgrad.Logit(0)), fixed=0, examples=1000)
    assert found.with_batch_size(600).activations == 600 * 4 * RESULT + 400 * RESULT + 1000 * RESULT
    assert found.with_batch_size(1000).activations == 1000 * 4 * RESULT


def test_the_figures_are_shown_in_units(metered: Any) -> None:
    found = embgrad.memory(metered(30 * MIB)[0], IDS, embgrad.Logit(0), batch_size=40)
    assert repr(found) == (
        "Memory(peak 1.47 GiB on cpu with batch_size=40 of 64 examples: 300 MiB before the call, weights 320 bytes; "
        "1.18 GiB in it, 30 MiB for each example at once)"
    )
    assert found.to_dict()["measured"]["2"] == FIXED + 60 * MIB


def test_noise_does_not_make_a_negative_slope(monkeypatch: pytest.MonkeyPatch, metered: Any) -> None:
    found = embgrad.memory(metered(-MIB // 64)[0], IDS, embgrad.Logit(0))
    assert found.per_example == 2 * RESULT
    assert found.activations == pytest.approx(FIXED - MIB, abs=64)


@pytest.mark.parametrize("examples", [1, 64])
def test_an_example_takes_a_byte_at_least(monkeypatch: pytest.MonkeyPatch, metered: Any, examples: int) -> None:
    meter = MemoryMeter("cpu", lambda: None, lambda: (BASE, BASE), holds_results=False)
    model, _ = metered(0)
    monkeypatch.setattr("embgrad.engine.memory.process_meter", lambda: meter)
    found = embgrad.memory(model, IDS[:examples], embgrad.Logit(0))
    assert (found.fixed, found.per_example, found.activations) == (0, 1, examples)
    assert found.result == 0


def test_a_scalar_objective_is_not_cut_by_a_batch_size(metered: Any) -> None:
    objective = embgrad.Scalar(lambda logits: logits.sum(1).sum(0))
    assert embgrad.memory(metered(MIB)[0], IDS, objective).batch_size == 64
    with refused(embgrad.errors.UnsupportedError, "batch_size=8 splits the batch of 64"):
        embgrad.memory(metered(MIB)[0], IDS, objective, batch_size=8)


def test_a_batch_size_above_the_examples_is_all_of_them(metered: Any) -> None:
    found = embgrad.memory(metered(MIB)[0], IDS, embgrad.Logit(0), batch_size=200)
    assert found.batch_size == 64
    assert found.with_batch_size(200).examples == 200
    with refused(embgrad.errors.BatchError, "batch_size is 0: expected a whole number of at least 1"):
        found.with_batch_size(0)
    with refused(embgrad.errors.BatchError, "batch_size is 'a': expected a whole number of at least 1"):
        embgrad.memory(metered(MIB)[0], IDS, embgrad.Logit(0), batch_size="a")  # type: ignore[arg-type]


def test_a_system_without_a_peak_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    status = tmp_path / "status"
    status.write_text("Name:\tpython\nVmRSS:\t  7 kB\n", encoding="ascii")
    monkeypatch.setattr(memory_meter, "STATUS", status)
    with refused(
        embgrad.errors.UnsupportedError, "cannot be measured here (KeyError: 'VmHWM'): expected Linux, with /proc"
    ):
        embgrad.memory(ReferenceModel(lambda model, input_ids: None, WEIGHTS), IDS, embgrad.Logit(0))
    monkeypatch.setattr(memory_meter, "CLEAR", tmp_path / "absent" / "clear_refs")
    with refused(embgrad.errors.UnsupportedError, "cannot be measured here (FileNotFoundError: "):
        process_meter()


def test_a_forecast_of_the_process_is_within_15_percent() -> None:
    def forward(model: Any, input_ids: np.ndarray) -> Tensor:
        rows = lookup(model["E"], input_ids)
        for _ in range(3):
            rows = (rows @ model["U"]).tanh()
        return rows.sum(1)

    random = np.random.default_rng(0)
    model = ReferenceModel(forward, {"E": random.normal(size=(50, 512)), "U": random.normal(size=(512, 512)) / 20})
    ids, objective = random.integers(0, 50, (32, 512)), embgrad.Logit(3)
    found, meter = embgrad.memory(model, ids, objective), process_meter()
    assert max(found.measured) < 32
    for size in (32, 20):
        meter.restart()
        before, _ = meter.read()
        embgrad.gradients(model, ids, objective, batch_size=size)
        forecast = found.with_batch_size(size)
        assert forecast.activations == pytest.approx(meter.read()[1] - before, rel=0.15)
        assert forecast.peak == pytest.approx(meter.read()[1], rel=0.15)


def test_of_an_only_example_all_counts_as_its_own(metered: Any) -> None:
    found = embgrad.memory(metered(MIB)[0], IDS[:1], embgrad.Logit(0))
    assert (list(found.measured), found.fixed, found.per_example) == ([1], 0, FIXED + MIB)
