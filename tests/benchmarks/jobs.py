"""The processes of the benchmarks, in order, each with its environment and its rows or its error."""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from tests.benchmarks.cases import LIMIT_SIZE, LONGER, MODES, PLAIN, PROCESSES, QUICK_SIZES, SIZES, Case, drawn_bert
from tests.benchmarks.environment import ROOT, cores
from tests.benchmarks.points import LANGUAGE_MODELS, PRICED

#: Freed memory is returned at once, so that a peak is the memory in use. TensorFlow has its own pool.
RETURNING_MEMORY: Final = {
    "MALLOC_MMAP_THRESHOLD_": "65536",
    "MALLOC_TRIM_THRESHOLD_": "65536",
    "TF_ONEDNN_USE_SYSTEM_ALLOCATOR": "1",
}

LANGUAGE: Final = {
    "PyTorch, GPT-2": "torch",
    "PyTorch, GPT-2, logits_to_keep=1": "torch",
    "TensorFlow, GPT-2": "tensorflow",
}
VOCABULARIES: Final = (10_000, 50_000, 250_000)
#: The shapes of the encoders whose points are priced: layers, and dimensions. Language models have the first.
SHAPES: Final = ((6, 384), (24, 128), (12, 768))
GROWING: Final = ((1, 32), (8, 32), (64, 32), (8, 128), (8, 512))

#: Seconds after which a process is stopped.
LIMIT: Final = 1500


@dataclass(frozen=True)
class Job:
    """A process.

    Attributes:
        what: the measurement in words.
        section: the section of its rows.
        command: the command, with OUTPUT in place of the file for its rows.
        environment: additional environment variables.
    """

    what: str
    section: str
    command: Sequence[str]
    environment: dict[str, str] = field(default_factory=dict)


def run(job: Job, folder: Path) -> list[dict[str, Any]] | str:
    """Return the rows of the process, or a line that says why it failed."""
    print(job.what, file=sys.stderr, flush=True)
    file = folder / "rows.json"
    file.unlink(missing_ok=True)
    environment = {
        "OMP_NUM_THREADS": str(cores()),
        "TF_USE_LEGACY_KERAS": "1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        **os.environ,
        **job.environment,
    }
    command = [str(file) if argument == "OUTPUT" else argument for argument in job.command]
    try:
        done = subprocess.run(
            command, env=environment, cwd=ROOT, stderr=subprocess.PIPE, text=True, timeout=LIMIT, check=False
        )
    except subprocess.TimeoutExpired:
        return f"it took longer than {LIMIT} seconds"
    if done.returncode or not file.exists():
        lines = [line for line in done.stderr.strip().splitlines() if line.strip()]
        return f"the process ended with {done.returncode}: {lines[-1][:300] if lines else 'no message'}"
    rows: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))
    return rows


def jobs(options: argparse.Namespace, folder: Path, model: str, rivals: str | None) -> Iterator[Job]:
    """Yield all processes in order: first calls before anything is in a cache."""
    modes = [name for name, framework in MODES.items() if framework in options.frameworks]
    plain = [name for name in PLAIN if name in modes]
    seconds = options.seconds if options.seconds is not None else 1.0 if options.quick else 8.0
    size = QUICK_SIZES[-1] if options.quick else LIMIT_SIZE
    if "cold" in options.parts:
        for mode in modes:
            yield _worker(f"first calls: {mode}", "cold", mode, "first_call", case=_case(model, (4, 64)))
    if "overhead" in options.parts:
        small = _case(_small(folder), (1, 8))
        for mode in modes:
            yield _worker(
                f"a small call: {mode}", "overhead", mode, "times", cases=[small], seconds=seconds, alone=True
            )
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
    if "points" in options.parts:
        yield from _points(options, seconds / 4)
    if "tables" in options.parts and "torch" in options.frameworks:
        examples, positions = (8, 32) if options.quick else (32, 128)
        yield _job("tables of a batch's examples", "tables", "tables", examples=examples, positions=positions)
    if "long" in options.parts:
        for framework in options.frameworks:
            sentences = 1000 if options.quick else 10_000
            yield _job(f"a long stream: {framework}", "long", "long", framework=framework, sentences=sentences)
    if rivals is not None:
        yield from _rivals(rivals, size, seconds if options.quick else seconds * LONGER, _small(folder))


