"""A checkpoint's BERT as keras-hub's `BertBackbone`, on whichever backend Keras uses."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from embgrad.checkpoints.bert_config import complete_config, expect_expressible
from embgrad.checkpoints.weight_target import WeightTarget
from embgrad.errors import BackendError
from embgrad.keras.inputs import is_keras

__all__ = ["is_keras_bert", "keras_bert", "keras_bert_targets", "keras_checkpoint"]

#: What is built, for messages.
MODEL: Final = "keras-hub's BERT"

#: By Hugging Face's name of the activation Keras's name; None for the approximation by tanh, which keras-hub's BERT has itself.
ACTIVATIONS: Final[Mapping[str, str | None]] = {
    "gelu": "gelu",
    "gelu_new": None,
    "gelu_pytorch_tanh": None,
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}

#: The paths of keras-hub's layers outside the repeated ones, with Hugging Face's modules, and then those of one layer.
OUTER: Final[Mapping[str, str]] = {
    "token_embedding": "embeddings.word_embeddings",
    "position_embedding": "embeddings.position_embeddings",
    "segment_embedding": "embeddings.token_type_embeddings",
    "embeddings_layer_norm": "embeddings.LayerNorm",
    "pooled_dense": "pooler.dense",
}
INNER: Final[Mapping[str, str]] = {
    "self_attention_layer/query": "attention.self.query",
    "self_attention_layer/key": "attention.self.key",
    "self_attention_layer/value": "attention.self.value",
    "self_attention_layer/attention_output": "attention.output.dense",
    "self_attention_layer_norm": "attention.output.LayerNorm",
    "feedforward_intermediate_dense": "intermediate.dense",
    "feedforward_output_dense": "output.dense",
    "feedforward_layer_norm": "output.LayerNorm",
}
LEAVES: Final = {"embeddings": "weight", "kernel": "weight", "gamma": "weight", "beta": "bias", "bias": "bias"}

#: The path of a variable in a repeated layer; in a task the backbone's path may stand before it.
_LAYER: Final = re.compile(r"(?:.*/)?transformer_layer_(\d+)/(.+)")


def keras_bert(config: Mapping[str, Any]) -> tuple[Any, list[WeightTarget]]:
    """Return a `keras_hub.models.BertBackbone` of this configuration, with random weights, and where each weight goes.

    keras-hub's own conversion of checkpoints always approximates GELU by tanh and ignores `layer_norm_eps`. Here both are as the
    configuration says; they are attributes of the layers, which `model.save` does not store.
    """
    known = complete_config(config)
    expect_expressible(known, ACTIVATIONS, MODEL, one_dropout=True)
    try:
        import keras
        import keras_hub
    except ImportError as error:
        raise BackendError(
            f"load_bert returns a keras_hub.models.BertBackbone, and keras-hub cannot be imported ({error}). Install it: pip "
            "install 'embgrad[keras]'"
        ) from error
    model = keras_hub.models.BertBackbone(
        vocabulary_size=known["vocab_size"],
        num_layers=known["num_hidden_layers"],
        num_heads=known["num_attention_heads"],
        hidden_dim=known["hidden_size"],
        intermediate_dim=known["intermediate_size"],
        dropout=known["hidden_dropout_prob"],
        max_sequence_length=known["max_position_embeddings"],
        num_segments=known["type_vocab_size"],
    )
    name = ACTIVATIONS[known["hidden_act"]]
    _configure(model, None if name is None else keras.activations.get(name), known["layer_norm_eps"])
    targets = keras_bert_targets(model)
    assert targets is not None, "a BertBackbone is one"
    return model, targets


def keras_bert_targets(model: Any) -> list[WeightTarget] | None:
    """Return where each weight of a checkpoint goes in a BertBackbone; None for any other model."""
    named = keras_bert_variables(model) if is_keras_bert(model) else None
    return None if named is None else [target for _, target in named]


def keras_bert_variables(model: Any) -> list[tuple[Any, WeightTarget]] | None:
    """Return the variables of a BertBackbone, and the checkpoint's weight of each; None if it has others than a BERT's."""
    named = [(variable, _target(variable)) for variable in model.weights]
    known = [(variable, target) for variable, target in named if target is not None]
    return known if len(known) == len(named) else None


def keras_checkpoint(parts: Sequence[Any]) -> list[tuple[Any, WeightTarget]]:
    """Return the variables of the only BertBackbone in a model's parts, and the checkpoint's weight of each.

    The list is empty if there is no such model, or more than one.
    """
    waiting, found = [part for part in parts if is_keras(part)], {}
    while waiting:
        layer = waiting.pop()
        if is_keras_bert(layer):
            found[id(layer)] = layer
        else:
            waiting.extend(getattr(layer, "layers", None) or ())
    return (keras_bert_variables(*found.values()) or []) if len(found) == 1 else []


def is_keras_bert(model: Any) -> bool:
    """Return whether an object is a BertBackbone, by its type, without importing keras-hub."""
    return any(
        base.__module__.partition(".")[0] == "keras_hub" and base.__qualname__ == "BertBackbone"
        for base in type(model).__mro__
    )


def _configure(model: Any, activation: Callable[[Any], Any] | None, epsilon: float) -> None:
    """Set what the class fixes: the activation, if it is not None, and the constant in the normalisations.

    The layers' inner layers have no public names; keras-hub's conversion of checkpoints uses the same.
    """
    model.embeddings_layer_norm.epsilon = epsilon
    for layer in model.transformer_layers:
        layer.layer_norm_epsilon = epsilon
        layer._self_attention_layer_norm.epsilon = layer._feedforward_layer_norm.epsilon = epsilon
        if activation is not None:
            layer.activation = layer._feedforward_intermediate_dense.activation = activation


def _target(variable: Any) -> WeightTarget | None:
    """Return where a checkpoint's weight goes in a variable; None for a variable that a BERT does not have."""
    path, _, leaf = variable.path.rpartition("/")
    layer = _LAYER.fullmatch(path)
    module = OUTER.get(path.rpartition("/")[2]) if layer is None else INNER.get(layer[2])
    if module is None or leaf not in LEAVES:
        return None
    native = tuple(map(int, variable.shape))

    def put(value: np.ndarray) -> None:
        variable.assign(np.reshape(value, native))

    source = f"{module if layer is None else f'encoder.layer.{layer[1]}.{module}'}.{LEAVES[leaf]}"
    return WeightTarget(
        source, _join(native, layer[2] if layer else ""), put, variable.path, transposed=leaf == "kernel"
    )


def _join(shape: tuple[int, ...], path: str) -> tuple[int, ...]:
    """Return the shape of a variable with the axes of heads and of each head's values, which attention splits, as one."""
    if path == "self_attention_layer/attention_output" and len(shape) == 3:
        return (math.prod(shape[:2]), shape[2])
    if path in ("self_attention_layer/query", "self_attention_layer/key", "self_attention_layer/value"):
        return (*shape[:-2], math.prod(shape[-2:]))
    return shape
