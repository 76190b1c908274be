"""Runs every decoder in every mode and writes the table: `python -m tests.decoders --framework torch --write docs/decoders.md`.

The cells of each framework are recorded in docs/decoders.json, from which `tests.decoders.page` makes the table, so that each
framework may be run in an environment of its own.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.decoders.page import RECORD, with_table

#: The packages whose versions the page names.
PACKAGES = {
    "torch": ("torch", "transformers", "accelerate", "bitsandbytes", "peft", "torchao"),
    "tensorflow": ("tensorflow-cpu", "tf-keras", "transformers", "keras", "keras-hub"),
    "gluon": ("mxnet", "gluonnlp"),
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.decoders")
    parser.add_argument("--framework", choices=sorted(PACKAGES), action="append", default=[])
    parser.add_argument("--write", type=Path, help="the page whose table is replaced")
    options = parser.parse_args(arguments)
    record = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    for framework in options.framework:
        versions = {name: version(name) for name in PACKAGES[framework]}
        record[framework] = {"versions": versions, "cells": dict(_cells(framework))}
        RECORD.write_text(json.dumps(dict(sorted(record.items())), indent=1) + "\n", encoding="utf-8")
    if options.write:
        options.write.write_text(with_table(options.write.read_text(encoding="utf-8"), record), encoding="utf-8")
    return 0


def _cells(framework: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the rows: for each decoder, the cells by mode."""
    if framework == "torch":
        from tests.decoders.architectures import DECODERS, MODES
        from tests.decoders.cells import measure

        for name in DECODERS:
            row = {}
            for mode in MODES:
                with tempfile.TemporaryDirectory() as folder:
                    row[mode] = measure(name, mode, Path(folder)).plain()
                print(name, mode, row[mode], file=sys.stderr, flush=True)
            yield name, row
        return
    module = import_module(f"tests.decoders.{framework}_models")
    for name in module.MODELS:
        yield name, {"float32": module.measure(name).plain()}


if __name__ == "__main__":
    raise SystemExit(main())
