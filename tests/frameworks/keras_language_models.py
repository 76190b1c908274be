"""keras-hub's encoder-decoders and language models on any Keras backend, which KERAS_BACKEND names.

`test_keras_language_models.py` of each framework runs these.
"""

from __future__ import annotations

from typing import Any

import keras
import keras_hub
import numpy as np
import pytest

import embgrad
from embgrad.errors import BatchError, UnsupportedError

SIZES = {"vocabulary_size": 30, "num_layers": 1, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 16}
IDS = np.array([[5, 9, 21, 7, 0, 0], [8, 3, 0, 0, 0, 0]])
MASK = np.array([[1, 1, 1, 1, 0, 0], [1, 1, 0, 0, 0, 0]])
OUT = np.array([[2, 12, 6, 28, 4, 11], [2, 7, 19, 25, 0, 0]])
OUT_MASK = np.array([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])
DATA = {
    "encoder_token_ids": IDS,
    "encoder_padding_mask": MASK,
    "decoder_token_ids": OUT,
    "decoder_padding_mask": OUT_MASK,
}
WEIGHTS = np.random.default_rng(1).normal(size=8)
OBJECTIVE = embgrad.Projection(WEIGHTS, output="decoder_sequence_output")


@pytest.fixture(autouse=True)
def _the_same_weights() -> None:
    keras.utils.set_random_seed(0)


def backbone(name: str) -> Any:
    further = {} if name == "T5" else {"max_sequence_length": 16}
    return getattr(keras_hub.models, f"{name}Backbone")(**SIZES, **further)


def bart() -> Any:
    return keras_hub.models.BartSeq2SeqLM(backbone=backbone("Bart"), preprocessor=None)


def gpt2() -> Any:
    return keras_hub.models.GPT2CausalLM(backbone=backbone("GPT2"), preprocessor=None)


def native(data: dict[str, np.ndarray]) -> dict[str, Any]:
    return {name: keras.ops.convert_to_tensor(value) for name, value in data.items()}


def numbers(value: Any) -> np.ndarray:
    return np.asarray(keras.ops.convert_to_numpy(value), np.float64)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)))


@pytest.mark.parametrize("name", ["Bart", "T5"])
def test_the_decoders_output_has_the_decoders_mask_however_the_model_is_called(name: str) -> None:
    model = backbone(name)
    states = numbers(model(native(DATA))["decoder_sequence_output"])
    first = embgrad.gradients(model, DATA, OBJECTIVE, check=True)
    np.testing.assert_allclose(first.objective, ((states @ WEIGHTS) * OUT_MASK).sum(1), rtol=1e-5, atol=1e-5)
    assert first.certificate is not None
    assert first.pad_leak == 0
    of_huggingface = {"decoder_input_ids": OUT, "decoder_attention_mask": OUT_MASK}
    own = {key: DATA[key] for key in ("decoder_token_ids", "decoder_padding_mask")}

    def call(model: Any, inputs: Any) -> Any:
        encoder = {"encoder_token_ids": inputs["input_ids"], "encoder_padding_mask": inputs["attention_mask"]}
        names = own if "decoder_token_ids" in inputs else of_huggingface
        return model({**encoder, **{key: inputs[name] for key, name in zip(own, names, strict=True)}})

    for further in (own, of_huggingface):
        batch = embgrad.TokenBatch(IDS, MASK, extras=further)
        for by in (None, call):
            g = embgrad.gradients(model, batch, OBJECTIVE, call=by)
            np.testing.assert_allclose(g.values, first.values, atol=1e-6)
            np.testing.assert_allclose(g.objective, first.objective, rtol=1e-6)
    encoder = embgrad.evaluate(model, DATA, embgrad.Projection(WEIGHTS, output="encoder_sequence_output"))
    states = numbers(model(native(DATA))["encoder_sequence_output"])
    np.testing.assert_allclose(encoder, ((states @ WEIGHTS) * MASK).sum(1), rtol=1e-5, atol=1e-5)


def test_a_mask_of_the_decoder_that_is_not_given_is_ones() -> None:
    model = backbone("Bart")
    without = {key: value for key, value in DATA.items() if key != "decoder_padding_mask"}
    ones = {**DATA, "decoder_padding_mask": np.ones_like(OUT)}
    np.testing.assert_array_equal(embgrad.evaluate(model, without, OBJECTIVE), embgrad.evaluate(model, ones, OBJECTIVE))


