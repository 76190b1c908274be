"""Keras on PyTorch for the conformance suite: gradients as Keras's own training takes them, and all state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import torch

from embgrad.testing.snapshot import Same
from tests.contract.conformance import state_torch

__all__ = ["disturb", "draw_states", "gradients", "seed", "state", "updating"]

#: In what variables are updated.
updating = torch.no_grad


def gradients(
    model: Any, ids: np.ndarray, labels: np.ndarray, variables: Sequence[Any], *, mean: bool = False
) -> list[Any]:
    """Return the gradients of the cross-entropy, summed or averaged; None for variables that it does not depend on."""
    before = [variable.value.grad for variable in variables]
    for variable in variables:
        variable.value.grad = None
    logits = model(torch.tensor(ids.copy()), training=False)
    torch.nn.functional.cross_entropy(
        logits, torch.tensor(labels.copy()), reduction="mean" if mean else "sum"
    ).backward()
    found = [variable.value.grad for variable in variables]
    for variable, gradient in zip(variables, before, strict=True):
        variable.value.grad = gradient
    return found


def state(model: Any) -> Mapping[str, Any]:
    """Return the state of every layer as of a module, its variables, and PyTorch's and Keras's settings."""
    layers = [model, *model._flatten_layers(include_self=False)]
    slots = getattr(getattr(model, "optimizer", None), "variables", [])
    variables = [variable for variable in (*model.variables, *slots) if "seed_generator" not in variable.name]
    return {
        "layers": [state_torch.module_state(layer) for layer in layers],
        "losses": [[Same(loss) for loss in layer.losses] for layer in layers],
        "variables": [(Same(one), one.trainable, state_torch.tensor_state(one._value)) for one in variables],
        "call context": keras.src.backend.common.global_state.get_global_attribute("current_call_ctx"),
        "naming": dict(keras.src.backend.common.global_state.get_global_attribute("object_name_uids", {}) or {}),
        "calls": [Same(keras.layers.Layer.__call__), Same(keras.Operation.__call__)],
        "policy": keras.config.dtype_policy().name,
        **state_torch.of_process(model),
    }


def disturb(model: Any) -> None:
    """Fill gradient buffers, and give the model a hook of the user."""
    for number, variable in enumerate(model.trainable_variables):
        if number % 2 == 0:
            variable.value.grad = torch.full_like(variable.value, 0.5)
    model.layers[-1].register_forward_hook(lambda module, inputs, output: None)


def seed(number: int) -> None:
    """Seed PyTorch's generator; Keras's layers have generators of their own."""
    torch.manual_seed(number)


def draw_states() -> Any:
    """Return the state of PyTorch's generator."""
    return torch.get_rng_state().numpy().tobytes()
