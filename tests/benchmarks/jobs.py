"""Which processes are run, in which order, with which part of the machine, and what becomes of one that fails."""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.benchmarks.cases import LIMIT_SIZE, LONGER, MODES, PLAIN, PROCESSES, QUICK_SIZES, SIZES, Case, drawn_bert
from tests.benchmarks.environment import ROOT, cores

#: So that what is freed is given back at once, and a peak is a peak of what is held. TensorFlow has a pool of its own.
GIVING_BACK: Final = {
    "MALLOC_MMAP_THRESHOLD_": "65536",
    "MALLOC_TRIM_THRESHOLD_": "65536",
    "TF_ONEDNN_USE_SYSTEM_ALLOCATOR": "1",
}

#: Compiled anew for a batch of one, and for each objective: minutes each, for what other sizes show as well.
COMPILED_AT_LENGTH: Final = "PyTorch, compile=True"

LANGUAGE: Final = {
    "PyTorch, GPT-2": "torch",
    "PyTorch, GPT-2, logits_to_keep=1": "torch",
    "TensorFlow, GPT-2": "tensorflow",
}
VOCABULARIES: Final = (10_000, 50_000, 250_000)
GROWING: Final = ((1, 32), (8, 32), (64, 32), (8, 128), (8, 512))

#: Seconds after which a process is given up.
LIMIT: Final = 1500


@dataclass(frozen=True)
class Job:
    """A process.

    Attributes:
        what: it measures, in words.
        section: of the page, for what it finds.
        command: without the file to which it writes what it finds.
        environment: beyond what all get.
    """

    what: str
    section: str
    command: Sequence[str]
    environment: dict[str, str] = field(default_factory=dict)


def run(job: Job, folder: Path) -> list[dict[str, Any]] | str:
    """What the process found; else, in a line, why it found nothing."""
    print(job.what, file=sys.stderr, flush=True)
    file = folder / "found.json"
    file.unlink(missing_ok=True)
    environment = {
        "OMP_NUM_THREADS": str(cores()),
        "TF_USE_LEGACY_KERAS": "1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        **os.environ,
        **job.environment,
    }
    command = [one if one != "FOUND" else str(file) for one in job.command]
    try:
        done = subprocess.run(
            command, env=environment, cwd=ROOT, stderr=subprocess.PIPE, text=True, timeout=LIMIT, check=False
        )
    except subprocess.TimeoutExpired:
        return f"it took longer than {LIMIT} seconds"
    if done.returncode or not file.exists():
        said = [line for line in done.stderr.strip().splitlines() if line.strip()]
        return f"the process ended with {done.returncode}: {said[-1][:300] if said else 'it said nothing'}"
    found: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))
    return found


def jobs(options: argparse.Namespace, folder: Path, model: str, rivals: str | None) -> Iterator[Job]:
    """All processes in order: the first calls first, before anything is in a cache."""
    modes = [name for name, framework in MODES.items() if framework in options.frameworks]
    modes = [name for name in modes if not options.modes or any(one in name for one in options.modes)]
    plain = [name for name in PLAIN if name in modes]
    seconds = options.seconds if options.seconds is not None else 1.0 if options.quick else 8.0
    size = QUICK_SIZES[-1] if options.quick else LIMIT_SIZE
    if "cold" in options.parts:
        for mode in modes:
            yield _worker(f"first calls: {mode}", "cold", mode, "first_call", case=_case(model, (4, 64)))
    if "overhead" in options.parts:
        small = _case(_small(folder), (1, 8))
        for mode in modes:
            given = {"cases": [small], "seconds": seconds, "alone": True}
            yield _worker(f"a small call: {mode}", "overhead", mode, "times", **given)
    if "shares" in options.parts:
        for mode in plain:
            yield _worker(f"our own share: {mode}", "shares", mode, "own_share", case=_case(_small(folder), (1, 8)))
    if "modes" in options.parts:
        for mode in modes:
            yield from _times(mode, _cases(mode, model, options), seconds)
    if "peaks" in options.parts:
        for mode in modes:
            yield _worker(f"peaks: {mode}", "peaks", mode, "peaks", cases=[_case(model, size)])
    if "growth" in options.parts and plain:
        yield from _growth(plain, folder, seconds, quick=options.quick)
    if "language" in options.parts:
        for mode, framework in LANGUAGE.items():
            if framework in options.frameworks:
                cases = [_case(model, (1, 32) if options.quick else (4, 128))]
                yield _worker(f"times: {mode}", "language", mode, "times", cases=cases, seconds=seconds)
    if "tables" in options.parts and "torch" in options.frameworks:
        given = ["--examples", "8", "--positions", "32"] if options.quick else []
        yield Job("tables of a batch's examples", "tables", _module("tables", *given), {"USE_TF": "0"})
    if "long" in options.parts:
        for framework in options.frameworks:
            given = ["--framework", framework, *(["--sentences", "1000"] if options.quick else [])]
            yield Job(f"a long stream: {framework}", "long", _module("memory", *given))
    if rivals is not None:
        yield from _rivals(rivals, size, seconds if options.quick else seconds * LONGER, _small(folder))


