"""Checks of ports on ONNX graphs, which have values only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx

import embgrad
from embgrad.testing.examples import example_batch, example_weights
from tests.contract.conformance.harness_onnx import Harness
from tests.contract.conformance.harness_reference import Harness as NumPyHarness

BATCH = example_batch()


def reference() -> Any:
    return NumPyHarness().build("hidden", example_weights(), dtype="float64")


def graph(**changed: np.ndarray) -> Any:
    return Harness().build("hidden", {**example_weights(), **changed}, dtype="float64")


def test_an_exported_graph_agrees() -> None:
    report = embgrad.check_port(reference(), graph(), BATCH)
    assert report.agrees
    assert [point.name for point in report.points] == ["E", "output"]


def test_a_file_stands_for_its_graph_on_either_side(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save_model(graph(), path)
    assert embgrad.check_port(reference(), str(path), BATCH).agrees
    assert embgrad.check_port(str(path), reference(), BATCH).agrees


def test_a_changed_weight_is_named() -> None:
    report = embgrad.check_port(graph(), graph(W1=example_weights()["W1"] * 2), BATCH)
    assert not report.agrees
    (cause,) = report.causes
    assert cause.cause == "different-weight"
    assert "times 2" in cause.text


def test_with_an_objective_the_values_are_compared_alone() -> None:
    report = embgrad.check_port(reference(), graph(), BATCH, embgrad.Projection([1.0, -2.0, 0.5]))
    assert report.agrees
    assert report.notes == ("b: the backend 'onnx' computes values only",)
    assert all(point.gradient is None for point in report.points)
