"""Checks of ports on ONNX graphs, which have values only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import embgrad
from embgrad.engine.weights import weights_of
from embgrad.testing.examples import example_batch, example_weights
from tests.contract.conformance.harness_onnx import Harness
from tests.contract.conformance.harness_reference import Harness as NumPyHarness
from tests.unit.refusals import refused

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


def single() -> Any:
    return Harness().build("hidden", example_weights(), dtype="float32")


def with_quantised(model: Any, name: str, steps: np.ndarray, axis: int) -> Any:
    """Return a graph that scales whole numbers in place of a weight."""
    given = {"axis": axis} if axis != 1 else {}  # which is the usual one
    (weight,) = [it for it in model.graph.initializer if it.name == name]
    scales = steps.reshape([-1 if each == axis else 1 for each in range(2)])
    whole = np.rint(numpy_helper.to_array(weight) / scales).astype(np.int8)
    model.graph.initializer.remove(weight)
    held = {f"{name}_whole": whole + 3, f"{name}_steps": steps, f"{name}_zero": np.full(steps.shape, 3, np.int8)}
    model.graph.initializer.extend(numpy_helper.from_array(values, key) for key, values in held.items())
    model.graph.node.insert(0, helper.make_node("DequantizeLinear", [*held], [name], **given))
    return model


@pytest.mark.parametrize("axis", [0, 1])
def test_a_weight_of_whole_numbers_has_the_values_that_the_graph_makes_of_it(axis: int) -> None:
    matrix = example_weights()["W1"]
    steps = (np.abs(matrix).max(1 - axis) / 100).astype(np.float32)
    model = with_quantised(single(), "W1", steps, axis)
    (weight,) = [it for it in weights_of(model) if it.name == "W1_whole"]
    scales = steps[:, None] if axis == 0 else steps
    np.testing.assert_allclose(weight.get(), np.rint(matrix / scales) * scales, rtol=1e-6)
    np.testing.assert_array_equal(weight.rows([1, 0]), weight.get()[[1, 0]])
    assert (weight.module, weight.dtype, weight.shape) == ("W1_whole", "float32", matrix.shape)


def with_scaled_rows(model: Any, table: np.ndarray, steps: np.ndarray) -> Any:
    """Return a graph that looks up whole numbers, and scales the rows."""
    model.graph.initializer.remove(next(it for it in model.graph.initializer if it.name == "E"))
    held = {"E_whole": np.rint(table * 20).astype(np.int8), "E_steps": steps}
    model.graph.initializer.extend(numpy_helper.from_array(values, key) for key, values in held.items())
    (lookup,) = [node for node in model.graph.node if node.op_type == "Gather"]
    number = [*model.graph.node].index(lookup)
    made, lookup.input[0], lookup.output[0] = lookup.output[0], "E_whole", "rows"
    given = {"axis": 2} if steps.ndim else {}
    model.graph.node.insert(number + 1, helper.make_node("DequantizeLinear", ["rows", "E_steps"], [made], **given))
    return model


def test_a_table_of_whole_numbers_is_scaled_behind_the_lookup() -> None:
    table = example_weights()["E"]
    model = with_scaled_rows(single(), table, np.array(0.05, np.float32))
    (weight,) = [it for it in weights_of(model) if it.name == "E_whole"]
    np.testing.assert_allclose(weight.get(), np.rint(table * 20) / 20, rtol=1e-6)


def test_a_table_whose_rows_have_several_steps_is_no_weight() -> None:
    """They count along an axis of the rows that are looked up."""
    table = example_weights()["E"]
    model = with_scaled_rows(single(), table, np.full(table.shape[1], 0.05, np.float32))
    assert "E_whole" not in [weight.name for weight in weights_of(model)]


@pytest.mark.parametrize("zero", [None, 3])
def test_a_matrix_of_whole_numbers_is_scaled_behind_the_product(zero: int | None) -> None:
    """As quantisation while a model runs writes it."""
    matrix = example_weights()["W1"]
    steps, added = (np.abs(matrix).max(0) / 100).astype(np.float32), zero or 0
    model = single()
    model.graph.initializer.remove(next(it for it in model.graph.initializer if it.name == "W1"))
    whole = np.rint(matrix / steps).astype(np.int8) + np.int8(added)
    held = {"W1_whole": whole, "W1_steps": steps, "W1_zero": np.full(steps.shape, added, np.int8)}
    model.graph.initializer.extend(numpy_helper.from_array(values, key) for key, values in held.items())
    (product,) = [node for node in model.graph.node if "W1" in node.input]
    number, (given, _), (returned,) = [*model.graph.node].index(product), product.input, product.output
    zeros = [] if zero is None else ["W1_zero"]
    nodes = [
        helper.make_node("DynamicQuantizeLinear", [given], ["x", "x_step", "x_zero"]),
        helper.make_node("MatMulInteger", ["x", "W1_whole", "x_zero", *zeros], ["sums"]),
        helper.make_node("Cast", ["sums"], ["real"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Mul", ["x_step", "W1_steps"], ["step"]),
        helper.make_node("Mul", ["real", "step"], [returned]),
    ]
    model.graph.node.remove(product)
    for node in reversed(nodes):
        model.graph.node.insert(number, node)
    (weight,) = [it for it in weights_of(model) if it.name == "W1_whole"]
    np.testing.assert_allclose(weight.get(), np.rint(matrix / steps) * steps, rtol=1e-6)


def test_a_weight_of_whole_numbers_is_a_cause() -> None:
    """Its scales are along the products' sums, so that onnxruntime computes with the numbers that it makes."""
    model = with_quantised(single(), "W1", np.full(5, 0.05, np.float32), 0)
    report = embgrad.check_port(single(), model, BATCH)
    assert [cause.cause for cause in report.causes] == ["different-weight"]
    assert report.causes[0].text.startswith("b has W1 with other values")


def test_a_weight_of_whole_numbers_is_not_written() -> None:
    model = with_quantised(single(), "W1", np.full(5, 0.01, np.float32), 0)
    (weight,) = [it for it in weights_of(model) if it.name == "W1_whole"]
    with refused(
        embgrad.errors.UnsupportedError,
        "the weight 'W1_whole' holds whole numbers that the graph scales: write the weight",
    ):
        weight.put(weight.get())
