"""Checkpoints and tokenizers that a framework or transformers cannot load: run in the framework's environment."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from embgrad.loading.errors import UsageError
from embgrad.loading.tokenizer import tokenizer_of
from tests.unit.cli.commands import Command, configured, said


@pytest.mark.framework("torch")
def test_a_checkpoint_that_transformers_cannot_load_is_refused(command: Command, directory: Path) -> None:
    folder = directory / configured(directory, model_type="gpt2", n_embd=8, n_head=2, n_layer=1, vocab_size=30)
    (folder / "model.safetensors").write_bytes(b"\0" * 100)
    assert "error: m cannot be loaded as a AutoModel: Error while des" in said(command, "m", "--framework", "torch")
    (folder / "config.json").write_text(json.dumps({"model_type": "no such type"}))
    actual = said(command, "m", "--framework", "torch")
    assert re.search("error: m cannot be loaded as a AutoModel: .*model type `no such type`", actual)


@pytest.mark.framework("torch")
@pytest.mark.parametrize(
    ("config", "name"),
    [
        ({"attn_implementation": "kernels-community/flash-attn"}, "'kernels-community/flash-attn'"),
        ({"text_config": {"_attn_implementation": {"": "a/b"}}}, "'a/b'"),
    ],
)
def test_a_checkpoint_that_names_remote_code_is_refused(
    command: Command, directory: Path, config: Any, name: str
) -> None:
    folder = configured(directory, model_type="gpt2", **config)
    actual = said(command, folder, "--framework", "torch")
    assert (
        f" {name}, which is code from another repository: expected a name that transformers has, such as 'eager'"
        in actual
    )


@pytest.mark.framework("tensorflow")
def test_a_broken_saved_model_is_refused(command: Command, directory: Path) -> None:
    (directory / "saved").mkdir()
    (directory / "saved" / "saved_model.pb").write_bytes(b"no protocol buffer")
    assert "error: saved cannot be loaded as a SavedModel: " in said(command, "saved")


@pytest.mark.framework("torch")
def test_a_broken_tokenizer_is_refused(directory: Path) -> None:
    folder = directory / "gpt2"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "gpt2"}')
    (folder / "vocab.json").write_text('{"a": 0}')
    with pytest.raises(
        UsageError, match=r"gpt2 holds no tokenizer that transformers can load: .*; name one with --tokenizer"
    ):
        tokenizer_of(folder)