@functools.cache
def _small(folder: Path) -> str:
    return drawn_bert(folder / "small", layers=2, dim=128, vocab=30522)


def _times(mode: str, cases: Sequence[dict[str, Any]], seconds: float) -> Iterator[Job]:
    """Yield the cases of the limits in several processes each, and all others in one."""
    exact = [
        case for case in cases if (case["examples"], case["positions"]) == LIMIT_SIZE and case["objective"] == "pooled"
    ]
    others = [case for case in cases if case not in exact]
    if others:
        yield _worker(f"times: {mode}", "sizes", mode, "times", cases=others, seconds=seconds)
    for number in range(PROCESSES if exact else 0):
        what = f"times: {mode}, at {LIMIT_SIZE[0]} × {LIMIT_SIZE[1]}, process {number + 1} of {PROCESSES}"
        yield _worker(what, "sizes", mode, "times", cases=exact, seconds=seconds * LONGER)


def _cases(mode: str, model: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    sizes = QUICK_SIZES if options.quick else SIZES
    largest = SIZES[-1] if mode not in PLAIN else None  # takes minutes, and one mode per framework suffices
    cases = [_case(model, size) for size in sizes if size != largest]
    cases.append({**_case(model, sizes[-2 if len(sizes) > 2 else -1], "position"), "section": "position"})
    return cases


def _points(options: argparse.Namespace, seconds: float) -> Iterator[Job]:
    shapes, sizes = (((2, 32),), QUICK_SIZES) if options.quick else (SHAPES, SIZES[:3])
    for mode, (framework, _, keras) in PRICED.items():
        if framework not in options.frameworks:
            continue
        environment = {"KERAS_BACKEND": keras, "TF_USE_LEGACY_KERAS": "0"} if keras else {}
        for layers, dim in shapes[:1] if mode in LANGUAGE_MODELS else shapes:
            job = _job(
                f"points: {mode}, {layers} × {dim}",
                "points",
                "points",
                mode=mode,
                layers=layers,
                dim=dim,
                sizes=sizes,
                seconds=seconds,
            )
            yield replace(job, environment={**job.environment, **environment})


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
    for what, section, options, environment in (
        ("times", "rivals", at_size, {}),
        ("small", "rivals_small", ("--size", "1x8", "--model", small), {}),
        ("peaks", "rivals_peaks", at_size, RETURNING_MEMORY),
    ):
        command = [python, script, what, "OUTPUT", "--seconds", str(seconds), *options]
        yield Job(f"rivals: {what}", section, command, {"USE_TF": "0", **environment})
    command = [python, str(Path(__file__).parent / "attributions.py"), "OUTPUT", "--seconds", str(seconds)]
    yield Job("rivals: attributions", "attributions", command, {"USE_TF": "0", **RETURNING_MEMORY})


def _worker(what: str, section: str, mode: str, job: str, **options: Any) -> Job:
    return _job(what, section, job, mode=mode, **options)


def _job(what: str, section: str, job: str, **options: Any) -> Job:
    environment = dict(RETURNING_MEMORY) if job == "peaks" else {}
    mode = options.get("mode", "")
    if "TensorFlow" not in mode and options.get("framework") != "tensorflow":
        environment["USE_TF"] = "0"  # transformers imports TensorFlow wherever it is installed
    command = [sys.executable, "-m", "tests.benchmarks.worker", json.dumps({"job": job, **options}), "OUTPUT"]
    return Job(what, section, command, environment)


def _case(checkpoint: str, size: tuple[int, int], objective: str = "pooled") -> dict[str, Any]:
    return asdict(Case(checkpoint, *size, objective))
