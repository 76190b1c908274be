"""The command that shows the way of one call counts what a call goes through."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks import way

ROOT = Path(__file__).parents[3]
REFERENCE = "NumPy, the reference"

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
    assert (actual["codes"], actual["calls"]) == ((3, 4) if comprehension else (2, 3))
    assert actual["lines"] == 5, "the condition, two passes, the list, and the body of inner"
    assert actual["stack"] == (["outer", "outer.<locals>.<listcomp>", "inner"] if comprehension else ["outer", "inner"])
    assert actual["depth"] == len(actual["stack"])


def test_a_call_without_a_pass_has_no_depth(call: Any) -> None:
    function, model, _ = call
    actual = way.followed(function, model, (lambda _: None).__code__, lambda _: True).figures()
    assert (actual["passes"], actual["depth"], actual["stack"]) == (0, None, None)


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


def test_the_command_shows_the_reference_and_compares(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    command = [sys.executable, "-m", "tests.benchmarks.way", "--framework", REFERENCE]
    shown = run([*command, "--json", str(file)])
    rows = json.loads(file.read_text(encoding="utf-8"))
    assert [(row["framework"], row["at"], row["passes"]) for row in rows] == [
        (REFERENCE, "word", 1),
        (REFERENCE, "layer.-1", 1),
    ]
    for row in rows:
        assert 1 < row["files"] <= row["functions"] <= row["codes"] <= min(row["lines"], row["calls"])
        assert row["depth"] == len(row["stack"]) > 1
        assert "gradients" in row["stack"]
        assert " > ".join(row["stack"]) in shown
    again = run([*command, "--compare", str(file)])
    assert f"{rows[0]['files']} -> {rows[0]['files']}" in again


def run(command: list[str]) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_figures_of_before_stand_at_the_left() -> None:
    row = dict.fromkeys(way.COLUMNS, 7) | {"framework": "A", "at": "word", "stack": ["gradients", "run"], "lines": 1200}
    alone, beside = way.table([row]), way.table([row], [{**row, "lines": 1700, "depth": None}])
    assert alone.splitlines()[1].split() == ["A", "word", "7", "7", "7", "1,200", "7", "7", "7"]
    assert "1,700 -> 1,200" in beside
    assert beside.splitlines()[1].endswith("- -> 7")
    assert "A, word:\n    gradients > run" in alone


def test_an_unknown_framework_is_named() -> None:
    with pytest.raises(SystemExit, match=f"there is no framework 'Torch'; there are: {REFERENCE}; PyTorch"):
        way.main(["--framework", "Torch"])
