"""The installed distribution, wheel or editable, finds its backends from anywhere, and says that it is typed."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest


def test_the_backends_are_found_from_anywhere(tmp_path: Path) -> None:
    script = (
        "import json, embgrad, embgrad.registry as r;"
        "print(json.dumps([sorted(embgrad.list_backends()), dict(r._discovered().failures)]))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == [["gluon", "reference", "tensorflow", "torch"], {}]


@pytest.mark.parametrize("package", ["embgrad", "embgrad_gluon", "embgrad_tensorflow", "embgrad_torch"])
def test_type_checkers_are_told_of_the_annotations(package: str) -> None:
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    assert (Path(spec.origin).parent / "py.typed").is_file()
