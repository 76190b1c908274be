"""What runs in a process of its own: one mode on its cases, with its times or its peaks, as JSON."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from embgrad.errors import EmbgradError
from tests.benchmarks.cases import MODES, Case
from tests.benchmarks.measuring import Mode, checked, in_turns, measured_peaks
from tests.benchmarks.shares import shares


def main(arguments: list[str] | None = None) -> None:
    """Do the job and write what it found."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.worker", description=__doc__)
    parser.add_argument("job", help="what to do, as JSON")
    parser.add_argument("found", type=Path, help="where to write what was found")
    options = parser.parse_args(arguments)
    job = json.loads(options.job)
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    warnings.simplefilter("ignore")
    options.found.write_text(json.dumps(JOBS[job.pop("job")](**job)), encoding="utf-8")


def times(mode: str, cases: list[dict[str, Any]], seconds: float, *, alone: bool = False) -> list[dict[str, Any]]:
    """The times of a mode on each case; `alone` those of `gradients` and code by hand, with nothing else in between."""
    make, found = _maker(mode), []
    for case in cases:
        about, built = _built(make, mode, case)
        figures, functions = checked(built)
        if alone:
            functions = {name: one for name, one in functions.items() if name not in ("forward", "backward")}
            functions |= built.beside
        found.append({**about, **figures, **in_turns(functions, seconds)})
    return found


def together(mode: str, cases: list[dict[str, Any]], seconds: float) -> list[dict[str, Any]]:
    """The times of a mode on several cases, all of which take turns, so that they can be compared with each other."""
    make = _maker(mode)
    built = [_built(make, mode, case) for case in cases]
    looked = [checked(one) for _, one in built]
    functions = {(n, name): one for n, (_, named) in enumerate(looked) for name, one in named.items()}
    measured = in_turns(functions, seconds)
    rounds, least = measured["rounds"], measured["times"]
    return [
        {**about, **figures, "rounds": rounds, "times": {name: least[n, name] for name in named}}
        for n, ((about, _), (figures, named)) in enumerate(zip(built, looked, strict=True))
    ]


def peaks(mode: str, cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The peaks of a mode on each case."""
    make, found = _maker(mode), []
    for case in cases:
        about, built = _built(make, mode, case)
        figures, functions = checked(built)
        found.append({**about, **figures, **measured_peaks(built, functions)})
    return found


def first_call(mode: str, case: dict[str, Any]) -> list[dict[str, Any]]:
    """The first calls in a new process: what the framework takes to come up, and embgrad after it."""
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


def own_share(mode: str, case: dict[str, Any]) -> list[dict[str, Any]]:
    """Which steps a small call's time goes to."""
    about, built = _built(_maker(mode), mode, case)
    figures, functions = checked(built)
    by_hand = next(iter(built.by_hand.values()))
    return [{**about, **figures, "shares": shares(functions["gradients"], by_hand, MODES[mode])}]


def _built(make: Callable[[Case], Mode], mode: str, case: dict[str, Any]) -> tuple[dict[str, Any], Mode]:
    """What a row says of its case, and the mode's functions."""
    section = {name: value for name, value in case.items() if name == "section"}
    built = Case(**{name: value for name, value in case.items() if name != "section"})
    told = {name: value for name, value in built.describe().items() if name != "checkpoint"}  # a path of this machine's
    return {"mode": mode, "vocab": built.config()["vocab_size"], **section, **told}, make(built)


def _maker(mode: str) -> Callable[[Case], Mode]:
    module = f"modes_{MODES[mode]}" if mode in MODES else "language"
    made: Callable[[Case], Mode] = importlib.import_module(f"tests.benchmarks.{module}").MODES[mode]
    return made


JOBS: dict[str, Callable[..., list[dict[str, Any]]]] = {
    "times": times,
    "together": together,
    "peaks": peaks,
    "first_call": first_call,
    "own_share": own_share,
}

if __name__ == "__main__":
    main()
