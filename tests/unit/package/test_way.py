"""The command that shows the way of one call counts what a call goes through."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks import way

OURS = """
def outer(forward, model):
    if model is None:
        return None
    forward(model)
    forward("another model with the same code")
    return [inner(forward, model) for _ in range(2)]


def inner(forward, model):
    return forward(model)


def idle():
    return 0
"""

THEIRS = """
def between(function, model):
    return function(forward, model)


def forward(model):
    return model
"""


@pytest.fixture
def call(tmp_path: Path) -> Any:
    """Return a way of known length: `outer` of ours, `between` of theirs, and `inner` of ours twice."""
    (tmp_path / "ours.py").write_text(OURS, encoding="utf-8")
    (tmp_path / "theirs.py").write_text(THEIRS, encoding="utf-8")
    ours, theirs = (runpy.run_path(str(tmp_path / f"{name}.py")) for name in ("ours", "theirs"))
    model: list[Any] = []
    return lambda: theirs["between"](ours["outer"], model), model, theirs["forward"].__code__


def followed(call: Any) -> way.Way:
    return way.followed(*call, lambda file: file.endswith("ours.py"))


def test_lines_functions_calls_and_depth_are_those_counted_by_hand(call: Any) -> None:
    actual = followed(call).figures()
    comprehension = sys.version_info < (3, 12)  # a function of its own, until Python 3.12
    assert (actual["files"], actual["functions"], actual["passes"]) == (1, 2, 3)
    assert actual["calls"] == (4 if comprehension else 3)
    assert actual["lines"] == 5, "the condition, two passes, the list, and the body of inner"
    assert actual["stack"] == (["outer", "outer.<locals>.<listcomp>", "inner"] if comprehension else ["outer", "inner"])
    assert actual["depth"] == len(actual["stack"])


def test_a_call_without_a_pass_has_no_depth(call: Any) -> None:
    function, model, _ = call
    actual = way.followed(function, model, (lambda _: None).__code__, lambda _: True).figures()
    assert (actual["passes"], actual["depth"], actual["stack"]) == (0, None, None)
    assert way.table([{"mode": "A", "at": "word", **actual}]).endswith("A, word: no forward pass in Python")


def test_another_tracer_goes_on_afterwards(call: Any) -> None:
    def tracer(*_: Any) -> None:
        return None

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        followed(call)
        assert sys.gettrace() is tracer
    finally:
        sys.settrace(before)


def test_each_row_has_its_figures() -> None:
    row = dict.fromkeys(way.COLUMNS, 7) | {"mode": "A", "at": "word", "stack": ["gradients", "run"], "lines": 1200}
    _, line, _, stack = way.table([row]).splitlines()
    assert line.split() == ["A", "word", "7", "7", "1,200", "7", "7", "7"]
    assert stack == "A, word: gradients > run"
