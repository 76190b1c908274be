"""`compile=True`: a kept trace gives what the model gives, for models of every sort and however it is asked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import embgrad
from tests.frameworks.tensorflow.helpers import assert_slopes
from tests.frameworks.tensorflow.test_models import BODIES, VECTOR, functional
from tests.frameworks.tensorflow.traced import IDS, PROJECTION, Net, both
from tests.support.compiled import same

LABELS = np.array([1, 0, 1])

#: Of the layers that are made here.
POLICY = "float64"


@pytest.mark.sampled(8)
@pytest.mark.parametrize("body", BODIES)
def test_keras_models_with_a_trace(keras: Any, body: str) -> None:
    model, table = functional(keras, *BODIES[body](keras))
    plain, compiled = both(model, IDS, PROJECTION)
    same(plain, compiled)
    assert_slopes(compiled, table, lambda: tf.reduce_sum(model(tf.constant(IDS, tf.int32)) * VECTOR))


def test_split_and_training(keras: Any) -> None:
    ids = keras.layers.Input((None,), dtype="int32")
    pooled = keras.layers.GlobalAveragePooling1D()(keras.layers.Embedding(12, 4)(ids))
    norm = keras.layers.BatchNormalization()
    model = keras.Model(ids, keras.layers.Dense(2)(norm(pooled)))
    found = [np.array(one) for one in model.get_weights()]
    for options in ({"split": True}, {"training": True}, {"split": True, "training": True}):
        same(*both(model, IDS, embgrad.CrossEntropy(LABELS), **options), rel=1e-8)
    for one, was in zip(model.get_weights(), found, strict=True):
        np.testing.assert_array_equal(one, was)


def test_objectives_of_the_users(keras: Any, traces: list[Any]) -> None:
    ids = keras.layers.Input((None,), dtype="int32")
    rows = keras.layers.LSTM(3)(keras.layers.Embedding(12, 4)(ids))
    model = keras.Model(ids, {"a": keras.layers.Dense(2)(rows), "b": keras.layers.Dense(3)(rows)})
    for factor in (1.0, 3.0):
        for objective in (
            lambda out, factor=factor: factor * tf.reduce_sum(out["a"], 1),
            lambda out, factor=factor: factor * tf.reduce_sum(out["b"] ** 2, 1) + out["a"][:, 0],
            embgrad.Scalar(lambda out, factor=factor: factor * tf.reduce_sum(out["b"])),
        ):
            same(*(embgrad.gradients(model, IDS, objective, compile=one) for one in (False, True)))
    assert len(traces) == 1
    same(*both(model, IDS, lambda out: tf.reduce_sum(out["a"], 1), split=True))


def test_per_position_outputs_by_rows(keras: Any, traces: list[Any]) -> None:
    ids = keras.layers.Input((None,), dtype="int32")
    rows = keras.layers.GRU(3, return_sequences=True)(keras.layers.Embedding(12, 4)(ids))
    model = keras.Model(ids, keras.layers.Dense(7)(rows))
    for objective in (embgrad.Logit(2, position=1), embgrad.Logit(2), embgrad.Logit(1, position=-1)):
        same(*(embgrad.gradients(model, IDS, objective, compile=one) for one in (False, True)))
    assert len(traces) == 1
    same(*both(model, IDS, embgrad.Logit(3, position=0), split=True))


def test_lookups_of_other_indices_are_checked_too() -> None:
    class Shifted(Net):
        def __call__(self, ids: Any) -> Any:
            return self.head(tf.gather(self.rows, ids) + tf.gather(self.rows, ids + 3))

    model = Shifted()
    small = np.minimum(IDS, 8)
    same(*both(model, small, PROJECTION))
    said = []
    for compiled in (False, True):
        with pytest.raises(embgrad.errors.BatchError) as raised:
            embgrad.gradients(model, IDS, PROJECTION, compile=compiled)
        said.append(str(raised.value))
    assert said[0] == said[1]


def test_a_lookup_that_equals_another_by_chance_runs_without_the_trace() -> None:
    class Positions(Net):
        def __call__(self, ids: Any) -> Any:
            places = tf.gather(self.rows, tf.range(tf.shape(ids)[1])[None])
            return self.head(tf.gather(self.rows, ids) + 2 * places)

    model = Positions()
    same(*both(model, IDS[:1], PROJECTION))
    same(*both(model, np.arange(5)[None], PROJECTION))


def test_transformers_with_layers() -> None:
    from transformers import BertConfig, TFBertForSequenceClassification

    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    model = TFBertForSequenceClassification(BertConfig(vocab_size=40, max_position_embeddings=16, **sizes))
    batch = {"input_ids": IDS + 1, "attention_mask": (IDS > 0).astype(int)}
    names = ["word", "layer.0", "layer.-1"]
    plain, compiled = both(model, batch, embgrad.CrossEntropy(LABELS), at=names)
    for name in names:
        same(plain[name], compiled[name], rel=2e-6)
