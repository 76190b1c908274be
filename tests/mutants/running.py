"""A process for each change that runs the tests which execute its line."""

from __future__ import annotations

import gc
import math
import os
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from types import CodeType, FunctionType

import pytest

from tests.mutants.changes import Change
from tests.mutants.processes import FAILED, NOT_HERE, PASSED, in_child, run_pytest
from tests.mutants.recording import Record, file_of

#: Makes a change, or none, and runs tests: the exit code, and the test that failed, if that ended the process.
Attempt = Callable[[Change | None, list[str]], tuple[int, str | None]]


@dataclass
class Verdicts:
    """Whether tests notice changes, by attempts in which each test that fails must pass without the change.

    Attributes:
        sound: the tests that have passed without a change in such an attempt.
        ends: whether tests have ended the process without a change, or waited for ever, as JAX does in a forked process.
    """

    record: Record
    attempt: Attempt
    sound: set[str]
    ends: bool = False

    def outcome(self, change: Change) -> int:
        """Return PASSED, FAILED, or NOT_HERE if the tests end the process without the change as well."""
        while tests := self.record.tests_of(change):
            code, failed = self.attempt(change, tests)
            if code in (PASSED, NOT_HERE, pytest.ExitCode.INTERRUPTED) or failed in self.sound:
                return code
            until = tests[: tests.index(failed) + 1] if failed else tests
            without, failed_without = self.attempt(None, until)
            if without == PASSED:
                self.sound.update(until)
                return FAILED
            if failed_without is None:
                self.ends = True
                return NOT_HERE
            del self.record.seconds[failed_without]
        return PASSED


class Ending:
    """The plugin that ends the process at the first test that fails, whose name it leaves in a file."""

    def __init__(self, place: int) -> None:
        self.place = place

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            os.write(self.place, report.nodeid.encode())
            os._exit(FAILED)


def run_apart(work: Callable[[Ending], int], limit: float) -> tuple[int, str | None]:
    """Do work in a process of its own, and return its exit code and the test that ended it."""
    with tempfile.TemporaryFile() as name:
        ending = Ending(name.fileno())
        code = in_child(lambda: work(ending), limit)
        name.seek(0)
        return code, name.read().decode() or None


class Trials:
    """The plugin that, in place of the run, makes each change in a forked process and runs its tests there."""

    def __init__(self, record: Record, changes: list[Change], report: Callable[[int, int], None]) -> None:
        self.record, self.changes, self.report = record, changes, report

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}

        def attempt(change: Change | None, tests: list[str]) -> tuple[int, str | None]:
            def work(ending: Ending) -> int:
                session.config.pluginmanager.register(ending)
                if change is not None and not replace_code(change):
                    return NOT_HERE
                run_items([items[test] for test in tests if test in items])
                return PASSED

            return run_apart(work, 60 + 10 * sum(self.record.seconds[test] for test in tests))

        verdicts = Verdicts(self.record, attempt, set())
        for index, change in enumerate(self.changes):
            self.report(index, NOT_HERE if verdicts.ends else verdicts.outcome(change))
        return True


class Chosen:
    """The plugin that runs the chosen tests alone, quickest first."""

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
    gc.unfreeze()  # those whose modules were imported when the tests were collected, too
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


def try_changes(record: Record, changes: list[Change], fresh: bool) -> list[bool]:
    """Return for each change whether a test notices it, and say each as it is known."""
    here = [] if fresh else [index for index, change in enumerate(changes) if not change.loaded]
    with os.fdopen(os.dup(2), "w") as progress, tempfile.TemporaryFile("w+") as outcomes:

        def say(index: int, way: str, code: int) -> None:
            change, word = changes[index], {PASSED: "survived", NOT_HERE: "not here"}.get(code, "noticed")
            print(
                f"{index + 1} of {len(changes)} {way}: {word}, {change.file.name}:{change.line}",
                file=progress,
                flush=True,
            )

        def report(index: int, code: int) -> None:
            print(here[index], code, file=outcomes, flush=True)
            say(here[index], "forked", code)

        if here:
            work = Trials(record, [changes[index] for index in here], report)
            in_child(lambda: run_pytest(sorted({*map(file_of, record.seconds)}), [work]), math.inf)
        outcomes.seek(0)
        # What a test module made of the library when it was imported was made without the change: survivors are tried afresh.
        ended = (map(int, line.split()) for line in outcomes)
        noticed = {index for index, code in ended if code not in (PASSED, NOT_HERE)}
        verdicts = Verdicts(record, lambda change, tests: _attempt_afresh(record, change, tests), set())
        for index in sorted({*range(len(changes))} - noticed):
            code = verdicts.outcome(changes[index])
            say(index, "afresh", code)
            if code not in (PASSED, NOT_HERE):
                noticed.add(index)
    return [index in noticed for index in range(len(changes))]


def _attempt_afresh(record: Record, change: Change | None, tests: list[str]) -> tuple[int, str | None]:
    def work(ending: Ending) -> int:
        if change is not None:
            replace_on_import(change)
        return run_pytest(sorted({*map(file_of, tests)}), [Chosen(tests), ending])

    return run_apart(work, 60 + 10 * sum(record.seconds[test] for test in tests))
