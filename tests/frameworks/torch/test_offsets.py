"""Offsets of Hugging Face's fast tokenizers, and texts alone from the slow ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import transformers
from tokenizers import Tokenizer

import embgrad
from tests.unit.inputs.test_offsets import VOCABULARY, wordpiece
from tests.unit.refusals import refused
from tests.unit.results.attributed import attribution_of


def fast(tokenizer: Tokenizer, **settings: Any) -> Any:
    """Return the tokenizer as Hugging Face's."""
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **settings)


SPECIAL = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]"}


@pytest.mark.parametrize("side", ["right", "left"])
def test_a_fast_tokenizer_has_the_offsets_of_the_one_that_it_holds(side: str) -> None:
    texts = ["The  films.", ("a plot", "Zürich"), "a"]
    expected = embgrad.encode(texts, wordpiece(), padding_side=side)
    batch = embgrad.encode(texts, fast(wordpiece(), padding_side=side, **SPECIAL))
    np.testing.assert_array_equal(batch.ids, expected.ids)
    np.testing.assert_array_equal(batch.offsets, expected.offsets)
    np.testing.assert_array_equal(batch.parts, expected.parts)
    assert batch.texts == expected.texts


class Slow(transformers.PreTrainedTokenizer):  # type: ignore[misc]
    """A tokenizer in Python, which splits at white space."""

    def __init__(self, **settings: Any) -> None:
        self.numbers = {token: index for index, token in enumerate(VOCABULARY)}
        super().__init__(**settings)

    @property
    def vocab_size(self) -> int:
        return len(self.numbers)

    def get_vocab(self) -> dict[str, int]:
        return dict(self.numbers)

    def _tokenize(self, text: str, **_: Any) -> list[str]:
        return text.split()

    def _convert_token_to_id(self, token: str) -> int:
        return self.numbers.get(token, 1)

    def _convert_id_to_token(self, index: int) -> str:
        return VOCABULARY[index]


def test_a_slow_tokenizer_gives_the_texts_alone() -> None:
    batch = embgrad.encode(["the plot"], Slow(**SPECIAL))
    assert (batch.texts, batch.offsets, batch.parts) == (("the plot",), None, None)
    assert batch.tokens is not None
    assert {"the", "plot"} <= {*batch.tokens[0]}
    with refused(embgrad.EmbgradError, "where the tokens stand in the texts is not known"):
        attribution_of(batch).spans()
