"""Models of keras-hub by the plain call: their roles, and the values there against gradients of TensorFlow's own tape."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import keras
import keras_hub
import numpy as np
import pytest
import tensorflow as tf

import embgrad
from tests.frameworks.tensorflow.helpers import own_table_gradient
from tests.support import keras_hub_zoo as zoo
from tests.support.sampling import slow


def total_of(name: str, mask: np.ndarray) -> Callable[[Any], Any]:
    """Return a function that computes the sum of the zoo's objective from what the model of that name returns."""
    task = zoo.MODELS[name].task
    if task == "TextClassifier":
        return lambda logits: _cross_entropy(zoo.CLASSES, logits)
    if task == "CausalLM":
        return lambda logits: _cross_entropy(zoo.WORDS, logits, mask.astype(logits.dtype.as_numpy_dtype))
    if task == "MaskedLM":
        return lambda logits: tf.reduce_sum(tf.reshape(logits, (len(mask), -1)) * zoo.MASKED)

    def projected(returned: Any) -> Any:
        hidden = returned["sequence_output"] if isinstance(returned, dict) else returned
        return tf.reduce_sum(hidden * zoo.HIDDEN * mask[..., None])

    return projected


def _cross_entropy(labels: Any, logits: Any, counted: Any = 1.0) -> Any:
    return tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits) * counted)


@contextlib.contextmanager
def watched(model: Any, tape: Any) -> Iterator[dict[str, Any]]:
    """Watch what the model's layers return meanwhile, by role, in that `call` of each is replaced."""
    kept: dict[str, Any] = {}
    replaced = []

    def replace(layer: Any, role: str, before: str | None = None) -> None:
        original = layer.call

        def call(*args: Any, **kwargs: Any) -> Any:
            if before is not None:
                tape.watch(args[0])
                kept[before] = args[0]
            returned = original(*args, **kwargs)
            if not kwargs.get("reverse"):
                tape.watch(returned)
                kept[role] = returned
            return returned

        layer.call = call
        replaced.append(layer)

    backbone = getattr(model, "backbone", model)
    for layer in backbone._flatten_layers():
        if isinstance(layer, keras.layers.ReversibleEmbedding):
            replace(layer, "word")
        elif isinstance(layer, keras_hub.layers.PositionEmbedding):
            replace(layer, "position")
        elif layer.name == "segment_embedding":
            replace(layer, "type")
    for number, layer in enumerate(backbone.transformer_layers):
        replace(layer, f"layer.{number}", None if number else "embeddings")
    try:
        yield kept
    finally:
        for layer in replaced:
            del layer.call


def own_gradients(model: Any, batch: Any, total: Callable[[Any], Any]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return by role the values that the layers returned, and the tape's gradients there."""
    with tf.GradientTape(watch_accessed_variables=False) as tape, watched(model, tape) as kept:
        value = total(model(batch, training=False))
    gradients = tape.gradient(value, kept)
    found = {role: (kept[role].numpy(), gradients[role].numpy()) for role in kept}
    return {**found, "layer.-1": found[f"layer.{zoo.LAYERS - 1}"]}


def close(actual: np.ndarray, expected: np.ndarray) -> None:
    bound = 1e-10 if expected.dtype == np.float64 else 2e-6
    np.testing.assert_allclose(actual, expected, rtol=bound, atol=bound * np.abs(expected).max())


def build(name: str) -> Any:
    """Return the model in the widest dtype in which it computes."""
    return zoo.build(name, zoo.MODELS[name].widest)


@pytest.fixture(autouse=True)
def _left_padding_is_warned_of() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the batch is padded on the left", embgrad.EmbgradWarning)
        yield


@pytest.mark.sampled(9)
@pytest.mark.parametrize(
    ("name", "side"), [(name, zoo.SIDES[number % len(zoo.SIDES)]) for number, name in enumerate(zoo.MODELS)]
)
def test_every_role_has_the_value_and_the_gradient_of_the_tape(name: str, side: str | None) -> None:
    entry, model = zoo.MODELS[name], build(name)
    batch = zoo.batch(model, side)
    objective, total = zoo.objective(name, batch["padding_mask"]), total_of(name, batch["padding_mask"])
    roles = {role for point in embgrad.points(model, batch) for role in point.roles}
    assert roles == entry.roles
    expected = own_gradients(model, batch, total)
    assert expected.keys() == roles
    found = embgrad.gradients(model, batch, objective, at=sorted(roles))
    for role, result in found.items():
        value, gradient = expected[role]
        close(result.activations, value)
        close(result.values, gradient)


@pytest.mark.parametrize("name", ["BertMaskedLM", "GPT2CausalLM", "GemmaCausalLM", "LlamaCausalLM"])
def test_the_ledger_of_a_table_that_is_the_head_too(name: str) -> None:
    """Llama's head is another variable of the same layer: its table has the lookup's part alone."""
    model = build(name)
    batch = zoo.batch(model)
    objective, total = zoo.objective(name, batch["padding_mask"]), total_of(name, batch["padding_mask"])
    ledger = embgrad.tables.table_gradients(model, batch, objective)
    layer = getattr(model, "backbone", model).token_embedding
    close(ledger.total, own_table_gradient(layer.embeddings, lambda: total(model(batch, training=False))))
    close(ledger.lookup + ledger.head, ledger.total)
    assert (np.abs(ledger.head).max() > 0) == layer.tie_weights
    if not layer.tie_weights:
        words = embgrad.tables.parameter_gradients(model, batch, objective)
        head = next(value for path, value in words.items() if path.endswith("reverse_embeddings"))
        close(head, own_table_gradient(layer.reverse_embeddings, lambda: total(model(batch, training=False))))


@pytest.mark.parametrize(
    ("name", "compiled"),
    [("BertBackbone", False), ("RobertaBackbone", False), ("GPT2CausalLM", False), ("GPT2CausalLM", True)]
    + [slow((name, True)) for name in ("BertBackbone", "RobertaBackbone")],
)
def test_positions_are_changed_like_any_other_point(name: str, compiled: bool) -> None:
    """The table of positions is not looked up by indices but sliced."""
    model = build(name)
    batch = zoo.batch(model)
    objective, total = zoo.objective(name, batch["padding_mask"]), total_of(name, batch["padding_mask"])
    layer = next(
        layer
        for layer in getattr(model, "backbone", model)._flatten_layers()
        if isinstance(layer, keras_hub.layers.PositionEmbedding)
    )
    added = np.random.default_rng(5).normal(size=(zoo.IDS.shape[1], zoo.DIM))
    options = {"add": {"position": added}, "at": ["word", "position"], "compile": compiled}
    found = embgrad.gradients(model, batch, objective, **options)
    found = embgrad.gradients(model, batch, objective, **options)
    assert found["word"].provenance.get("compiled", False) is compiled
    before = layer.position_embeddings.numpy()
    try:
        layer.position_embeddings.assign(np.concatenate([before[: len(added)] + added, before[len(added) :]]))
        expected = own_gradients(model, batch, total)
        table = own_table_gradient(layer.position_embeddings, lambda: total(model(batch, training=False)))
    finally:
        layer.position_embeddings.assign(before)
    for role, result in found.items():
        close(result.activations, expected[role][0])
        close(result.values, expected[role][1])
    close(found["position"].values.sum(0), table[: len(added)])
    close(found["position"].table().to_dense(), table)
