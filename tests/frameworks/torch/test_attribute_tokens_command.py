"""The command `attribute-tokens` on a folder with a GPT-2: the numbers of `embgrad.attribute_tokens`, files and pages."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel

import embgrad
from embgrad.cli.app import run

WORDS = ["<end>", "the", "keys", "to", "cabinet", "are", "is", "on", "table"]
TEXT = "the keys to the cabinet"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a GPT-2 of random weights and a tokenizer of words."""
    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=1, n_embd=8, n_head=2, vocab_size=len(WORDS), bos_token_id=0, eos_token_id=0, pad_token_id=0
    )
    GPT2LMHeadModel(config).save_pretrained(tmp_path / "gpt2")
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="<end>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(tmp_path / "gpt2" / "tokenizer.json"))
    return tmp_path / "gpt2"


def test_generated_tokens_are_attributed_and_written(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made, page = str(tmp_path / "a.safetensors"), tmp_path / "page.html"
    words = ["attribute-tokens", "-m", str(folder), "-t", TEXT, "--generate", "2"]
    assert run([*words, "-o", made, "--html", str(page)]) == 0
    assert "input-x-gradient at word, GPT2LMHeadModel (torch)" in capsys.readouterr().out
    read = embgrad.load(made)
    assert isinstance(read, embgrad.results.TokenAttribution)
    model = GPT2LMHeadModel.from_pretrained(folder).eval()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    direct = embgrad.attribute_tokens(model, [TEXT], generate=2, tokenizer=tokenizer)
    np.testing.assert_array_equal(read.scores, direct.scores)
    assert read.output_tokens == direct.output_tokens
    assert "radio" in page.read_text(encoding="utf-8")
