"""Points: which tensor a role or a path means, on real models, against their own hidden states under a tape."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras2
import transformers

import embgrad
from tests.frameworks.tensorflow.helpers import make_model, policy
from tests.frameworks.tensorflow.transformers_by_hand import IDS, LAYERS, VECTOR, build, by_hand, close

BATCH = {"input_ids": np.where(IDS == 1, 10, IDS), "attention_mask": (IDS != 0).astype(int)}
PADDED_BY_1 = {**BATCH, "input_ids": np.where(IDS == 0, 1, BATCH["input_ids"])}
SMALL = {
    "vocab_size": 12, "hidden_size": 4, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 6,
    "max_position_embeddings": 12,
    "initializer_range": 0.5, "pad_token_id": 0,
}  # fmt: skip
MODELS = {
    "bert": ("TFBertModel", "BertConfig", SMALL, "bert.encoder.layer", {"position", "type"}),
    "roberta": ("TFRobertaModel", "RobertaConfig", SMALL, "roberta.encoder.layer", {"position", "type"}),
    "distilbert": (
        "TFDistilBertModel",
        "DistilBertConfig",
        {"vocab_size": 12, "dim": 4, "n_layers": 3, "n_heads": 2, "hidden_dim": 6, "max_position_embeddings": 12}
        | {"initializer_range": 0.5},
        "distilbert.transformer.layer",
        {"position"},
    ),
}


def roles(points: Any) -> dict[str, Any]:
    return {role: point for point in points for role in point.roles}


@pytest.mark.parametrize("name", MODELS)
def test_hidden_states_of_hugging_face(name: str) -> None:
    class_name, config_name, options, path, lookups = MODELS[name]
    batch = PADDED_BY_1 if name == "roberta" else BATCH
    with policy(keras2, "float64"):
        model = getattr(transformers, class_name)(getattr(transformers, config_name)(**options))
        inputs = {key: tf.constant(value, tf.int32) for key, value in batch.items()}
        with tf.GradientTape() as tape:
            outputs = model(**inputs, output_hidden_states=True)
            real = tf.cast(inputs["attention_mask"], tf.float64)[..., None]
            total = tf.reduce_sum(outputs.last_hidden_state * VECTOR * real)
        expected = tape.gradient(total, list(outputs.hidden_states))
        found = roles(embgrad.points(model, batch))
        assert {"word", "embeddings", "layer.0", "layer.1", "layer.2", "layer.-1", *lookups} == set(found)
        assert [found[f"layer.{number}"].path for number in range(3)] == [f"{path}.{number}" for number in range(3)]
        names = ["embeddings", "layer.0", "layer.1", "layer.-1"]
        results = embgrad.gradients(model, batch, embgrad.Projection(VECTOR, output="sequence"), at=names)
        for number, one in enumerate(names):
            close(results[one].values, expected[number].numpy())
            close(results[one].activations, outputs.hidden_states[number].numpy(), 1e-14)


def test_a_subclassed_transformer(keras: Any) -> None:
    model = build(keras)
    expected = by_hand(model)
    found = roles(embgrad.points(model, IDS))
    assert {name: point.path for name, point in found.items()} == {
        "word": "embed.words",
        "position": "embed.places",
        "embeddings": "embed",
        **{f"layer.{number}": f"blocks.{number}" for number in range(LAYERS)},
        "layer.-1": f"blocks.{LAYERS - 1}",
    }
    names = [name for name in expected if name != "position"]
    results = embgrad.gradients(model, IDS, embgrad.Projection(VECTOR), at=names)
    for name in names:
        close(results[name].activations, expected[name][0], 1e-14)
        close(results[name].values, expected[name][1])
    # all examples share the positions: each has its own share of the gradient
    shared = embgrad.gradients(model, IDS, embgrad.Projection(VECTOR), at="position")
    close(shared.values.sum(0), expected["position"][1][0])


def test_a_functional_transformer(keras: Any) -> None:
    layers = keras.layers
    ids = layers.Input((None,), dtype="int32", name="ids")
    hidden = layers.Embedding(12, 4, name="words", dtype="float64")(ids)
    for number in range(2):
        mixed = layers.Dense(4, activation="tanh", name=f"dense_{number}", dtype="float64")(hidden)
        hidden = layers.Add(name=f"block_{number}", dtype="float64")([hidden, mixed])
    model = keras.Model(ids, layers.Dense(4, name="head", dtype="float64")(hidden))
    parts = keras.Model(ids, [model.get_layer(one).output for one in ("words", "dense_0", "block_0", "head")])
    with tf.GradientTape() as tape:
        *tensors, logits = parts(tf.constant(IDS, tf.int32))
        total = tf.reduce_sum(logits * VECTOR)
    expected = tape.gradient(total, tensors)
    results = embgrad.gradients(
        model, IDS, embgrad.Projection(VECTOR), at=["words", "words:output", "dense_0", "block_0", "block_1:input"]
    )
    # what the lookup gives goes to the sum as well: the layer's output is all of it
    close(results["words"].values, expected[0].numpy())
    close(results["words:output"].values, expected[0].numpy())
    close(results["dense_0"].values, expected[1].numpy())
    close(results["block_0"].values, expected[2].numpy())
    # the input of a module is what goes into that module alone
    kernel = model.get_layer("head").kernel.numpy()
    close(results["block_1:input"].values, np.broadcast_to(kernel @ VECTOR, (*IDS.shape, 4)))


def test_dropouts_output_has_only_the_gradient_of_its_users(keras: Any) -> None:
    """In evaluation mode it gives the very tensor that it was given, which others use too."""
    model = build(keras)
    block = model.blocks[0]
    hidden = tf.constant(by_hand(model)["embeddings"][0])
    with tf.GradientTape() as tape:
        weights = tf.nn.softmax(tf.matmul(block.attend(hidden), hidden, transpose_b=True))
        residual = hidden + tf.matmul(weights, hidden)
        dropped = tf.identity(residual)
        tape.watch(dropped)
        after = residual + block.bend(dropped)
        for other in model.blocks[1:]:
            after = other(after)[0]
        total = tf.reduce_sum(model.head(after) * VECTOR)
    expected = tape.gradient(total, dropped)
    for name in ("blocks.0.drop", "blocks.0.drop:input", "blocks.0.bend:input"):
        close(embgrad.gradients(model, IDS, embgrad.Projection(VECTOR), at=name).values, expected.numpy())


class _Scale(tf.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = tf.Variable(factor, dtype=tf.float64)

    def __call__(self, hidden: Any) -> Any:
        return self.factor * hidden


class _Bent(_Scale):
    def __call__(self, hidden: Any) -> Any:
        return tf.tanh(super().__call__(hidden))


class _Compiled(_Scale):
    @tf.function
    def __call__(self, hidden: Any) -> Any:
        return self.factor * hidden**2


class _Net(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = tf.Variable(np.random.default_rng(0).normal(size=(12, 4)))
        self.steps = [_Bent(0.5), _Scale(2.0), _Compiled(3.0)]

    def __call__(self, ids: Any) -> Any:
        hidden = tf.gather(self.table, ids)
        for step in self.steps:
            hidden = step(hidden)
        return hidden


def test_plain_modules_by_their_classes() -> None:
    model = _Net()
    methods = [vars(cls)["__call__"] for cls in (_Scale, _Bent, _Compiled, _Net)]
    found = [point.name for point in embgrad.points(model, IDS) if point.listed]
    assert found == ["table#0", "steps.0#0", "steps.1#0", "steps.2#0"]  # the call of the class above is the same call
    assert [vars(cls)["__call__"] for cls in (_Scale, _Bent, _Compiled, _Net)] == methods
    results = embgrad.gradients(model, IDS, embgrad.Projection(VECTOR), at=["steps.0", "steps.1", "steps.2"])
    rows = np.tanh(0.5 * model.table.numpy()[IDS])
    close(results["steps.0"].activations, rows)
    close(results["steps.2"].values, np.broadcast_to(VECTOR, (*IDS.shape, 4)))
    close(results["steps.1"].values, 3 * 2 * (2 * rows) * VECTOR)
    close(results["steps.0"].values, 2 * 3 * 2 * (2 * rows) * VECTOR)


def test_a_layer_of_tf_hub(tmp_path: Any) -> None:
    import tensorflow_hub as hub

    @tf.function(input_signature=[tf.TensorSpec((None, None, 4), tf.float64)])
    def forward(self: Any, hidden: Any) -> Any:
        return tf.tanh(tf.matmul(hidden, self.kernel))

    tf.saved_model.save(make_model(forward, kernel=tf.Variable(np.eye(4) * 2)), str(tmp_path))
    ids = keras2.layers.Input((None,), dtype="int32", name="ids")
    rows = keras2.layers.Embedding(12, 4, name="words", dtype="float64")(ids)
    inner = hub.KerasLayer(str(tmp_path), name="inner", dtype="float64")
    model = keras2.Model(ids, keras2.layers.Dense(4, name="head", dtype="float64")(inner(rows)))
    result = embgrad.gradients(model, IDS, embgrad.Projection(VECTOR), at="inner")
    close(result.activations, np.tanh(2 * model.get_layer("words").embeddings.numpy()[IDS]))
    close(result.values, np.broadcast_to(model.get_layer("head").kernel.numpy() @ VECTOR, (*IDS.shape, 4)))
