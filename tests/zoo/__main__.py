"""Builds every text architecture of the installed packages and compares it with gradients by hand.

`python -m tests.zoo --framework torch --write docs/architectures.md`, or `make zoo`. Rows that are recorded are not made again:
an interrupted run goes on; --again makes all of them. The exit status is 1 if a number is wrong, or an error is not embgrad's.
"""

from __future__ import annotations

import argparse
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from tests.zoo.frameworks import FRAMEWORKS
from tests.zoo.page import RECORD, count, page, recorded, write
from tests.zoo.running import Limits, chosen, families, run


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    console = Console(stderr=True)
    record = recorded(options.record)
    for framework in options.framework:
        _examine(framework, options, record, console)
    if options.write:
        options.write.write_text(page(record), encoding="utf-8")
    failed = [
        row["name"] for framework in options.framework for row in record[framework]["rows"].values() if count(row).bad
    ]
    if failed:
        console.print(f"wrong, raw or ended: {', '.join(failed)}")
    return 1 if failed else 0


def _examine(framework: str, options: argparse.Namespace, record: dict[str, Any], console: Console) -> None:
    """Make the rows of a framework that are not recorded with these versions, and record each as it comes."""
    versions = {package: version(package) for package in FRAMEWORKS[framework].packages}
    own = record.setdefault(framework, {"versions": versions, "rows": {}})
    if own["versions"] != versions:
        own |= {"versions": versions, "rows": {}}
    listed = families(framework)
    wanted = chosen(listed, options.only)
    if not options.again and not options.only:
        wanted = {name: family for name, family in wanted.items() if name not in own["rows"]}
    if not options.only:
        own["rows"] = {name: row for name, row in own["rows"].items() if name in listed}
    columns = [
        TextColumn("{task.description}"),
        BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn(),
    ]  # fmt: skip
    limits = Limits(options.seconds, options.gigabytes, options.models)
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(framework, total=len(wanted))

        def report(name: str) -> None:
            progress.update(task, description=f"{framework} {name:50.50}")

        for row in run(framework, wanted, limits, options.processes, report):
            own["rows"][row["name"]] = row
            progress.advance(task)
            for line in count(row).lines:
                progress.console.print(f"{row['name']}: {line}", markup=False)
            write(record, listed, framework, options.record)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.zoo", description=__doc__)
    parser.add_argument("--framework", choices=sorted(FRAMEWORKS), action="append", default=[])
    parser.add_argument("--only", action="append", default=[], help="a class or an architecture, which is made again")
    parser.add_argument("--again", action="store_true", help="make recorded rows again")
    parser.add_argument("--write", type=Path, help="the page that is written, such as docs/architectures.md")
    parser.add_argument(
        "--record", type=Path, default=RECORD, help="the rows as JSON (default: docs/architectures.json)"
    )
    parser.add_argument("--processes", type=int, default=2, help="how many models are examined at once")
    parser.add_argument("--seconds", type=float, default=Limits.seconds, help="the longest that a model may take")
    parser.add_argument("--gigabytes", type=float, default=Limits.gigabytes, help="the most memory of its process")
    parser.add_argument("--models", type=int, default=Limits.models, help="models after which a process begins again")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
