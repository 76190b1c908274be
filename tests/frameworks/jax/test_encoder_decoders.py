"""Encoder-decoders of one's own, whose decoder's ids have another name than Hugging Face's."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import embgrad

IDS = np.array([[5, 6, 7], [8, 9, 0]])
MASK = np.array([[1, 1, 1], [1, 1, 0]])
TARGET = np.array([[3, 11, 2], [4, 12, 6]])


@pytest.mark.parametrize("table", ["source", "target"])
@pytest.mark.parametrize("mask", [{"tgt_mask": np.array([[1, 1, 0], [1, 1, 1]])}, {}])
def test_decoder_ids_under_a_name_of_the_models_own(table: str, mask: dict[str, np.ndarray]) -> None:
    params = {name: jax.random.normal(jax.random.key(seed), (20, 4)) for seed, name in enumerate(("source", "target"))}

    def call(params: Any, inputs: Any) -> Any:
        mean = params["source"][inputs["input_ids"]].mean(1, keepdims=True)
        return params[table][inputs["tgt_ids"]] + mean

    real = mask.get("tgt_mask", np.ones((2, 3)))
    states = np.asarray(call(params, {"input_ids": IDS, "tgt_ids": TARGET}))
    batch = embgrad.TokenBatch(IDS, MASK, extras={"tgt_ids": TARGET, **mask})
    g = embgrad.gradients(params, batch, embgrad.Sum(), call=call)
    np.testing.assert_allclose(g.objective, (states * real[..., None]).sum((1, 2)), rtol=1e-5)
    np.testing.assert_allclose(g.values, np.broadcast_to(real.sum(1)[:, None, None] / 3, (2, 3, 4)), rtol=1e-6)
