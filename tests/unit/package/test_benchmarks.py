"""The benchmarks run: the whole command on the reference, small, with its page; nothing is said of times."""

from __future__ import annotations

import contextlib
import itertools
import json
import mmap
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.benchmarks import __main__ as benchmarks
from tests.benchmarks import limits, measuring, shares, table
from tests.benchmarks.cases import drawn_bert

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
def test_the_command_writes_the_page(tmp_path: Path) -> None:
    model = drawn_bert(tmp_path / "model", layers=1, dim=8, vocab=3000)
    page, figures = tmp_path / "page.md", tmp_path / "figures.json"
    command = [sys.executable, "-m", "tests.benchmarks", "--quick", "--seconds", "0", "--model", model]
    command += [
        "--frameworks",
        "reference",
        "--parts",
        "modes,overhead,shares,peaks,cold",
        "--write",
        str(page),
        "--json",
        str(figures),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert '"/' not in figures.read_text(encoding="utf-8")  # no path of the machine
    found = json.loads(figures.read_text(encoding="utf-8"))
    assert found["missing"] == []
    assert {row["mode"] for row in found["sizes"]} == {"NumPy, the reference"}
    assert all(row["distance"] < 1e-6 and row["rounds"] >= 3 for row in found["sizes"])
    assert found["peaks"][0]["peaks"].keys() == found["sizes"][0]["times"].keys()
    assert sum(found["shares"][0]["shares"].values()) == pytest.approx(1)
    written = page.read_text(encoding="utf-8")
    for heading in (
        "At 4 × 64",
        "From small to large",
        "One position",
        "Our own overhead",
        "Where a small call's time goes",
        "Cold start",
    ):
        assert f"## {heading}\n" in written


def test_the_page_is_what_the_figures_beside_it_give() -> None:
    figures = json.loads((ROOT / "docs" / "performance.json").read_text(encoding="utf-8"))
    assert table.page(figures, quick=False) == (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")


def test_the_figures_name_no_path_of_the_machine() -> None:
    assert '"/' not in (ROOT / "docs" / "performance.json").read_text(encoding="utf-8")


def test_the_page_is_made_anew_of_figures_alone(tmp_path: Path) -> None:
    figures, page = ROOT / "docs" / "performance.json", tmp_path / "page.md"
    same = tmp_path / "figures.json"
    given = [
        "--parts",
        "",
        "--frameworks",
        "reference",
        "--beside",
        str(figures),
        "--json",
        str(same),
        "--write",
        str(page),
    ]
    assert benchmarks.main(given) == 0
    assert page.read_text(encoding="utf-8") == (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    assert json.loads(same.read_text(encoding="utf-8")) == json.loads(figures.read_text(encoding="utf-8"))


def test_parts_that_another_machine_measured_are_told_of() -> None:
    one = [{"framework": "torch", "what": part, "machine": "A"} for part in ("modes", "peaks")]
    assert list(table._machines({"machine": one})) == ["- torch: A."]
    joint = benchmarks.beside({"machine": one}, {"machine": [{"framework": "torch", "what": "peaks", "machine": "B"}]})
    assert list(table._machines(joint)) == ["- torch (modes): A.", "- torch (peaks): B."]


def test_shares_are_of_the_innermost_step(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("steps_of_a_call")
    now = itertools.count()
    monkeypatch.setattr(shares, "time", types.SimpleNamespace(perf_counter=lambda: next(now)))  # a second between looks

    @contextlib.contextmanager
    def around() -> Iterator[None]:
        yield

    def outer() -> None:
        with module.around():
            module.inner()

    module.inner, module.around, module.outer = lambda: None, around, outer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    steps = {step: (f"{module.__name__}:{step}",) for step in ("outer", "inner", "around")}
    monkeypatch.setitem(shares.STEPS, "made", steps)
    found = shares.shares(lambda: module.outer(), lambda: None, "made")
    # A second before and after `outer`, one within each of its steps (`around` is made, entered and left), and those between.
    assert found == pytest.approx({"all else": 2 / 11, "outer": 5 / 11, "around": 3 / 11, "inner": 1 / 11})
    assert module.outer is outer


def test_a_process_that_fails_is_told_of(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.benchmarks", "--quick", "--model", str(tmp_path)]
    command += ["--frameworks", "reference", "--parts", "peaks"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "| peaks: NumPy, the reference | the process ended with 1: FileNotFoundError" in done.stdout


def test_code_by_hand_that_gives_something_else_is_no_measure() -> None:
    def mode(*by_hand: float) -> measuring.Mode:
        ways = {str(n): lambda one=one: np.full(3, one) for n, one in enumerate(by_hand)}
        return measuring.Mode(lambda: None, ways, lambda: None, lambda: Result(np.ones(3)))

    assert measuring.checked(mode(1.0, 1.0))[0]["distance"] == 0
    with pytest.raises(RuntimeError, match=r"gradients is 3\.3e-01 from code by hand"):
        measuring.checked(mode(1.5))
    with pytest.raises(RuntimeError, match="ways by hand differ: '1'"):
        measuring.checked(mode(1.0, 1.1))


def test_turns_give_the_least_time_of_each_after_a_round_that_does_not_count() -> None:
    calls: list[str] = []
    found = measuring.in_turns({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, seconds=0, fewest=4)
    assert found["rounds"] == 4
    assert calls.count("a") == calls.count("b") == 5
    assert all(0 <= seconds < 1 for seconds in found["times"].values())
    assert found["times"] == {name: min(own) for name, own in found["each"].items()}
    assert "each" not in measuring.in_turns({"a": lambda: None}, seconds=0, fewest=measuring.MOST_KEPT + 1)


def test_a_peak_is_what_a_call_holds_at_once() -> None:
    def taken(size: int) -> Any:
        """Memory from the kernel itself: the C library may have some left from earlier tests, and may keep what it is given."""
        memory = mmap.mmap(-1, size << 20)
        np.frombuffer(memory, np.uint8)[:] = 1
        return memory

    def call() -> Any:
        first = taken(32)
        first.close()
        return taken(16), taken(16)

    assert measuring.peak_of(call) == pytest.approx(32, abs=4)


ROW = {"mode": "PyTorch", "examples": 16, "positions": 128}
TIMES = {"forward": 1.0, "by hand: a": 2.5, "by hand: b": 2.0, "backward": 3.0}


@pytest.mark.parametrize(
    ("ours", "verdicts"), [(2.04, ["yes", "yes"]), (2.05, ["**no**", "yes"]), (2.4, ["**no**"] * 2)]
)
def test_limits_are_of_the_fastest_code_by_hand(ours: float, verdicts: list[str]) -> None:
    found = {"sizes": [{**ROW, "times": {**TIMES, "gradients": ours}}]}
    assert [limit.verdict for limit in limits.limits(found, (16, 128))] == verdicts
    assert f"**{ours / 2:.2f}**" in table.page(found, quick=False)


def test_code_by_hand_that_is_compiled_for_each_shape_counts_and_is_told_of() -> None:
    times = {**TIMES, "by hand: the same with jit_compile=True": 1.5, "gradients": 2.0}
    found = list(limits.limits({"sizes": [{**ROW, "times": times}]}, (16, 128)))
    assert [(limit.measured, limit.verdict) for limit in found[:2]] == [("1.333", "**no**"), ("1.000", "yes")]
    assert found[1].what == "PyTorch: `gradients` / by hand without XLA, which compiles anew for each shape"


def rounds(**times: list[float]) -> dict[str, Any]:
    """A row of one process that had these times in its rounds."""
    each = {**{name: [one] * 3 for name, one in TIMES.items()}, **times}
    return {**ROW, "times": {name: min(own) for name, own in each.items()}, "each": each}


def test_of_all_rounds_of_several_processes_the_ratio_in_the_middle_counts() -> None:
    rows = [
        rounds(gradients=[2.4, 2.0, 2.1], backward=[3.6, 3.0, 3.0]),  # of these the middle is 1.05, and the least 1.0
        rounds(gradients=[1.8, 1.0, 1.8], backward=[2.7, 2.0, 2.7], **{"by hand: b": [1.8, 2.0, 2.0]}),
        rounds(gradients=[2.0, 2.0, 9.0], backward=[3.0, 3.0, 9.0]),
    ]
    alone = {**ROW, "positions": 8, "times": {**TIMES, "gradients": 2.2}}
    refused = {**ROW, "mode": "Gluon, imperative", "times": TIMES, "refused": "no"}
    written = table.page({"sizes": [*rows, alone, refused, refused]}, quick=False)
    assert "| PyTorch | 1000 | 2.00 | 2.00 | **1.00** | 0.90 to 1.05 | 0.56 | 0.67 |" in written
    assert "| PyTorch: full backward / `gradients` | ≥ 1.3 | 1.500 | 1.500 | yes |" in written
    assert "| PyTorch: `gradients` / by hand | ≤ 1.02 | 1.000 | – | yes |" in written
    assert "| PyTorch | 1.10 (2.20) | 1.00 (2.00) |" in written
    assert "| Gluon, imperative | 1000 | – | 2.00 | **–** | – | – | – |" in written
    assert written.count("| Gluon, imperative: `gradients` / by hand | ≤ 1.02 | not measured |") == 1


def test_processes_whose_rounds_are_not_known_are_joined_by_their_least_times() -> None:
    rows = [{**ROW, "times": {**TIMES, "gradients": ours}} for ours in (2.4, 2.0, 2.2)]
    written = table.page({"sizes": rows}, quick=False)
    assert "| PyTorch | 1000 | 2.00 | 2.00 | **1.00** | 1.00 to 1.20 | 1.00 | 0.67 |" in written


def test_what_was_refused_or_failed_stands_on_the_page() -> None:
    refused = {**ROW, "times": TIMES, "refused": "UnsupportedError: no | compiler"}
    rival = {"tool": "captum", "version": "1", "call": "", "note": "", "failed": "ImportError: none"}
    rivals = {name: [rival] for name in ("rivals", "rivals_small")}
    written = table.page({"sizes": [refused], **rivals, "missing": []}, quick=False)
    assert "| `gradients`, PyTorch, 16 × 128 | UnsupportedError: no \\| compiler |" in written
    assert written.count("could not be run: ImportError: none") == 3  # a limit, and both tables
    assert "| PyTorch: `gradients` / by hand | ≤ 1.02 | not measured | – | no |" in written


def test_other_tools_small_calls_stand_beside_ours() -> None:
    times = {"theirs": 1.75e-3, "ours": 2.5e-3, "by hand": 1.5e-3}
    row = {"tool": "captum", "version": "1", "call": "a call", "note": "as it is", "times": times}
    written = table.page({"rivals_small": [row]}, quick=False)
    assert "| captum 1 | a call | as it is | 1.5 | +0.25 | +1.00 |" in written


class Result:
    """As much of a result as a check looks at."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values
        self.provenance: dict[str, Any] = {}


def test_rows_measured_now_take_the_place_of_earlier_ones() -> None:
    earlier = {"sizes": [{**ROW, "mode": mode, "times": 1} for mode in ("Gluon, imperative", "PyTorch")], "cold": [ROW]}
    found = {"sizes": [{**ROW, "mode": "PyTorch", "times": 2}, {**ROW, "mode": "PyTorch", "positions": 8, "times": 3}]}
    joint = benchmarks.beside(earlier, found)
    assert [(row["mode"], row["times"]) for row in joint["sizes"]] == [
        ("PyTorch", 2),
        ("PyTorch", 3),
        ("Gluon, imperative", 1),
    ]
    assert joint["cold"] == [ROW]