@functools.cache
def _small(folder: Path) -> str:
    """The model on which overhead shows most, drawn once."""
    return drawn_bert(folder / "small", layers=2, dim=128, vocab=30522)


def _times(mode: str, cases: Sequence[dict[str, Any]], seconds: float) -> Iterator[Job]:
    """Those that the limits are about in several processes of their own."""
    exact = [case for case in cases if _size(case) == LIMIT_SIZE and case["objective"] == "pooled"]
    others = [case for case in cases if case not in exact]
    if others:
        yield _worker(f"times: {mode}", "sizes", mode, "times", cases=others, seconds=seconds)
    for number in range(PROCESSES if exact else 0):
        what = f"times: {mode}, at {LIMIT_SIZE[0]} × {LIMIT_SIZE[1]}, process {number + 1} of {PROCESSES}"
        yield _worker(what, "sizes", mode, "times", cases=exact, seconds=seconds * LONGER)


def _cases(mode: str, model: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    sizes = QUICK_SIZES if options.quick else SIZES
    if options.sizes:
        return [_case(model, size) for size in options.sizes]
    at_length = mode == COMPILED_AT_LENGTH
    largest = SIZES[-1] if mode not in PLAIN else None  # minutes each: one mode a framework shows it
    cases = [_case(model, size) for size in sizes if size != largest and not (at_length and size[0] == 1)]
    if not at_length:
        cases.append({**_case(model, sizes[-2 if len(sizes) > 2 else -1], "position"), "section": "position"})
    return cases


def _size(case: dict[str, Any]) -> tuple[int, int]:
    return case["examples"], case["positions"]


def _growth(plain: Sequence[str], folder: Path, seconds: float, *, quick: bool) -> Iterator[Job]:
    vocabularies = VOCABULARIES[:2] if quick else VOCABULARIES
    tables = {size: drawn_bert(folder / f"v{size}", layers=2, dim=128, vocab=size) for size in vocabularies}
    by_table = [{**_case(tables[size], (8, 32)), "section": "vocabulary"} for size in vocabularies]
    by_size = [_case(tables[vocabularies[0]], size) for size in GROWING[: 3 if quick else None]]
    of_tables = [{**_case(table, (8, 32)), "section": "vocabulary_peaks"} for table in tables.values()]
    for mode in plain:
        for what, cases in (("vocabulary", by_table), ("size", by_size)):
            yield _worker(f"growth by {what}: {mode}", "growth", mode, "together", cases=cases, seconds=seconds)
        yield _worker(f"growth of memory: {mode}", "vocabulary_peaks", mode, "peaks", cases=of_tables)


def _rivals(python: str, size: tuple[int, int], seconds: float, small: str) -> Iterator[Job]:
    script, at_size = str(Path(__file__).parent / "rivals.py"), ("--size", f"{size[0]}x{size[1]}")
    for what, section, given, environment in (
        ("times", "rivals", at_size, {}),
        ("small", "rivals_small", ("--size", "1x8", "--model", small), {}),
        ("peaks", "rivals_peaks", at_size, GIVING_BACK),
    ):
        command = [python, script, what, "FOUND", "--seconds", str(seconds), *given]
        yield Job(f"rivals: {what}", section, command, {"USE_TF": "0", **environment})


def _module(name: str, *given: str) -> list[str]:
    return [sys.executable, "-m", f"tests.benchmarks.{name}", *given, "--found", "FOUND"]


def _worker(what: str, section: str, mode: str, job: str, **given: Any) -> Job:
    described = json.dumps({"job": job, "mode": mode, **given})
    environment = dict(GIVING_BACK) if job == "peaks" else {}
    if mode.startswith("PyTorch"):
        environment["USE_TF"] = "0"  # transformers imports TensorFlow wherever it finds it
    command = [sys.executable, "-m", "tests.benchmarks.worker", described, "FOUND"]
    return Job(what, section, command, environment)


def _case(checkpoint: str, size: tuple[int, int], objective: str = "pooled") -> dict[str, Any]:
    return Case(checkpoint, *size, objective).describe()
