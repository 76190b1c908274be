"""The former names of modules, kept for one release: pickles, third-party backends and stream folders use them."""

from __future__ import annotations

import importlib
import sys
from typing import Final

__all__ = ["FORMER", "MOVED", "alias"]

#: The present names of modules with public names, by their former names. All are loaded with `embgrad`.
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
    "diagnosis": "comparison.diagnosis",
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

#: The former names of modules, by their present names. Digests of a stream's run use the former names.
FORMER: Final = {
    **{f"embgrad.{new}": f"embgrad.{old}" for old, new in MOVED.items()},
    "embgrad.comparison.result": "embgrad.comparison",
    "embgrad.objectives.native": "embgrad.backend.protocol",
    "embgrad.results.words": "embgrad.result",
}


def alias() -> None:
    """Make each module importable under its former name; functions of `embgrad` with such a name are left unchanged."""
    package = sys.modules["embgrad"]
    for old, new in MOVED.items():
        module = importlib.import_module(f"embgrad.{new}")
        sys.modules.setdefault(f"embgrad.{old}", module)
        if "." not in old and not hasattr(package, old):
            setattr(package, old, module)
