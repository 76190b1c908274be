"""Models whose weights are float32 and whose products are in half precision: the result says so."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import embgrad

IDS = np.random.default_rng(0).integers(0, 20, (2, 5))


class Mixed(nnx.Module):
    def __init__(self, dtype: Any, *, jitted: bool) -> None:
        rngs = nnx.Rngs(0)
        self.table = nnx.Embed(20, 8, rngs=rngs)
        self.inner = nnx.Linear(8, 8, dtype=dtype, rngs=rngs)
        self.head = nnx.Linear(8, 3, rngs=rngs)
        self.jitted = jitted

    def __call__(self, input_ids: Any) -> Any:
        hidden = self.table(input_ids)

        def inner(rows: Any) -> Any:
            return jnp.tanh(self.inner(rows)).astype(jnp.float32)

        return self.head((jax.jit(inner) if self.jitted else inner)(hidden).mean(1))


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("jitted", [False, True])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_products_in_half_precision_are_recorded(dtype: str, jitted: bool, compiled: bool) -> None:
    model = Mixed(getattr(jnp, dtype), jitted=jitted)
    result = embgrad.gradients(model, IDS, embgrad.Logit(1), compile=compiled)
    assert result.provenance["compute_dtype"] == dtype
    assert result.values.dtype == np.float32
