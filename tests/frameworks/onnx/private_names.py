"""The private names of onnxruntime that the ONNX backend uses, each with the reason."""

from __future__ import annotations

from typing import Final

__all__ = ["PRIVATE_NAMES"]

PRIVATE_NAMES: Final[dict[str, str]] = {
    "_model_bytes": "The content that a session was made of; no public method returns a session's graph.",
    "_model_path": "The file that a session was made of.",
}
