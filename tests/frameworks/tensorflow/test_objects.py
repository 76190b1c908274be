"""Objects that people have in TensorFlow: models that take one dict, encodings, and what `call=` is given."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import transformers

import embgrad
from tests.frameworks.tensorflow.helpers import KERAS, make_model

IDS = np.array([[3, 1, 4, 15], [9, 2, 6, 5]])
MASK = np.array([[1, 1, 1, 1], [1, 1, 1, 0]])
BATCH = {"input_ids": IDS, "attention_mask": MASK}


def read(model: Any, features: Any) -> Any:
    weights = tf.cast(features["attention_mask"], tf.float32)[..., None]
    return {"scores": model.head(tf.reduce_sum(tf.tanh(model.words(features["input_ids"])) * weights, 1))}


def of_one_dict(keras: Any) -> Any:
    """A model that is not built yet, and says by an annotation what it takes."""

    def call(self: Any, features: dict[str, Any], training: bool = False) -> Any:
        return read(self, features)

    return make_model(call, keras.Model, words=keras.layers.Embedding(20, 6), head=keras.layers.Dense(3))


class Module(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.matrix = tf.Variable(tf.random.normal([20, 6])), tf.Variable(tf.random.normal([6, 3]))

    def words(self, ids: Any) -> Any:
        return tf.gather(self.table, ids)

    def head(self, hidden: Any) -> Any:
        return hidden @ self.matrix

    def __call__(self, features: dict[str, Any]) -> Any:
        return read(self, features)


@pytest.mark.parametrize("kind", ["keras2", "keras3", "module"])
def test_a_model_that_takes_one_dict(kind: str) -> None:
    model = Module() if kind == "module" else of_one_dict(KERAS[kind])
    result = embgrad.gradients(model, BATCH, embgrad.Logit(1), check=True)
    table = model.table if kind == "module" else model.words.trainable_variables[0]
    table = table.value if kind == "keras3" else table  # a tf.Variable
    with tf.GradientTape() as tape:
        tape.watch(table)
        value = tf.reduce_sum(model({name: tf.constant(one) for name, one in BATCH.items()})["scores"][:, 1])
    own = tf.convert_to_tensor(tape.gradient(value, table)).numpy()[IDS]
    np.testing.assert_allclose(result.values, own, rtol=1e-5, atol=1e-7)
    assert result.provenance["unused"] == []


DECODER = np.array([[0, 11, 12, 13, 14], [0, 8, 7, 0, 0]])
DECODER_MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])


@pytest.fixture(scope="module")
def t5() -> Any:
    config = transformers.T5Config(
        vocab_size=20, d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2, decoder_start_token_id=0, pad_token_id=0
    )
    return transformers.TFT5ForConditionalGeneration(config)


def test_an_encoder_decoder(t5: Any) -> None:
    """Positions count on the decoder's mask; `word` is the encoder's lookup in the table that both halves share."""
    batch = {**BATCH, "decoder_input_ids": DECODER, "decoder_attention_mask": DECODER_MASK}
    native = {name: tf.constant(value) for name, value in batch.items()}
    result = embgrad.gradients(t5, batch, embgrad.Logit(3, position=-1))
    ids = native.pop("input_ids")
    rows = tf.gather(t5.shared.weights[0], ids)
    with tf.GradientTape() as tape:
        tape.watch(rows)
        logits = t5(None, inputs_embeds=rows, **native).logits
        value = logits[0, 4, 3] + logits[1, 2, 3]
    np.testing.assert_allclose(result.values, tape.gradient(value, rows).numpy(), rtol=1e-4, atol=1e-7)


def test_an_encoder_decoder_without_decoder_ids(t5: Any) -> None:
    message = "the model TFT5ForConditionalGeneration is an encoder-decoder, and raised ValueError without decoder ids: expected"
    with pytest.raises(embgrad.errors.BatchError, match=message):
        embgrad.gradients(t5, BATCH, embgrad.Logit(3))
