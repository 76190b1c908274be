"""Graphs and files that cannot be read or run, and batches that do not fit: each has an error of its own words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import embgrad_onnx
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import embgrad
from embgrad.engine.weights import weights_of
from embgrad.loading.errors import UsageError
from embgrad.loading.models import load_model
from embgrad.testing.examples import example_batch, example_weights
from tests.contract.conformance.harness_onnx import Builder, Harness
from tests.frameworks.onnx.test_models import BATCH, OBJECTIVE, proto, saved
from tests.unit.refusals import refused

errors = embgrad.errors


def with_input(name: str, kind: Any = TensorProto.INT64, shape: Any = ("example", "position")) -> Any:
    """Return a graph that adds the sum of a further input's entries to its logits."""
    model = proto("mean", "float32")
    (last,) = [node for node in model.graph.node if "logits" in node.output]
    last.output[0] = "before"
    casts = [
        helper.make_node("Cast", [name], ["cast"], to=1),
        helper.make_node("ReduceMax", ["cast"], ["max"], keepdims=0),
    ]
    model.graph.node.extend([*casts, helper.make_node("Add", ["before", "max"], ["logits"])])
    model.graph.input.append(helper.make_tensor_value_info(name, kind, shape))
    return model


# Files


def test_no_file(tmp_path: Path) -> None:
    with refused(errors.FileFormatError, "there is no file", "none.onnx: expected an ONNX model"):
        embgrad_onnx.load(tmp_path / "none.onnx")
    with refused(UsageError, "none.onnx' does not exist: expected", "an .onnx file"):
        load_model(str(tmp_path / "none.onnx"))


def test_a_broken_file(tmp_path: Path) -> None:
    path = saved(tmp_path)
    path.write_bytes(path.read_bytes()[:-7])
    with refused(errors.FileFormatError, "model.onnx cannot be read as an ONNX model (", "): write or fetch it again"):
        embgrad_onnx.load(path)


@pytest.mark.parametrize("content", [b"", onnx.ModelProto(ir_version=9).SerializeToString()])
def test_a_file_without_a_graph(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.onnx").write_bytes(content)
    with refused(errors.FileFormatError, "model.onnx holds no graph: expected an ONNX model"):
        embgrad_onnx.load(tmp_path / "model.onnx")


def test_weights_beside_a_file_are_missing(tmp_path: Path) -> None:
    path = saved(tmp_path, outside=True)
    (tmp_path / "weights.bin").unlink()
    with refused(
        errors.FileFormatError, "model.onnx has weights in 'weights.bin', and there is no such file beside it"
    ):
        embgrad_onnx.load(path)


@pytest.mark.parametrize("where", ["../weights.bin", "/weights.bin", "a/../../weights.bin"])
def test_weights_lie_outside_of_the_folder(tmp_path: Path, where: str) -> None:
    path = saved(tmp_path, outside=True)
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            entry.value = where if entry.key == "location" else entry.value
    path.write_bytes(model.SerializeToString())
    with refused(errors.FileFormatError, f"names '{where}' as files of its weights, which are not in its folder"):
        embgrad_onnx.load(path)


def test_weights_beside_a_file_are_cut(tmp_path: Path) -> None:
    model = embgrad_onnx.load(saved(tmp_path, outside=True))
    (tmp_path / "weights.bin").write_bytes(b"1234")
    with refused(errors.UnsupportedError, "the weight 'E' cannot be read from 'weights.bin' in", "write or fetch"):
        weights_of(model)[0].get()
    with refused(errors.UnsupportedError, "cannot run the graph"):
        embgrad.evaluate(model, BATCH, OBJECTIVE)


def test_a_proto_without_its_weights(tmp_path: Path) -> None:
    model = onnx.load(saved(tmp_path, outside=True), load_external_data=False)
    with refused(errors.UnsupportedError, "has weights in the file 'weights.bin'", "pass embgrad_onnx.load(path)"):
        embgrad.evaluate(model, BATCH, OBJECTIVE)


def test_a_command_asks_for_another_framework(tmp_path: Path) -> None:
    with refused(UsageError, "model.onnx is an ONNX model: expected --framework onnx, not torch"):
        load_model(str(saved(tmp_path)), "torch")
    with refused(UsageError, "--ignore applies only to a checkpoint of a BERT", "is an ONNX model"):
        load_model(str(saved(tmp_path)), ignore=["cls.*"])


def test_the_name_of_a_file_in_place_of_a_model(tmp_path: Path) -> None:
    with refused(errors.BackendError, "in place of a file's name, pass the model that embgrad_onnx.load(path) returns"):
        embgrad.evaluate(str(saved(tmp_path)), BATCH, OBJECTIVE)


# Models


def test_a_proto_that_is_too_large() -> None:
    class ModelProto:
        """As one of more than 2 GB."""

        def SerializeToString(self) -> bytes:
            raise ValueError("Message onnx.ModelProto exceeds maximum protobuf size of 2GB")

    ModelProto.__module__, ModelProto.__qualname__ = "onnx.onnx_ml_pb2", "ModelProto"
    with refused(errors.UnsupportedError, "the ModelProto is larger than 2 GB", "pass embgrad_onnx.load(path)"):
        embgrad.evaluate(ModelProto(), BATCH, OBJECTIVE)


def test_a_session_of_something_else(tmp_path: Path) -> None:
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "model.ort")
    onnxruntime.InferenceSession(proto().SerializeToString(), options, providers=["CPUExecutionProvider"])
    content = (tmp_path / "model.ort").read_bytes()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    with refused(errors.UnsupportedError, "the session was made of", "which is no ONNX model that can be read"):
        embgrad.evaluate(session, BATCH, OBJECTIVE)


