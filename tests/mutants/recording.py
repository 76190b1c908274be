"""Which tests execute which lines of a room, and how long they take: recorded once for each file of tests.

Statements of the room call a function as they run, which a tracer would do for every call of every framework. An interrupted
recording goes on where it stopped, and a changed file of tests is recorded alone; a changed source has all of them recorded
again, and a helper those in its folder.
"""

from __future__ import annotations

import ast
import hashlib
import itertools
import json
import math
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

from tests.mutants.changes import Change
from tests.mutants.processes import in_child, run_pytest

#: The name by which the statements of a room call `executed`, and what gives it to them.
EXECUTED = "__executed__"
IMPORT = f"from {__name__} import executed as {EXECUTED}"
#: What each statement that is executed is reported to; nothing in the processes of Ray, to which code is sent.
LISTENERS: list[Callable[[str, int], None]] = []
#: How long a recording may take, in seconds.
LIMIT = 4 * 3600


@dataclass
class Record:
    """What a run has executed: seconds of each test, and for each line of each file the tests, or files of tests, that ran it.

    Attributes:
        most: how many seconds the tests of a change may take together, of which the first is always run.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    lines: dict[str, dict[int, list[str]]] = field(default_factory=dict)
    most: float = math.inf

    def tests_of(self, change: Change) -> list[str]:
        """Return the tests that execute the line of the change: the quickest of each file, then the next of each, and so on.

        For what runs as the module is imported these are all: first those that execute a line of the module. None do where no
        test executes one.
        """
        lines = self.lines.get(str(change.file), {})
        of_line = [] if change.loaded else lines.get(change.line) or lines.get(change.statement) or []
        owners = {*(itertools.chain.from_iterable(lines.values()) if change.loaded else of_line)}
        tests = {test for test in self.seconds if test in owners or file_of(test) in owners}
        chosen = [*self.seconds] if change.loaded and tests else tests
        ranks, earlier = dict[str, int](), Counter[str]()
        for test in sorted(chosen, key=lambda test: (test not in tests, self.seconds[test])):
            ranks[test] = earlier[file_of(test)]
            earlier[file_of(test)] += 1
        return self.within(sorted(chosen, key=lambda test: (test not in tests, ranks[test], self.seconds[test])))

    def within(self, ordered: list[str]) -> list[str]:
        """Return the first of some tests, and of the others in turn each that fits into what is left of `most` seconds."""
        chosen, left = list[str](), self.most
        for test in ordered:
            if not chosen or self.seconds[test] <= left:
                chosen.append(test)
                left -= self.seconds[test]
        return chosen


def executed(file: str, line: int) -> None:
    """Report a statement that is executed."""
    for listener in LISTENERS:
        listener(file, line)


def file_of(test: str) -> str:
    return test.partition("::")[0]


def mark_statements(file: Path, source: bytes) -> CodeType:
    """Return the code of a source in which each statement, and the body of each lambda, says that it is executed."""
    tree = ast.parse(source)
    first = _length_of_head(tree.body)
    for node in list(ast.walk(tree)):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
                said = [(ast.Expr(_mark(file, statement)), statement) for statement in block]
                head = _length_of_head(block) if name == "body" else 0
                setattr(node, name, [*block[:head], *itertools.chain.from_iterable(said[head:])])
        if isinstance(node, ast.Lambda):
            node.body = ast.BoolOp(ast.Or(), [_mark(file, node.body), node.body])
    tree.body.insert(first, ast.parse(IMPORT).body[0])
    code: CodeType = compile(ast.fix_missing_locations(tree), str(file), "exec", dont_inherit=True)
    return code


def _mark(file: Path, node: ast.stmt | ast.expr) -> ast.Call:
    call = ast.Call(ast.Name(EXECUTED, ast.Load()), [ast.Constant(str(file)), ast.Constant(node.lineno)], [])
    return ast.copy_location(call, node)


def _length_of_head(block: list[ast.stmt]) -> int:
    """Return the number of statements that must stay first: a docstring, and what is imported from the future."""
    head = itertools.takewhile(
        lambda statement: (
            (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))
            or (isinstance(statement, ast.ImportFrom) and statement.module == "__future__")
        ),
        block,
    )
    return len([*head])


class Recorder:
    """The plugin that gives what is executed to the test, or to its file for a fixture that several tests share.

    Attributes:
        keep: is called with each file of tests that has ended, and its record.
    """

    def __init__(self, sources: list[Path], keep: Callable[[str, dict[str, Any]], None]) -> None:
        self.sources, self.keep = {str(file) for file in sources}, keep
        self.owner = ""
        self.places: dict[str, set[tuple[str, int]]] = defaultdict(set)
        self.seconds: dict[str, float] = {}
        self.failed: set[str] = set()

    def install(self) -> None:
        """Give the marked code of the room to whoever imports it from now on."""
        get_code, sources = SourceFileLoader.get_code, self.sources

        def marked_code(loader: SourceFileLoader, name: str) -> CodeType | None:
            path = Path(loader.path)
            return mark_statements(path, path.read_bytes()) if loader.path in sources else get_code(loader, name)

        SourceFileLoader.get_code = marked_code  # type: ignore[method-assign, assignment]
        LISTENERS.append(lambda file, line: self.places[self.owner].add((file, line)))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
        self.owner, begin = item.nodeid, time.perf_counter()
        try:
            return (yield)
        finally:
            self.owner = ""
            self.seconds[item.nodeid] = time.perf_counter() - begin
            if nextitem is None or file_of(nextitem.nodeid) != file_of(item.nodeid):
                self.end(file_of(item.nodeid))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.add(report.nodeid)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        before = self.owner
        if fixturedef.scope != "function":
            self.owner = file_of(before)
        try:
            return (yield)
        finally:
            self.owner = before

    def end(self, file: str) -> None:
        """Keep the record of a file of tests, without those that failed."""
        lines: dict[str, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
        for owner, places in self.places.items():
            if file_of(owner) == file and owner not in self.failed:
                for source, line in places:
                    lines[source][line].append(owner)
        own = [test for test in self.seconds if file_of(test) == file]
        seconds = {test: self.seconds[test] for test in own if test not in self.failed}
        self.keep(file, {"seconds": seconds, "lines": lines, "failed": [test for test in own if test in self.failed]})


def digest_of(files: Iterable[Path], begin: str = "") -> str:
    """Return a digest of the texts of files."""
    made = hashlib.sha256(begin.encode())
    for file in sorted(files):
        made.update(f"{file}\0".encode() + file.read_bytes())
    return made.hexdigest()[:16]


def _digest(tests: Path, begin: str) -> str:
    """Return a digest of a file of tests and of the helpers in its folder."""
    return digest_of({tests, *(file for file in tests.parent.glob("*.py") if not file.name.startswith("test_"))}, begin)


def record_tests(sources: list[Path], tests: list[Path], cache: Path) -> Record:
    """Return the record of the tests in files and folders, which is kept in a folder, a file for each of tests."""
    own = sorted({file for path in tests for file in ([path] if path.is_file() else path.rglob("test_*.py"))})
    common = digest_of({*sources, Path(__file__)})
    kept = {
        os.path.relpath(file): cache / f"{file.parent.name}.{file.stem}-{_digest(file, common)}.json" for file in own
    }
    missing = [file for file, place in kept.items() if not place.exists()]
    if missing:
        cache.mkdir(parents=True, exist_ok=True)

        def keep(file: str, recorded: dict[str, Any]) -> None:
            if file in missing:
                for old in cache.glob(f"{kept[file].name.rpartition('-')[0]}-*"):
                    old.unlink()
                kept[file].with_suffix(".part").write_text(json.dumps(recorded))
                kept[file].with_suffix(".part").rename(kept[file])

        def work() -> int:
            recorder = Recorder(sources, keep)
            recorder.install()
            code = run_pytest(missing, [recorder])
            if code in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED):
                for file in missing:
                    if not kept[file].exists():  # there was nothing to run
                        recorder.end(file)
            return code

        code = in_child(work, LIMIT)
        if left := [file for file, place in kept.items() if not place.exists()]:
            raise SystemExit(
                f"The recording ended with the exit code {code} before the end of {left[0]} and {len(left) - 1} more: begin it "
                f"again, or see python -m pytest {left[0]}"
            )
    record, failed = Record(), list[str]()
    for place in kept.values():
        recorded = json.loads(place.read_text())
        failed += recorded["failed"]
        record.seconds |= recorded["seconds"]
        for source, of_source in recorded["lines"].items():
            lines = record.lines.setdefault(source, {})
            for line, owners in of_source.items():
                lines.setdefault(int(line), []).extend(owners)
    if failed:
        print(f"Tests that fail without any change are left out: {' '.join(failed)}")
    if not record.seconds:
        raise SystemExit(f"No test passes: python -m pytest {' '.join(kept)}")
    return record
