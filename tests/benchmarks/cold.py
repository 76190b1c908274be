"""The time of imports in a new process: embgrad without NumPy, and each framework."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, Final

from tests.benchmarks.environment import ROOT

#: The statements before and during the measurement.
STATEMENTS: Final = {
    "embgrad": ("import numpy", "import embgrad"),
    "torch": ("import numpy", "import torch"),
    "tensorflow": ("import numpy", "import tensorflow"),
    "gluon": ("import numpy; from embgrad_gluon import import_mxnet", "import_mxnet()"),
}


def imports(frameworks: Sequence[str], times: int) -> list[dict[str, Any]]:
    """Return the least time of each import in seconds; a framework is imported in two processes."""
    names = ["embgrad", *(name for name in frameworks if name in STATEMENTS)]
    return [
        {"what": name, "seconds": min(_import(*STATEMENTS[name]) for _ in range(times if name == "embgrad" else 2))}
        for name in names
    ]


def _import(before: str, statement: str) -> float:
    code = f"{before}\nimport time\nstart = time.perf_counter()\n{statement}\nprint(time.perf_counter() - start)"
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=ROOT, capture_output=True, text=True, check=True
    )
    return float(done.stdout.split()[-1])
