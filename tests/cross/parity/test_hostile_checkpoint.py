"""A checkpoint folder that means harm, in each framework: refused before it takes memory, and never asked what to run."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

import embgrad
from embgrad.loading.errors import UsageError
from embgrad.loading.huggingface import from_transformers
from embgrad.loading.tokenizer import tokenizer_of
from tests.unit.checkpoints.test_load_bert import CONFIG, example_weights

FRAMEWORKS = ("torch", "tensorflow", "gluon")


def write(folder: Path, config: dict[str, Any]) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    safetensors.numpy.save_file(example_weights(), folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize(
    "changes",
    [{"hidden_act": "no such"}, {"hidden_act": "\x1b[31m"}, {"hidden_act": ""}],
    ids=["unknown", "colours", "empty"],
)
def test_an_activation_that_no_framework_can_build_is_refused(
    framework: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(embgrad.errors.UnsupportedError, match="hidden_act") as caught:
        embgrad.zoo.load_bert(write(tmp_path, {**CONFIG, **changes}), framework)
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize(
    "said",
    [
        {"_attn_implementation": "someone/kernels"},
        {"_attn_implementation_internal": "someone/kernels"},
        {"attn_implementation": {"": "eager", "text_config": "someone/kernels:v1"}},
        {"text_config": [{"_experts_implementation": "https://127.0.0.1/x"}]},
    ],
)
def test_the_command_line_fetches_no_kernels(said: dict[str, Any], tmp_path: Path) -> None:
    """transformers would, where the package `kernels` is installed."""
    import transformers

    sizes = {"dim": 4, "n_heads": 1, "vocab_size": 5, "hidden_dim": 4, "n_layers": 1}
    transformers.DistilBertModel(transformers.DistilBertConfig(**sizes)).save_pretrained(tmp_path)
    assert from_transformers(tmp_path, "torch", "DistilBertModel")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **said}))
    for framework in ("torch", "tensorflow"):
        with pytest.raises(
            embgrad.errors.FileFormatError,
            match=r"_implementation\w* .*, which is code from another repository: expected a name",
        ):
            from_transformers(tmp_path, framework, "DistilBertModel")


def test_no_code_of_a_checkpoints_own_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers asks whether it may, and reads the answer from stdin, where the texts of a command may be."""
    (tmp_path / "m").mkdir()
    told = tmp_path / "told"
    code = f"""
import pathlib
pathlib.Path({str(told)!r}).touch()
from transformers import PretrainedConfig, PreTrainedModel
class Config(PretrainedConfig):
    model_type = "odd"
class Model(PreTrainedModel):
    config_class = Config
class Tokenizer:
    pass
"""
    (tmp_path / "m" / "modeling_odd.py").write_text(code)
    own = {"AutoConfig": "modeling_odd.Config", "AutoModel": "modeling_odd.Model"}
    (tmp_path / "m" / "config.json").write_text(json.dumps({"model_type": "odd", "auto_map": own}))
    tokenizer = {"auto_map": {"AutoTokenizer": ["modeling_odd.Tokenizer", None]}, "tokenizer_class": "Tokenizer"}
    (tmp_path / "m" / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    safetensors.numpy.save_file({"a": np.zeros(1, np.float32)}, tmp_path / "m" / "model.safetensors")
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n" * 9))
    with pytest.raises(
        embgrad.errors.FileFormatError, match=r"cannot be loaded as a AutoModel: .* contains custom code"
    ):
        from_transformers(tmp_path / "m", "torch", None)
    with pytest.raises(
        UsageError, match=r"holds no tokenizer that transformers can load: .*; name one with --tokenizer"
    ):
        tokenizer_of(tmp_path / "m")
    assert sys.stdin.read() == "y\n" * 9, "nobody was asked"
    assert not told.exists()
