"""A process of the benchmarks: one mode on its cases, with its times or its peaks, as JSON."""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from embgrad.errors import EmbgradError
from tests.benchmarks.cases import MODES, Case
from tests.benchmarks.measuring import Mode, checked, in_turns, measured_peaks
from tests.benchmarks.memory import long_stream
from tests.benchmarks.points import prices


def main() -> None:
    """Run the job, which is JSON, and write its rows to the file."""
    described, output = sys.argv[1:]
    job = json.loads(described)
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    warnings.simplefilter("ignore")
    Path(output).write_text(json.dumps(JOBS[job.pop("job")](**job)), encoding="utf-8")


def times(mode: str, cases: list[dict[str, Any]], seconds: float, *, alone: bool = False) -> list[dict[str, Any]]:
    """Return the times of a mode on each case; with `alone` those of `gradients` and code by hand alone."""
    make, rows = _maker(mode), []
    for case in cases:
        about, built = _built(make, mode, case)
        figures, functions = checked(built)
        if alone:
            functions = {name: function for name, function in functions.items() if name not in ("forward", "backward")}
        rows.append({**about, **figures, **in_turns(functions, seconds)})
    return rows


def together(mode: str, cases: list[dict[str, Any]], seconds: float) -> list[dict[str, Any]]:
    """Return the comparable times of a mode on several cases, which take turns."""
    make = _maker(mode)
    built = [_built(make, mode, case) for case in cases]
    looked = [checked(functions) for _, functions in built]
    functions = {(n, name): function for n, (_, named) in enumerate(looked) for name, function in named.items()}
    measured = in_turns(functions, seconds)
    rounds, least = measured["rounds"], measured["times"]
    return [
        {**about, **figures, "rounds": rounds, "times": {name: least[n, name] for name in named}}
        for n, ((about, _), (figures, named)) in enumerate(zip(built, looked, strict=True))
    ]


def peaks(mode: str, cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    make, rows = _maker(mode), []
    for case in cases:
        about, built = _built(make, mode, case)
        figures, functions = checked(built)
        rows.append({**about, **figures, **measured_peaks(built, functions)})
    return rows


def first_call(mode: str, case: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the times of the import, of loading a model, and of the first calls in a new process."""
    start = time.perf_counter()
    make = _maker(mode)
    imported = time.perf_counter()
    about, built = _built(make, mode, case)
    built.forward()
    ready = time.perf_counter()
    calls = []
    for _ in range(4):
        before = time.perf_counter()
        try:
            built.gradients()
        except EmbgradError as error:
            return [{**about, "refused": f"{type(error).__name__}: {error}"}]
        calls.append(time.perf_counter() - before)
    figures = {"import": imported - start, "load": ready - imported, "first": calls[0], "later": min(calls[1:])}
    return [{**about, **figures}]


def _built(make: Callable[[Case], Mode], mode: str, case: dict[str, Any]) -> tuple[dict[str, Any], Mode]:
    """Return the row's description of its case, and the mode's functions."""
    section = {name: value for name, value in case.items() if name == "section"}
    built = Case(**{name: value for name, value in case.items() if name != "section"})
    described = {name: value for name, value in asdict(built).items() if name != "checkpoint"}  # a path of this machine
    return {"mode": mode, "vocab": built.config()["vocab_size"], **section, **described}, make(built)


def _maker(mode: str) -> Callable[[Case], Mode]:
    module = f"modes_{MODES[mode]}" if mode in MODES else "language"
    made: Callable[[Case], Mode] = importlib.import_module(f"tests.benchmarks.{module}").MODES[mode]
    return made


def tables(examples: int, positions: int) -> list[dict[str, Any]]:
    from tests.benchmarks.tables import tables_of_examples

    return tables_of_examples(examples, positions)


JOBS: dict[str, Callable[..., list[dict[str, Any]]]] = {
    "long": long_stream, "points": prices, "tables": tables, "times": times, "together": together, "peaks": peaks,
    "first_call": first_call,
}  # fmt: skip

if __name__ == "__main__":
    main()
