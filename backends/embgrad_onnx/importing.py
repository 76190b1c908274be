"""The import of onnx, which reads graphs, and of onnxruntime, which runs them."""

from __future__ import annotations

from typing import Any

from embgrad.errors import BackendError

__all__ = ["import_onnx"]


def import_onnx() -> tuple[Any, Any]:
    """Return the modules onnx and onnxruntime."""
    try:
        import onnx
        import onnxruntime
    except ImportError as error:
        raise BackendError(
            f"an ONNX model needs onnx, which reads its graph, and onnxruntime, which runs it, and the import fails ({error}): "
            "pip install 'embgrad[onnx]'"
        ) from error
    return onnx, onnxruntime
