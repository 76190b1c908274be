"""Searches of texts with a user's own tokenizer: an object, a function, and one that splits and numbers pieces."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.errors import BatchError, UnsupportedError
from embgrad.testing.reference import ReferenceModel, lookup

WORDS = "<pad> a good bad film ##s [CLS] [SEP] [PAD] spare".split()  # noqa: SIM905
NUMBERS = {word: number for number, word in enumerate(WORDS)}
LOGIT = embgrad.Logit(1)


def model() -> ReferenceModel:
    """Return a model of the sum of rows."""
    table = np.random.default_rng(0).normal(size=(len(WORDS) + 2, 3))
    return ReferenceModel(lambda own, input_ids: lookup(own["E"], input_ids).tanh().sum(1), {"E": table})


def encode(text: str) -> list[int]:
    """Return the ids of words between spaces."""
    return [NUMBERS[word] for word in text.split()]


class Plain:
    """A tokenizer that is called with a text, and decodes ids, without options."""

    def __call__(self, text: str) -> list[int]:
        """Return the ids of a text."""
        return encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, in which a "##s" is part of the word before it."""
        return " ".join(WORDS[id_] for id_ in ids).replace(" ##", "##")


class Pieces:
    """A tokenizer that splits a text and numbers the pieces, to which `embgrad.encode` adds BERT's special tokens."""

    def tokenize(self, text: str) -> list[str]:
        """Return the words."""
        return text.split()

    def convert_tokens_to_ids(self, tokens: Sequence[str]) -> list[int]:
        """Return the words' numbers."""
        return [NUMBERS[token] for token in tokens]


class DecodingPieces(Pieces, Plain):
    """The same, with `decode`."""


def best(texts: list[list[int]]) -> float:
    """Return the highest logit of texts."""
    return max(embgrad.evaluate(model(), [ids], LOGIT)[0] for ids in texts)


def test_an_object_that_decodes_without_options_keeps_what_can_be_typed() -> None:
    found = embgrad.search(model(), ["a good film"], LOGIT, embgrad.methods.HotFlip(steps=1), tokenizer=Plain())
    ids = encode("a good film")
    swaps = [[*ids[:at], new, *ids[at + 1 :]] for at in range(3) for new in range(len(WORDS))]
    typed = [text for text in swaps if NUMBERS["##s"] not in text or text.index(NUMBERS["##s"]) == 0]
    assert found.objective[0] == pytest.approx(best([ids, *typed]), abs=1e-12)
    assert found.texts == (Plain().decode(found.batch.ids[0]),)
    assert found.provenance["stable"]


def test_pieces_that_decode_come_back_between_the_special_tokens() -> None:
    found = embgrad.search(
        model(), ["a good film"], LOGIT, embgrad.methods.HotFlip(steps=1), tokenizer=DecodingPieces()
    )
    assert found.batch.ids[0, [0, -1]].tolist() == [NUMBERS["[CLS]"], NUMBERS["[SEP]"]]
    assert (found.batch.ids != found.before.ids).sum() == 1
    assert found.provenance["stable"]


@pytest.mark.parametrize("tokenizer", [encode, Pieces()], ids=["function", "pieces"])
def test_what_cannot_decode_is_named_and_the_advice_works(tokenizer: Any) -> None:
    arguments = (model(), ["a good film"], LOGIT, embgrad.methods.HotFlip(steps=1))
    message = (
        f"the tokenizer is a {type(tokenizer).__name__} without a method decode(ids), so that it cannot be checked"
    )
    with pytest.raises(UnsupportedError, match=re.escape(message) + ".*: pass stable=False, which keeps any ids"):
        embgrad.search(*arguments, tokenizer=tokenizer)
    found = embgrad.search(*arguments, tokenizer=tokenizer, stable=False)
    np.testing.assert_allclose(embgrad.evaluate(model(), found.batch, LOGIT), found.objective, atol=1e-12)
    assert (found.texts, found.provenance["stable"]) == (None, False)
    assert found.objective[0] > found.objective_before[0]


def test_a_batch_that_does_not_come_back_is_refused() -> None:
    class Forgetful(Plain):
        def decode(self, ids: Sequence[int]) -> str:
            raise KeyError("no such token")

    with pytest.raises(BatchError, match=re.escape("holds the ids [1, 2, 4], and its text tokenises to []")):
        embgrad.search(model(), ["a good film"], LOGIT, embgrad.methods.HotFlip(steps=1), tokenizer=Forgetful())


class Listing(Plain):
    """A function of a text with the vocabulary that it numbers words by."""

    vocab = NUMBERS


@pytest.mark.parametrize(
    "tokenizer",
    [WORDS, tuple(WORDS), NUMBERS, {number: word for word, number in NUMBERS.items()}, Listing()],
    ids=["list", "tuple", "ids by token", "tokens by id", "callable"],
)
def test_the_tokens_that_were_put_in_are_named_by_a_vocabulary(
    tokenizer: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = np.array([encode("a bad film")])
    found = embgrad.search(
        model(), ids, LOGIT, "hotflip", allowed=lambda token: token in ("good", "spare"), tokenizer=tokenizer
    )
    assert found.batch.tokens is not None
    assert [WORDS[id_] for id_ in found.batch.ids[0]] == list(found.batch.tokens[0])
    assert {change.after for change in found.changes()[0]} <= {"good", "spare"}
    assert found.provenance["stable"] is isinstance(tokenizer, Listing)
    found.show()
    printed = capsys.readouterr().out
    assert "{+good+}" in printed or "{+spare+}" in printed


def test_a_vocabulary_names_ids_and_splits_no_texts() -> None:
    made = embgrad.attribute(model(), [encode("good film")], LOGIT, "saliency", tokenizer=WORDS)
    assert made.tokens == (("good", "film"),)
    with pytest.raises(BatchError, match="has no token for the id 11: expected the tokenizer that made"):
        embgrad.attribute(model(), [[11]], LOGIT, "saliency", tokenizer=WORDS)
    with pytest.raises(BatchError, match="the tokenizer is a vocabulary, a list, which names ids and does"):
        embgrad.attribute(model(), ["good film"], LOGIT, "saliency", tokenizer=WORDS)
