"""`load_bert` in JAX: embgrad's own BERT in Flax NNX, and keras-hub's on JAX, with a Hugging Face checkpoint's weights."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from embgrad_jax.bert import Bert
from flax import nnx

import embgrad
from embgrad.engine.weights import weights_of
from tests.support.keras_bert_outputs import keras_outputs
from tests.support.loaded_bert import BATCH, DescribedBert, LoadedBert, by_hand, checkpoint


def inputs() -> dict[str, Any]:
    return {name: jnp.asarray(value) for name, value in BATCH.to_huggingface().items()}


class TestJax(DescribedBert):
    framework = "jax"

    def outputs(self, model: Any) -> tuple[np.ndarray, np.ndarray]:
        assert type(model) is Bert
        outputs = model(**inputs())
        return np.asarray(outputs["last_hidden_state"]), np.asarray(outputs["pooler_output"])


class TestKerasOnJax(LoadedBert):
    framework = "keras"

    def outputs(self, model: Any) -> tuple[np.ndarray, np.ndarray]:
        return keras_outputs(model)


def test_masks_and_types_may_be_omitted(tmp_path: Path) -> None:
    checkpoint(tmp_path)
    model = embgrad.zoo.load_bert(tmp_path, "jax")
    ids = inputs()["input_ids"]
    expected = model(ids, jnp.ones_like(ids), jnp.zeros_like(ids))["pooler_output"]
    np.testing.assert_array_equal(model(ids)["pooler_output"], expected)


def test_it_can_be_compiled(tmp_path: Path) -> None:
    weights = checkpoint(tmp_path)
    model = embgrad.zoo.load_bert(tmp_path, "jax")
    pooled = nnx.jit(lambda model, inputs: model(**inputs)["pooler_output"])(model, inputs())
    np.testing.assert_allclose(pooled, by_hand(weights)[1], atol=2e-5)


def test_dropout_acts_in_training_alone(tmp_path: Path) -> None:
    weights = checkpoint(tmp_path, hidden_dropout_prob=0.4)
    model = embgrad.zoo.load_bert(tmp_path, "jax")
    model.train()
    assert not np.allclose(model(**inputs())["pooler_output"], by_hand(weights)[1], atol=1e-2)
    model.eval()
    np.testing.assert_allclose(model(**inputs())["pooler_output"], by_hand(weights)[1], atol=2e-5)


def test_every_activation_is_the_one_that_its_name_means() -> None:
    from embgrad_jax.bert import ACTIVATIONS

    x = jnp.linspace(-3.0, 3.0, 13)
    assert ACTIVATIONS.keys() == {"gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu", "swish"}
    np.testing.assert_array_equal(ACTIVATIONS["gelu_new"](x), ACTIVATIONS["gelu_pytorch_tanh"](x))
    for name in ("silu", "swish"):
        np.testing.assert_allclose(ACTIVATIONS[name](x), x / (1 + jnp.exp(-x)), atol=1e-6)
    assert jax.numpy.abs(ACTIVATIONS["gelu"](x) - ACTIVATIONS["gelu_new"](x)).max() > 1e-4


def test_a_bert_inside_another_model_has_the_checkpoints_names(tmp_path: Path) -> None:
    class Classifier(nnx.Module):
        def __init__(self) -> None:
            self.bert = embgrad.zoo.load_bert(tmp_path, "jax")
            self.head = nnx.Linear(8, 2, rngs=nnx.Rngs(0))

        def __call__(self, input_ids: jax.Array) -> jax.Array:
            return self.head(self.bert(input_ids)["pooler_output"])

    weights = checkpoint(tmp_path)
    named = {weight.canonical: weight for weight in weights_of(Classifier())}
    assert named.keys() == {None, *weights}
    assert named["pooler.dense.weight"].name == "bert.pooler.dense.kernel"
    np.testing.assert_array_equal(named["pooler.dense.weight"].get().T, weights["pooler.dense.weight"])


def test_flax_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint(tmp_path)
    monkeypatch.setitem(sys.modules, "embgrad_jax.bert", None)
    with pytest.raises(embgrad.errors.BackendError, match=r"flax cannot be imported \(.*pip install 'embgrad\[jax\]'"):
        embgrad.zoo.load_bert(tmp_path, "jax")
