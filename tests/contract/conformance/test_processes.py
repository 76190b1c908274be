"""Every backend in forked and in spawned processes."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.conftest import backends_under_test


@pytest.mark.parametrize("backend", backends_under_test())
def test_forked_and_spawned_processes_give_the_same_bits(backend: str) -> None:
    command = [sys.executable, "-m", "tests.contract.conformance.processes", backend]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[3], capture_output=True, text=True, timeout=300, check=False
    )
    allowed = [["fork", "spawn"]]
    if backend == "torch" and version("torch").startswith("2.6."):
        allowed.append(["fork:refused", "spawn"])  # where it is built for more than CPUs and CUDA, as Debian's is
    assert done.stdout.split() in allowed, done.stderr[-2000:]


@pytest.mark.parametrize("backend", backends_under_test())
def test_discovering_a_backend_imports_no_framework(backend: str) -> None:
    code = (
        "import sys\nfrom embgrad.backend.registry import backend_named\n"
        f"backend = backend_named({backend!r})\nassert not backend.owns(object()) and not backend.owns(3)\n"
        "print([name for name in ('torch', 'tensorflow', 'keras', 'tf_keras', 'mxnet', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
