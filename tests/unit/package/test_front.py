"""The names of `embgrad`: imported when they are first used, the same for type checkers, and none hidden by another."""

from __future__ import annotations

import ast
import importlib
import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import embgrad
from tests.unit.streams import model

FRAMEWORKS = ("torch", "tensorflow", "mxnet", "jax", "keras", "transformers", "ray", "numpy", "safetensors")


#: What `import embgrad` loads.
LIGHT = ["embgrad", "embgrad.common", "embgrad.common.lazy"]

#: The namespaces of the public names that are not of the front.
SPACES = ["backend", "errors", "methods", "metrics", "results", "tables", "zoo"]


def fresh(code: str, *arguments: str) -> Any:
    """Return what code prints, as JSON, in a new interpreter that has `json`, `sys` and the function `own`."""
    before = (
        "import json, sys\ndef own(): return sorted(name for name in sys.modules if name.split('.')[0] == 'embgrad')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", before + code, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_importing_loads_three_small_modules_and_no_framework() -> None:
    loaded, others = fresh(
        f"import embgrad; print(json.dumps([own(), [name for name in {FRAMEWORKS!r} if name in sys.modules]]))"
    )
    assert loaded == LIGHT
    assert others == []


#: A model of the reference backend, without the imports of the tests' helpers.
MODEL = """
import numpy as np
from embgrad.testing.reference import ReferenceModel, lookup
def forward(model, input_ids): return lookup(model["E"], input_ids).sum(1) @ model["W"]
def model(): return ReferenceModel(forward, {"E": np.ones((9, 3)), "W": np.ones((3, 2))})
"""


def test_a_plain_gradient_imports_only_the_rooms_that_it_needs() -> None:
    code = f"{MODEL}\nimport embgrad; embgrad.gradients(model(), [[3, 1], [2, 5]], embgrad.Logit(0)); print(json.dumps(own()))"
    loaded = fresh(code)
    assert len(loaded) < 100
    rooms = {"attribution", "comparison", "streaming", "token_search", "report", "ray", "cli"}
    assert [name for name in loaded if rooms & set(name.split(".")[1:2])] == []
    assert not {"embgrad.engine.check", "embgrad.results.file_format", "embgrad.checkpoints.load_bert"} & set(loaded)


def test_every_name_is_listed_before_it_is_used() -> None:
    listed, loaded = fresh("import embgrad; print(json.dumps([dir(embgrad), own()]))")
    assert {*embgrad.__all__, *SPACES, "__version__", "__doc__"} <= set(listed)
    assert loaded == LIGHT


def test_all_names_can_be_imported_at_once() -> None:
    code = "names = {}; exec('from embgrad import *', names); print(json.dumps(sorted(set(names) - {'__builtins__'})))"
    assert fresh(code) == sorted(embgrad.__all__)


def test_type_checkers_read_the_same_names_of_the_same_modules() -> None:
    for package in (embgrad, embgrad.results, embgrad.backend, embgrad.toolkit, embgrad.keras, embgrad.checkpoints):
        stub = ast.parse(Path(str(package.__file__)).with_suffix(".pyi").read_text(encoding="utf-8"))
        imported = {
            alias.name: node.module
            for node in stub.body
            if isinstance(node, ast.ImportFrom) and node.module not in (None, "embgrad")
            for alias in node.names
        }
        listed = next(ast.literal_eval(node.value) for node in stub.body if isinstance(node, ast.Assign))
        assert sorted(imported) == sorted(listed) == package.__all__
        for name, module in imported.items():
            assert getattr(importlib.import_module(module), name) is getattr(package, name)


def test_a_name_of_a_namespace_can_be_written_without_it() -> None:
    code = (
        "import embgrad\n"
        "from embgrad import BatchError, GCG, TableGradients\n"
        "listed = dir(embgrad)\n"
        "same = [embgrad.IntegratedGradients is embgrad.methods.IntegratedGradients, GCG is embgrad.methods.GCG,\n"
        "    embgrad.faithfulness is embgrad.metrics.faithfulness, embgrad.load_bert is embgrad.zoo.load_bert,\n"
        "    embgrad.table_gradients is embgrad.tables.table_gradients, BatchError is embgrad.errors.BatchError,\n"
        "    TableGradients is embgrad.results.TableGradients, embgrad.Backend is embgrad.backend.Backend]\n"
        "print(json.dumps([same, listed, sorted(set(listed) - set(embgrad.__all__))]))"
    )
    same, listed, more = fresh(code)
    assert same == [True] * 8
    assert len(listed) < 60
    assert [name for name in more if not name.startswith("__")] == SPACES


def test_nothing_is_imported_for_a_name_of_the_language() -> None:
    code = (
        "import embgrad; print(json.dumps([hasattr(embgrad, '__wrapped__'), hasattr(embgrad, '_repr_html_'), own()]))"
    )
    assert fresh(code) == [False, False, LIGHT]


@pytest.mark.parametrize(
    ("name", "hint"),
    [("gradient", ". Did you mean 'gradients'?"), ("IntegratedGradient", ". Did you mean 'IntegratedGradients'?"),
        ("metric", ". Did you mean 'metrics'?"), ("qqqq", ""), ("_repr_html", "")],
)  # fmt: skip
def test_an_unknown_name_is_refused_with_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(AttributeError) as raised:
        getattr(embgrad, name)
    assert str(raised.value) == f"module 'embgrad' has no attribute {name!r}{hint}"


def test_a_result_that_is_unknown_is_refused_with_the_nearest() -> None:
    with pytest.raises(AttributeError) as raised:
        getattr(embgrad.results, "Atribution")  # noqa: B009  type checkers would refuse it
    assert str(raised.value) == "module 'embgrad.results' has no attribute 'Atribution'. Did you mean 'Attribution'?"


def test_rooms_can_be_used_without_an_import_of_their_own() -> None:
    code = (
        "import embgrad\n"
        "names = [embgrad.errors.BatchError, embgrad.attribution.Method, embgrad.backend.Request, embgrad.token_search.is_word]\n"
        "print(json.dumps([name.__name__ for name in names]))"
    )
    assert fresh(code) == ["BatchError", "Method", "Request", "is_word"]


#: Import every module of the package; print the names of `embgrad` that are not what their modules define, the modules that
#: another object hides from `package.module`, and the modules that lack a library.
EVERY_MODULE = """
import importlib, pkgutil
import embgrad
names = [name for name in embgrad.__all__ if sys.argv[1] == "before"]
before = {name: getattr(embgrad, name) for name in names}
missing = set()
for found in pkgutil.walk_packages(embgrad.__path__, "embgrad.", onerror=missing.add):
    if found.name != "embgrad.__main__":
        try:
            importlib.import_module(found.name)
        except ImportError as error:
            missing.add(found.name)
places = {name: module for module, found in embgrad._NAMES.items() for name in found}
other = [
    name for name in embgrad.__all__
    if getattr(embgrad, name) is not getattr(sys.modules["embgrad." + places[name]], name)
    or before.get(name, getattr(embgrad, name)) is not getattr(embgrad, name)
]
parts = {name: name.rpartition(".") for name in own() if name.rpartition(".")[0] in sys.modules}
hidden = [name for name, (above, _, last) in parts.items() if getattr(sys.modules[above], last) is not sys.modules[name]]
print(json.dumps([other, hidden, sorted({name.split(".")[1] for name in missing}), len(own())]))
"""


@pytest.mark.parametrize("used", ["before", "after"])
def test_no_module_changes_a_name_and_no_name_hides_a_module(used: str) -> None:
    other, hidden, missing, count = fresh(EVERY_MODULE, used)
    assert (other, hidden) == ([], [])
    assert set(missing) <= {"ray"}
    assert count > 200


def test_a_module_can_be_the_first_import() -> None:
    code = "import embgrad.results.gradients, embgrad.streaming.stream as stream\n"
    code += "print(json.dumps([callable(embgrad.stream), stream.__name__, callable(embgrad.gradients)]))"
    assert fresh(code) == [True, "embgrad.streaming.stream", True]


def test_a_result_read_in_a_new_process_is_shown_in_a_notebook(tmp_path: Path) -> None:
    result = embgrad.gradients(model(), [[3, 1]], embgrad.Logit(0))
    (tmp_path / "result.pickle").write_bytes(pickle.dumps({"result": result, "call": embgrad.gradients}))
    code = (
        "import pickle\n"
        "read = pickle.load(open(sys.argv[1], 'rb'))\n"
        "early = 'embgrad.display.html' in sys.modules\n"
        "html = read['result']._repr_html_()\n"
        "import embgrad\n"
        "print(json.dumps([early, html, read['call'] is embgrad.gradients]))"
    )
    assert fresh(code, str(tmp_path / "result.pickle")) == [False, result._repr_html_(), True]
    assert "EmbeddingGradients" in str(result._repr_html_())
