"""A checkpoint's configuration becomes a `transformers.TFBertModel` that waits for its weights."""

from __future__ import annotations

import random
import sys
from typing import Any

import numpy as np

from embgrad.checkpoints import WeightTarget, keras_bert_targets
from embgrad.errors import BackendError, UnsupportedError
from embgrad.toolkit import preserve_generators
from embgrad_tensorflow.parameters import checkpoint_target
from embgrad_tensorflow.walk import has_base

__all__ = ["bert", "bert_targets"]


def bert(config: dict[str, Any]) -> tuple[Any, list[WeightTarget]]:
    """Return a TFBertModel of that configuration, with weights drawn at random, and the place of each weight.

    Raises:
        BackendError: `transformers` is missing or has no TensorFlow classes.
        UnsupportedError: TFBertModel cannot be what the configuration says.
    """
    for name in ("is_decoder", "add_cross_attention"):
        if config.get(name):
            raise UnsupportedError(
                f"the configuration says {name}={config[name]!r}, which TFBertModel ignores. Load the model in PyTorch"
            )
    try:
        with preserve_generators(_keras_generator()):
            configuration_class, model_class = _classes()
            model = model_class(configuration_class(**config))
            model(np.zeros((1, 1), np.int32), training=False)  # the first call makes the weights
    except (KeyError, ValueError) as error:
        raise UnsupportedError(
            f"TFBertModel cannot be built from the configuration (hidden_act={config.get('hidden_act')!r}, hidden_size="
            f"{config.get('hidden_size')!r}, …): {error}. Load the model in PyTorch"
        ) from error
    targets = bert_targets(model)
    assert targets is not None, "a TFBertModel is one"
    return model, targets


def bert_targets(model: Any) -> list[WeightTarget] | None:
    """Return the place of each weight of a TFBertModel or of keras-hub's BertBackbone; None for any other model."""
    if not has_base(model, "TFBertModel", package="transformers."):
        return keras_bert_targets(model)
    return [checkpoint_target(variable) for variable in model.weights]


def _classes() -> tuple[Any, Any]:
    try:
        from transformers import BertConfig, TFBertModel
        from transformers.modeling_tf_utils import TFPreTrainedModel
    except Exception as error:  # transformers raises ImportError, RuntimeError or ValueError, depending on the cause
        raise BackendError(_without_classes(f"{type(error).__name__}: {str(error).strip().splitlines()[0]}")) from error
    if not issubclass(TFBertModel, TFPreTrainedModel):
        raise BackendError(_without_classes("transformers found no TensorFlow"))
    return BertConfig, TFBertModel


def _keras_generator() -> random.Random | None:
    """Return the generator of seeds that Keras 2 has once the user has given it a seed."""
    seeds = getattr(sys.modules.get("tf_keras.src.backend"), "_SEED_GENERATOR", None)
    return getattr(seeds, "generator", None)


def _without_classes(reason: str) -> str:
    return (
        f"transformers' TensorFlow classes are not available ({reason}). Run pip install 'embgrad[tensorflow]', which brings "
        "transformers 4 and tf-keras, and leave TF_USE_LEGACY_KERAS unset or set it to 1 before TensorFlow is imported"
    )
