"""The texts of a batch and the offsets of its tokens in them: encoded, padded, cut, sliced, and refused where they are wrong."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

import embgrad
from tests.unit.refusals import refused

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "film", "##s", "plot", "the", "zurich", "."]


def wordpiece() -> Tokenizer:
    """Return a tokenizer as BERT's, which lowers letters and takes their accents away."""
    built = Tokenizer(models.WordPiece({token: index for index, token in enumerate(VOCABULARY)}, unk_token="[UNK]"))
    built.normalizer = normalizers.BertNormalizer()
    built.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    built.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return built


def pieces_of(batch: embgrad.TokenBatch, example: int) -> list[str]:
    """Return the characters of each token, "" for none."""
    assert batch.texts is not None
    assert batch.offsets is not None
    assert batch.parts is not None
    text = batch.texts[example]
    texts = (text,) if isinstance(text, str) else text
    return [
        "" if part < 0 else texts[part][start:end]
        for part, (start, end) in zip(batch.parts[example], batch.offsets[example], strict=True)
    ]


def test_offsets_count_the_characters_of_the_text_as_it_was_written() -> None:
    batch = embgrad.encode(["The  films.", "Zürich!"], wordpiece())
    assert batch.texts == ("The  films.", "Zürich!")
    assert pieces_of(batch, 0) == ["", "The", "film", "s", ".", ""]
    assert pieces_of(batch, 1) == ["", "Zürich", "!", "", "", ""]
    assert batch.offsets is not None
    assert batch.offsets.dtype == np.int64
    assert batch.offsets[1].tolist() == [[-1, -1], [0, 6], [6, 7], [-1, -1], [-1, -1], [-1, -1]]


def test_the_second_text_of_a_pair_has_offsets_of_its_own() -> None:
    batch = embgrad.encode([("the plot", "a film"), "a plot"], wordpiece())
    assert batch.texts == (("the plot", "a film"), "a plot")
    assert pieces_of(batch, 0) == ["", "the", "plot", "", "a", "film", ""]
    assert batch.parts is not None
    assert batch.parts.tolist() == [[-1, 0, 0, -1, 1, 1, -1], [-1, 0, 0, -1, -1, -1, -1]]


def test_padding_on_the_left_moves_offsets_along() -> None:
    batch = embgrad.encode(["a", "the films"], wordpiece(), padding_side="left")
    assert pieces_of(batch, 0) == ["", "", "", "a", ""]
    assert pieces_of(batch, 1) == ["", "the", "film", "s", ""]


@pytest.mark.parametrize(("direction", "expected"), [("right", ["", "the", "film", ""]), ("left", ["", "s", ".", ""])])
def test_tokens_that_are_left_of_a_cut_text_keep_their_offsets(direction: str, expected: list[str]) -> None:
    tokenizer = wordpiece()
    tokenizer.enable_truncation(4, direction=direction)
    batch = embgrad.encode(["the films."], tokenizer)
    assert batch.texts == ("the films.",)
    assert pieces_of(batch, 0) == expected


class Pieces:
    def tokenize(self, text: str) -> list[str]:
        return text.split()

    def convert_tokens_to_ids(self, tokens: list[str]) -> list[int]:
        return [VOCABULARY.index(token) for token in tokens]


@pytest.mark.parametrize("tokenizer", [Pieces(), lambda *texts: [4, 5], lambda *texts: {"input_ids": [4, 5]}])
def test_tokenizers_without_offsets_give_the_texts_alone(tokenizer: Any) -> None:
    batch = embgrad.encode(["a film", ("a", "plot")], tokenizer)
    assert batch.texts == ("a film", ("a", "plot"))
    assert batch.offsets is None
    assert batch.parts is None


def test_a_batch_of_ids_has_no_texts() -> None:
    batch = embgrad.TokenBatch([[1, 2]])
    assert (batch.texts, batch.offsets, batch.parts) == (None, None, None)


BATCH = embgrad.encode(["the films.", ("a plot", "a film"), "a"], wordpiece())


@pytest.mark.parametrize("examples", [slice(1, 3), slice(None, None, -1), np.array([2, 0, 2])])
def test_slices_have_the_texts_and_offsets_of_their_examples(examples: Any) -> None:
    chosen = BATCH[examples] if isinstance(examples, slice) else BATCH.take(examples)
    for index, example in enumerate(np.arange(3)[examples]):
        assert pieces_of(chosen, index) == pieces_of(BATCH, int(example))
        assert chosen.texts is not None
        assert BATCH.texts is not None
        assert chosen.texts[index] == BATCH.texts[example]
    assert chosen == BATCH.take(np.arange(3)[examples])
    for name in ("ids", "mask", "offsets", "parts", "words"):
        assert not getattr(chosen, name).flags.writeable
        assert getattr(chosen, name).flags.c_contiguous


