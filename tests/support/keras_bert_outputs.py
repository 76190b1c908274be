"""The outputs of keras-hub's BERT on the shared tests' batch, by Keras alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.support.loaded_bert import BATCH

__all__ = ["keras_outputs"]


def keras_outputs(model: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the sequence and the pooled output of a BertBackbone."""
    import keras
    import keras_hub

    assert type(model) is keras_hub.models.BertBackbone
    inputs = {"token_ids": BATCH.ids, "segment_ids": BATCH.types, "padding_mask": BATCH.mask}
    outputs = model(inputs)
    sequence, pooled = (keras.ops.convert_to_numpy(outputs[name]) for name in ("sequence_output", "pooled_output"))
    return sequence, pooled
