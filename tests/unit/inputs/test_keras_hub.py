"""Texts through keras-hub's tokenizers and preprocessors, on small classes that keep their form."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.errors import BatchError
from embgrad.inputs.conventions import tokenizer_of
from embgrad.testing.reference import ReferenceModel, Tensor, lookup
from tests.unit.refusals import refused

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "gripping", "film", "the", "plot"]
TEXTS = ["a gripping film", "the plot"]


class Tokenizer:
    """Splits at white space, and numbers the words; without special tokens."""

    __module__ = "keras_hub.src.tokenizers.tokenizer"
    pad_token_id, mask_token_id, special_token_ids = 0, 4, (0, 2, 3, 4)

    def __call__(self, text: str) -> list[int]:
        return [VOCABULARY.index(word) for word in text.split()]

    def id_to_token(self, id_: int) -> str:
        """Return a word."""
        return VOCABULARY[id_]


class Preprocessor:
    """Adds special tokens, joins pairs, and pads to its length, or cuts."""

    __module__ = "keras_hub.src.models.preprocessor"

    def __init__(self, sequence_length: int = 8, drops: bool = False, **more: Any) -> None:
        self.tokenizer, self.sequence_length, self.drops, self.more = Tokenizer(), sequence_length, drops, more

    def __call__(self, x: Any, y: Any = None) -> Any:
        parts = x if isinstance(x, tuple) and not self.drops else (x[0] if isinstance(x, tuple) else x,)
        rows, types = [], []
        for texts in zip(*parts, strict=True):
            ids, numbers = [2], [0]
            for number, text in enumerate(texts):
                ids += [*self.tokenizer(text), 3]
                numbers += [number] * (len(self.tokenizer(text)) + 1)
            fill = [0] * self.sequence_length
            rows.append((ids + fill)[: self.sequence_length])
            types.append((numbers + fill)[: self.sequence_length])
        ids_ = np.array(rows)
        made = {"token_ids": ids_, "padding_mask": ids_ != 0, "segment_ids": np.array(types), **self.more}
        return made if y is None else (made, y)


def model(**attributes: Any) -> ReferenceModel:
    random = np.random.default_rng(0)
    weights = {"E": random.normal(size=(10, 3)), "W": random.normal(size=(3, 2))}

    def forward(model: Any, input_ids: Any, attention_mask: Any, token_type_ids: Any = None) -> Tensor:
        return (lookup(model["E"], input_ids) * Tensor(attention_mask[..., None] * 1.0)).sum(1) @ model["W"]

    made = ReferenceModel(forward, weights)
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


def test_a_tokenizer_adds_no_special_tokens() -> None:
    batch = embgrad.encode(TEXTS, Tokenizer())
    np.testing.assert_array_equal(batch.ids, [[5, 6, 7], [8, 9, 0]])
    np.testing.assert_array_equal(batch.mask, [[1, 1, 1], [1, 1, 0]])
    assert batch.types is None
    assert batch.tokens == (("a", "gripping", "film"), ("the", "plot", "[PAD]"))
    assert batch.convention == "keras_hub"
    cut = embgrad.encode(TEXTS, Tokenizer(), max_length=2)
    np.testing.assert_array_equal(cut.ids, [[5, 6], [8, 9]])
    np.testing.assert_array_equal(cut.truncated, [1, 0])


def test_a_preprocessor_adds_special_tokens_and_joins_pairs() -> None:
    batch = embgrad.encode(["the plot", ("a film", "the plot")], Preprocessor())
    np.testing.assert_array_equal(batch.ids, [[2, 8, 9, 3, 0, 0, 0], [2, 5, 7, 3, 8, 9, 3]])
    np.testing.assert_array_equal(batch.mask, [[1, 1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1, 1]])
    np.testing.assert_array_equal(batch.types, [[0, 0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 1, 1, 1]])
    assert batch.texts == ("the plot", ("a film", "the plot"))
    assert batch.truncated.tolist() == [0, 0]


def test_what_a_preprocessor_cuts_off_is_counted() -> None:
    batch = embgrad.encode(["a gripping film", "a"], Preprocessor(sequence_length=3))
    np.testing.assert_array_equal(batch.ids, [[2, 5, 6], [2, 5, 3]])
    assert batch.truncated.tolist() == [1, 0]


@pytest.mark.parametrize("own", [False, True])
def test_a_model_is_given_texts(own: bool) -> None:
    built = model(preprocessor=Preprocessor()) if own else model()
    options = {} if own else {"tokenizer": Preprocessor()}
    result = embgrad.gradients(built, TEXTS, embgrad.Logit(1), **options)
    np.testing.assert_array_equal(result.ids, [[2, 5, 6, 7, 3], [2, 8, 9, 3, 0]])
    np.testing.assert_allclose(result.values, result.mask[..., None] * built["W"].value[:, 1])
    assert result.tokens[1] == ("[CLS]", "the", "plot", "[SEP]", "[PAD]")
    words = embgrad.attribute(
        built, TEXTS, embgrad.Logit(1), embgrad.methods.IntegratedGradients(2, baseline=4), **options
    )
    assert words.scores.shape == (2, 5)


def test_a_preprocessor_names_ids_and_knows_the_mask() -> None:
    ids = {"token_ids": [[2, 5, 3]], "padding_mask": [[1, 1, 1]]}
    assert embgrad.gradients(model(), ids, embgrad.Sum(), tokenizer=Preprocessor()).tokens == (("[CLS]", "a", "[SEP]"),)
    by_name, by_id = (
        embgrad.attribute(
            model(), ids, embgrad.Sum(), embgrad.methods.Occlusion(absent), tokenizer=Preprocessor()
        ).scores
        for absent in ("mask", 4)
    )
    np.testing.assert_array_equal(by_name, by_id)
    assert isinstance(tokenizer_of(None, Preprocessor()), Tokenizer)
    kept = embgrad.metrics.infidelity(
        model(), {**ids}, embgrad.Sum(), np.ones((1, 3)), remove="mask", tokenizer=Preprocessor(), samples=3
    )
    assert np.isfinite(kept).all()


def test_what_a_tokenizer_or_a_preprocessor_does_not_do_is_said() -> None:
    with refused(BatchError, "example 0 is a pair of texts, and Tokenizer splits single ones", "the preprocessor"):
        embgrad.encode([("a", "the")], Tokenizer())
    with refused(BatchError, "max_length is 5, and Preprocessor cuts texts itself, to its sequence_length of 8"):
        embgrad.encode(TEXTS, Preprocessor(), max_length=5)
    with refused(BatchError, "Preprocessor puts the mask in place of random tokens", "give ids as the batch"):
        embgrad.encode(TEXTS, Preprocessor(mask_positions=np.zeros((2, 2))))
    with refused(BatchError, "Preprocessor made 2 tokens of ('a film', 'the plot'), which has 4", "give ids"):
        embgrad.encode([("a film", "the plot")], Preprocessor(drops=True))

    class Failing(Preprocessor):
        __module__ = "keras_hub.src.models.preprocessor"

        def __call__(self, x: Any, y: Any = None) -> Any:
            raise TypeError("a dict is expected")

    for texts, what in ((TEXTS, "texts"), ([("a", "the")], "pairs of texts")):
        with refused(BatchError, f"Failing raised TypeError for {what}: give ids as the batch"):
            embgrad.encode(texts, Failing())

    class Other(Preprocessor):
        __module__ = "keras_hub.src.models.preprocessor"

        def __call__(self, x: Any, y: Any = None) -> Any:
            return {"images": np.zeros(3)}

    with refused(BatchError, "Other returned {'images': ", "expected a dict with 'token_ids' and 'padding_mask'"):
        embgrad.encode(TEXTS, Other())


def test_a_continuation_has_no_special_tokens() -> None:
    objective = embgrad.LogProbability.of("the plot", Preprocessor())
    np.testing.assert_array_equal(objective.labels, [8, 9])
