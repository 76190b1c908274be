"""The test of `embgrad doctor`, run in a separate process: whether a framework can be imported, and what `load_bert` needs."""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

__all__ = ["main"]

#: By framework, the class that embgrad.zoo.load_bert builds: its module and its name there.
CLASSES: Final[Mapping[str, tuple[str, str]]] = {
    "torch": ("transformers", "BertModel"),
    "tensorflow": ("transformers", "TFBertModel"),
    "gluon": ("gluonnlp.model", "BERTModel"),
    "jax": ("embgrad_jax.bert", "Bert"),
    "keras": ("keras_hub.models", "BertBackbone"),
}


def main(framework: str, out: str) -> None:
    """Import the framework and write the outcome as JSON."""
    outcome: dict[str, Any] = {"works": False, "error": "", "seconds": 0.0, "versions": {}, "classes": {}}
    start = time.perf_counter()
    try:
        outcome["versions"] = _import(framework)
        outcome["works"] = True
    except BaseException as error:  # any error of a broken installation is the outcome to report
        outcome["error"] = _describe(error)
    outcome["seconds"] = time.perf_counter() - start
    if outcome["works"] and framework in CLASSES:
        outcome["classes"] = {".".join(CLASSES[framework]): _import_error(*CLASSES[framework])}
    Path(out).write_text(json.dumps(outcome), encoding="utf-8")


def _import(framework: str) -> dict[str, str]:
    """Import a framework, and return its version and those of the packages that are imported with it."""
    from embgrad.keras.choice import KERAS, framework_named

    backend = framework_named(framework)  # raises where Keras's backend cannot be used
    backend.versions()  # imports MXNet, with the names that it needs from NumPy
    importlib.import_module(KERAS if framework == KERAS else backend.package)
    own = {KERAS: str(sys.modules[KERAS].__version__)} if framework == KERAS else {}
    return {**backend.versions(), **own}


def _import_error(module: str, name: str) -> str:
    """Return an empty string if the class can be imported, else the error."""
    try:
        getattr(importlib.import_module(module), name)
    except BaseException as error:  # any error of a broken installation is the outcome to report
        return _describe(error)
    return ""


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


if __name__ == "__main__":
    main(*sys.argv[1:3])