def test_sub_batches_pickles_and_replaced_batches_keep_them() -> None:
    assert [pieces_of(BATCH[index : index + 1], 0) for index in range(3)] == [
        pieces_of(BATCH, index) for index in range(3)
    ]
    assert pickle.loads(pickle.dumps(BATCH)) == BATCH
    assert pieces_of(BATCH.replace(mask=None), 1) == pieces_of(BATCH, 1)


def test_new_ids_are_of_no_known_text() -> None:
    other = BATCH.replace(ids=BATCH.ids[:, :3], mask=None, types=None, tokens=None, words=None)
    assert (other.texts, other.offsets, other.parts) == (None, None, None)
    assert BATCH.replace(ids=BATCH.ids, texts=BATCH.texts).texts == BATCH.texts


def test_batches_of_other_texts_are_not_equal() -> None:
    assert BATCH.replace(texts=["the films?", ("a plot", "a film"), "a"]) != BATCH
    assert BATCH.replace(offsets=None, parts=None) != BATCH


def test_offsets_given_by_hand() -> None:
    batch = embgrad.TokenBatch([[2, 4, 3]], texts=["ab"], offsets=[[[0, 0], [0, 2], [2, 2]]])
    assert batch.offsets is not None
    assert batch.parts is not None
    assert batch.offsets.tolist() == [[[-1, -1], [0, 2], [-1, -1]]]
    assert batch.parts.tolist() == [[-1, 0, -1]]
    mixed = batch.replace(offsets=[[[-1, -1], [0, 2], [2, 2]]], parts=[[-1, 0, 0]])
    assert mixed == batch


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"texts": "ab"}, "texts is 'ab': expected a list of 1, one text or pair of texts for each example"),
        ({"texts": ["a", "b"]}, "expected a list of 1"),
        ({"texts": [("a", "b", "c")]}, "texts holds ('a', 'b', 'c') at example 0: expected a text or a pair of texts"),
        ({"offsets": [[[0, 1]] * 2]}, "offsets or parts are given without texts: expected the texts"),
        ({"texts": ["ab"], "parts": [[0, 0]]}, "parts is given without offsets: expected the offsets of each token"),
        ({"texts": [("ab", "c")], "offsets": [[[0, 1]] * 2]},
            "offsets is given without parts, and example 0 is a pair: expected parts"),
        ({"texts": ["ab"], "offsets": [[0, 1]]}, "offsets has shape (1, 2): expected (1, 2, 2)"),
        ({"texts": ["ab"], "offsets": [[[0, 1]] * 2], "parts": [[0, 1]]},
            "parts holds 1 at example 0, position 1: expected 0 in a single text, or -1"),
        ({"texts": [("ab", "c")], "offsets": [[[0, 1]] * 2], "parts": [[0, 2]]},
            "parts holds 2 at example 0, position 1: expected 0 or 1 in a pair, or -1"),
        (
            {"texts": ["ab"], "offsets": [[[0, 1], [1, 3]]]},
            "offsets holds (1, 3) at example 0, position 1, whose text has 2 characters: expected a start and an end in it",
        ),
        ({"texts": ["ab"], "offsets": [[[0, 1], [2, 1]]]}, "offsets holds (2, 1) at example 0, position 1"),
        ({"texts": ["ab"], "offsets": [[[-1, 1], [0, 1]]]}, "offsets holds (-1, 1) at example 0, position 0"),
        ({"texts": ["ab"], "offsets": [[[-2, -2], [0, 1]]]},
            "offsets holds -2 at example 0, position 0: expected no number below -1"),
        ({"texts": ["ab"], "offsets": [[[0, 1]] * 2], "parts": [[0, -2]]},
            "parts holds -2 at example 0, position 1: expected no number below -1"),
    ],
)  # fmt: skip
def test_texts_and_offsets_that_do_not_fit_are_refused(fields: dict[str, Any], message: str) -> None:
    with refused(embgrad.errors.BatchError, message):
        embgrad.TokenBatch([[4, 5]], **fields)
