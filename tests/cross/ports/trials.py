"""Checks of every listed pair: what `check_port` names, against what was planted; `python -m tests.cross.ports.trials`."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import embgrad
from embgrad.comparison.port import check_port
from embgrad.comparison.recording import FINAL
from embgrad.results import PortReport
from tests.cross.ports.fault import Fault
from tests.cross.ports.faults import FAULTS
from tests.cross.ports.own_fault import OwnFault, OwnRight
from tests.cross.ports.own_lists import OWN_FAULTS, OWN_PAIRS, OWN_RIGHT
from tests.cross.ports.pairs_of_faults import PAIRS, TwoFaults
from tests.cross.ports.ports import Pair
from tests.cross.ports.right_ports import RIGHT_PORTS, RightPort
from tests.cross.ports.twins import TWIN_FAULTS, TwinFault

#: The marks of the table on a page.
TABLE: Final = re.compile(r"(<!-- table: trials -->\n).*?(<!-- end -->)", re.DOTALL)

#: What is listed, by its kind.
KINDS: Final = {
    "fault": "one fault",
    "two": "two faults at once",
    "twin": "one fault in a further architecture",
    "right": "right ports",
    "own": "one fault in a port written by hand",
    "own-two": "two faults at once in one",
    "own-right": "right ports written by hand",
}


@dataclass(frozen=True)
class Outcome:
    """What a check said of one listed pair.

    Attributes:
        name: of the fault, the pair of faults or the right port.
        kind: a key of `KINDS`.
        expected: the causes that are true; for two faults those of both.
        named: the causes that were named, first to last.
        right: whether the first cause is true, or none is named where none is known; for two faults whether both are named; for a
            right port whether it agrees.
        wrong: whether the first cause is not true.
        site: whether the first site is the planted one, or the first cause names its module.
        texts: the causes in words.
        error: what was raised instead.
    """

    name: str
    kind: str
    expected: tuple[tuple[str, ...], ...]
    named: tuple[str, ...]
    right: bool
    wrong: bool
    site: bool
    agrees: bool
    texts: tuple[str, ...]
    unexplained: tuple[str, ...]
    seconds: float
    error: str = ""


def check(pair: Pair, floor: str | None = None, call: Any = None) -> PortReport:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", embgrad.EmbgradWarning)
        warnings.filterwarnings("error", "the hypothesis .* failed")
        texts = None if isinstance(pair.port, Path) else (pair.batch, pair.port_batch)  # a dump's folder has its own
        return check_port(pair.reference, pair.port, texts, floor=floor, call=(None, call))


def try_fault(fault: Fault | TwoFaults | TwinFault | OwnFault) -> Outcome:
    planted: tuple[Fault | TwinFault | OwnFault, ...]
    planted = (fault.first, fault.second) if isinstance(fault, TwoFaults) else (fault,)
    call = None
    if isinstance(fault, OwnFault):
        planted += () if fault.second is None else (fault.second,)
        pair, call = fault.make()
    elif isinstance(fault, TwinFault):
        pair = fault.make()
    else:
        pair = fault.healthy()
        fault.plant_in(pair)
    start = time.perf_counter()
    kind = {Fault: "fault", TwoFaults: "two", TwinFault: "twin", OwnFault: "own"}[type(fault)]
    kind += "-two" if isinstance(fault, OwnFault) and fault.second is not None else ""
    expected = tuple(one.causes for one in planted)
    try:
        report = check(pair, call=call)
    except Exception as error:  # an error is a miss to be listed, not the end of the table
        text = f"{type(error).__name__}: {str(error)[:300]}"
        return Outcome(fault.name, kind, expected, (), False, False, False, False, (), (), 0.0, text)
    seconds = time.perf_counter() - start
    named = tuple(cause.cause for cause in report.causes)
    found = [bool(set(causes) & set(named)) for causes in expected]
    true = {cause for causes in expected for cause in causes}
    paths = [*_ends_of_first(report), *_paths_of_first(report)]
    at = any(re.search(one.site, path) for one in planted for path in paths)
    right = bool(named) and named[0] in true if len(planted) == 1 else all(found)
    right = right or (
        isinstance(fault, OwnFault) and not (named or report.agrees) and (fault.may_be_unnamed or not true)
    )
    texts = tuple(cause.text for cause in report.causes)
    wrong = bool(named) and named[0] not in true
    return Outcome(
        fault.name, kind, expected, named, right, wrong, at, report.agrees, texts, report.unexplained, seconds
    )


def _ends_of_first(report: PortReport) -> list[str]:
    """Return the paths at both ends of the first stretch that differs: of the point before it, and of its own.

    A stretch that ends at the model's output contains the head, which is no point where it shares the table.
    """
    names = [point.name for point in report.points]
    first = next((number for number, point in enumerate(report.points) if not point.agrees), None)
    if first is None:
        return []
    ends = [re.split(r":| \(|\[", name)[0] for name in names[max(first - 1, 0) : first + 1]]
    return [*ends, *(["lm_head"] if ends[-1] == FINAL else [])]


def _paths_of_first(report: PortReport) -> list[str]:
    """Return the paths of modules and weights that the first cause names, in its first layer."""
    if not report.causes:
        return []
    first = report.causes[0]
    layer = str(first.layers[0]) if first.layers else "N"
    return [re.sub(r"\bN\b", layer, path) for path in re.findall(r"\w+(?:\.\w+)+", first.text)]


def try_right(port: RightPort | OwnRight) -> Outcome:
    floor, call, kind = None, None, "right"
    if isinstance(port, OwnRight):
        (pair, call), kind = port.make(), "own-right"
    else:
        pair, floor = port.make(), None if port.floor == "float32" else port.floor
    start = time.perf_counter()
    try:
        report = check(pair, floor, call)
    except Exception as error:  # listed as above
        text = f"{type(error).__name__}: {str(error)[:300]}"
        return Outcome(port.name, kind, (), (), False, False, False, False, (), (), 0.0, text)
    named = tuple(cause.cause for cause in report.causes)
    return Outcome(
        port.name,
        kind,
        (),
        named,
        report.agrees,
        bool(named),
        report.agrees,
        report.agrees,
        tuple(cause.text for cause in report.causes),
        report.unexplained,
        time.perf_counter() - start,
    )


def shares(outcomes: Sequence[Outcome]) -> Mapping[str, str]:
    """Return the shares that the list is judged by."""
    rows: dict[str, str] = {}
    for kind in KINDS:
        own = [outcome for outcome in outcomes if outcome.kind == kind]
        if own:
            count = Counter(
                {
                    "right": sum(outcome.right for outcome in own),
                    "wrong": sum(outcome.wrong for outcome in own),
                    "site": sum(outcome.site for outcome in own),
                }
            )
            rows[kind] = ", ".join(f"{name} {count[name]} of {len(own)}" for name in ("right", "wrong", "site"))
    return rows


def read(files: Sequence[Path]) -> list[Outcome]:
    """Return the outcomes in files of earlier runs, of each pair the last."""
    entries = [entry for file in files for entry in json.loads(file.read_text("utf-8"))]
    return [Outcome(**entry) for entry in {(entry["kind"], entry["name"]): entry for entry in entries}.values()]


def with_shares(page: str, outcomes: Sequence[Outcome]) -> str:
    """Return a page with the table of shares between its marks."""
    lines = ["| Listed | Number | Right | Missed | Wrong | Site right |", "| --- | --- | --- | --- | --- | --- |"]
    for kind, label in KINDS.items():
        own = [outcome for outcome in outcomes if outcome.kind == kind]
        missed = sum(not one.right and not one.wrong for one in own)
        right, wrong, site = (sum(getattr(one, name) for one in own) for name in ("right", "wrong", "site"))
        numbers = (len(own), right, missed, wrong, site)
        lines.append(f"| {label} | {' | '.join(map(str, numbers))} |")
    table = "\n".join(lines)
    return TABLE.sub(lambda match: f"{match[1]}\n{table}\n\n{match[2]}", page)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cross.ports.trials", description=__doc__)
    parser.add_argument("--only", default="", help="a regular expression of the names")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--json", type=Path, help="write the outcomes here")
    parser.add_argument(
        "--read", type=Path, nargs="*", default=[], help="outcomes of earlier runs, which are not run again"
    )
    parser.add_argument("--write", type=Path, help="the page whose table is made anew")
    options = parser.parse_args(arguments)
    outcomes = read(options.read)
    known = {(outcome.kind, outcome.name) for outcome in outcomes}
    kinds: dict[str, tuple[Mapping[str, Any], Any]] = {
        "fault": (FAULTS, try_fault),
        "two": (PAIRS, try_fault),
        "twin": ({fault.name: fault for fault in TWIN_FAULTS}, try_fault),
        "right": (RIGHT_PORTS, try_right),
        "own": ({fault.name: fault for fault in OWN_FAULTS}, try_fault),
        "own-two": ({pair.name: pair for pair in OWN_PAIRS}, try_fault),
        "own-right": ({port.name: port for port in OWN_RIGHT}, try_right),
    }
    for kind in options.kinds.split(","):
        listed, function = kinds[kind]
        for name, entry in listed.items():
            if not re.search(options.only, name) or (kind, name) in known:
                continue
            outcome = function(entry)
            outcomes.append(outcome)
            mark = "ok" if outcome.right else "WRONG" if outcome.wrong else "missed"
            place = "" if outcome.site else " (site)"
            said = outcome.error or "; ".join(outcome.texts[:2]) or f"unexplained {outcome.unexplained[:2]}"
            print(f"{mark}{place} {outcome.seconds:.1f}s {name}: {outcome.expected} | {said}", flush=True)
            if options.json:
                options.json.write_text(json.dumps([asdict(one) for one in outcomes], indent=1), encoding="utf-8")
    for kind, text in shares(outcomes).items():
        print(f"{kind}: {text}")
    if options.write is not None:
        options.write.write_text(with_shares(options.write.read_text("utf-8"), outcomes), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
