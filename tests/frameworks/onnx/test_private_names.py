"""Canaries for the private names in `private_names`: they fail by name where a release of onnxruntime drops or changes one."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnxruntime

from tests.contract.conformance.harness_onnx import Harness
from tests.frameworks.onnx.private_names import PRIVATE_NAMES
from tests.unit.backend_files import private_names


def test_the_list_is_that_of_the_source() -> None:
    assert sorted(PRIVATE_NAMES) == sorted(private_names("embgrad_onnx"))


def test_the_names_of_a_session(tmp_path: Path) -> None:
    from embgrad.testing.examples import example_weights

    proto = Harness().build("mean", example_weights())
    onnx.save(proto, tmp_path / "model.onnx")
    read = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    made = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for name, holds in {
        "_model_path": str(read._model_path) == str(tmp_path / "model.onnx") and made._model_bytes is not None,
        "_model_bytes": made._model_bytes == proto.SerializeToString() and not getattr(read, "_model_bytes", None),
    }.items():
        assert holds, f"onnxruntime {onnxruntime.__version__} has changed {name!r}: {PRIVATE_NAMES[name]}"
