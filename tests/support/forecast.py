"""A forecast of memory beside what is measured, in a process of its own: `python -m tests.support.forecast torch 16 128`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import embgrad
from embgrad.common.memory_meter import process_meter
from tests.benchmarks.cases import Case, drawn_bert

ROOT = Path(__file__).parents[2]


def figures(framework: str, examples: int, positions: int) -> dict[str, Any]:
    """Return the forecast for a random BERT of MiniLM's size, and `used`, what the call then takes, from another process."""
    command = [sys.executable, "-m", "tests.support.forecast", framework, str(examples), str(positions)]
    # On some CPUs oneDNN takes other kernels for larger batches, whose buffers no run of smaller ones shows.
    environment = {**os.environ, "TF_ENABLE_ONEDNN_OPTS": "0"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def main(framework: str, examples: int, positions: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        case = Case(drawn_bert(Path(folder) / "bert", layers=6, dim=384, vocab=30_522), examples, positions)
        model, batch = embgrad.zoo.load_bert(case.checkpoint, framework), case.batch()
    objective = embgrad.Sum(output="pooled")
    forecast = embgrad.memory(model, batch, objective)
    meter = process_meter()
    meter.restart()
    before, _ = meter.read()
    embgrad.gradients(model, batch, objective)
    print(json.dumps({**forecast.to_dict(), "used": meter.read()[1] - before, "used_peak": meter.read()[1]}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