def test_the_decoders_tokens_are_the_output_tokens() -> None:
    model = bart()
    a = embgrad.attribute_tokens(model, DATA)
    np.testing.assert_array_equal(a.outputs, [[1, 2, 3, 4, 5], [1, 2, 3, -1, -1]])
    np.testing.assert_array_equal(a.decoder_ids, OUT)
    log_p = log_softmax(numbers(model(native(DATA))))
    for example, output in np.argwhere(a.outputs >= 0):
        position = a.outputs[example, output]
        expected = log_p[example, position - 1, OUT[example, position]]
        np.testing.assert_allclose(a.objective[example, output], expected, rtol=1e-5)
    occluded = embgrad.attribute_tokens(
        model, DATA, targets=[-1], method=embgrad.methods.Occlusion(replacement=3, keep_special=False)
    )
    changed = OUT.copy()
    changed[0, 2] = 3
    other = log_softmax(numbers(model(native({**DATA, "decoder_token_ids": changed}))))[0, 4, 11]
    assert occluded.decoder_scores is not None
    np.testing.assert_allclose(occluded.decoder_scores[0, 0, 2], log_p[0, 4, 11] - other, atol=2e-6)


def test_what_the_model_generated_is_attributed() -> None:
    model = gpt2()
    model.compile(sampler="greedy")
    prompts = {"token_ids": np.pad(IDS[:, :2], ((0, 0), (0, 4))), "padding_mask": np.array([[1, 1, 0, 0, 0, 0]] * 2)}
    texts = model.generate(prompts, stop_token_ids=None)
    result = embgrad.attribute_tokens(model, texts, targets=slice(2, None))
    np.testing.assert_array_equal(result.outputs, [[2, 3, 4, 5]] * 2)
    given = embgrad.attribute_tokens(model, numbers(texts["token_ids"]), targets=slice(2, None))
    np.testing.assert_allclose(result.scores, given.scores, atol=1e-6)
    with pytest.raises(UnsupportedError, match="is a model of keras-hub, whose generate"):
        embgrad.attribute_tokens(model, IDS[:, :2], generate=3)


WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "gripping", "film", "the", "plot"]


def test_texts_through_a_tokenizer_and_a_preprocessor() -> None:
    tokenizer = keras_hub.models.BertTokenizer(vocabulary=WORDS)
    preprocessor = keras_hub.models.BertTextClassifierPreprocessor(tokenizer, sequence_length=9)
    model = keras_hub.models.BertTextClassifier(backbone("Bert"), num_classes=2, preprocessor=preprocessor)
    for texts, given in (
        (["a gripping film", "the plot"],) * 2,
        ([("a film", "the plot")], (["a film"], ["the plot"])),
    ):
        data = {name: numbers(value).astype(int) for name, value in preprocessor(x=given).items()}
        length = data["padding_mask"].sum(1).max()
        batch = {name: value[:, :length] for name, value in data.items()}
        expected = embgrad.gradients(model, batch, embgrad.Logit(1))
        for options in ({}, {"tokenizer": preprocessor}):
            result = embgrad.gradients(model, texts, embgrad.Logit(1), **options)
            np.testing.assert_array_equal(result.ids, batch["token_ids"])
            np.testing.assert_array_equal(result.types, batch["segment_ids"])
            np.testing.assert_array_equal(result.values, expected.values)
            assert result.tokens[0][:2] == ("[CLS]", "a")
    plain = embgrad.encode(["a gripping film", "the plot"], tokenizer)
    np.testing.assert_array_equal(plain.ids, [[5, 6, 7], [8, 9, 0]])
    assert embgrad.encode(["the plot " * 6], preprocessor).truncated.tolist() == [5]
    with pytest.raises(BatchError, match="BertMaskedLMPreprocessor puts the mask in place of random tokens"):
        embgrad.encode(["a film"], keras_hub.models.BertMaskedLMPreprocessor(tokenizer, sequence_length=9))


def test_texts_of_a_language_model() -> None:
    vocabulary = {"<|endoftext|>": 0, "a": 1, "Ġ": 2, "f": 3, "i": 4, "l": 5, "m": 6, "fi": 7, "lm": 8}
    tokenizer = keras_hub.models.GPT2Tokenizer(vocabulary=vocabulary, merges=["f i", "l m"])
    preprocessor = keras_hub.models.GPT2CausalLMPreprocessor(tokenizer, sequence_length=8)
    model = keras_hub.models.GPT2CausalLM(backbone=backbone("GPT2"), preprocessor=preprocessor)
    made = embgrad.attribute_tokens(model, ["a film"])
    assert made.tokens == (("<|endoftext|>", "a", "Ġ", "fi", "lm", "<|endoftext|>"),)
    ids = {"token_ids": np.array([[0, 1, 2, 7, 8, 0]]), "padding_mask": np.ones((1, 6), int)}
    np.testing.assert_array_equal(made.scores, embgrad.attribute_tokens(model, ids).scores)
    split = embgrad.attribute_tokens(model, ["a film"], tokenizer=tokenizer)
    assert split.tokens == (("a", "Ġ", "fi", "lm"),)
    with pytest.raises(BatchError, match="GPT2CausalLMPreprocessor raised ValueError for pairs of texts"):
        embgrad.encode([("a", "film")], preprocessor)
