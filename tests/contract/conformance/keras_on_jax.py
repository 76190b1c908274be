"""Keras on JAX for the conformance suite: gradients of a stateless call, and all state."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from embgrad.testing.snapshot import Same

__all__ = ["disturb", "draw_states", "gradients", "seed", "state", "updating"]

#: In what variables are updated.
updating = contextlib.nullcontext


def gradients(
    model: Any, ids: np.ndarray, labels: np.ndarray, variables: Sequence[Any], *, mean: bool = False
) -> list[Any]:
    """Return the gradients of the cross-entropy, summed or averaged: zeros for variables that it does not depend on."""
    others = [variable.value for variable in model.non_trainable_variables]
    trained = model.trainable_variables

    def loss(values: Sequence[Any]) -> Any:
        logits, _ = model.stateless_call(values, others, jnp.asarray(ids))
        logs = jax.nn.log_softmax(logits)
        losses = -jnp.take_along_axis(logs, jnp.asarray(labels)[:, None], 1)
        return losses.mean() if mean else losses.sum()

    found = jax.grad(loss)([variable.value for variable in trained])
    by_variable = {id(variable): gradient for variable, gradient in zip(trained, found, strict=True)}
    return [by_variable[id(variable)] for variable in variables]


def state(model: Any) -> Mapping[str, Any]:
    """Return the variables, the attributes of every layer, and JAX's and Keras's settings."""
    layers = [model, *model._flatten_layers(include_self=False)]
    slots = getattr(getattr(model, "optimizer", None), "variables", [])
    variables = [variable for variable in (*model.variables, *slots) if "seed_generator" not in variable.name]
    return {
        "layers": [_attributes(layer) for layer in layers],
        "losses": [[Same(loss) for loss in layer.losses] for layer in layers],
        # JAX's arrays cannot be written to: a weight that is restored is another array with the same bytes.
        "variables": [(Same(one), one.trainable, np.asarray(one.value).tobytes()) for one in variables],
        "call context": keras.src.backend.common.global_state.get_global_attribute("current_call_ctx"),
        "naming": dict(keras.src.backend.common.global_state.get_global_attribute("object_name_uids", {}) or {}),
        "calls": [Same(keras.layers.Layer.__call__), Same(keras.Operation.__call__), Same(jnp.take)],
        "policy": keras.config.dtype_policy().name,
        "settings": repr(sorted(jax.config.values.items())),
    }


def _attributes(layer: Any) -> dict[str, Any]:
    return {
        "kind": Same(type(layer)),
        "members": {name: Same(value) for name, value in vars(layer).items()},
        "held": {
            name: [Same(entry) for entry in (value.values() if isinstance(value, dict) else value)]
            for name, value in vars(layer).items()
            if isinstance(value, (list, tuple, dict, set))
        },
    }


def disturb(model: Any) -> None:
    """JAX keeps nothing more in a model."""


def seed(number: int) -> None:
    """JAX has no generator; Keras's layers have generators of their own."""


def draw_states() -> Any:
    """JAX has no generator."""
