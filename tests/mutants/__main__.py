"""Single wrong changes to a room's code, and whether its tests notice: `python -m tests.mutants --room inputs --seed 0`.

The sample is of lines that the room's own tests execute, which are recorded once; for each change the tests that execute its
line run, in a process of its own, and nothing is written into the sources. A test that fails counts if it passes without the
change. mutmut changes copies in which every function is renamed and reached by way of
another, which this library would see (it reads sources, and finds models' functions by their code), and takes no sample;
cosmic-ray writes into the working tree and starts the whole test command for each change, which takes seconds in place of a
fraction of one.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import os
import sys
import time
from collections import Counter
from pathlib import Path

from tests.mutants.changes import Change, changes_in, read_equivalents
from tests.mutants.recording import Record, record_tests
from tests.mutants.running import try_changes

ROOT = Path(__file__).parents[2]
EQUIVALENT = Path(__file__).with_name("equivalent.txt")


def folders_of(room: str) -> tuple[Path, list[Path]]:
    """Return the folder of a room's sources and those of its tests; a framework's contract is among them."""
    if room.startswith("embgrad_"):
        framework = room.removeprefix("embgrad_")
        os.environ["EMBGRAD_TEST_BACKENDS"] = framework
        return ROOT / "backends" / room, [ROOT / "tests" / "frameworks" / framework, ROOT / "tests" / "contract"]
    return ROOT / "embgrad" / room, [ROOT / "tests" / "unit" / room]


def draw(record: Record, sources: list[Path], number: int, seed: int) -> list[Change]:
    """Return a sample of the changes to executed lines, one a line.

    A change is drawn by a digest of its texts, so that the sample changes little when other lines do.
    """
    keys = list[tuple[str, Change, bytes]]()
    for file in sources:
        source, repeats = file.read_bytes(), Counter[str]()
        for change in changes_in(file, source):
            before, after = change.lines(source)
            text = f"{seed}\0{file.name}\0{before.strip()}\0{after.strip()}"
            repeats[text] += 1
            keys.append((hashlib.sha256(f"{text}\0{repeats[text]}".encode()).hexdigest(), change, source))
    chosen: dict[tuple[Path, int], Change] = {}
    for _, change, source in sorted(keys, key=lambda each: each[0]):
        place = (change.file, change.line)
        if place not in chosen and len(chosen) < number and record.tests_of(change) and change.compiles(source):
            chosen[place] = change
    return sorted(chosen.values(), key=lambda change: (change.file, change.line))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.splitlines()[0])
    parser.add_argument("--room", help="a folder of embgrad/, or a package of backends/")
    parser.add_argument("--sources", type=Path, help="a folder of sources, in place of a room's")
    parser.add_argument(
        "--tests", type=Path, nargs="+", default=[], help="folders or files of tests, in place of a room's"
    )
    parser.add_argument("--number", type=int, default=40, help="number of changes")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sample")
    parser.add_argument("--equivalent", type=Path, default=EQUIVALENT, help="list of changes that change nothing")
    parser.add_argument("--fresh", action="store_true", help="import everything anew for each change")
    parser.add_argument(
        "--seconds", type=float, default=math.inf, help="of the tests of a change run those of so many seconds"
    )
    options = parser.parse_args()
    if options.room is None and not (options.sources and options.tests):
        parser.error("name a --room, or --sources and --tests")
    begin = time.monotonic()
    sys.path[:0] = [str(ROOT), str(ROOT / "backends")]  # before the library that is installed
    sources, tests = folders_of(options.room) if options.room else (options.sources.resolve(), [])
    tests = [path.resolve() for path in options.tests] or tests
    root = ROOT if options.room else sources.parent
    os.chdir(root)
    files = sorted(sources.rglob("*.py"))
    if not files or not all(path.exists() for path in tests):
        parser.error(f"there are no sources in {sources}, or no tests in {', '.join(map(str, tests))}")
    record = record_tests(files, tests, root / ".cache" / "mutants" / sources.name)
    recorded = time.monotonic() - begin
    record.most = options.seconds
    changes = draw(record, files, options.number, options.seed)
    known = read_equivalents(options.equivalent.read_text(encoding="utf-8"))
    texts = [change.lines(change.file.read_bytes()) for change in changes]
    names = [change.file.relative_to(root).as_posix() for change in changes]
    reasons = [known.get((name, *map(str.strip, text))) for name, text in zip(names, texts, strict=True)]
    tried = [change for change, reason in zip(changes, reasons, strict=True) if reason is None]
    outcomes = iter(try_changes(record, tried, options.fresh))
    table: dict[str, Counter[str]] = {}
    survivors = list[str]()
    for change, name, text, reason in zip(changes, names, texts, reasons, strict=True):
        outcome = "equivalent" if reason is not None else "noticed" if next(outcomes) else "survived"
        table.setdefault(name, Counter())[outcome] += 1
        if outcome == "survived":
            survivors.append(f"{name}:{change.line}\n-{text[0]}\n+{text[1]}\n")
    print(f"{'file':<60} {'noticed':>8} {'survived':>9} {'equivalent':>11}")
    for name, count in table.items():
        print(f"{name:<60} {count['noticed']:>8} {count['survived']:>9} {count['equivalent']:>11}")
    print("", *survivors, sep="\n")
    noticed = len(tried) - len(survivors)
    print(
        f"{options.room or sources.name}, seed {options.seed}: noticed {noticed} of {len(tried)} changes "
        f"({noticed / max(len(tried), 1):.0%}), {len(changes) - len(tried)} equivalent; "
        f"{time.monotonic() - begin:.0f} s, of which {recorded:.0f} s of recording"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