def test_an_opset_that_onnxruntime_does_not_know() -> None:
    model = proto()
    model.opset_import[0].version = 999
    version = onnxruntime.__version__
    with refused(errors.UnsupportedError, f"onnxruntime {version} cannot run the graph (ONNX Runtime", "Opset 999 is"):
        embgrad.evaluate(model, BATCH, OBJECTIVE)


def test_an_operator_that_onnxruntime_does_not_know(capfd: pytest.CaptureFixture[str]) -> None:
    model = proto()
    model.graph.node[-1].op_type = "Plus"
    with refused(errors.UnsupportedError, "cannot run the graph", "Plus"):
        embgrad.evaluate(model, BATCH, OBJECTIVE)
    assert not capfd.readouterr().err  # the message says it all


def test_a_graph_of_an_old_version_whose_weights_are_inputs() -> None:
    model = proto()
    model.ir_version = 3
    for tensor in model.graph.initializer:
        model.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
    np.testing.assert_array_equal(
        embgrad.evaluate(model, BATCH, OBJECTIVE), embgrad.evaluate(proto(), BATCH, OBJECTIVE)
    )


def test_gradients_are_refused() -> None:
    with refused(errors.UnsupportedError, "the backend 'onnx' computes values only, and no gradients"):
        embgrad.gradients(proto(), BATCH, OBJECTIVE)


def test_call_and_parts() -> None:
    with refused(errors.UnsupportedError, "an ONNX graph is called in one way only", "omit call=..."):
        embgrad.evaluate(proto(), BATCH, OBJECTIVE, call=lambda model, inputs: None)
    with refused(errors.UnsupportedError, "the model is a sequence of parts"):
        embgrad.evaluate([proto(), proto()], BATCH, OBJECTIVE)


# Batches


def test_an_input_that_the_batch_lacks() -> None:
    model = with_input("position_ids")
    with refused(errors.BatchError, "the model needs 'position_ids'", "Give the batch as a dict with that key"):
        embgrad.evaluate(model, BATCH, OBJECTIVE)
    positions = np.tile(np.arange(4), (3, 1))
    given = {"input_ids": BATCH.ids, "position_ids": positions}
    plain = embgrad.evaluate(proto("mean", "float32"), BATCH, OBJECTIVE)
    np.testing.assert_allclose(embgrad.evaluate(model, given, OBJECTIVE), plain + 3 * (1 - 2 + 0.5), rtol=1e-5)


