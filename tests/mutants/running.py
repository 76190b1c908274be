"""One recorded run of a room's tests, and a process for each change that runs the tests which execute its line."""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import math
import os
import signal
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import pytest

from tests.mutants.changes import Change

#: Exit codes of a test process: no test failed, some did, and the change cannot be made in functions that are there already.
PASSED, FAILED, NOT_HERE = 0, 1, 77


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
        """Return the tests that execute the line of the change, quickest first.

        For what runs as the module is imported these are all: first those that execute a line of the module. None do where no
        test executes one.
        """
        lines = self.lines.get(str(change.file), {})
        of_line = [] if change.loaded else lines.get(change.line) or lines.get(change.statement) or []
        owners = {*(itertools.chain.from_iterable(lines.values()) if change.loaded else of_line)}
        tests = {test for test in self.seconds if test in owners or test.partition("::")[0] in owners}
        chosen = [*self.seconds] if change.loaded and tests else tests
        return self.within(sorted(chosen, key=lambda test: (test not in tests, self.seconds[test])))

    def within(self, ordered: list[str]) -> list[str]:
        """Return the first of some tests, as many as take `most` seconds together."""
        after = itertools.accumulate(self.seconds[test] for test in ordered)
        return [
            test
            for number, (test, end) in enumerate(zip(ordered, after, strict=True))
            if not number or end <= self.most
        ]


class Recorder:
    """The plugin that traces each test, and each fixture that several tests share on account of their whole file."""

    def __init__(self, files: list[Path]) -> None:
        self.files = {str(file) for file in files}
        self.seen: dict[str, set[tuple[str, int]]] = defaultdict(set)
        self.seconds: dict[str, float] = {}
        self.failed: list[str] = []
        self.now: set[tuple[str, int]] = set()

    def enter(self, frame: FrameType, event: str, arg: object) -> Callable[..., Any] | None:
        return self.step if frame.f_code.co_filename in self.files else None

    def step(self, frame: FrameType, event: str, arg: object) -> Callable[..., Any]:
        self.now.add((frame.f_code.co_filename, frame.f_lineno))
        return self.step

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.now, begin = self.seen[item.nodeid], time.perf_counter()
        sys.settrace(self.enter)
        threading.settrace(self.enter)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type]
            self.seconds[item.nodeid] = time.perf_counter() - begin

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> Iterator[None]:
        before = self.now
        if fixturedef.scope != "function":
            self.now = self.seen[request.node.nodeid.partition("::")[0]]
        try:
            return (yield)
        finally:
            self.now = before

    def record(self) -> Record:
        lines: dict[str, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
        for owner, places in self.seen.items():
            for file, line in places:
                lines[file][line].append(owner)
        return Record(self.seconds, {file: dict(of_file) for file, of_file in lines.items()})


class Trials:
    """The plugin that, in place of the run, makes each change in a process of its own and runs its tests there."""

    def __init__(self, record: Record, changes: list[Change | None], report: Callable[[int, int], None]) -> None:
        self.record, self.changes, self.report = record, changes, report

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        for index, change in enumerate(self.changes):
            every = sorted(self.record.seconds, key=lambda test: self.record.seconds[test])
            tests = self.record.within(every) if change is None else self.record.tests_of(change)
            limit = 20 + 5 * sum(self.record.seconds[test] for test in tests)

            def trial(change: Change | None = change, tests: list[str] = tests) -> int:
                if change is not None and not replace_code(change):
                    return NOT_HERE
                run_items([items[test] for test in tests if test in items])
                return PASSED

            self.report(index, in_child(trial, limit))
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            os._exit(FAILED)


class Chosen:
    """The plugin that runs the chosen tests alone, quickest first, up to the first that fails."""

    def __init__(self, tests: list[str]) -> None:
        self.order = {test: index for index, test in enumerate(tests)}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted(
            (item for item in items if item.nodeid in self.order), key=lambda item: self.order[item.nodeid]
        )


def run_items(items: list[pytest.Item]) -> None:
    """Run tests of a collected session."""
    for item, following in zip(items, [*items[1:], None], strict=True):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)


def run_pytest(tests: list[str], plugins: list[object]) -> int:
    """Run pytest on files, in this process, with repeatable examples of Hypothesis and without a word."""
    from hypothesis import Phase, settings

    settings.register_profile(
        "mutants", deadline=None, derandomize=True, database=None, phases=(Phase.explicit, Phase.generate)
    )
    settings.load_profile("mutants")
    with tempfile.TemporaryDirectory() as folder:
        # pytest would import the library in its own way, to rewrite asserts: a change would not get there.
        options = ["-x", "--assert=plain", "-p", "no:terminal", "-p", "no:xdist"]
        options += ["--basetemp", f"{folder}/pytest", "--rootdir", "."]
        return int(pytest.main([*options, *tests], plugins=plugins))


