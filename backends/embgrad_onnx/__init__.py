"""The backend for ONNX models, which has values only. Importing this imports neither onnx nor onnxruntime.

PYTEST_DONT_REWRITE: pytest would warn of this package where it is imported before pytest's plugins are looked for.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from os import PathLike
from typing import Any, Final

from embgrad.backend import Call, Point, Request, Run, TokenBatch, Weight
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

    def owns(self, part: object) -> bool:
        """Return whether an object is an ONNX graph, by its type's name; no library is imported."""
        return is_model(part)

    def load(self, path: str | PathLike[str]) -> OnnxModel:
        """Return the model in an .onnx file, see `embgrad_onnx.load`."""
        return load(path)

    def versions(self) -> Mapping[str, str]:
        """Return the versions of onnxruntime and of onnx."""
        return {library.__name__: str(library.__version__) for library in reversed(import_onnx())}

    def points(self, model: Any, batch: TokenBatch, call: Call | None = None) -> Sequence[Point]:
        """Return the points that a forward pass reaches, in order."""
        from embgrad_onnx.run import points

        return points(model, batch, call)

    def run(self, model: Any, batch: TokenBatch, request: Request) -> Run:
        """Run one forward pass."""
        from embgrad_onnx.run import OnnxPass

        return OnnxPass(model, batch, request).run()

    def weights(self, model: Any) -> Sequence[Weight]:
        """Return the floating-point initialisers and constants of the graph."""
        from embgrad_onnx.parameters import weights

        return weights(model)

    def alone(self, model: Any) -> AbstractContextManager[None]:
        """Keep other threads from running the model while it is open."""
        from embgrad_onnx.walk import alone

        return alone(model)

    def paths(self, model: Any) -> Collection[str]:
        """Return the paths of the graph's modules and tables."""
        from embgrad_onnx.modules import modules_of
        from embgrad_onnx.walk import source_of

        return modules_of(source_of(model)).paths
