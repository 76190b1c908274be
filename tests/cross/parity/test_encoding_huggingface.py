"""encode with the tokenizers of Hugging Face: fast and slow, with and without a pad token and types."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import BertTokenizer, BertTokenizerFast, GPT2Config, GPT2Model, PreTrainedTokenizerFast

import embgrad
from tests.support.wordpiece import SENTENCES, SPECIAL, train_wordpiece

TEXTS = ["a gripping film", ("the plot is thin", "two hours"), ""]


@pytest.fixture
def wordpiece() -> Tokenizer:
    return train_wordpiece(80, [*SPECIAL, "[MASK]"])


@pytest.fixture
def vocabulary(wordpiece: Tokenizer, tmp_path: Path) -> str:
    """The same vocabulary as BERT's file of one token a line."""
    tokens = sorted(wordpiece.get_vocab(), key=wordpiece.get_vocab().get)  # type: ignore[arg-type]
    (tmp_path / "vocab.txt").write_text("\n".join(tokens), encoding="utf-8")
    return str(tmp_path / "vocab.txt")


def wrapped(tokenizer: Tokenizer, **options: Any) -> PreTrainedTokenizerFast:
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **{**names, **options})


def byte_level() -> PreTrainedTokenizerFast:
    """As GPT-2's: no pad token, no types, no special tokens around."""
    built = Tokenizer(models.BPE())
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    built.train_from_iterator(
        SENTENCES, trainers.BpeTrainer(vocab_size=60, special_tokens=["<|endoftext|>"], show_progress=False)
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=built, eos_token="<|endoftext|>", model_input_names=["input_ids", "attention_mask"]
    )


def expect_as_the_tokenizer(batch: embgrad.TokenBatch, tokenizer: Any, texts: list[Any]) -> None:
    """Against the tokenizer's own call, example by example."""
    for example, text in enumerate(texts):
        own = tokenizer(*text) if isinstance(text, tuple) else tokenizer(text)
        real = batch.real[example]
        assert batch.ids[example][real].tolist() == own["input_ids"]
        if "token_type_ids" in own:
            assert batch.types is not None
            assert batch.types[example][real].tolist() == own["token_type_ids"]
        else:
            assert batch.types is None
        assert batch.tokens is not None
        kept = [token for token, is_real in zip(batch.tokens[example], real, strict=True) if is_real]
        assert kept == tokenizer.convert_ids_to_tokens(own["input_ids"])


def test_a_fast_tokenizer(wordpiece: Tokenizer) -> None:
    tokenizer = wrapped(wordpiece)
    batch = embgrad.encode(TEXTS, tokenizer)
    expect_as_the_tokenizer(batch, tokenizer, TEXTS)
    assert batch.types is not None
    assert set(batch.types[1].tolist()) == {0, 1}
    own = tokenizer([text for text in TEXTS if isinstance(text, str)], padding=True, return_tensors="np")
    singles = embgrad.encode([text for text in TEXTS if isinstance(text, str)], tokenizer)
    for key, value in singles.to_huggingface().items():
        np.testing.assert_array_equal(value, own[key])


def test_slow_and_fast_give_the_same_batch(vocabulary: str) -> None:
    slow, fast = BertTokenizer(vocabulary), BertTokenizerFast(vocabulary)
    for options in ({}, {"max_length": 5}, {"padding_side": "left"}):
        from_slow, from_fast = (embgrad.encode(TEXTS, tokenizer, **options) for tokenizer in (slow, fast))
        assert from_slow == from_fast.replace(words=None, offsets=None, parts=None)
    assert embgrad.encode(TEXTS, slow).words is None
    assert embgrad.encode(TEXTS, fast).words is not None


def test_the_tokenizers_library_gives_the_same_batch(wordpiece: Tokenizer) -> None:
    for options in ({}, {"max_length": 4}):
        one, other = (embgrad.encode(TEXTS, given, **options) for given in (wrapped(wordpiece), wordpiece))
        assert one == other
        np.testing.assert_array_equal(one.truncated, other.truncated)