def in_child(work: Callable[[], int], limit: float) -> int:
    """Run work in a forked process and return its exit code; one that takes too long, or raises, has failed."""
    child = os.fork()
    if not child:
        code = FAILED
        with contextlib.suppress(BaseException):
            os.setsid()
            for stream in (1, 2):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
            code = work()
        os._exit(code)
    end, pause = time.monotonic() + limit, 0.001
    try:
        while time.monotonic() < end:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            time.sleep(pause := min(2 * pause, 0.05))
        return FAILED
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(child, 0)


def replace_on_import(change: Change) -> CodeType:
    """Give the changed code to whoever imports the module from now on."""
    code: CodeType = compile(change.apply(change.file.read_bytes()), str(change.file), "exec", dont_inherit=True)
    get_code = SourceFileLoader.get_code

    def changed_code(loader: SourceFileLoader, name: str) -> CodeType | None:
        return code if loader.path == str(change.file) else get_code(loader, name)

    SourceFileLoader.get_code = changed_code  # type: ignore[method-assign, assignment]
    return code


def replace_code(change: Change) -> bool:
    """Change the functions that are there already, and the module if it is still to be imported; return whether that can be."""
    old = compile(change.file.read_bytes(), str(change.file), "exec", dont_inherit=True)
    before, after = list(_nested(old)), list(_nested(replace_on_import(change)))
    if len(before) != len(after):
        return False
    twins: dict[tuple[str, int], list[tuple[CodeType, CodeType]]] = defaultdict(list)
    for twin in zip(before, after, strict=True):
        twins[twin[0].co_name, twin[0].co_firstlineno].append(twin)
    for function in gc.get_objects():
        if type(function) is FunctionType and function.__code__.co_filename == str(change.file):
            code = function.__code__
            same = twins.get((code.co_name, code.co_firstlineno), [])
            for was, becomes in same:
                if len(same) == 1 or was == code:
                    if len(code.co_freevars) != len(becomes.co_freevars):
                        return False
                    function.__code__ = becomes
    return True


def _nested(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _nested(constant)


def record_tests(files: list[Path], tests: list[str], cache: Path) -> Record:
    """Return the record of a run of the tests, kept in a file."""
    if not cache.exists():

        def work() -> int:
            recorder = Recorder(files)
            code = run_pytest(tests, [recorder])
            cache.parent.mkdir(parents=True, exist_ok=True)
            for old in cache.parent.glob(f"{cache.stem.rpartition('-')[0]}-*"):
                old.unlink()
            record = recorder.record()
            cache.with_suffix(f".{code}").write_text(
                json.dumps({"seconds": record.seconds, "lines": record.lines, "failed": recorder.failed})
            )
            return code

        code = in_child(work, 3600)
        if code != PASSED:
            left = cache.with_suffix(f".{code}")
            failed = json.loads(left.read_text())["failed"] if left.exists() else []
            raise SystemExit(f"The tests fail without any change: python -m pytest {' '.join(failed or tests)}")
        cache.with_suffix(".0").rename(cache)
    kept = json.loads(cache.read_text())
    lines = {file: {int(line): owners for line, owners in of_file.items()} for file, of_file in kept["lines"].items()}
    return Record(kept["seconds"], lines)


def try_changes(record: Record, tests: list[str], changes: list[Change], fresh: bool) -> list[bool]:
    """Return for each change whether a test notices it."""
    noticed = dict[int, bool]()
    here = [] if fresh else [index for index, change in enumerate(changes) if not change.loaded]
    with tempfile.TemporaryFile("w+") as outcomes:

        def report(index: int, code: int) -> None:
            outcomes.write(f"{index} {code}\n")
            outcomes.flush()

        work = Trials(record, [None, *(changes[index] for index in here)], report)
        in_child(lambda: run_pytest(tests, [work]), 36000)
        outcomes.seek(0)
        codes = [int(line.split()[1]) for line in outcomes]
    if here and (len(codes) != len(here) + 1 or codes[0] != PASSED):
        raise SystemExit("The tests fail, quickest first and in a forked process, without any change: pass --fresh.")
    # What a test module made of the library when it was imported was made without the change: survivors are tried afresh.
    noticed |= {index: True for index, code in zip(here, codes[1:], strict=False) if code not in (PASSED, NOT_HERE)}
    for index in sorted({*range(len(changes))} - {*noticed}):
        noticed[index] = _fresh_trial(record, changes[index]) != PASSED
    return [noticed[index] for index in range(len(changes))]


def _fresh_trial(record: Record, change: Change) -> int:
    chosen = record.tests_of(change)

    def work() -> int:
        replace_on_import(change)
        return run_pytest(sorted({test.partition("::")[0] for test in chosen}), [Chosen(chosen)])

    return in_child(work, 60 + 5 * sum(record.seconds[test] for test in chosen))
