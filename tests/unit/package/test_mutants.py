"""The command that changes single lines tells those that the tests notice from the others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants.__main__ import draw
from tests.mutants.changes import Change, changes_in, read_equivalents
from tests.mutants.processes import FAILED, NOT_HERE, PASSED
from tests.mutants.recording import Record
from tests.mutants.running import Verdicts

ROOT = Path(__file__).parents[3]
SOURCE = """\
STRICT = True


def checked(number, limit):
    if not STRICT:
        return None
    if number > limit:
        raise ValueError(f"{number} is more than {limit}")
    return max([number])


def unseen(number):
    return number * 2
"""
TESTS = """\
import pytest
from tiny import checked


def test_of_something_else():
    assert checked(1, 3) == 3


def test_the_limit():
    assert checked(1, 3) == 1
    with pytest.raises(ValueError):
        checked(4, 3)
"""
EQUIVALENT = """\
tiny/tiny.py
- return max([number])
+ return min([number])
A list of one number.
"""


def changed_lines(source: str) -> set[str]:
    return {change.lines(source.encode())[1].strip() for change in changes_in(Path("x.py"), source.encode())}


def test_a_survivor_is_shown_and_an_equivalent_change_is_left_out(tmp_path: Path) -> None:
    sources, tests, listed = tmp_path / "tiny", tmp_path / "tests", tmp_path / "list.txt"
    sources.mkdir()
    tests.mkdir()
    for file, text in {sources / "tiny.py": SOURCE, tests / "test_tiny.py": TESTS, listed: EQUIVALENT}.items():
        file.write_text(text)
    options = ["--sources", str(sources), "--tests", str(tests), "--equivalent", str(listed)]
    command = [sys.executable, "-m", "tests.mutants", *options]
    surroundings = {**os.environ, "PYTHONPATH": str(sources)}
    done = subprocess.run(command, cwd=ROOT, env=surroundings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    _, header, counts, *_ = done.stdout.splitlines()
    assert header.split() == ["file", "noticed", "survived", "equivalent"]
    assert counts.split() == ["tiny/tiny.py", "2", "1", "1"]
    assert "tiny/tiny.py:7\n-    if number > limit:\n+    if number >= limit:\n\n" in done.stdout
    assert "tiny, seed 0: noticed 2 of 3 changes (67%), 1 equivalent; " in done.stdout
    left_out = "Tests that fail without any change are left out: tests/test_tiny.py::test_of_something_else\n"
    assert done.stdout.startswith(left_out)
    assert (sources / "tiny.py").read_text() == SOURCE


def test_a_change_after_which_the_source_is_not_python_is_not_drawn(tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    file.write_text("def f():\n    g(a=h, b=i)\n")
    record = Record({"test": 1.0}, {str(file): {2: ["test"]}})
    drawn = {change.lines(file.read_bytes())[1] for seed in range(9) for change in draw(record, [file], 1, seed)}
    assert drawn == {"    pass", "    g(a=h)"}


def test_tests_that_are_too_long_for_the_time_are_left_out_and_quick_ones_behind_them_run() -> None:
    record = Record({"a": 1.0, "b": 9.0, "c": 3.0, "d": 0.5}, most=4.0)
    assert [record.within(ordered) for ordered in (["a", "b", "c", "d"], ["b", "a"])] == [["a", "c"], ["b"]]


CHANGE = Change(Path("x.py"), line=3, statement=3, start=0, end=1, text=b"", loaded=False)


@pytest.mark.parametrize(
    ("without", "outcome", "attempts"),
    [
        ({}, FAILED, 2),  # the test passes without the change
        ({"quick": (FAILED, "quick")}, PASSED, 3),  # it does not, and the other test passes with the change
        ({"quick": (-9, None)}, NOT_HERE, 2),
    ],
)
def test_a_failure_counts_where_the_test_passes_without_the_change(
    without: dict[str, tuple[int, str | None]], outcome: int, attempts: int
) -> None:
    made = list[tuple[bool, list[str]]]()

    def attempt(change: Change | None, tests: list[str]) -> tuple[int, str | None]:
        made.append((change is not None, tests))
        if change is None:
            return without.get(tests[-1], (PASSED, None))
        return (FAILED, "quick") if "quick" in tests else (PASSED, None)

    record = Record({"quick": 1.0, "slow": 2.0}, {"x.py": {3: ["quick", "slow"]}})
    verdicts = Verdicts(record, attempt, set())
    assert verdicts.outcome(CHANGE) == outcome
    assert verdicts.ends is (outcome == NOT_HERE)
    assert made[:2] == [(True, ["quick", "slow"]), (False, ["quick"])]
    assert len(made) == attempts


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("if a is not b: pass", {"if a is b: pass"}),
        ("if a: pass", {"if not a: pass"}),
        ("x = f(a, axis=0)", {"x = f(a)", "x = f(a, axis=1)", "x = f(a, axis=(-1))"}),
        ("x = a[:n]", {"x = a[:n + 1]", "x = a[:n - 1]"}),
        ("x = a and not b", {"x = a or not b", "x = a and b"}),
        ("x = -a * 2.0", {"x = a * 2.0", "x = -a / 2.0", "x = -a * 3.0", "x = -a * 1.0"}),
        ("x.y = max(a)", {"pass", "x.y = min(a)"}),
        ("x: 'dict[int, str]' = True", {"x: 'dict[int, str]' = False"}),
        ("raise ValueError(f'{a + 1}' + 'b')", set()),
        ("assert a == b, a + b", {"assert a != b, a + b"}),
        ("for a, b in zip(c, d, strict=True): continue", {"for a, b in zip(c, d, strict=True): pass"}),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING: x = 1", set()),
        ("__all__ = ['a'] * 2", set()),
    ],
)
def test_what_a_line_can_become(before: str, after: set[str]) -> None:
    assert changed_lines(before) == after


def test_a_moved_line_is_still_recognised() -> None:
    listed = read_equivalents("# A comment.\n\na.py\n- x = 1\n+ x = 2\n- y = 3\n+ y = -3\nIt is\nnever read.\n")
    reason = "It is never read."
    assert listed == {("a.py", "x = 1", "x = 2"): reason, ("a.py", "y = 3", "y = -3"): reason}
