"""The installed distribution finds its backends from any folder, and is typed."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

#: A file of constraints, as an option of pip or in its environment.
CONSTRAINTS = re.compile(
    r"""(?:PIP_CONSTRAINT\s*=|(?:^|\s)--constraint[\s=]|(?:^|\s)-c\s*)\s*["']?([^\s"']*\.txt|\$[({]\w+[)}])"""
)
#: How an absolute path begins, in a Makefile, in tox.ini and anywhere.
ABSOLUTE = ("/", "$(CURDIR)/", "{tox_root}/", "{toxinidir}/")


def test_the_backends_are_found_from_any_folder(tmp_path: Path) -> None:
    script = (
        "import json, embgrad, embgrad.backend.registry as r;"
        "print(json.dumps([sorted(embgrad.backend.list_backends()), dict(r._discover().failures)]))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == [["gluon", "jax", "onnx", "reference", "tensorflow", "torch"], {}]


@pytest.mark.parametrize("package", ["embgrad", "embgrad_gluon", "embgrad_onnx", "embgrad_tensorflow", "embgrad_torch"])
def test_the_packages_are_typed(package: str) -> None:
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    assert (Path(spec.origin).parent / "py.typed").is_file()


def constraint_files(text: str) -> list[str]:
    variables = dict(re.findall(r"^(\w+)\s*[:?]?=\s*(.*)$", text, flags=re.MULTILINE))
    named = [match for line in text.splitlines() for match in CONSTRAINTS.findall(line)]
    return [re.sub(r"\$[({](\w+)[)}]", lambda match: variables.get(match[1], match[0]), name) for name in named]


@pytest.mark.parametrize("name", ["Makefile", "tox.ini"])
def test_constraint_files_are_named_by_absolute_paths(name: str) -> None:
    named = constraint_files((ROOT / name).read_text(encoding="utf-8"))
    assert named
    assert [path for path in named if not path.startswith(ABSOLUTE)] == []


def test_ci_runs_with_an_empty_package_cache() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    lines = script.splitlines()
    assert lines.index("make demo") < lines.index("make test")
    assert 'export PIP_CACHE_DIR="$cold/pip" XDG_CACHE_HOME="$cold/xdg"' in lines[: lines.index("make demo")]


def test_the_paths_that_environments_test_exist() -> None:
    paths = set(re.findall(r"\btests/[\w/]+(?:\.py)?", (ROOT / "tox.ini").read_text(encoding="utf-8")))
    assert len(paths) > 10
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []
