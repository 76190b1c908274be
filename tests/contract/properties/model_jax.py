"""A generated model in Flax NNX, the alternative compiled by `nnx.jit`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from tests.contract.conformance.harness_jax import module_list
from tests.contract.properties.specs import EPSILON, Block, Spec, weights_of

Weights = Mapping[str, np.ndarray]


def build(spec: Spec) -> nnx.Module:
    model = (_Compiled if spec.alternative else _Model)(spec, weights_of(spec))
    model.eval()
    return model


class _Model(nnx.Module):
    def __init__(self, spec: Spec, weights: Weights) -> None:
        self.spec = spec
        for name in ("words", "positions", "segments"):
            if name in weights:
                setattr(self, name, _table(spec, weights[name]))
        self.blocks = module_list(
            [_Block(block, _inside(f"blocks.{number}.", weights), spec) for number, block in enumerate(spec.blocks)]
        )
        if spec.head == "linear":
            self.head = _linear(spec, weights["head.weight"], weights["head.bias"])

    def __call__(self, input_ids: Any, attention_mask: Any = None, token_type_ids: Any = None) -> Any:
        hidden = self.words(input_ids)
        if self.spec.scale is not None:
            hidden = hidden * self.spec.scale
        if self.spec.positions:
            hidden = hidden + self.positions(jnp.arange(input_ids.shape[1]))
        if self.spec.types:
            hidden = hidden + self.segments(token_type_ids)
        real = jnp.ones_like(input_ids) if attention_mask is None else attention_mask
        for number, block in enumerate(self.blocks):
            hidden = _mean(hidden, real) if number == self.spec.pool else hidden
            hidden = block(hidden, real)
        hidden = _mean(hidden, real) if len(self.blocks) == self.spec.pool else hidden
        if self.spec.head == "tied":
            return self.words.attend(hidden)
        return hidden if self.spec.head == "none" else self.head(hidden)


class _Compiled(_Model):
    @nnx.jit
    def __call__(self, input_ids: Any, attention_mask: Any = None, token_type_ids: Any = None) -> Any:
        return _Model.__call__(self, input_ids, attention_mask, token_type_ids)


class _Block(nnx.Module):
    def __init__(self, block: Block, weights: Weights, spec: Spec) -> None:
        self.kind, self.residual = block.kind, block.residual
        if block.kind == "linear":
            self.inner = _linear(spec, weights["weight"], weights["bias"])
        elif block.kind == "norm":
            dtype = jnp.dtype(spec.dtype)
            self.inner = nnx.LayerNorm(
                spec.width,
                epsilon=EPSILON,
                use_fast_variance=False,
                dtype=dtype,
                param_dtype=dtype,
                rngs=nnx.Rngs(0),
            )
            self.inner.scale[...] = jnp.asarray(weights["gain"], dtype)
            self.inner.bias[...] = jnp.asarray(weights["shift"], dtype)
        elif block.kind == "attention":
            self.query, self.key, self.value = (
                _linear(spec, weights[name], None) for name in ("query", "key", "value")
            )

    def __call__(self, hidden: Any, real: Any) -> Any:
        if self.kind == "attention":
            made = _attended(self.query(hidden), self.key(hidden), self.value(hidden), real)
        elif self.kind == "mix":
            made = hidden - hidden.mean(0) / 2
        else:
            made = jnp.tanh(hidden) if self.kind == "tanh" else self.inner(hidden)
        return hidden + made if self.residual else made


def _attended(query: Any, key: Any, value: Any, real: Any) -> Any:
    scores = query @ key.swapaxes(1, 2) / query.shape[-1] ** 0.5
    return jax.nn.softmax(jnp.where(real[:, None, :] > 0, scores, -jnp.inf)) @ value


def _mean(hidden: Any, real: Any) -> Any:
    real = real.astype(hidden.dtype)[..., None]
    return (hidden * real).sum(1) / real.sum(1)


def _table(spec: Spec, weight: np.ndarray) -> nnx.Embed:
    dtype = jnp.dtype(spec.dtype)
    table = nnx.Embed(*weight.shape, dtype=dtype, param_dtype=dtype, rngs=nnx.Rngs(0))
    table.embedding[...] = jnp.asarray(weight, dtype)
    return table


def _linear(spec: Spec, weight: np.ndarray, bias: np.ndarray | None) -> nnx.Linear:
    dtype = jnp.dtype(spec.dtype)
    layer = nnx.Linear(*weight.shape, use_bias=bias is not None, dtype=dtype, param_dtype=dtype, rngs=nnx.Rngs(0))
    layer.kernel[...] = jnp.asarray(weight, dtype)
    if bias is not None:
        layer.bias[...] = jnp.asarray(bias, dtype)
    return layer


def _inside(prefix: str, weights: Weights) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
