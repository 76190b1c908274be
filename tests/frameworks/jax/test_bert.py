"""`load_bert` in JAX: embgrad's own BERT in Flax NNX, and keras-hub's on JAX, with a Hugging Face checkpoint's weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from embgrad_jax.bert import Bert
from flax import nnx

import embgrad
from tests.keras_bert_outputs import keras_outputs
from tests.loaded_bert import BATCH, LoadedBert, by_hand, checkpoint

INPUTS = {name: jnp.asarray(value) for name, value in BATCH.to_huggingface().items()}


class TestJax(LoadedBert):
    framework = "jax"

    def outputs(self, model: Any) -> tuple[np.ndarray, np.ndarray]:
        assert type(model) is Bert
        outputs = model(**INPUTS)
        return np.asarray(outputs["last_hidden_state"]), np.asarray(outputs["pooler_output"])


class TestKerasOnJax(LoadedBert):
    framework = "keras"

    def outputs(self, model: Any) -> tuple[np.ndarray, np.ndarray]:
        return keras_outputs(model)


def test_masks_and_types_may_be_omitted(tmp_path: Path) -> None:
    checkpoint(tmp_path)
    model = embgrad.load_bert(tmp_path, "jax")
    ids = INPUTS["input_ids"]
    expected = model(ids, jnp.ones_like(ids), jnp.zeros_like(ids))["pooler_output"]
    np.testing.assert_array_equal(model(ids)["pooler_output"], expected)


def test_it_can_be_compiled(tmp_path: Path) -> None:
    weights = checkpoint(tmp_path)
    model = embgrad.load_bert(tmp_path, "jax")
    pooled = nnx.jit(lambda model, inputs: model(**inputs)["pooler_output"])(model, INPUTS)
    np.testing.assert_allclose(pooled, by_hand(weights)[1], atol=2e-5)


def test_dropout_acts_in_training_alone(tmp_path: Path) -> None:
    weights = checkpoint(tmp_path, hidden_dropout_prob=0.4)
    model = embgrad.load_bert(tmp_path, "jax")
    model.train()
    assert not np.allclose(model(**INPUTS)["pooler_output"], by_hand(weights)[1], atol=1e-2)
    model.eval()
    np.testing.assert_allclose(model(**INPUTS)["pooler_output"], by_hand(weights)[1], atol=2e-5)


def test_every_activation_is_the_one_that_its_name_means() -> None:
    from embgrad_jax.bert import ACTIVATIONS

    x = jnp.linspace(-3.0, 3.0, 13)
    assert ACTIVATIONS.keys() == {"gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu", "swish"}
    np.testing.assert_array_equal(ACTIVATIONS["gelu_new"](x), ACTIVATIONS["gelu_pytorch_tanh"](x))
    for name in ("silu", "swish"):
        np.testing.assert_allclose(ACTIVATIONS[name](x), x / (1 + jnp.exp(-x)), atol=1e-6)
    assert jax.numpy.abs(ACTIVATIONS["gelu"](x) - ACTIVATIONS["gelu_new"](x)).max() > 1e-4
