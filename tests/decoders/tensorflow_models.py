"""GPT-2 in TensorFlow: Hugging Face's class on Keras 2, and keras-hub's on Keras 3."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import keras
import keras_hub
import numpy as np
import tensorflow as tf
import transformers

import embgrad
from tests.decoders.inputs import VOCAB, Cell, Inputs
from tests.decoders.inputs import measure as measure_decoder

DIM: Final = 32


@dataclass(frozen=True)
class Model:
    """A GPT-2.

    Attributes:
        build: returns the model, with random weights.
        batch: returns its inputs.
        logits: returns its logits for native inputs.
        patched: the attribute path of the object whose lookup is replaced, and the name of its method.
        table: returns the table's variable.
        positions: whether it takes `position_ids`.
    """

    build: Callable[[], Any]
    batch: Callable[[Inputs], dict[str, np.ndarray]]
    logits: Callable[[Any], Any]
    table: Callable[[Any], Any]
    positions: bool


def _hugging_face() -> Any:
    tf.random.set_seed(1)
    sizes = {"vocab_size": VOCAB, "n_embd": DIM, "n_layer": 2, "n_head": 4, "n_positions": 32, "pad_token_id": 0}
    model = transformers.TFGPT2LMHeadModel(transformers.GPT2Config(**sizes, bos_token_id=1, eos_token_id=2))
    model(tf.constant([[3]]))
    return model


def _keras_hub() -> Any:
    keras.utils.set_random_seed(1)
    backbone = keras_hub.models.GPT2Backbone(
        vocabulary_size=VOCAB, num_layers=2, num_heads=4, hidden_dim=DIM, intermediate_dim=64, max_sequence_length=32
    )
    return keras_hub.models.GPT2CausalLM(backbone=backbone, preprocessor=None)


MODELS: Final[Mapping[str, Model]] = {
    "GPT-2, Hugging Face": Model(_hugging_face, lambda inputs: dict(inputs.batch), lambda returned: returned.logits,
        lambda model: next(weight for weight in model.weights if tuple(weight.shape) == (VOCAB, DIM)), positions=True),
    "GPT-2, keras-hub": Model(_keras_hub,
        lambda inputs: {"token_ids": inputs.batch["input_ids"], "padding_mask": inputs.batch["attention_mask"]},
        lambda returned: returned, lambda model: model.backbone.token_embedding.embeddings, positions=False),
}  # fmt: skip


def measure(name: str) -> Cell:
    """Run a model in float32, see `tests.decoders.cells.measure`."""
    kind = MODELS[name]
    model = kind.build()
    given = [functools.partial(function, kind, model) for function in (_gradients, own_gradients)]
    return measure_decoder(*given, functools.partial(_state, model), DIM, positions=kind.positions)


def own_gradients(
    kind: Model, model: Any, inputs: Inputs, added: np.ndarray | None = None, put: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the tape's gradient of the rows and of one-hot inputs, and the table; a product stands for the lookup."""
    table = tf.convert_to_tensor(kind.table(model))
    one_hot = tf.one_hot(inputs.batch["input_ids"], VOCAB)
    batch = {name: tf.constant(value, tf.int32) for name, value in kind.batch(inputs).items()}
    labels = tf.constant(np.maximum(inputs.labels, 0))
    counted = tf.constant((inputs.labels != -100).astype(np.float32))
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(one_hot)
        rows = one_hot @ table
        rows = rows if added is None else rows + added
        rows = rows if put is None else rows * 0 + put
        tape.watch(rows)
        logits = kind.logits(_called(model, batch, rows))
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        loss = tf.reduce_sum(losses * counted)
    return tape.gradient(loss, rows).numpy(), tape.gradient(loss, one_hot).numpy(), table.numpy()


def _called(model: Any, batch: dict[str, Any], rows: Any) -> Any:
    """Return what the model returns for rows in the place of those that it looks up."""
    if isinstance(model, transformers.TFPreTrainedModel):
        others = {name: value for name, value in batch.items() if name != "input_ids"}
        return model(input_ids=None, inputs_embeds=rows, **others)
    layer = model.backbone.token_embedding
    lookup = layer.call
    layer.call = lambda ids, reverse=False: lookup(ids, reverse=True) if reverse else rows
    try:
        return model(batch)
    finally:
        del layer.call


def _gradients(kind: Model, model: Any, inputs: Inputs, **options: Any) -> np.ndarray:
    return embgrad.gradients(model, kind.batch(inputs), embgrad.CrossEntropy(inputs.labels), **options).values


def _state(model: Any) -> dict[str, Any]:
    return {
        f"{number} {weight.name}": (weight.numpy().tobytes(), weight.trainable)
        for number, weight in enumerate(model.weights)
    }