def test_a_tokenizer_without_a_pad_token_and_types() -> None:
    tokenizer = byte_level()
    texts = ["a gripping film", "a"]
    batch = embgrad.encode(texts, tokenizer)
    expect_as_the_tokenizer(batch, tokenizer, texts)
    assert batch.types is None  # zeros would add the embedding of token 0 in GPT-2
    assert batch.padded
    assert not batch.ids[1][~batch.real[1]].any()
    assert tokenizer.pad_token is None


def test_the_tokenizers_own_padding(wordpiece: Tokenizer) -> None:
    tokenizer = wrapped(wordpiece, padding_side="left", pad_token="[MASK]")
    batch = embgrad.encode(["a", "a film"], tokenizer)
    assert batch.ids[0, 0] == 4
    assert batch.real[0].tolist() == [False, True, True, True]


@pytest.mark.parametrize("max_length", [None, 4])
def test_the_tokenizer_is_restored(wordpiece: Tokenizer, max_length: int | None) -> None:
    """Its settings are the tokenizer's, and each of its own calls changes them."""
    wordpiece.enable_truncation(6, stride=1, strategy="only_first")
    wordpiece.enable_padding(length=9, pad_id=1)
    tokenizer = wrapped(wordpiece)
    before = tokenizer.backend_tokenizer.to_str()
    embgrad.encode(TEXTS, tokenizer, max_length=max_length)
    assert tokenizer.backend_tokenizer.to_str() == before
    with pytest.raises(embgrad.errors.BatchError):
        embgrad.encode(TEXTS, tokenizer, max_length=1)
    assert tokenizer.backend_tokenizer.to_str() == before


def test_gpt2_gives_the_same_as_with_its_own_tokenizer() -> None:
    """Types of zeros would be embedded as token 0 and added to every position."""
    torch.manual_seed(0)
    tokenizer = byte_level()
    config = GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=tokenizer.vocab_size, n_positions=32)
    model = GPT2Model(config).eval()
    text = "a gripping film"
    vector = np.arange(8, dtype=np.float32)  # the sum alone is fixed by the last normalisation
    result = embgrad.gradients(
        model, [text], embgrad.Projection(vector, output="sequence", position=-1), tokenizer=tokenizer
    )
    with torch.no_grad():
        own = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0, -1] @ torch.tensor(vector)
    assert result.objective[0] == pytest.approx(float(own), abs=1e-5)


@pytest.mark.parametrize("anew", [False, True])
def test_a_loop_may_use_the_tokenizer_of_its_stream(wordpiece: Tokenizer, anew: bool) -> None:
    """Each batch is encoded with the stream's own settings, also where the loop sets the tokenizer up anew."""
    tokenizer = wrapped(wordpiece)
    settings: dict[str, Any] = {"truncation": True, "max_length": 4} if anew else {}
    random = np.random.default_rng(0)
    source = [" ".join(random.choice(["film", "plot", "thin", "two"], random.integers(5, 40))) for _ in range(300)]
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(80, 4), torch.nn.Linear(4, 2))
    expected = [len(one) for one in tokenizer(source)["input_ids"]]
    found: list[int] = []
    with embgrad.stream(
        model,
        source,
        lambda out: out[:, 0, 0],
        tokenizer=tokenizer,
        batch_size=5,
        call=lambda module, inputs: module(inputs["input_ids"]),
    ) as results:
        for result in results:
            own = tokenizer(source[:50], **settings)["input_ids"]
            assert max(map(len, own)) == (4 if anew else max(expected[:50]))
            found += result.real.sum(1).tolist()
    assert found == expected


def test_settings_of_ones_own_are_another_run(wordpiece: Tokenizer, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(80, 4), torch.nn.Linear(4, 2))

    def run(**settings: Any) -> embgrad.results.Stream:
        return embgrad.stream(
            model,
            ["a film", "two films"],
            lambda out: out[:, 0, 0],
            tokenizer=PreTrainedTokenizerFast(
                tokenizer_object=wordpiece, pad_token="[PAD]", unk_token="[UNK]", **settings
            ),
            call=lambda module, inputs: module(inputs["input_ids"]),
            to=tmp_path,
            run_id="a",
        )

    run().finish()
    for settings in ({"truncation_side": "left"}, {"split_special_tokens": True}, {"model_input_names": ["input_ids"]}):
        with pytest.raises(embgrad.errors.FileFormatError, match="another run: tokenizer was"):
            run(**settings)
    run().finish()
