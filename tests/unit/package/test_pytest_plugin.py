"""The pytest plugin: its files, its option, its reports, and its cost for runs that do not use it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import embgrad
from embgrad.errors import EmbgradError, GoldenError
from embgrad.pytest_plugin import LONGEST, GoldenFiles, file_stem
from embgrad.testing.reference import ReferenceModel, lookup

#: A module of tests of a model whose factor the environment sets.
MODULE = '''
import os
import numpy as np
import pytest
import embgrad
from embgrad.testing.reference import ReferenceModel, lookup


def run(scale=float(os.environ.get("SCALE", 1)), **options):
    """The gradients of one model."""
    def forward(model, input_ids):
        return lookup(model["E"], input_ids).mean(1) * scale
    weights = np.random.RandomState(3).normal(size=(4, 3)).astype(np.float32)
    return embgrad.gradients(ReferenceModel(forward, {"E": weights}), [[0, 1], [2, 3]], embgrad.Logit([0, 1]), **options)
'''
ONE = """
def test_one(embgrad_golden):
    assert embgrad_golden(run()).agrees
"""


class Project:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, tests: str, name: str = "test_it.py") -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(MODULE + tests, encoding="utf-8")

    def run(self, *options: str, fails: bool | None = False, **environment: str) -> str:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-W", "error", *options],
            cwd=self.folder,
            env={**kept, **environment},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        text = done.stdout + done.stderr
        assert fails is None or done.returncode == int(fails), text
        return text

    def goldens(self) -> list[str]:
        return sorted(path.relative_to(self.folder).as_posix() for path in self.folder.rglob("*.safetensors"))


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_a_golden_file_is_written_checked_and_updated(project: Project) -> None:
    project.write(ONE)
    path = project.folder / "goldens" / "test_it" / "test_one.safetensors"

    text = project.run(fails=True)
    assert "GoldenError: there is no golden file" in text
    assert "write it: run this test with --embgrad-update, look at what has changed, and commit the file" in text
    assert not path.exists()
    assert "embgrad golden files" not in text

    text = project.run("--embgrad-update")
    assert "embgrad: golden files are updated" in text
    assert "written   goldens/test_it/test_one.safetensors" in text
    assert "1 written, 0 changed, 0 unchanged" in text
    written = path.read_bytes()
    assert embgrad.load(path).provenance["point"] == "word"  # type: ignore[union-attr]

    assert "1 passed" in project.run()
    stamp = path.stat().st_mtime_ns
    assert "0 written, 0 changed, 1 unchanged" in project.run("--embgrad-update", "-q")
    assert path.stat().st_mtime_ns == stamp

    text = project.run(fails=True, SCALE="1.5")
    assert re.search(r"E +embgrad\.errors\.GoldenError: the gradient moved, relative L2 5\.00e-01", text)
    assert re.search(r"E +example 0 +5\.000e-01", text)
    assert "test_it.py:" in text
    assert "golden.py:" not in text  # the plugin's own frames are left out
    assert "pytest_plugin.py:" not in text
    assert path.read_bytes() == written

    text = project.run("--embgrad-update", SCALE="1.5")
    assert "changed   goldens/test_it/test_one.safetensors" in text
    assert "0 written, 1 changed, 0 unchanged" in text
    assert path.read_bytes() != written
    project.run(SCALE="1.5")


SEVERAL = """
@pytest.mark.parametrize("kind", ["a", "b/c", "A b", "é", ""])
def test_kinds(embgrad_golden, kind):
    embgrad_golden(run())

class TestModel:
    def test_points(self, embgrad_golden):
        found = embgrad_golden({"word": run(), "layer.-1": run()})
        assert sorted(found) == ["layer.-1", "word"]

    class TestInside:
        def test_names(self, embgrad_golden):
            for name in ("one", "two", "../up"):
                embgrad_golden(run(), name)
