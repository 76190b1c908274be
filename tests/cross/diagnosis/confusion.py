"""The confusion table: `python -m tests.cross.diagnosis.confusion` injects every fault and writes the causes into the docs."""

from __future__ import annotations

import argparse
import functools
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from embgrad.comparison.findings import CAUSES
from tests.cross.diagnosis.faults import FAULTS, PAIRS, UNKNOWN
from tests.cross.diagnosis.trials import Outcome, Trial, all_trials, run

PAGE: Final = Path(__file__).parents[3] / "docs" / "diagnosis.md"
BEGIN: Final = "<!-- begin: made by python -m tests.cross.diagnosis.confusion -->"
END: Final = "<!-- end: made by python -m tests.cross.diagnosis.confusion -->"
COLUMNS: Final = ("torch", "tensorflow", "gluon", "across")
HEADS: Final = ("PyTorch", "TensorFlow", "Gluon", "PyTorch → another")


@functools.cache
def outcomes(verbose: bool = False) -> tuple[Outcome, ...]:
    """Return how every trial ends; with `verbose` each is printed on standard error."""
    ended = []
    for trial in all_trials():
        ended.append(run(trial))
        if verbose:
            print(_detail(ended[-1]), file=sys.stderr, flush=True)
    return tuple(ended)


def column_of(outcome: Outcome) -> str:
    return "across" if "→" in outcome.trial.column else outcome.trial.column


def named_right(found: Iterable[Outcome]) -> tuple[int, int]:
    asked = [one for one in found if one.trial.must_name]
    return sum(one.right for one in asked), len(asked)


def cell(found: Sequence[Outcome]) -> str:
    """What was named first, and how often that was right."""
    if not found:
        return ""
    right = sum(one.right for one in found)
    wrong = Counter(_said(one) for one in found if not one.right)
    told = f"{right} of {len(found)}"
    return (
        told if not wrong else f"**{told}**: " + ", ".join(f"{said} ({count})" for said, count in sorted(wrong.items()))
    )


def _said(outcome: Outcome) -> str:
    if outcome.failed:
        return "error"
    if not outcome.named:
        return "agree" if outcome.agrees else "none"
    return " + ".join(outcome.named)


def table(found: Sequence[Outcome], rows: Sequence[tuple[str, str]], *, alone: bool) -> list[str]:
    lines = [f"| fault | cause | {' | '.join(HEADS)} |", "|---|---|" + "---|" * len(HEADS)]
    for name, cause in rows:
        mine = [one for one in found if one.trial.row == name and one.trial.with_models != alone]
        if alone:
            mine = [one for one in mine if one.trial.must_name]
        cells = [cell([one for one in mine if column_of(one) == column]) for column in COLUMNS]
        if any(cells):
            lines.append(f"| {name} | {cause} | {' | '.join(cells)} |")
    return lines


def summary(found: Sequence[Outcome]) -> list[str]:
    groups = {group: [one for one in found if one.trial.group == group] for group in ("fault", "pair")}
    lines = ["| | |", "|---|---|"]
    for group, what in (("fault", "one fault"), ("pair", "two faults, or one on a rearranged batch")):
        mine = groups[group]
        for with_models, how in ((True, "with the models"), (False, "from the numbers alone")):
            right, asked = named_right(one for one in mine if one.trial.with_models is with_models)
            lines.append(
                f"| {what}, {how}: right cause first | {right} of {asked} ({100 * right / max(asked, 1):.1f} %) |"
            )
    kinds = {one.trial.row for one in groups["fault"] if one.trial.must_name}
    lines.append(f"| kinds of one fault | {len(kinds)} |")
    silent = [one for one in found if one.trial.group in ("fault", "pair") and not one.trial.must_name]
    lines.append(
        f"| faults that the numbers alone cannot tell: a false cause named | {_false(silent)} of {len(silent)} |"
    )
    for group, what in (
        ("unknown", "other faults in a model: a false cause named"),
        ("random", "unrelated random gradients: a cause named"),
        ("noise", "the same gradient with noise: a cause named"),
    ):
        mine = [one for one in found if one.trial.group == group]
        lines.append(f"| {what} | {_false(mine)} of {len(mine)} |")
    healthy = [one for one in found if one.trial.group == "healthy"]
    lines.append(
        f"| healthy models in two frameworks: agree, and no cause named | {_right(healthy)} of {len(healthy)} |"
    )
    return lines


def _false(found: Iterable[Outcome]) -> int:
    return sum(one.false or one.failed for one in found)


def _right(found: Iterable[Outcome]) -> int:
    return sum(one.right for one in found)


def misses(found: Iterable[Outcome]) -> list[str]:
    return [f"- {one.trial.name}: {_said(one)}" for one in found if not one.right]


def tables(found: Sequence[Outcome]) -> str:
    """What stands between the markers of the page."""
    faults = [(fault.name, " + ".join(fault.expected[0])) for fault in FAULTS]
    pairs = [(pair.name, " + ".join(pair.expected[0])) for pair in PAIRS]
    unknown = [
        (fault.name, " or ".join(" + ".join(answer) for answer in fault.expected) or "none") for fault in UNKNOWN
    ]
    wrong = misses(found)
    parts = [
        "### Causes",
        "| cause | what it says |\n|---|---|",
        *(f"| {cause} | {text} |" for cause, text in CAUSES.items()),
        "### Totals",
        *summary(found),
        "### One fault, with the models",
        *table(found, faults, alone=False),
        "### One fault, from the numbers alone",
        *table(found, faults, alone=True),
        "### Two faults, or one on a rearranged batch, with the models",
        *table(found, pairs, alone=False),
        "### Other faults in a model, with the models: nothing false is named",
        *table([one for one in found if one.trial.group == "unknown"], unknown, alone=False),
        "### Misses",
        *(wrong or ["None."]),
    ]
    text = "\n".join(f"\n{part}\n" if part.startswith("#") else part for part in parts)
    return text.strip() + "\n"


def page_with(text: str, page: str, markers: tuple[str, str] = (BEGIN, END)) -> str:
    """Return the page with the tables between its markers."""
    begin, end = markers
    before, begun, rest = page.partition(begin)
    _, ended, after = rest.partition(end)
    if not begun or not ended:
        raise ValueError(f"the page lacks a marker: expected {begin!r} and then {end!r}")
    return f"{before}{begin}\n\n{text}\n{end}{after}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all, tell how each ends, print the tables and write the page; with --only some, and leave the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only", default="", help="run only trials in whose name this pattern is found; leaves the page"
    )
    options = parser.parse_args(arguments)
    if options.only:
        found = []
        for trial in _those_named(options.only):
            found.append(run(trial))
            print(_detail(found[-1]), flush=True)
        print(tables(found))
        return 0
    text = tables(outcomes(verbose=True))
    print(text)
    PAGE.write_text(page_with(text, PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


def _those_named(pattern: str) -> Iterator[Trial]:
    return (trial for trial in all_trials() if re.search(pattern, f"{trial.group}: {trial.name}"))


def _detail(outcome: Outcome) -> str:
    sign = "ok" if outcome.right else "FAIL" if outcome.failed else "FALSE" if outcome.false else "MISS"
    rest = "; ".join(" + ".join(one) for one in outcome.others)
    return (
        f"{sign} [{outcome.trial.group}] {outcome.trial.name}: {_said(outcome)} ({outcome.text[:300]})"
        f"{' then ' + rest if rest else ''} [rel {outcome.relative_l2:.1e}, {outcome.seconds:.2f} s]"
    )


if __name__ == "__main__":
    sys.exit(main())
