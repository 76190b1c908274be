"""`load_bert` for PyTorch: a `transformers.BertModel` with a checkpoint's weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from embgrad_torch import TorchBackend

import embgrad

SETTINGS = {
    "vocab_size": 30, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12,
    "max_position_embeddings": 16,
}  # fmt: skip


@pytest.fixture
def original() -> Any:
    torch.manual_seed(3)
    return transformers.BertModel(transformers.BertConfig(**SETTINGS)).eval()


def test_the_weights_are_those_of_the_checkpoint(original: Any, tmp_path: Path) -> None:
    original.save_pretrained(tmp_path)
    random = torch.get_rng_state()
    loaded = embgrad.zoo.load_bert(tmp_path)
    assert torch.equal(torch.get_rng_state(), random)
    assert type(loaded) is transformers.BertModel
    assert not any(module.training for module in loaded.modules())
    for name, parameter in original.named_parameters():
        assert torch.equal(loaded.get_parameter(name), parameter)
    ids = torch.tensor([[2, 7, 9, 3]])
    assert torch.equal(loaded(ids).pooler_output, original(ids).pooler_output)


def test_another_kind_of_bert_is_refused() -> None:
    with pytest.raises(embgrad.errors.UnsupportedError, match=r"'encoder.layer.0.crossattention"):
        TorchBackend().bert({**SETTINGS, "is_decoder": True, "add_cross_attention": True})


def test_a_configuration_that_transformers_cannot_build_is_refused(original: Any, tmp_path: Path) -> None:
    original.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "hidden_act": "geluu"}))
    message = (
        r"transformers cannot build a BERT of the configuration \(hidden_act='geluu', …\): .*\. Use values that its BertConfig "
        "accepts"
    )
    with pytest.raises(embgrad.errors.UnsupportedError, match=message):
        embgrad.zoo.load_bert(tmp_path)


def test_load_bert_without_transformers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(
        embgrad.errors.BackendError, match=r"transformers cannot be imported .*pip install 'embgrad\[torch\]'"
    ):
        TorchBackend().bert(SETTINGS)