"""


def test_each_test_has_its_own_file(project: Project) -> None:
    project.write(SEVERAL)
    project.write(ONE, "further/test_it.py")
    text = project.run("--embgrad-update", "-n", "2", "--import-mode=importlib")
    assert "10 written, 0 changed, 0 unchanged" in text
    actual = project.goldens()
    assert len(actual) == 10
    for path in (
        "further/goldens/test_it/test_one.safetensors",
        "goldens/test_it/test_kinds-a.safetensors",
        "goldens/test_it/TestModel.test_points.safetensors",
        "goldens/test_it/TestModel.TestInside.test_names--one.safetensors",
    ):
        assert path in actual
    assert sum("@" in path for path in actual) == 5
    project.run("--import-mode=importlib")
    text = project.run("--embgrad-update", "--import-mode=importlib", "-k", "names or a")
    assert "0 written, 0 changed" in text


def test_a_broken_file_fails_and_is_rewritten(project: Project) -> None:
    project.write(ONE)
    path = project.folder / "goldens" / "test_it" / "test_one.safetensors"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"<<<<<<< HEAD")
    assert "FileFormatError" in project.run(fails=True)
    assert "0 written, 1 changed, 0 unchanged" in project.run("--embgrad-update")
    project.run()


def test_the_options_of_check_are_respected(project: Project) -> None:
    project.write(
        """
def test_one(embgrad_golden):
    embgrad_golden(run(), "kept")

def test_two(embgrad_golden):
    embgrad_golden(run(float(os.environ.get("SCALE", 1))), tolerance=1.0)

def test_three(embgrad_golden):
    embgrad_golden(run(), models=object())
"""
    )
    project.run("--embgrad-update")
    text = project.run("-rA", fails=True, SCALE="1.25")
    assert "PASSED test_it.py::test_two" in text
    assert "FAILED test_it.py::test_one" in text


def test_a_failure_before_the_check_writes_nothing(project: Project) -> None:
    project.write("def test_one(embgrad_golden):\n    assert False\n    embgrad_golden(run())\n")
    text = project.run("--embgrad-update", fails=True)
    assert "embgrad golden files" not in text
    assert project.goldens() == []


@pytest.mark.parametrize(
    ("arguments", "stem"),
    [
        (([], "test_one"), "test_one"),
        (([], "test_one[torch]"), "test_one-torch"),
        (([], "test_one[torch-0.5-float32]"), "test_one-torch-0.5-float32"),
        ((["TestA", "TestB"], "test_one[x=1]", "pooled"), "TestA.TestB.test_one-x=1--pooled"),
    ],
)
def test_plain_names_are_unchanged(arguments: Any, stem: str) -> None:
    assert file_stem(*arguments) == stem


@pytest.mark.parametrize(
    "test",
    [
        *("test_é", "test[]", "test[a--b]", "test[-a]", "test[a-]", "test[a b]", "test[a/b]", "test[..]/x", "a-b"),
        *("con", "nul", "COM1", "test[" + "x" * 300 + "]", "test[a@b]", "test[a:b]", "test[*?]", "test[\x00]"),
        "test[\ud800]",
    ],
)
def test_other_names_get_a_digest(test: str) -> None:
    stem = file_stem([], test)
    assert re.fullmatch(r"[A-Za-z0-9_.=,+-]+@[0-9a-f]{16}", stem)
    assert len(stem) <= LONGEST
    assert file_stem([], test) == stem


PARTS = st.text(st.sampled_from("aA1_-.[]@/ é"), min_size=1, max_size=6)
TESTS = st.tuples(
    st.lists(st.sampled_from(["T", "Ta", "a"]), max_size=2), PARTS | st.text(min_size=1), st.none() | PARTS
)


@given(TESTS, TESTS)
def test_no_two_tests_have_the_same_file(first: Any, second: Any) -> None:
    if first != second:
        assert file_stem(*first) != file_stem(*second)


@given(PARTS, PARTS, PARTS)
def test_parameters_and_names_are_distinguished(first: str, second: str, third: str) -> None:
    candidates = [
        ([], f"t[{first}-{second}]", third),
        ([], f"t[{first}]", f"{second}-{third}"),
        ([], f"t[{first}-{second}-{third}]", None),
        ([], f"t[{first}--{second}]", third),
        ([], "t", f"{first}-{second}-{third}"),
    ]
    distinct = {json.dumps(item): item for item in candidates}
    assert len({file_stem(*item) for item in distinct.values()}) == len(distinct)


IDLE = """
def test_nothing():
    pass
"""
SPY = """
import sys

def pytest_sessionfinish(session):
    print("\\nthere:", [name for name in ("numpy", "embgrad", "safetensors") if name in sys.modules])
    print("plugin:", hasattr(session.config.option, "embgrad_update"))
