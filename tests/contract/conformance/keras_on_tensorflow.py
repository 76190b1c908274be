"""Keras on TensorFlow for the conformance suite: gradients of a tape, and all state."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tests.contract.conformance.state_tensorflow import state

__all__ = ["disturb", "draw_states", "gradients", "seed", "state", "updating"]

#: In what variables are updated.
updating = contextlib.nullcontext


def gradients(
    model: Any, ids: np.ndarray, labels: np.ndarray, variables: Sequence[Any], *, mean: bool = False
) -> list[Any]:
    """Return the gradients of the cross-entropy, summed or averaged; None for variables that it does not depend on."""
    with tf.GradientTape() as tape:
        logits = model(tf.constant(ids, tf.int32), training=False)
        loss = (tf.reduce_mean if mean else tf.reduce_sum)(
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        )
    found = tape.gradient(loss, [variable.value for variable in variables])
    return [None if gradient is None else tf.convert_to_tensor(gradient) for gradient in found]


def disturb(model: Any) -> None:
    """TensorFlow keeps nothing more in a model."""


def seed(number: int) -> None:
    """Seed TensorFlow's generator; Keras's layers have generators of their own."""
    tf.random.set_seed(number)


def draw_states() -> Any:
    """Return the next number of TensorFlow's generator."""
    return float(tf.random.uniform(()))
