"""Flax models of Hugging Face, taken as they are, against PyTorch's classes with the same weights and against `jax.grad`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
import transformers
from transformers.modeling_flax_pytorch_utils import load_flax_weights_in_pytorch_model

import embgrad
from tests.support.sampling import slow

BERT = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 40}
IDS = np.array([[5, 9, 21, 7, 12], [8, 3, 30, 1, 1]])
MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
TYPES = np.array([[0, 0, 1, 1, 1], [0, 1, 1, 0, 0]])
OUT = np.array([[0, 12, 6, 28], [0, 7, 19, 1]])
OUT_MASK = np.array([[1, 1, 1, 1], [1, 1, 1, 0]])
WORDS = np.where(MASK == 1, np.roll(IDS, -1, 1), -100)


class Case(NamedTuple):
    """A model in both frameworks.

    Attributes:
        name: the name of PyTorch's class.
        config: the configuration.
        further: the inputs beside ids and mask.
        objective: the objective.
    """

    name: str
    config: Any
    further: dict[str, np.ndarray]
    objective: embgrad.Objective

    @property
    def batch(self) -> dict[str, np.ndarray]:
        return {"input_ids": IDS, "attention_mask": MASK, **self.further}


DECODER = {"decoder_input_ids": OUT, "decoder_attention_mask": OUT_MASK}
CASES = [
    Case("BertModel", transformers.BertConfig(**BERT), {"token_type_ids": TYPES},
        embgrad.Projection(np.arange(16.0), output="sequence")),
    Case("RobertaForSequenceClassification", transformers.RobertaConfig(**BERT), {}, embgrad.CrossEntropy([1, 0])),
    Case("T5ForConditionalGeneration",
        transformers.T5Config(vocab_size=40, d_model=16, d_kv=8, d_ff=16, num_layers=2, num_heads=2), DECODER,
        embgrad.LogProbability(OUT)),
    Case(
        "GPT2LMHeadModel",
        transformers.GPT2Config(vocab_size=40, n_embd=16, n_layer=2, n_head=2, n_positions=16),
        {"position_ids": np.array([[2, 3, 4, 5, 6], [0, 1, 2, 3, 4]])},
        embgrad.CrossEntropy(WORDS),
    ),
]  # fmt: skip


@pytest.fixture(
    scope="module", params=[CASES[0], slow((CASES[1],)), CASES[2], slow((CASES[3],))], ids=lambda case: case.name
)
def trio(request: pytest.FixtureRequest) -> tuple[Case, Any, Any]:
    case = request.param
    flax = getattr(transformers, f"Flax{case.name}")(case.config)
    model = load_flax_weights_in_pytorch_model(getattr(transformers, case.name)(case.config), flax.params)
    return case, flax, model.eval()


def close(actual: np.ndarray, expected: np.ndarray) -> None:
    assert actual.shape == expected.shape
    assert np.abs(actual - expected).max() <= 5e-6 * np.abs(expected).max()


def test_roles_have_pytorchs_values_and_gradients(trio: tuple[Case, Any, Any]) -> None:
    case, flax, model = trio
    before = jax.tree_util.tree_map(np.array, flax.params)
    attributes = dict(vars(flax))
    at = ["word", "layer.0", "layer.-1"]
    found, expected = (embgrad.gradients(each, case.batch, case.objective, at=at) for each in (flax, model))
    for name in at:
        close(found[name].values, expected[name].values)
        close(found[name].objective, expected[name].objective)
        assert embgrad.compare(found[name], expected[name]).agrees
        assert (found[name].provenance["backend"], found[name].provenance["unused"]) == ("jax", [])
    close(embgrad.evaluate(flax, case.batch, case.objective), expected["word"].objective)
    scores = [embgrad.attribute(each, case.batch, case.objective, "input_x_gradient").scores for each in (flax, model)]
    close(*scores)
    compiled = embgrad.gradients(flax, case.batch, case.objective, compile=True)
    assert compiled.provenance["compiled"]
    close(compiled.values, found["word"].values)
    assert vars(flax) == attributes
    assert all(jax.tree_util.tree_leaves(jax.tree_util.tree_map(np.array_equal, before, flax.params)))


def gradients_of_parameters(flax: Any, batch: Any, total: Callable[[Any], Any]) -> dict[str, np.ndarray]:
    gradients = jax.grad(lambda params: total(flax(**batch, params=params)))(flax.params)
    flat = jax.tree_util.tree_flatten_with_path(gradients)[0]
    return {".".join(["params", *(key.key for key in keys)]): np.asarray(value) for keys, value in flat}


def test_parameters_have_jaxs_gradients_and_tokens_pytorchs_scores() -> None:
    case = CASES[3]
    flax = transformers.FlaxGPT2LMHeadModel(case.config)
    own = gradients_of_parameters(flax, case.batch, lambda outputs: outputs.logits[:, 0, 3].sum())
    found = embgrad.tables.parameter_gradients(flax, case.batch, embgrad.Logit(3, position=0))
    assert set(found) == set(own)
    for name, value in found.items():
        np.testing.assert_allclose(value, own[name], atol=2e-6)
    model = load_flax_weights_in_pytorch_model(transformers.GPT2LMHeadModel(case.config), flax.params).eval()
    tokens = [embgrad.attribute_tokens(each, case.batch) for each in (flax, model)]
    np.testing.assert_array_equal(tokens[0].outputs, tokens[1].outputs)
    np.testing.assert_allclose(tokens[0].scores, tokens[1].scores, atol=1e-5)
    prompts = {"input_ids": IDS, "attention_mask": MASK}
    made = [embgrad.attribute_tokens(each, prompts, generate=2) for each in (flax, model)]
    np.testing.assert_array_equal(made[0].ids, made[1].ids)
    np.testing.assert_array_equal(made[0].outputs, [[5, 6], [5, 6]])
    np.testing.assert_allclose(made[0].scores, made[1].scores, atol=1e-5)


def test_a_call_of_the_users_own_and_a_change_of_the_weights() -> None:
    case = CASES[1]
    flax = transformers.FlaxRobertaForSequenceClassification(case.config)
    plain = embgrad.gradients(flax, case.batch, case.objective, compile=True)
    called = embgrad.gradients(flax, case.batch, case.objective, call=lambda model, inputs: model(**inputs).logits)
    close(called.values, plain.values)
    flax.params = jax.tree_util.tree_map(lambda array: array * 1.5, flax.params)
    changed = embgrad.gradients(flax, case.batch, case.objective, compile=True)
    close(changed.values, embgrad.gradients(flax, case.batch, case.objective).values)
    assert np.abs(changed.values - plain.values).max() > 0.1 * np.abs(plain.values).max()
