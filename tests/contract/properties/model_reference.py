"""A generated model in the NumPy reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from embgrad.testing.reference import ReferenceModel, Tensor, lookup
from tests.contract.properties.specs import EPSILON, Block, Spec, weights_of


def build(spec: Spec) -> ReferenceModel:
    def block(model: Any, number: int, of: Block, hidden: Tensor, real: np.ndarray) -> Tensor:
        def run(hidden: Tensor) -> Tensor:
            made = _KINDS[of.kind](model, f"blocks.{number}.", hidden, real)
            return hidden + made if of.residual else made

        return model.module(f"blocks.{number}", run, hidden)

    def forward(model: Any, input_ids: np.ndarray, mask: Any = None, types: Any = None) -> Tensor:
        real = np.ones(input_ids.shape, spec.dtype) if mask is None else mask.astype(spec.dtype)
        hidden = _embedded(model, spec, input_ids, types)
        for number, one in enumerate(spec.blocks):
            hidden = _mean(hidden, real) if number == spec.pool else hidden
            hidden = block(model, number, one, hidden, real)
        hidden = _mean(hidden, real) if len(spec.blocks) == spec.pool else hidden
        if spec.head == "tied":
            return hidden @ model["words"].swap(0, 1)
        return hidden if spec.head == "none" else hidden @ model["head.weight"] + model["head.bias"]

    forwards: dict[tuple[bool, bool], Callable[..., Tensor]] = {
        (True, True): lambda model, input_ids, attention_mask, token_type_ids: forward(
            model, input_ids, attention_mask, token_type_ids
        ),
        (True, False): lambda model, input_ids, attention_mask: forward(model, input_ids, attention_mask),
        (False, True): lambda model, input_ids, token_type_ids: forward(model, input_ids, None, token_type_ids),
        (False, False): lambda model, input_ids: forward(model, input_ids),
    }
    weights = {name: value.astype(spec.dtype) for name, value in weights_of(spec).items()}
    paths = [f"blocks.{number}" for number in range(len(spec.blocks))]
    return ReferenceModel(forwards[spec.masked, spec.types], weights, paths)


def _embedded(model: Any, spec: Spec, ids: np.ndarray, types: Any) -> Tensor:
    hidden = lookup(model["words"], ids)
    hidden = hidden if spec.scale is None else hidden * spec.scale
    if spec.positions:
        hidden = hidden + lookup(model["positions"], np.arange(ids.shape[1])[None])
    return hidden + lookup(model["segments"], types) if spec.types else hidden


def _mean(hidden: Tensor, real: np.ndarray) -> Tensor:
    return (hidden * Tensor((real / real.sum(1, keepdims=True))[..., None])).sum(1)


def _linear(model: Any, prefix: str, hidden: Tensor, real: np.ndarray) -> Tensor:
    return hidden @ model[f"{prefix}weight"] + model[f"{prefix}bias"]


def _tanh(model: Any, prefix: str, hidden: Tensor, real: np.ndarray) -> Tensor:
    return hidden.tanh()


def _mix(model: Any, prefix: str, hidden: Tensor, real: np.ndarray) -> Tensor:
    return hidden + hidden.mean(0) * -0.5


def _norm(model: Any, prefix: str, hidden: Tensor, real: np.ndarray) -> Tensor:
    rows = (*hidden.shape[:-1], 1)
    centred = hidden + hidden.mean(-1).reshape(*rows) * -1.0
    variance = (centred * centred).mean(-1).reshape(*rows)
    inverse = (variance.value + np.asarray(EPSILON, variance.value.dtype)) ** -0.5
    root = Tensor(inverse, [(variance, lambda g: g * inverse**3 * -0.5)])
    return centred * root * model[f"{prefix}gain"] + model[f"{prefix}shift"]


def _attention(model: Any, prefix: str, hidden: Tensor, real: np.ndarray) -> Tensor:
    query, key, value = (hidden @ model[f"{prefix}{name}"] for name in ("query", "key", "value"))
    scores = _product(query, key.swap(-1, -2)) * float(hidden.shape[-1] ** -0.5)
    hidden_away = np.where(real[:, None, :] > 0, 0, -1e9).astype(real.dtype)
    return _product((scores + Tensor(hidden_away)).softmax(), value)


def _product(a: Tensor, b: Tensor) -> Tensor:
    return Tensor(
        a.value @ b.value, [(a, lambda g: g @ b.value.swapaxes(-1, -2)), (b, lambda g: a.value.swapaxes(-1, -2) @ g)]
    )


_KINDS: dict[str, Callable[[Any, str, Tensor, np.ndarray], Tensor]] = {
    "linear": _linear,
    "tanh": _tanh,
    "mix": _mix,
    "norm": _norm,
    "attention": _attention,
}
