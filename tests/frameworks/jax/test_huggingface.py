"""Flax models of Hugging Face, which hold a Linen module and its parameters: a small one of their shape."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import embgrad
from embgrad.errors import UnsupportedError

IDS = np.array([[4, 5, 6], [7, 8, 0]])
MASK = np.array([[1, 1, 1], [1, 1, 0]])


class Net(nn.Module):
    """The mean of embeddings, and a head."""

    @nn.compact
    def __call__(self, ids: Any, mask: Any, deterministic: bool = True) -> Any:
        """Return (example, class)."""
        rows = nn.Embed(10, 4, name="table")(ids)
        rows = nn.Dropout(0.5, deterministic=deterministic)(rows)
        return {"logits": nn.Dense(2, name="head")((rows * mask[..., None]).sum(1) / mask.sum(1, keepdims=True))}


class FlaxPreTrainedModel:
    """The base class of Hugging Face's Flax models, as far as embgrad uses it."""

    def __init__(self, initialised: bool = True) -> None:
        self.module = Net()
        params = self.module.init(jax.random.key(0), jnp.zeros((1, 1), int), jnp.ones((1, 1)))["params"]
        self._params = params if initialised else None

    @property
    def params(self) -> Any:
        if self._params is None:
            raise ValueError("`params` cannot be accessed from model when the model is created with `_do_init=False`.")
        return self._params

    @params.setter
    def params(self, params: Any) -> None:
        self._params = params


FlaxPreTrainedModel.__module__ = "transformers.modeling_flax_utils"


class Model(FlaxPreTrainedModel):
    """A model."""

    def __call__(
        self,
        input_ids: Any,
        attention_mask: Any = None,
        params: Any = None,
        dropout_rng: Any = None,
        train: bool = False,
    ) -> Any:
        """Return the outputs."""
        mask = jnp.ones_like(input_ids) if attention_mask is None else attention_mask
        rngs = {} if dropout_rng is None else {"dropout": dropout_rng}
        variables = {"params": params or self.params}
        return self.module.apply(variables, jnp.array(input_ids, "i4"), mask, not train, rngs=rngs)


BATCH = {"input_ids": IDS, "attention_mask": MASK}


def test_a_model_is_taken_with_its_parameters() -> None:
    model = Model()
    g = embgrad.gradients(model, BATCH, embgrad.Logit(1), check=True)
    kernel = np.asarray(model.params["head"]["kernel"])[:, 1]
    np.testing.assert_allclose(g.values, (MASK / MASK.sum(1, keepdims=True))[..., None] * kernel, rtol=1e-6)
    np.testing.assert_allclose(g.activations, np.asarray(model.params["table"]["embedding"])[IDS])
    assert [point.name for point in embgrad.points(model, BATCH)] == ["table#0", "Dropout_0#0", "head#0"]
    parameters = embgrad.tables.parameter_gradients(model, BATCH, embgrad.Logit(1))
    assert set(parameters) == {"params.table.embedding", "params.head.kernel", "params.head.bias"}
    np.testing.assert_allclose(parameters["params.head.bias"], [0, 2])


def test_training_needs_a_key_and_so_a_call() -> None:
    model = Model()
    with pytest.raises(UnsupportedError, match=r"whose dropout needs a key: pass call=lambda model, inputs"):
        embgrad.gradients(model, BATCH, embgrad.Logit(1), training=True)

    def call(model: Any, inputs: Any) -> Any:
        return model(**inputs, train=True, dropout_rng=jax.random.key(1))

    g = embgrad.gradients(model, BATCH, embgrad.Logit(1), call=call)
    assert (g.values[MASK == 1] == 0).any()
    np.testing.assert_allclose(g.values, embgrad.gradients(model, BATCH, embgrad.Logit(1), call=call).values)


def test_a_model_without_parameters_is_refused() -> None:
    model = Model(initialised=False)
    with pytest.raises(UnsupportedError, match="is a Model without parameters, as _do_init=False makes it"):
        embgrad.gradients(model, BATCH, embgrad.Logit(1))
