"""Every backend in forked and in spawned processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import backends_under_test


@pytest.mark.parametrize("backend", backends_under_test())
def test_forked_and_spawned_processes_give_the_same_bits(backend: str) -> None:
    command = [sys.executable, "-m", "tests.conformance.processes", backend]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout.split() == ["fork", "spawn"], done.stderr[-2000:]
