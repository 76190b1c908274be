"""Bisection of TensorFlow models with faults injected by hand: Hugging Face's BERT, functional Keras models, SavedModels."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras as keras3
import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras2
from transformers import BertConfig, TFBertModel

import embgrad
from embgrad.engine.weights import substitute, weights_of
from tests.support.sampling import slow

LAYERS = 4
RANDOM = np.random.default_rng(0)
BATCH = embgrad.TokenBatch(RANDOM.integers(3, 60, (3, 6)), [[1] * 6, [1] * 4 + [0] * 2, [1] * 3 + [0] * 3])
POOLED = embgrad.Projection(RANDOM.normal(size=32), output="pooled")
LABELS = embgrad.CrossEntropy([0, 1, 2])
KERAS = pytest.mark.parametrize("keras", [keras2, keras3], ids=["keras2", "keras3"])
SAVED = str(Path(__file__).parents[2] / "data" / "tfhub_bert_tiny")


def bert(kind: Any = TFBertModel) -> Any:
    config = BertConfig(
        vocab_size=60,
        hidden_size=32,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=20,
        num_labels=3,
    )
    model = kind(config)
    model(np.zeros((1, 2), np.int32))
    random = np.random.default_rng(3)
    for variable in model.weights:
        variable.assign(random.normal(size=variable.shape) * 0.2 + variable.name.endswith("gamma:0"))
    return model


@pytest.fixture(scope="module")
def model() -> Any:
    return bert()


def layer(model: Any, number: int = 2) -> Any:
    return model.bert.encoder.layer[number]


def swap(b: Any) -> None:
    attention = layer(b).attention.self_attention
    query, key = attention.query.kernel.numpy(), attention.key.kernel.numpy()
    attention.query.kernel.assign(key)
    attention.key.kernel.assign(query)


def turn(b: Any) -> None:
    kernel = layer(b).attention.dense_output.dense.kernel
    kernel.assign(kernel.numpy().T)


def epsilon(b: Any) -> None:
    layer(b).attention.dense_output.LayerNorm.epsilon = 1e-2


def tanh_gelu(b: Any) -> None:
    layer(b).intermediate.intermediate_act_fn = lambda x: tf.nn.gelu(x, approximate=True)


def unscaled(b: Any) -> None:
    layer(b).attention.self_attention.sqrt_att_head_size = 1.0


@pytest.mark.parametrize(
    ("fault", "module", "relation"),
    [
        # Each holds the weights of the other, so that it is their product that differs.
        (swap, "self_attention", "swapped with …/bert/encoder/layer_._2/attention/self/key/kernel:0"),
        (turn, "attention.dense_output.dense", "transposed"),
        (epsilon, "attention.dense_output.LayerNorm", None),
        (tanh_gelu, "intermediate", None),
        (unscaled, "self_attention", None),
    ],
)
def test_faults_in_weights_and_settings_are_located(
    model: Any, fault: Callable[[Any], None], module: str, relation: str | None
) -> None:
    other = bert()
    fault(other)
    found = embgrad.bisect(model, other, BATCH, POOLED)
    assert (found.first, found.direction) == ("layer.2", "forward")
    assert str(found.module).startswith("bert.encoder.layer.2.")
    assert str(found.module).endswith(module)
    relations = [re.sub(r"tf_bert_model\w*", "…", one.relation) for one in found.parameters if one.differs]
    assert relations[:1] == ([relation] if relation else [])


# Keras models, whose layers are counted on from one copy to the next


def functional(keras: Any, activation: str = "gelu") -> Any:
    layers = keras.layers
    ids = keras.Input((None,), dtype="int32")
    x = layers.Embedding(60, 16)(ids)
    for number in range(LAYERS):
        h = layers.LayerNormalization()(x)
        x = layers.Add()([x, layers.MultiHeadAttention(2, 8)(h, h)])
        h = layers.Dense(24, activation=activation if number == 2 else "gelu")(layers.LayerNormalization()(x))
        x = layers.Add()([x, layers.Dense(16)(h)])
    return keras.Model(ids, layers.Dense(3)(layers.GlobalAveragePooling1D()(x)))


def of_kind(model: Any, kind: str, number: int) -> Any:
    return [one for one in model.layers if type(one).__name__ == kind][number]


@KERAS
def test_a_functional_model(keras: Any) -> None:
    a, b = functional(keras), functional(keras)
    b.set_weights(a.get_weights())
    assert embgrad.bisect(a, b, BATCH.ids, LABELS).agrees
    dense = of_kind(b, "Dense", 3)
    kernel, bias = dense.get_weights()
    dense.set_weights([kernel * 1.01, bias])
    found = embgrad.bisect(a, b, BATCH.ids, LABELS)
    own = of_kind(a, "Dense", 3).name
    assert own != dense.name
    assert (found.module, found.direction, len(found.parameters)) == (own, "forward", 2)
    assert [one.differs for one in found.parameters] == [True, False]
    dense.set_weights([kernel, bias])
    attention = of_kind(b, "MultiHeadAttention", 2)
    query, query_bias, key, *rest = attention.get_weights()
    attention.set_weights([key, query_bias, query, *rest])
    found = embgrad.bisect(a, b, BATCH.ids, LABELS)
    assert str(found.module).startswith(of_kind(a, "MultiHeadAttention", 2).name)
    assert found.parameters[0].relation.startswith("swapped with")


@KERAS
def test_a_recurrent_model(keras: Any) -> None:
    def built() -> Any:
        layers = keras.layers
        model = keras.Sequential([layers.Embedding(60, 16), layers.LSTM(8, return_sequences=True), layers.LSTM(8)])
        model.add(layers.Dense(3))
        model(BATCH.ids)
        return model

    a, b = built(), built()
    b.set_weights(a.get_weights())
    b.layers[2].set_weights([one * 1.01 for one in a.layers[2].get_weights()])
    found = embgrad.bisect(a, b, BATCH.ids, LABELS)
    assert str(found.module).startswith(a.layers[2].name)
    assert all(one.relation == "different" for one in found.parameters)


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("transformer/layer_1/self_attention/key/kernel:0", "layer.1"),
        slow(("transformer/layer_0/output_layer_norm/gamma:0", "layer.0")),
        slow(("pooler_transform/kernel:0", "bert_encoder_1/pooler_transform:output")),
    ],
)
def test_a_saved_model(name: str, first: str) -> None:
    a, b = tf.saved_model.load(SAVED), tf.saved_model.load(SAVED)
    batch = embgrad.TokenBatch([[2, 7, 8, 3], [2, 9, 3, 0]], [[1, 1, 1, 1], [1, 1, 1, 0]], convention="tfhub")
    (weight,) = (one for one in weights_of(b) if one.name == name)
    with substitute(b, {name: weight.get() * 1.01 + 0.01}):
        found = embgrad.bisect(a, b, batch, embgrad.Sum(output="pooled"))
    assert found.first == first
    assert str(found.module).endswith(name.rpartition("/")[0])
    assert [one.a for one in found.parameters if one.differs] == [name]
