"""The processor's time of imports in a new process: embgrad and a first gradient without NumPy, and each framework."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any, Final

from tests.benchmarks.environment import ROOT

#: The statements before and during the measurement. Its time is the processor's, which other processes hardly disturb.
STATEMENTS: Final = {
    "numpy": ("", "import numpy"),
    "embgrad": ("import numpy", "import embgrad"),
    "torch": ("import numpy", "import torch"),
    "tensorflow": ("import numpy", "import tensorflow"),
    "gluon": ("import numpy; from embgrad_gluon import import_mxnet", "import_mxnet()"),
}

#: A first call of `gradients` with its imports, from `import embgrad` on, less the least time of the calls after it.
FIRST_GRADIENT: Final = """
import time
import numpy
times = [time.process_time()]
import embgrad
from embgrad.testing.reference import ReferenceModel, lookup
model = ReferenceModel(lambda model, input_ids: lookup(model["E"], input_ids).sum(1), {"E": numpy.ones((9, 3))})
for _ in range(4):
    embgrad.gradients(model, [[1, 2]], embgrad.Logit(0))
    times.append(time.process_time())
first, *later = numpy.diff(times)
print(first - min(later))
"""


def imports(frameworks: Sequence[str], times: int) -> list[dict[str, Any]]:
    """Return the least time of each import in seconds, and NumPy's beside it; a framework is imported in two processes.

    NumPy and embgrad are compiled to bytecode beforehand, as an installation is, but this copy may not be.
    """
    own = {"numpy": _timed("numpy"), "embgrad": _timed("embgrad"), "gradients": FIRST_GRADIENT}
    others = {name: _timed(name) for name in frameworks if name in STATEMENTS}
    seconds: dict[str, list[float]] = {name: [] for name in (*own, *others)}
    with tempfile.TemporaryDirectory() as folder:
        environment = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": folder}
        for code in own.values():
            _seconds(code, environment)
        for _ in range(times):
            for name, code in own.items():
                seconds[name].append(_seconds(code, environment))
    for name, code in others.items():
        seconds[name] += [_seconds(code, {}) for _ in range(2)]
    numpy = min(seconds.pop("numpy"))
    return [{"what": name, "seconds": min(measured), "numpy": numpy} for name, measured in seconds.items()]


def _timed(name: str) -> str:
    before, statement = STATEMENTS[name]
    return f"{before}\nimport time\nstart = time.process_time()\n{statement}\nprint(time.process_time() - start)"


def _seconds(code: str, further: dict[str, str]) -> float:
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **further}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=ROOT, capture_output=True, text=True, check=True
    )
    return float(done.stdout.split()[-1])
