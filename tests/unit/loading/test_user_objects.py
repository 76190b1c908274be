"""Objects of the user's files and modules, by their names."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

import embgrad
from embgrad.loading import models
from embgrad.loading.errors import UsageError
from embgrad.loading.models import expect_models, load_model
from embgrad.loading.user_objects import expect_function, import_object, is_reference
from tests.unit.cli.commands import configured
from tests.unit.refusals import refused


@pytest.mark.parametrize(
    ("spelled", "is_one"),
    [("own.py:name", True), ("C:/a b/own.py:name", True), ("package.module:name", True), ("module:outer.inner", True),
        ("own.py", False), ("own/file.txt:name", False), ("a-b:name", False), ("module:no name", False),
        ("module:", False), (":name", False), ("name", False)],
)  # fmt: skip
def test_what_names_an_object(spelled: str, is_one: bool) -> None:
    assert is_reference(spelled) is is_one
    if not is_one:
        with refused(UsageError, f"--call {spelled!r}: expected path/to/file.py:function or module:function"):
            expect_function(spelled, "--call")


def test_a_function_is_expected_before_anything_is_run(directory: Path) -> None:
    expect_function(None, "--call")
    expect_function("no_such_module:call", "--call")  # modules are found when they are imported
    (directory / "own.py").write_text("raise RuntimeError")
    expect_function("own.py:call", "--call")
    with refused(UsageError, "other.py does not exist: expected a Python file, as in path/to/file.py:function"):
        expect_function("other.py:call", "--call")


def test_objects_of_files_and_modules_are_imported_once(directory: Path) -> None:
    (directory / "own.py").write_text(
        "import helper\nruns = helper.runs\nruns.append(1)\nclass Outer:\n    inner = __name__\n"
    )
    (directory / "helper.py").write_text("runs = []\n")
    assert import_object("own.py:runs") is import_object("own.py:runs") == [1]
    assert import_object("helper:runs") == [1]
    assert import_object("own.py:Outer.inner") == "own"
    assert sys.modules["own"].runs == [1]
    (directory / "json.py").write_text("name = __name__\n")
    assert import_object("json.py:name") == "_embgrad_user_json"
    with refused(UsageError, "own.py has no 'Outer.iner'.", "Did you mean 'inner'?"):
        import_object("own.py:Outer.iner")
    with refused(UsageError, "there is no module 'no_such_module': expected a module that Python can import from here"):
        import_object("no_such_module.part:name")
    (directory / "lacking.py").write_text("import no_such_module\n")
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        import_object("lacking:name")
    sys.modules.pop("own", None)


def test_a_models_file_and_framework_are_expected_before_it_is_loaded(directory: Path) -> None:
    (directory / "own.py").write_text("raise RuntimeError")
    expect_models([("own.py:model", None), ("own.py:model", "reference")])
    with refused(UsageError, "--ignore applies only to a checkpoint of a BERT, and own.py:model is your own code"):
        expect_models([("own.py:model", None)], ["cls.*"])
    with refused(embgrad.errors.BackendError, "'refrence'", "Did you mean 'reference'?"):
        expect_models([("own.py:model", "refrence")])
    with refused(UsageError, "absent.py does not exist: expected a Python file"):
        expect_models([("absent.py:model", None)])
    with refused(UsageError, "--model 'own' does not exist: expected a checkpoint folder"):
        expect_models([("own", None)])


@pytest.mark.parametrize(
    ("own_process", "wanted", "switched"), [(True, "torch", ["tensorflow"]), (True, None, []), (False, "torch", [])]
)
def test_a_process_of_its_own_imports_the_frameworks_that_it_needs_alone(
    directory: Path, monkeypatch: pytest.MonkeyPatch, own_process: bool, wanted: str | None, switched: list[str]
) -> None:
    (directory / "own.py").write_text("")
    folder = configured(directory, model_type="bert")
    monkeypatch.setattr(models, "framework_named", lambda name: None)
    monkeypatch.setattr(models, "IMPORT_SWITCHES", {"torch": "OWN_TORCH", "tensorflow": "OWN_TENSORFLOW"})
    names = {"torch": "OWN_TORCH", "tensorflow": "OWN_TENSORFLOW"}
    for name in names.values():
        monkeypatch.setenv(name, "kept")
        monkeypatch.delenv(name)
    expect_models([(folder, wanted) if wanted else ("own.py:model", None)], own_process=own_process)
    assert {name for name, variable in names.items() if os.environ.get(variable) == "0"} == set(switched)


@pytest.mark.parametrize("framework", ["torch", "tensorflow", "keras", "jax"])
def test_tensorflow_is_prepared_where_it_may_be_imported(
    directory: Path, monkeypatch: pytest.MonkeyPatch, framework: str
) -> None:
    prepared: list[Any] = []
    folder = configured(directory, model_type="bert", architectures=["BertModel"])
    monkeypatch.setattr(models, "framework_named", lambda name: None)
    monkeypatch.setattr(models, "prepare_tensorflow", lambda: prepared.append(framework))
    monkeypatch.setattr(models, "load_bert", lambda path, framework, ignore: [path, framework, *prepared])
    expected = [Path(folder), framework, *[framework] * (framework in ("tensorflow", "keras"))]
    assert load_model(folder, framework).model == expected


@pytest.mark.parametrize(
    ("config", "ignore", "is_bert"),
    [
        ({"model_type": "bert"}, (), True),
        ({"model_type": "bert", "architectures": ["BertModel"]}, (), True),
        ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, (), False),
        ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, ("cls.*",), True),
        ({"model_type": "gpt2"}, (), False),
    ],
)
def test_an_encoder_of_bert_alone_is_loaded_by_its_weights(
    directory: Path, monkeypatch: pytest.MonkeyPatch, config: Any, ignore: tuple[str, ...], is_bert: bool
) -> None:
    folder = configured(directory, **config)
    monkeypatch.setattr(models, "framework_named", lambda name: None)
    monkeypatch.setattr(models, "load_bert", lambda path, framework, ignore: ("bert", ignore))
    monkeypatch.setattr(models, "from_transformers", lambda path, framework, architecture: (framework, architecture))
    expected = ("bert", ignore) if is_bert else ("torch", config.get("architectures", [None])[0])
    assert load_model(folder, "torch", ignore).model == expected