def test_keys_and_values_of_earlier_tokens_are_none() -> None:
    name = "past_key_values.0.key"
    shape = ("example", 2, "past", 3)
    plain = embgrad.evaluate(proto("mean", "float32"), BATCH, OBJECTIVE)
    model = with_input(name, TensorProto.FLOAT, shape)
    model.graph.node[-2].op_type = "ReduceSum"
    np.testing.assert_array_equal(embgrad.evaluate(model, BATCH, OBJECTIVE), plain)
    given = {"input_ids": BATCH.ids, name: np.full((3, 2, 1, 3), 1 / 18, np.float32)}
    np.testing.assert_allclose(embgrad.evaluate(model, given, OBJECTIVE), plain + (1 - 2 + 0.5), rtol=1e-5)
    with refused(errors.BatchError, f"the model needs '{name}'"):  # the graph does not say which number to choose
        embgrad.evaluate(with_input(name, TensorProto.FLOAT, ("example", "heads", "past", 3)), BATCH, OBJECTIVE)


def test_types_that_were_not_given_are_zeros() -> None:
    plain = embgrad.evaluate(proto("mean", "float32"), BATCH, OBJECTIVE)
    np.testing.assert_array_equal(embgrad.evaluate(with_input("token_type_ids"), BATCH, OBJECTIVE), plain)


@pytest.mark.parametrize("kind", ["INT32", "FLOAT", "FLOAT16", "DOUBLE", "BOOL", "INT64"])
def test_inputs_have_the_types_that_the_graph_declares(kind: str) -> None:
    plain = embgrad.evaluate(proto("mean", "float32"), BATCH, OBJECTIVE)
    model = with_input("attention_mask", getattr(TensorProto, kind))
    np.testing.assert_allclose(embgrad.evaluate(model, BATCH, OBJECTIVE), plain + (1 - 2 + 0.5), rtol=1e-5)


def test_numbers_that_a_type_does_not_hold() -> None:
    given = {"input_ids": BATCH.ids, "position_ids": np.full((3, 4), 2**40)}
    with refused(errors.BatchError, "the input 'position_ids' holds int64 numbers that are none in int32"):
        embgrad.evaluate(with_input("position_ids", TensorProto.INT32), given, OBJECTIVE)
    with refused(errors.BatchError, "the input 'position_ids' is", "expected an array of int64"):
        embgrad.evaluate(with_input("position_ids"), {**given, "position_ids": "many"}, OBJECTIVE)


def test_an_input_that_is_no_tensor_of_numbers() -> None:
    model = with_input("text", TensorProto.STRING)
    with refused(errors.UnsupportedError, "the graph's input 'text' is no tensor of numbers"):
        embgrad.evaluate(model, {"input_ids": BATCH.ids, "text": np.array(["a"] * 3)}, OBJECTIVE)


def test_a_graph_that_was_exported_for_another_shape() -> None:
    model = proto()
    for size, dim in zip((2, 4), model.graph.input[0].type.tensor_type.shape.dim, strict=True):
        dim.dim_value = size
    with refused(
        errors.BatchError, "exported for 'input_ids' of shape (2, 4), and the batch has (3, 4)", "dynamic axes"
    ):
        embgrad.evaluate(model, BATCH, OBJECTIVE)
    assert embgrad.evaluate(model, BATCH[:2], OBJECTIVE).shape == (2,)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    with refused(errors.BatchError, "of shape (1, 4), and the batch has (3, 4)"):
        embgrad.evaluate(model, BATCH, OBJECTIVE)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    assert embgrad.evaluate(model, BATCH, OBJECTIVE).shape == (3,)


def test_a_graph_that_holds_the_number_of_examples_inside(capfd: pytest.CaptureFixture[str]) -> None:
    b = Builder(example_weights(), "float64")
    b.classify(b.mean(b("Reshape", b.lookup(), b.constant(np.array([2, 4, 5])))))
    assert embgrad.evaluate(b.model(), example_batch()[:2], OBJECTIVE).shape == (2,)
    with refused(errors.BatchError, "onnxruntime cannot run the graph on this batch (", "dynamic axes"):
        embgrad.evaluate(b.model(), BATCH, OBJECTIVE)
    assert not capfd.readouterr().err


def test_an_index_that_is_computed_lies_outside_of_its_table() -> None:
    weights = {**example_weights(), "E2": np.ones((3, 5))}
    with refused(errors.BatchError, "example 0 has 4 tokens, and the model takes 3 positions at most"):
        embgrad.evaluate(Harness().build("positional", weights), BATCH, OBJECTIVE)
