"""What is read off a graph before it is run: the types of its tensors, what steps take, and inputs that nothing gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from embgrad_onnx.graphs import SMALL, _types
from embgrad_onnx.inputs import _convert, _empty
from embgrad_onnx.modules import modules_of
from embgrad_onnx.scopes import _spelled_scope
from embgrad_onnx.walk import source_of
from onnx import TensorProto, helper

import embgrad
from embgrad.backend.protocol import Request
from embgrad.backend.registry import bind
from embgrad.testing.examples import example_batch, example_weights
from tests.contract.conformance.harness_onnx import Builder
from tests.unit.refusals import refused

BATCH = example_batch()
WEIGHTS = example_weights()


@pytest.mark.parametrize("rows", [40, SMALL])
def test_the_types_of_tensors_are_inferred_whatever_the_size_of_the_weights(rows: int) -> None:
    b = Builder({**WEIGHTS, "E": np.ones((rows, 5))}, "float32")
    looked_up = b.lookup()
    length = b("Shape", looked_up)
    b.classify(b.bend(looked_up))
    proto = b.model()
    types = _types(proto, onnx)
    whole = {"input_ids", length}
    names = {name for node in proto.graph.node for name in (*node.input, *node.output)}
    assert types == {name: TensorProto.INT64 if name in whole else TensorProto.FLOAT for name in names}


@pytest.mark.parametrize(
    ("kind", "shape", "made", "dtype"),
    [
        (TensorProto.FLOAT, ("example", 2, "past", 4), (3, 2, 0, 4), "float32"),
        (TensorProto.FLOAT16, (None, 2, 4, None), (3, 2, 4, 0), "float16"),
        (TensorProto.DOUBLE, (1, 2, "past", 4), (1, 2, 0, 4), "float64"),
        (TensorProto.FLOAT, (1, 2, 3, 4), None, None),
        (TensorProto.FLOAT, ("example", "heads", "past", 4), None, None),
        (TensorProto.FLOAT, ("example", "past", 4), None, None),
        (TensorProto.INT64, ("example", 2, "past", 4), None, None),
    ],
)
def test_an_input_of_earlier_tokens_has_none_of_them(kind: int, shape: Any, made: Any, dtype: str | None) -> None:
    empty = _empty(helper.make_tensor_type_proto(kind, shape), 3)
    assert (None if empty is None else (empty.shape, str(empty.dtype))) == (None if made is None else (made, dtype))


def test_a_step_with_several_whole_numbers_uses_the_first_with_the_first_matrix() -> None:
    b = Builder({**WEIGHTS, "segments": np.ones((2, 5)), "gamma": np.ones(5), "beta": np.zeros(5)}, "float32")
    b.inputs.append("token_type_ids")
    inputs = ("input_ids", "token_type_ids", "E", "E2", "segments", "gamma", "beta")
    b.nodes.append(
        helper.make_node("EmbedLayerNormalization", inputs, ["rows", "mask"], domain="com.microsoft", epsilon=1e-5)
    )
    b.classify(b.mean("rows"))
    model = b.model()
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    graph = modules_of(source_of(model)).graph
    assert [*graph.functions.values()] == [("input_ids", "E")]


def test_a_vector_in_a_scope_that_was_left_out_leaves_the_scope_a_module() -> None:
    b = Builder(WEIGHTS, "float64")
    hidden = b("Exp", b("Add", b("Sin", b.lookup(scope="/emb"), scope="/layer"), "b1"), scope="/layer")
    b.classify(b("Tanh", hidden))
    assert [point.path for point in embgrad.points(b.model(), BATCH) if point.lookup is None] == ["layer", "W"]


def test_a_bias_after_a_norm_that_returns_its_figures_belongs_to_it() -> None:
    b = Builder({**WEIGHTS, "norm.weight": np.arange(1.0, 6.0), "shift": np.arange(5.0)}, "float32")
    b.nodes.append(
        helper.make_node("LayerNormalization", [b.lookup(), "norm.weight"], ["n", "mean", "deviation"], axis=-1)
    )
    b.classify(b("Add", "n", "shift"))
    assert [point.path for point in embgrad.points(b.model(), BATCH) if point.lookup is None] == ["norm", "W"]


def test_a_scale_of_a_quotient_without_a_mean_is_no_norm() -> None:
    b = Builder({**WEIGHTS, "scale": np.arange(1.0, 6.0)}, "float64")
    b.classify(b("Mul", b("Div", b.lookup(), b.number(4.0)), "scale"))
    run = bind(b.model()).run(BATCH, Request(("scale:input#0",), pullback=False))
    np.testing.assert_array_equal(run.points["scale:input#0"].activation, WEIGHTS["E"][BATCH.ids] / 4)


def test_a_product_its_scale_and_its_bias_are_one_module() -> None:
    b = Builder({**WEIGHTS, "scale": np.arange(1.0, 6.0)}, "float64")
    b.classify(b("Add", b("Mul", b("MatMul", b.lookup(), "W1"), "scale"), "b1"))
    assert [point.path for point in embgrad.points(b.model(), BATCH) if point.lookup is None] == ["W1", "W"]


@pytest.mark.parametrize(
    ("name", "scope"),
    [("/enc/layer.0/dense/MatMul", ("enc", "enc.layer.0", "enc.layer.0.dense")), ("/enc/Add", ("enc",)), ("/Add", ()),
        ("Add", ()), ("", ())],
)  # fmt: skip
def test_the_scope_that_a_name_spells(name: str, scope: tuple[str, ...]) -> None:
    assert (_spelled_scope(name) or ()) == scope


def test_the_shape_that_a_graph_was_exported_for_is_spelled() -> None:
    declared = helper.make_tensor_type_proto(TensorProto.INT64, ("example", 7, None))
    with refused(
        embgrad.errors.BatchError, "exported for 'ids' of shape (example, 7, any), and the batch has (2, 3, 4)"
    ):
        _convert("ids", np.zeros((2, 3, 4), int), declared)
    assert _convert("ids", np.zeros((2, 7, 4), np.int32), declared).dtype == np.int64
