"""A beginning that a chat template writes and the tokenizer adds once more is a warning, with a tokenizer of transformers."""

from __future__ import annotations

import warnings

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

import embgrad


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer as Llama's, which begins each text with a special token, and has a chat template that does, too."""
    vocabulary = {token: number for number, token in enumerate(["<unk>", "<s>", "</s>", "user", "hello", "there"])}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    inner.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)])
    made = PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    made.chat_template = "{{ bos_token }}{% for message in messages %} user {{ message['content'] }}{% endfor %}"
    return made


def test_the_text_of_a_chat_template(tokenizer: PreTrainedTokenizerFast) -> None:
    text = tokenizer.apply_chat_template([{"role": "user", "content": "hello there"}], tokenize=False)
    with pytest.warns(
        embgrad.errors.EmbgradWarning, match="the tokenizer adds '<s>' to a text that begins with it already"
    ):
        batch = embgrad.encode(text, tokenizer)
    assert batch.ids.tolist() == [[1, 1, 3, 4, 5]]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ids = tokenizer([text], add_special_tokens=False)["input_ids"]
        assert embgrad.TokenBatch(ids).ids.tolist() == [[1, 3, 4, 5]]
        assert embgrad.encode(["hello there", "hello </s>"], tokenizer).ids.tolist() == [[1, 4, 5], [1, 4, 2]]
