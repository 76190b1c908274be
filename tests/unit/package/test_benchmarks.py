"""The benchmarks run on the reference and write their page."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.benchmarks import __main__ as benchmarks
from tests.benchmarks import jobs, limits, measuring, reader, real_decoders, table
from tests.benchmarks.agreement import CASES, wilson
from tests.benchmarks.cases import drawn_bert

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"


def test_the_page_on_trained_decoders_is_generated_from_its_figures() -> None:
    page = (DOCS / "trained-decoders.md").read_text(encoding="utf-8")
    assert real_decoders.fill(page, real_decoders.Record(DOCS / "trained-decoders.json")) == page


def test_sentences_hold_both_nouns_and_shares_have_their_interval() -> None:
    assert len({case.text for case in CASES}) == 40
    assert all({case.noun, case.attractor} <= {*case.text.split()} for case in CASES)
    assert [case.right for case in CASES].count("are") == [case.wrong for case in CASES].count("are") == 7
    # the bounds solve (share - p)² = z² p (1 - p) / total
    for bound in wilson(38, 40):
        assert (38 / 40 - bound) ** 2 == pytest.approx(1.96**2 * bound * (1 - bound) / 40)


@pytest.mark.slow
def test_the_command_writes_the_page(tmp_path: Path) -> None:
    model = drawn_bert(tmp_path / "model", layers=1, dim=8, vocab=3000)
    page, figures = tmp_path / "performance-figures.md", tmp_path / "figures.json"
    options = f"--quick --seconds 0 --model {model} --frameworks reference --parts modes,overhead,peaks,cold"
    command = [
        sys.executable, "-m", "tests.benchmarks", *options.split(), "--write",
        str(tmp_path),
        "--json",
        str(figures),
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert '"/' not in figures.read_text(encoding="utf-8"), "a path of the machine"
    actual = json.loads(figures.read_text(encoding="utf-8"))
    assert actual["missing"] == []
    assert {row["mode"] for row in actual["sizes"]} == {"NumPy, the reference"}
    assert all(row["distance"] < 1e-6 and row["rounds"] >= 3 for row in actual["sizes"])
    assert actual["peaks"][0]["peaks"].keys() == actual["sizes"][0]["times"].keys()
    headings = set(re.findall("^## (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE))
    assert headings >= {"At 4 × 64", "From small to large", "One position", "Our own overhead", "Cold start"}


def test_the_pages_are_generated_from_their_figures() -> None:
    text = (DOCS / "performance.json").read_text(encoding="utf-8")
    assert '"/' not in text, "a path of the machine"
    figures = json.loads(text)
    assert table.page(figures, quick=False) == (DOCS / "performance-figures.md").read_text(encoding="utf-8")
    summary = (DOCS / "performance.md").read_text(encoding="utf-8")
    assert reader.fill(summary, figures) == summary
    assert set(re.findall("<!-- table: (.+?) -->", summary)) == set(reader.TABLES)


def test_the_command_generates_the_pages_from_figures_alone(tmp_path: Path) -> None:
    figures, same = DOCS / "performance.json", tmp_path / "figures.json"
    summary = (DOCS / "performance.md").read_text(encoding="utf-8")
    emptied = re.sub("(<!-- table: .+? -->\n).*?(<!-- end -->)", r"\1\2", summary, flags=re.DOTALL)
    assert len(emptied) < len(summary)
    (tmp_path / "performance.md").write_text(emptied, encoding="utf-8")
    given = ["--parts", "", "--frameworks", "reference", "--beside", figures, "--json", same, "--write", tmp_path]
    assert benchmarks.main([str(argument) for argument in given]) == 0
    for name in ("performance.md", "performance-figures.md"):
        assert (tmp_path / name).read_text(encoding="utf-8") == (DOCS / name).read_text(encoding="utf-8")
    assert json.loads(same.read_text(encoding="utf-8")) == json.loads(figures.read_text(encoding="utf-8"))


def test_code_by_hand_with_another_result_is_refused() -> None:
    def mode(*by_hand: float) -> measuring.Mode:
        ways = {str(n): lambda item=item: np.full(3, item) for n, item in enumerate(by_hand)}
        return measuring.Mode(lambda: None, ways, lambda: None, lambda: Result(np.ones(3)))

    assert measuring.checked(mode(1.0, 1.0))[0]["distance"] == 0
    with pytest.raises(RuntimeError, match=r"gradients is 3\.3e-01 from code by hand"):
        measuring.checked(mode(1.5))
    with pytest.raises(RuntimeError, match="ways by hand differ: '1'"):
        measuring.checked(mode(1.0, 1.1))


ROW = {"mode": "PyTorch", "examples": 16, "positions": 128}
TIMES = {"forward": 1.0, "by hand: a": 2.5, "by hand: b": 2.0, "backward": 3.0}


@pytest.mark.parametrize(
    ("ours", "verdicts"), [(2.04, ["yes", "yes"]), (2.05, ["**no**", "yes"]), (2.4, ["**no**"] * 2)]
)
def test_limits_compare_with_the_fastest_code_by_hand(ours: float, verdicts: list[str]) -> None:
    actual = {"sizes": [{**ROW, "times": {**TIMES, "gradients": ours}}]}
    assert [limit.verdict for limit in limits.limits(actual, (16, 128))] == verdicts
    assert f"**{ours / 2:.2f}**" in table.page(actual, quick=False)


def test_code_by_hand_compiled_for_each_shape_is_named() -> None:
    times = {**TIMES, "by hand: the same with jit_compile=True": 1.5, "gradients": 2.0}
    actual = list(limits.limits({"sizes": [{**ROW, "times": times}]}, (16, 128)))
    assert [(limit.measured, limit.verdict) for limit in actual[:2]] == [("1.333", "**no**"), ("1.000", "yes")]
    assert actual[1].what == "PyTorch: `gradients` / by hand without XLA, which compiles anew for each shape"


def rounds(**times: list[float]) -> dict[str, Any]:
    each = {**{name: [item] * 3 for name, item in TIMES.items()}, **times}
    return {**ROW, "times": {name: min(own) for name, own in each.items()}, "each": each}


def test_the_median_ratio_of_several_processes_counts() -> None:
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


def point(mode: str, size: tuple[int, int], *ours: float, what: str = "word", passes: int = 1) -> dict[str, Any]:
    each = {"by hand": [0.002] * len(ours), "gradients": [0.002 * ratio for ratio in ours]}
    about = {"mode": mode, "what": what, "examples": size[0], "positions": size[1], "passes": passes}
    return {**about, "times": {name: min(own) for name, own in each.items()}, "each": each}


def test_points_have_a_row_for_each_model_and_their_largest_prices_are_limited() -> None:
    rows = [
        point("JAX, 2 × 32", (4, 8), 1.5, what="layer.-1", passes=0),
        point("PyTorch, GPT-2, 2 × 32", (1, 8), 1.2, 1.3, 9.0),
        point("PyTorch, GPT-2, 2 × 32", (4, 8), 1.01, passes=2),
        point("PyTorch, GPT-2, 4 × 64", (4, 8), 1.06),
    ]
    written = table.page({"points": rows}, quick=False)
    framework, *lines = written[written.index("| framework | layers × dimensions |") :].splitlines()
    assert framework == "| framework | layers × dimensions | points | forward passes | 1 × 8 | 4 × 8 |"
    assert lines[1:4] == [
        "| PyTorch, GPT-2 | 2 × 32 | word | 1 or 2 | 1.30 (2.0) | 1.01 (2.0) |",
        "| PyTorch, GPT-2 | 4 × 64 | word | 1 | – | 1.06 (2.0) |",
        "| JAX | 2 × 32 | layer.-1 | 0 | – | 1.50 (2.0) |",
    ]
    asked = [
        (limit.what.partition(": ")[0], limit.bound, limit.measured)
        for limit in limits.limits({"points": rows}, (4, 8))
    ]
    assert asked == [
        ("JAX, points, several examples", "≤ 1.05", "1.500"),
        ("PyTorch, GPT-2, points, one example", "≤ 1.3", "1.300"),
        ("PyTorch, GPT-2, points, several examples", "≤ 1.05", "1.060"),
    ]


def test_points_are_priced_in_the_frameworks_that_are_asked_for(tmp_path: Path) -> None:
    def what(*arguments: str) -> list[tuple[str, dict[str, str]]]:
        options = benchmarks._options(["--parts", "points", *arguments])
        return [(job.what, job.environment) for job in jobs.jobs(options, tmp_path, "", None)]

    assert [name for name, _ in what("--frameworks", "gluon")] == [
        "points: Gluon, 6 × 384",
        "points: Gluon, 24 × 128",
        "points: Gluon, 12 × 768",
    ]
    assert [name for name, _ in what("--frameworks", "torch")].count("points: PyTorch, T5, 6 × 384") == 1
    on_jax = dict(what("--frameworks", "jax", "--quick"))
    assert set(on_jax) == {f"points: {mode}, 2 × 32" for mode in ("JAX", "JAX, compile=True", "Keras 3 on JAX")}
    assert on_jax["points: Keras 3 on JAX, 2 × 32"]["KERAS_BACKEND"] == "jax"


def test_refusals_and_failures_are_on_the_page() -> None:
    refused = {**ROW, "times": TIMES, "refused": "UnsupportedError: no | compiler"}
    rival = {"tool": "captum", "version": "1", "call": "", "note": "", "failed": "ImportError: none"}
    rivals = {name: [rival] for name in ("rivals", "rivals_small")}
    written = table.page({"sizes": [refused], **rivals, "missing": []}, quick=False)
    assert "| `gradients`, PyTorch, 16 × 128 | UnsupportedError: no \\| compiler |" in written
    assert written.count("could not be run: ImportError: none") == 3  # a limit, and both tables
    assert "| PyTorch: `gradients` / by hand | ≤ 1.02 | not measured | – | no |" in written


class Result:
    def __init__(self, values: np.ndarray) -> None:
        self.values = values
        self.provenance: dict[str, Any] = {}
