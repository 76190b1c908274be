"""The example project of pinned gradients: it passes as it is committed, says what changed, and takes changes in."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "golden"
GOLDEN = Path("goldens") / "test_gradients" / "test_pytorch.safetensors"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return Path(shutil.copytree(EXAMPLE, tmp_path / "golden", ignore=shutil.ignore_patterns("__pycache__", ".*")))


def run(project: Path, *options: str, fails: bool = False, change: str = "") -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "embgrad.pytest_plugin", "-p", "no:cacheprovider", *options],
        cwd=project,
        env={**kept, "EXAMPLE_CHANGE": change},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == int(fails), done.stdout + done.stderr[-2000:]
    return done.stdout


def test_it_passes_as_it_is_committed(project: Path) -> None:
    """In PyTorch and in TensorFlow, against one file."""
    before = (project / GOLDEN).read_bytes()
    assert "2 passed" in run(project)
    assert (project / GOLDEN).read_bytes() == before
    assert sum(path.stat().st_size for path in project.rglob("*.safetensors")) < 300_000


@pytest.mark.sampled(1)
@pytest.mark.parametrize("change", ["gelu", "layer-norm-epsilon"])
def test_a_changed_model_fails_with_the_figures(project: Path, change: str) -> None:
    text = run(project, "-k", "pytorch", change=change, fails=True)
    assert re.search(r"GoldenError: at 'word' the gradient moved, relative L2 \d\.\d\de-0[45], tolerance", text)
    assert re.search(r"E +example 1 +\d\.\d+e-0[45]", text)
    assert "finding:" not in text  # a cause inside a model takes both models
    assert "Pass both models" in text
    assert "with --embgrad-update" in text
    assert "golden.py:" not in text


def test_a_change_is_accepted(project: Path) -> None:
    text = run(project, "-k", "pytorch", "--embgrad-update", change="gelu")
    assert f"changed   {GOLDEN.as_posix()}" in text
    run(project, "-k", "pytorch", change="gelu")


def test_the_readme_names_tests_and_files_that_exist() -> None:
    text = (EXAMPLE / "README.md").read_text(encoding="utf-8")
    tests = (EXAMPLE / "test_gradients.py").read_text(encoding="utf-8")
    for name in re.findall(r"`(test_\w+)`", text):
        assert f"def {name}(" in tests
    for change in re.findall(r"EXAMPLE_CHANGE=(\S+)", text):
        assert f'"{change}": ' in (EXAMPLE / "bert.py").read_text(encoding="utf-8")
    assert (EXAMPLE / GOLDEN).as_posix().endswith(re.findall(r"`(goldens/\S+\.safetensors)`", text)[0])
