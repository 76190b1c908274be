"""Former names of modules, for one release: pickles, backends of other authors and folders of streams refer to them."""

from __future__ import annotations

import importlib
import sys
from typing import Final

__all__ = ["FORMER", "MOVED", "alias"]

#: By its former name inside of `embgrad`, where a module with public names is now. All are loaded with `embgrad`.
MOVED: Final = {
    "answering": "backend.cotangents",
    "arrays": "common.arrays",
    "batch": "inputs.batch",
    "bisection": "comparison.bisect",
    "calling": "backend.signature",
    "capture": "engine.capture",
    "certificate": "results.certificate",
    "checkpoint": "checkpoints.load_bert",
    "compare": "comparison.compare",
    "diagnosis.findings": "comparison.diagnosis.findings",
    "encoding": "inputs.encode",
    "figures": "common.metrics",
    "golden": "comparison.golden",
    "gradient": "engine.gradients",
    "ledger": "engine.table_gradients",
    "locks": "backend.locks",
    "objective": "objectives.objectives",
    "padding": "engine.padding_report",
    "parameters": "engine.parameter_gradients",
    "points": "forward.points",
    "registry": "backend.registry",
    "result": "results.gradients",
    "rowsparse": "results.row_sparse",
    "storage": "results.io",
    "stream": "streaming.stream",
    "structures": "common.pytree",
    "tables": "results.table_norms",
    "watching": "forward.recorder",
}

#: By the name that a module has now, its former name, which digests of a stream's run go by.
FORMER: Final = {f"embgrad.{new}": f"embgrad.{old}" for old, new in MOVED.items()}


def alias() -> None:
    """Let each module be imported by its former name, too. Functions of `embgrad` with such a name stay what they are."""
    for old, new in MOVED.items():
        sys.modules.setdefault(f"embgrad.{old}", importlib.import_module(f"embgrad.{new}"))
