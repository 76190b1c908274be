"""One decoder that was trained in three frameworks: transformers' class for PyTorch, a function for JAX, keras-hub's model."""

from __future__ import annotations

import json
from typing import Any

import jax.numpy as jnp
import keras_hub
import numpy as np
import pytest
from safetensors.numpy import load_file

import embgrad
from tests.benchmarks.measuring import distance
from tests.support.llama_by_hand import llama_by_hand
from tests.support.smollm2 import load_smollm2, smollm2_folder

pytestmark = pytest.mark.slow

TEXT = "The keys to the cabinet are on the table"
#: The largest distance, relative to the length.
MOST = 1e-4


@pytest.fixture(scope="module")
def questions() -> dict[str, dict[str, Any]]:
    """The arguments of a call in each framework, about the same text."""
    folder = smollm2_folder()
    model, tokenizer = load_smollm2()
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    params = {name: jnp.asarray(array) for name, array in load_file(folder / "model.safetensors").items()}
    # keras-hub's converter does not read the epsilon.
    port = keras_hub.models.LlamaBackbone.from_preset(str(folder), dtype="float32", layer_norm_epsilon=1e-5)
    batch = embgrad.encode([TEXT], tokenizer)

    def forward(params: Any, inputs: Any) -> Any:
        return llama_by_hand(jnp, params, config, inputs["input_ids"])

    return {
        "torch": {"model": model, "batch": batch},
        "jax": {"model": params, "batch": {"input_ids": batch.ids}, "call": forward},
        "keras": {
            "model": keras_hub.models.LlamaCausalLM(backbone=port, preprocessor=None),
            "batch": {"token_ids": batch.ids, "padding_mask": batch.real.astype(np.int32)},
        },
    }


@pytest.mark.parametrize(
    ("framework", "at"), [("jax", "word"), ("keras", "word"), ("keras", "layer.4"), ("keras", "layer.-1")]
)
def test_gradients_agree(questions: dict[str, dict[str, Any]], framework: str, at: str) -> None:
    objective = embgrad.LogProbability(questions["torch"]["batch"].ids)
    ours, theirs = (embgrad.gradients(**questions[name], objective=objective, at=at) for name in ("torch", framework))
    np.testing.assert_allclose(theirs.objective, ours.objective, rtol=MOST)
    assert distance(theirs.values, ours.values) < MOST


@pytest.mark.filterwarnings("ignore:with 6 steps the contributions:embgrad.EmbgradWarning")
@pytest.mark.parametrize("framework", ["jax", "keras"])
@pytest.mark.parametrize("method", ["input_x_gradient", embgrad.methods.IntegratedGradients(6, 2, keep_first=True)])
def test_attributions_of_tokens_agree(questions: dict[str, dict[str, Any]], framework: str, method: Any) -> None:
    asked = {"targets": [5], "contrast": 314, "method": method}
    ours, theirs = (embgrad.attribute_tokens(**questions[name], **asked) for name in ("torch", framework))
    np.testing.assert_allclose(theirs.objective, ours.objective, rtol=MOST)
    assert distance(theirs.scores, ours.scores) < MOST
