"""The backend for ONNX models, which has values only. Importing this imports neither onnx nor onnxruntime.

PYTEST_DONT_REWRITE: pytest would warn of this package where it is imported before pytest's plugins are looked for.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from embgrad.backend import Request, Run, TokenBatch, defer
from embgrad_onnx.importing import import_onnx
from embgrad_onnx.walk import OnnxModel, is_model, load

__all__ = ["OnnxBackend", "OnnxModel", "load"]


class OnnxBackend:
    """ONNX graphs: an `onnx.ModelProto`, an `onnxruntime.InferenceSession`, or a file that `load` has read."""

    name: Final = "onnx"
    package: Final = "onnxruntime"
    extra: Final = "onnx"
    values_only: Final = True
    supports: Final = frozenset({"word", "native", "float64", "modules", "override", "add", "weights"})
    instead: Final = {
        "training": "take the model from which the graph was exported",
        "compile": "omit it: a graph is compiled as it is",
    }

    def versions(self) -> Mapping[str, str]:
        """Return the versions of onnxruntime and of onnx."""
        return {library.__name__: str(library.__version__) for library in reversed(import_onnx())}

    owns = staticmethod(is_model)
    load = staticmethod(load)
    points = defer("embgrad_onnx.run", "points")
    weights = defer("embgrad_onnx.parameters", "weights")
    alone = defer("embgrad_onnx.walk", "alone")

    def run(self, model: Any, batch: TokenBatch, request: Request) -> Run:
        """Run one forward pass."""
        from embgrad_onnx.run import OnnxPass

        return OnnxPass(model, batch, request).run()

    def paths(self, model: Any) -> Collection[str]:
        """Return the paths of the graph's modules and tables."""
        from embgrad_onnx.modules import modules_of
        from embgrad_onnx.walk import source_of

        return modules_of(source_of(model)).paths
