"""`import embgrad` loads no framework, and each module imports only what it may."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import embgrad

LIBRARIES = ("tokenizers", "rich", "matplotlib", "pyarrow", "pandas")
FRAMEWORKS = (
    *("torch", "tensorflow", "mxnet", "gluonnlp", "transformers", "keras", "keras_hub", "tf_keras", "jax", "flax"),
    *("equinox", "ray", "onnx", "onnxruntime", *LIBRARIES),
)

CORE = Path(embgrad.__file__).parent
BACKENDS = Path(__file__).parents[3] / "backends"

#: What each part may import beyond the standard library, NumPy and embgrad itself.
ALLOWED = {
    CORE: {"safetensors"},
    CORE / "cli" / "demo.py": {*FRAMEWORKS},  # it builds models to show
    CORE / "common" / "progress.py": {"rich"},  # where it is installed
    CORE / "engine" / "gradients.py": {"typing_extensions"},  # for type checkers alone
    CORE / "engine" / "evaluate.py": {"typing_extensions"},  # likewise
    CORE / "cli": {"typer", "rich"},
    CORE / "loading" / "models.py": {"tensorflow"},
    CORE / "loading" / "huggingface.py": {"transformers", "safetensors"},  # whose error transformers lets through
    CORE / "loading" / "tokenizer.py": {"tokenizers", "transformers"},
    CORE / "checkpoints" / "keras_bert.py": {"keras", "keras_hub"},  # it builds the model, on any backend of Keras
    CORE / "ray": {"ray", "pyarrow", "typing_extensions"},  # the last for type checkers alone
    CORE / "display" / "pictures.py": {"matplotlib"},
    CORE / "display" / "terminal.py": {"rich"},  # where it is installed
    CORE / "results" / "faithfulness.py": {"matplotlib"},
    CORE / "results" / "table_file.py": {"pyarrow"},
    CORE / "results" / "tabular.py": {"pandas", "pyarrow"},
    **{CORE / "testing" / f"{name}.py": {"pytest"} for name in ("conformance", "examples")},
    **{path: {"pytest"} for path in (CORE / "testing").glob("checks_*.py")},
    BACKENDS / "embgrad_torch": {"torch", "transformers"},
    BACKENDS / "embgrad_tensorflow": {"tensorflow", "keras", "tf_keras", "transformers"},
    BACKENDS / "embgrad_gluon": {"mxnet", "gluonnlp"},
    BACKENDS / "embgrad_jax": {"jax", "flax", "equinox", "keras"},
    BACKENDS / "embgrad_onnx": {"onnx", "onnxruntime"},
}
EVERYWHERE = {"numpy", "embgrad", *sys.stdlib_module_names}


@pytest.fixture
def child(tmp_path: Path) -> Any:
    """Return a function that runs code in a new interpreter, and returns what it prints as JSON.

    The frameworks are empty stand-ins, so that the tests mean the same where none is installed.
    """
    for name in FRAMEWORKS:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
    path = os.pathsep.join([str(tmp_path), *(entry for entry in sys.path if entry)])

    def run(code: str) -> Any:
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


#: The namespaces of the public names that are not in `embgrad` itself.
SPACES = ("methods", "metrics", "tables", "results", "errors", "backend", "zoo")

REPORT = f"; import sys, json; print(json.dumps([name for name in {FRAMEWORKS!r} if name in sys.modules]))"


def test_listing_backends_loads_no_framework(child: Any) -> None:
    code = "import embgrad; assert 'reference' in embgrad.backend.list_backends(), embgrad.backend.list_backends()"
    assert child(code + REPORT) == []


def test_refusing_a_model_loads_no_framework(child: Any) -> None:
    code = (
        "import embgrad\n"
        "try: embgrad.gradients(3, [[1]], embgrad.Sum())\n"
        "except embgrad.errors.BackendError: pass\n"
        "else: raise AssertionError\n"
    )
    assert child(code + REPORT.removeprefix("; ")) == []


def test_the_check_can_fail(child: Any) -> None:
    assert child(f"import embgrad, {', '.join(FRAMEWORKS)}" + REPORT) == list(FRAMEWORKS)


def test_importing_all_names_loads_one_library_beyond_numpy(child: Any) -> None:
    code = (
        "import json, sys, numpy\n"
        "before = set(sys.modules)\n"
        "from embgrad import *\n"
        "tops = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(json.dumps(sorted(tops - set(sys.stdlib_module_names))))"
    )
    assert child(code) == ["embgrad", "safetensors"]


def imported(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (name.name.partition(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            assert node.module is not None
            yield node.module.partition(".")[0]


def allowed(path: Path) -> set[str]:
    for parent in (path, *path.parents):
        if parent in ALLOWED:
            own = {parent.name} if parent.parent == BACKENDS else set()
            return EVERYWHERE | ALLOWED[parent] | own
    raise AssertionError(f"nothing is said of {path}")


MODULES = sorted([*CORE.rglob("*.py"), *BACKENDS.rglob("*.py")])


@pytest.mark.parametrize("path", MODULES, ids=lambda path: "/".join(path.parts[-2:]))
def test_modules_import_only_what_they_may(path: Path) -> None:
    assert set(imported(path.read_text(encoding="utf-8"))) - allowed(path) == set()


def test_the_walk_sees_every_import() -> None:
    source = "import torch.nn\ndef f():\n    from mxnet import nd\nif True:\n    import a, b.c as d"
    assert set(imported(source)) == {"torch", "mxnet", "a", "b"}
    assert {path.parent.name for path in MODULES} >= {"embgrad", "testing", "embgrad_torch", "embgrad_gluon"}


def test_every_public_name_exists() -> None:
    for space in (embgrad, *(getattr(embgrad, name) for name in SPACES)):
        assert sorted(space.__all__) == sorted(set(space.__all__))
        for name in space.__all__:
            assert getattr(space, name) is not None


def test_a_name_is_the_same_wherever_it_is() -> None:
    homes = [embgrad, *(getattr(embgrad, name) for name in SPACES)]
    names = [name for space in homes for name in space.__all__]
    twice = {name for name in names if names.count(name) > 1}
    assert twice == {"EmbgradError", "EmbgradWarning", "NativeObjective", "TokenBatch", "Point"}
    for name in twice:
        assert len({id(getattr(space, name)) for space in homes if name in space.__all__}) == 1


def test_every_error_has_its_base() -> None:
    errors = [getattr(embgrad.errors, name) for name in embgrad.errors.__all__ if name.endswith("Error")]
    assert len(errors) > 10
    for error in errors:
        assert issubclass(error, embgrad.EmbgradError)
    for name in ("BatchError", "PointError", "OutputError", "ObjectiveError", "FileFormatError"):
        assert issubclass(getattr(embgrad.errors, name), ValueError)
    assert issubclass(embgrad.errors.UnsupportedError, NotImplementedError)
