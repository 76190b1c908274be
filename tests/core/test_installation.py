"""The installed distribution, wheel or editable, finds its backends from anywhere."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def test_the_backends_are_found_from_anywhere(tmp_path: Path) -> None:
    script = (
        "import json, embgrad, embgrad.registry as r;"
        "print(json.dumps([sorted(embgrad.list_backends()), dict(r._discovered().failures)]))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == [["gluon", "reference", "tensorflow", "torch"], {}]
