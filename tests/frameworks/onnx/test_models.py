"""The forms of a model: a proto, a session, a file with its weights in it or beside it."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import embgrad_onnx
import numpy as np
import onnx
import onnxruntime
import pytest
from embgrad_onnx.walk import source_of
from onnx import numpy_helper

import embgrad
from embgrad.engine.weights import substitute, weights_of
from embgrad.loading.models import load_model
from embgrad.testing.checks_values import logits_by_hand
from embgrad.testing.examples import close, example_batch, example_weights
from tests.contract.conformance.harness_onnx import Harness

BATCH, OBJECTIVE = example_batch(), embgrad.Projection([1.0, -2.0, 0.5])
CPU = ["CPUExecutionProvider"]


def proto(architecture: str = "hidden", dtype: str = "float64") -> Any:
    return Harness().build(architecture, example_weights(), dtype=dtype)


def expected(**changed: np.ndarray) -> np.ndarray:
    weights = {**example_weights(), **changed}
    return OBJECTIVE.evaluate(logits_by_hand("hidden", weights, BATCH), BATCH)[0]


def saved(folder: Path, *, outside: bool = False) -> Path:
    path = folder / "model.onnx"
    options = {"save_as_external_data": True, "location": "weights.bin", "size_threshold": 0} if outside else {}
    onnx.save_model(proto(), path, **options)
    return path


FORMS: dict[str, Callable[[Path], Any]] = {
    "a proto": lambda folder: proto(),
    "a file": lambda folder: embgrad_onnx.load(saved(folder)),
    "a file with weights beside it": lambda folder: embgrad_onnx.load(str(saved(folder, outside=True))),
    "a session of a file": lambda folder: onnxruntime.InferenceSession(saved(folder), providers=CPU),
    "a session of a file with weights beside it": lambda folder: onnxruntime.InferenceSession(
        str(saved(folder, outside=True)), providers=CPU
    ),
    "a session of bytes": lambda folder: onnxruntime.InferenceSession(proto().SerializeToString(), providers=CPU),
    "what a command loads": lambda folder: load_model(str(saved(folder, outside=True))).model,
}


@pytest.mark.parametrize("form", FORMS)
def test_each_form_has_the_same_numbers(form: str, tmp_path: Path) -> None:
    model = FORMS[form](tmp_path)
    close(embgrad.evaluate(model, BATCH, OBJECTIVE), expected(), 1e-12)
    assert {point.path for point in embgrad.points(model, BATCH)} == {"E", "W1", "W"}
    by_name = {weight.name: weight for weight in weights_of(model)}
    assert {*by_name} == {"E", "W1", "b1", "W", "b"}
    for name, weight in by_name.items():
        np.testing.assert_array_equal(weight.get(), example_weights()[name])
    np.testing.assert_array_equal(by_name["E"].rows(np.array([3, 0])), example_weights()["E"][[3, 0]])


@pytest.mark.parametrize("form", FORMS)
def test_weights_are_replaced_in_memory_alone(form: str, tmp_path: Path) -> None:
    model = FORMS[form](tmp_path)
    files = {path: path.read_bytes() for path in tmp_path.iterdir()}
    changed = {"E": example_weights()["E"] * 2, "b": np.ones(3)}
    with substitute(model, changed):
        close(embgrad.evaluate(model, BATCH, OBJECTIVE), expected(**changed), 1e-12)
    close(embgrad.evaluate(model, BATCH, OBJECTIVE), expected(), 1e-12)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == files


def test_a_command_names_a_file(tmp_path: Path) -> None:
    loaded = load_model(str(saved(tmp_path)))
    assert (loaded.framework, loaded.name, loaded.folder) == ("onnx", str(tmp_path / "model.onnx"), tmp_path)
    assert repr(loaded.model) == f"OnnxModel({str(tmp_path / 'model.onnx')!r})"


def test_a_proto_that_the_user_changes_is_read_again() -> None:
    model = proto()
    close(embgrad.evaluate(model, BATCH, OBJECTIVE), expected(), 1e-12)
    (bias,) = [tensor for tensor in model.graph.initializer if tensor.name == "b"]
    bias.CopyFrom(numpy_helper.from_array(np.zeros(3), "b"))
    close(embgrad.evaluate(model, BATCH, OBJECTIVE), expected(b=np.zeros(3)), 1e-12)


def test_sessions_are_kept_as_long_as_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, new = [], onnxruntime.InferenceSession

    def session(*args: Any, **options: Any) -> Any:
        made.append(new(*args, **options))
        return made[-1]

    monkeypatch.setattr(onnxruntime, "InferenceSession", session)
    model = embgrad_onnx.load(saved(tmp_path))
    for _ in range(3):
        embgrad.evaluate(model, BATCH, OBJECTIVE)
        embgrad.points(model, BATCH)
    assert len(made) == 2  # one that computes what is returned, and one for shapes
    made.clear()
    source = weakref.ref(source_of(model))
    del model
    gc.collect()
    assert source() is None


@pytest.mark.parametrize("name", ["float32", "float16"])
def test_half_precision_is_widened(name: str) -> None:
    model = proto(dtype="float32")
    for tensor in model.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(name), tensor.name))
    for value in model.graph.output:
        value.type.tensor_type.elem_type = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(name))
    (table,) = [weight for weight in weights_of(model) if weight.name == "E"]
    assert (table.dtype, table.get().dtype) == (name, np.float32)
    close(embgrad.evaluate(model, BATCH, OBJECTIVE), expected(), 5e-3)
    with substitute(model, {"E": np.zeros((40, 5))}):
        assert not table.get().any()


def test_a_native_objective_takes_the_outputs_as_numpy() -> None:
    values = embgrad.evaluate(proto(), BATCH, lambda outputs: outputs["logits"][:, 1])
    close(values, logits_by_hand("hidden", example_weights(), BATCH)[:, 1], 1e-12)


def test_versions() -> None:
    assert embgrad_onnx.OnnxBackend().versions() == {
        "onnxruntime": onnxruntime.__version__,
        "onnx": onnx.__version__,
    }


def test_the_import_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(embgrad.errors.BackendError, match=r"needs onnx, which reads .* pip install 'embgrad\[onnx\]'"):
        embgrad.evaluate(proto("mean"), BATCH, OBJECTIVE)
