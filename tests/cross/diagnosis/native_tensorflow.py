"""TensorFlow by hand: healthy models, and the gradient as a user's own script takes it."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import tensorflow as tf
import tf_keras as keras
import transformers

from tests.cross.diagnosis.losses import Functions, losses_of, reduced
from tests.cross.diagnosis.recipes import Computed, Loss, Recipe

CONVENTIONS: Final = {"classifier": "huggingface", "encoder": "huggingface", "tied": "huggingface", "own": "ids"}
CLASSES: Final = {
    "classifier": transformers.TFBertForSequenceClassification,
    "encoder": transformers.TFBertModel,
    "tied": transformers.TFBertForMaskedLM,
}
LAST: Final = {"kernel": "weight", "embeddings": "weight", "gamma": "weight", "beta": "bias"}

logging.getLogger("tensorflow").setLevel(logging.ERROR)


def seed(number: int) -> None:
    keras.utils.set_random_seed(number)


def build(kind: str, size: Any, weights: Mapping[str, np.ndarray], seed: int) -> Any:
    if kind == "own":
        return _own(size, seed)
    config = transformers.BertConfig(
        vocab_size=size.vocab,
        hidden_size=size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        intermediate_size=size.inner,
        max_position_embeddings=size.positions,
        type_vocab_size=size.types,
        num_labels=size.classes,
    )
    model = CLASSES[kind](config)
    model(np.zeros((1, 1), np.int32), training=False)  # the first call makes the weights
    for variable in model.weights:
        name = _canonical(variable.name)
        variable.assign(weights[name].T if variable.name.endswith("kernel:0") else weights[name])
    return model


def _canonical(name: str) -> str:
    path = name.removesuffix(":0").split("/", 1)[1]
    path = path.removeprefix("bert/").replace("mlm___cls/predictions/", "head/")
    *modules, last = re.sub(r"layer_\._(\d+)", r"layer/\1", path).split("/")
    return ".".join([*modules, LAST.get(last, last)])


def _own(size: Any, seed: int) -> Any:
    """A functional Keras model that takes no mask."""
    layers = keras.layers
    ids = keras.Input((None,), dtype="int32")
    x = layers.Embedding(size.vocab, size.hidden, name="tokens")(ids)
    x = layers.LayerNormalization(epsilon=1e-6, name="norm")(x)
    x = layers.Bidirectional(layers.LSTM(size.hidden // 2, return_sequences=True), name="recurrent")(x)
    up = layers.Dense(size.inner, name="up")(x)
    down = layers.Dense(size.hidden, name="down")(keras.activations.gelu(up))
    x = layers.LayerNormalization(epsilon=1e-6, name="norm2")(layers.Dropout(0.1, name="drop")(down) + x)
    x = layers.Dense(size.hidden, activation="tanh", name="square")(x)
    model = keras.Model(ids, layers.Dense(size.classes, name="head")(layers.GlobalAveragePooling1D()(x)))
    random = np.random.default_rng([seed, 4])
    for variable in model.trainable_variables:
        base = 1.0 if "gamma" in variable.name else 0.0
        std = 0.4 if "embeddings" in variable.name else 0.3 if len(variable.shape) == 2 else 0.15
        variable.assign(base + random.normal(0, std, tuple(variable.shape)))
    return model


class Port(keras.Model):
    """Somebody's port of the model, which loses or changes an input on the way."""

    def __init__(self, inner: Any, drop: str = "", offset: int = 0) -> None:
        super().__init__()
        self.inner, self.drop, self.offset = inner, drop, offset

    def call(
        self, input_ids: Any, attention_mask: Any = None, token_type_ids: Any = None, training: bool = False
    ) -> Any:
        given = {"attention_mask": attention_mask, "token_type_ids": token_type_ids}
        passed = {name: value for name, value in given.items() if value is not None and name != self.drop}
        if self.offset:
            passed["position_ids"] = tf.range(tf.shape(input_ids)[1])[None] + self.offset
        return self.inner({"input_ids": input_ids, **passed}, training=training)


def core(model: Any) -> Any:
    """The model inside a port, and the BERT inside a head."""
    inner = model.inner if isinstance(model, Port) else model
    return getattr(inner, "bert", inner)


def is_own(model: Any) -> bool:
    return not hasattr(core(model), "encoder")


def table_of(model: Any) -> Any:
    return model.get_layer("tokens").embeddings if is_own(model) else core(model).embeddings.weight


def by_hand(model: Any, world: Any, loss: Loss, recipe: Recipe) -> Computed:
    """The gradient as a user's own script takes it, under a tape."""
    tf.random.set_seed(world.seed)
    with tf.GradientTape() as tape, _listening(model, recipe.tap) as kept:
        losses = losses_of(tf.cast(_called(model, world, recipe), tf.float32), loss, world, FUNCTIONS)
        total = reduced(losses, recipe.reduction, world, FUNCTIONS)
    if recipe.tap == "table":
        found = tf.gather(tf.convert_to_tensor(tape.gradient(total, table_of(model))), world.batch.ids)
    else:
        found = tape.gradient(total, kept[recipe.tap])
    return Computed(np.asarray(tf.cast(found, tf.float32)), losses.numpy().astype(np.float64))


@contextlib.contextmanager
def _listening(model: Any, tap: str) -> Iterator[dict[str, Any]]:
    """Keeps what the lookup and the embeddings' norm give while the model is called."""
    kept: dict[str, Any] = {}
    if tap == "table":
        yield kept
        return
    place = model.get_layer("tokens") if is_own(model) else core(model).embeddings
    inner = place.call

    def looked_up(inputs: Any, **others: Any) -> Any:
        kept["lookup"] = inner(inputs, **others)
        return kept["lookup"]

    def embedded(input_ids: Any = None, **others: Any) -> Any:
        kept["lookup"] = tf.gather(params=place.weight, indices=input_ids)
        kept["norm"] = inner(**{**others, "inputs_embeds": kept["lookup"]})
        return kept["norm"]

    place.call = looked_up if is_own(model) else embedded
    try:
        yield kept
    finally:
        del place.call


def _called(model: Any, world: Any, recipe: Recipe) -> Any:
    batch = world.batch
    if world.kind == "own":
        return model(tf.constant(batch.ids + recipe.shift, tf.int32), training=recipe.training)
    inputs = {"input_ids": tf.constant(batch.ids + recipe.shift)}
    if batch.mask is not None and "mask" not in recipe.drop:
        inputs["attention_mask"] = tf.constant(batch.mask)
    if batch.types is not None and "types" not in recipe.drop:
        inputs["token_type_ids"] = tf.constant(batch.types)
    if recipe.offset:
        inputs["position_ids"] = tf.range(batch.shape[1], dtype=tf.int64)[None] + recipe.offset
    output = (
        model(**inputs, training=recipe.training)
        if isinstance(model, Port)
        else model(inputs, training=recipe.training)
    )
    return output.logits if hasattr(output, "logits") else output.last_hidden_state


FUNCTIONS: Final = Functions(
    array=tf.constant,
    exp=tf.exp,
    log_softmax=tf.nn.log_softmax,
    pick=lambda output, labels: tf.gather(output, labels, batch_dims=len(labels.shape)),
    total=tf.reduce_sum,
)