"""


def test_a_run_without_the_fixture_does_not_import_embgrad(project: Project) -> None:
    (project.folder / "test_idle.py").write_text(IDLE)
    (project.folder / "conftest.py").write_text(SPY)
    for options in ((), ("--embgrad-update",)):
        text = project.run("-p", "embgrad.pytest_plugin", *options, "-s", PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
        assert "there: []" in text
        assert "plugin: True" in text
    project.write(ONE)
    text = project.run("-p", "embgrad.pytest_plugin", "--embgrad-update", "-s", PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    assert "there: ['numpy', 'embgrad', 'safetensors']" in text  # the spy sees what there is


@pytest.mark.parametrize(
    ("options", "conftest", "autoload", "there"),
    [
        ([], "", True, True),
        (["-p", "embgrad.pytest_plugin"], "", True, True),
        (["-p", "embgrad.pytest_plugin"], "", False, True),
        ([], 'pytest_plugins = ["embgrad.pytest_plugin"]\n', True, True),
        ([], 'pytest_plugins = ["embgrad.pytest_plugin"]\n', False, True),
        (["-p", "embgrad.pytest_plugin"], 'pytest_plugins = ["embgrad.pytest_plugin"]\n', True, True),
        ([], "", False, False),
        (["-p", "no:embgrad.pytest_plugin"], "", True, False),
    ],
)
def test_the_plugin_can_be_switched_on_and_off(
    project: Project, options: list[str], conftest: str, autoload: bool, there: bool
) -> None:
    (project.folder / "test_idle.py").write_text(IDLE)
    (project.folder / "conftest.py").write_text(conftest + SPY)
    environment = {} if autoload else {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    text = project.run(*options, "-s", **environment)
    assert f"plugin: {there}" in text
    assert "1 passed" in text


def test_pytest_starts_in_a_process_that_has_imported_embgrad(project: Project) -> None:
    project.write(ONE)
    code = (
        "import sys, pytest, embgrad; embgrad.backend.list_backends();"
        "sys.exit(pytest.main(['-W', 'error', '-p', 'no:cacheprovider', '--embgrad-update']))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=project.folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 written" in done.stdout


def gradient() -> embgrad.results.EmbeddingGradients:
    model = ReferenceModel(lambda model, input_ids: lookup(model["E"], input_ids).mean(1), {"E": np.eye(4)})
    return embgrad.gradients(model, [[0, 1], [2, 3]], embgrad.Logit([0, 1]))


@pytest.mark.parametrize("name", ["", 3, Path("name")])
def test_a_name_must_be_text(embgrad_golden: GoldenFiles, name: Any) -> None:
    with pytest.raises(EmbgradError, match=r"name is .*: expected text, for a file of its own within the test"):
        embgrad_golden(gradient(), name)


def test_two_checks_of_one_file_are_refused(embgrad_golden: GoldenFiles) -> None:
    result = gradient()
    for name in (None, "second"):
        with pytest.raises(GoldenError, match="there is no golden file"):
            embgrad_golden(result, name)
        with pytest.raises(
            EmbgradError,
            match=r"this test has used its golden file \S+\.safetensors before: give each check a name of its own",
        ):
            embgrad_golden(result, name)


@pytest.mark.parametrize("folder", [True, False])
def test_files_that_differ_only_in_case_are_refused(
    embgrad_golden: GoldenFiles,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    folder: bool,
) -> None:
    monkeypatch.setattr(request.node, "path", tmp_path / "test_it.py")
    path = embgrad_golden.path("film")
    assert path.parent == tmp_path / "goldens" / "test_it"
    twin = path.parent.with_name("TEST_IT") / path.name if folder else path.with_name(path.name.replace("film", "Film"))
    twin.parent.mkdir(parents=True)
    twin.touch()
    if folder:
        path.parent.mkdir(exist_ok=True)  # on macOS and Windows it is there
    shown = re.escape("TEST_IT" if folder else twin.name)
    message = (
        rf" and {shown} differ only in case, and are one file on macOS and Windows: .*or delete {shown} if its test is"
    )
    with pytest.raises(EmbgradError, match=message):
        embgrad_golden(gradient(), "film")
