"""Which model a folder holds, what of it cannot be loaded, and by what framework."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import embgrad
from embgrad.cli import huggingface, models

Command = Callable[..., SimpleNamespace]


def said(command: Command, folder: str, *options: str) -> str:
    """What the command says of a folder that it cannot load, in one line."""
    done = command("gradients", "-m", folder, "--ids", "ids.json", *options)
    assert (done.code, done.out) == (2, ""), done.err
    return " ".join(done.err.split())


def configured(place: Path, **config: Any) -> str:
    """A checkpoint folder without weights."""
    (place / "m").mkdir()
    (place / "m" / "config.json").write_text(json.dumps(config))
    return "m"


# No framework


def test_a_saved_model_is_tensorflows(command: Command, place: Path) -> None:
    (place / "saved").mkdir()
    (place / "saved" / "saved_model.pb").touch()
    message = "saved is a TensorFlow SavedModel: expected --framework tensorflow, not torch"
    assert message in said(command, "saved", "--framework", "torch")
    message = "--ignore goes with the checkpoint of a BERT, and saved is a TensorFlow SavedModel: leave it out"
    assert message in said(command, "saved", "--ignore", "cls.*")


def test_weights_are_ignored_of_a_bert_alone(command: Command, place: Path) -> None:
    folder = configured(place, model_type="gpt2")
    message = "--ignore goes with a BERT, and m says model_type 'gpt2': leave it out"
    assert message in said(command, folder, "--ignore", "lm_head.*", "--framework", "reference")


@pytest.mark.parametrize("architectures", ["BertModel", [3], {"torch": "BertModel"}])
def test_architectures_are_a_list_of_names(command: Command, place: Path, architectures: Any) -> None:
    folder = configured(place, model_type="bert", architectures=architectures)
    found = said(command, folder, "--framework", "reference")
    assert f"config.json says architectures {architectures!r}: expected a list with a class's name" in found


def test_no_framework_for_a_checkpoint(command: Command, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise embgrad.BackendError(f"the backend {name!r} needs the package {name!r}")

    monkeypatch.setattr(models, "backend_named", missing)
    message = (
        "no framework is installed that can load a checkpoint: pip install 'embgrad[torch]', 'embgrad[tensorflow]' or "
        "'embgrad[mxnet]'; embgrad doctor tells more"
    )
    assert message in said(command, configured(place, model_type="bert"))


@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_without_transformers(place: Path, monkeypatch: pytest.MonkeyPatch, framework: str) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    folder = place / configured(place, model_type="gpt2")
    message = rf"m needs the package 'transformers': pip install 'embgrad\[{framework}\]'"
    with pytest.raises(embgrad.BackendError, match=message):
        huggingface.from_transformers(folder, framework, "GPT2LMHeadModel")


# Of a framework


@pytest.mark.framework("torch")
def test_a_checkpoint_that_transformers_cannot_load(command: Command, place: Path) -> None:
    """Its weights are no safetensors, or its configuration is of no architecture."""
    folder = place / configured(place, model_type="gpt2", n_embd=8, n_head=2, n_layer=1, vocab_size=30)
    (folder / "model.safetensors").write_bytes(b"\0" * 100)
    assert "error: m cannot be loaded as a AutoModel: Error while des" in said(command, "m", "--framework", "torch")
    (folder / "config.json").write_text(json.dumps({"model_type": "no such type"}))
    found = said(command, "m", "--framework", "torch")
    assert re.search("error: m cannot be loaded as a AutoModel: .*model type `no such type`", found)


@pytest.mark.framework("torch")
@pytest.mark.parametrize(
    ("config", "name"),
    [
        ({"attn_implementation": "kernels-community/flash-attn"}, "'kernels-community/flash-attn'"),
        ({"text_config": {"_attn_implementation": {"": "a/b"}}}, "'a/b'"),
    ],
)
def test_a_checkpoint_that_names_code_elsewhere(command: Command, place: Path, config: Any, name: str) -> None:
    folder = configured(place, model_type="gpt2", **config)
    found = said(command, folder, "--framework", "torch")
    assert f" {name}, which is code from elsewhere: expected a name that transformers has, such as 'eager'" in found


@pytest.mark.framework("tensorflow")
def test_a_saved_model_that_tensorflow_cannot_load(command: Command, place: Path) -> None:
    (place / "saved").mkdir()
    (place / "saved" / "saved_model.pb").write_bytes(b"no protocol buffer")
    assert "error: saved cannot be loaded as a SavedModel: " in said(command, "saved")
