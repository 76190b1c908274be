"""Attributions of output tokens, and a search over input tokens, in small language models of Flax NNX."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import embgrad
from embgrad import LogProbability, attribute_tokens
from tests.frameworks.jax.cases import IDS, MASK, VOCAB
from tests.frameworks.jax.nnx_models import CASES

BATCH = {"input_ids": IDS, "attention_mask": MASK}


def made(name: str) -> Any:
    """Return a model of float64."""
    (case,) = (case for case in CASES if case.name == name)
    return case.make("float64")


@pytest.fixture(scope="module", params=["llama3", "gemma3"])
def model(request: pytest.FixtureRequest) -> Any:
    return made(request.param)


@pytest.mark.parametrize("method", ["saliency", "input_x_gradient"])
def test_each_output_token_has_the_attribution_of_jaxs_own_gradient(method: str) -> None:
    model = made("llama3")  # under jax.grad Flax refuses Gemma's rematerialised modules, as they come from outside
    result = attribute_tokens(model, BATCH, method=method)
    np.testing.assert_array_equal(result.outputs, [[1, 2, 3, 4, 5], [1, 2, 3, -1, -1]])
    for example, output in itertools.product(range(2), range(3)):
        ids = IDS[example : example + 1, : output + 2]
        real = jnp.ones_like(jnp.asarray(ids))

        def log_probability(rows: Any, ids: Any = ids, real: Any = real) -> Any:
            logits = model.behind(model.begin(rows, jnp.asarray(ids), real, None), 0, jnp.asarray(ids), real)
            return jax.nn.log_softmax(logits[0, -2])[ids[0, -1]]

        rows = jnp.asarray(embgrad.gradients(model, {"input_ids": ids}, LogProbability(ids)).activations)
        own = np.asarray(jax.grad(log_probability)(rows))[0]
        scores = np.linalg.norm(own, axis=-1) if method == "saliency" else (own * np.asarray(rows[0])).sum(-1)
        np.testing.assert_allclose(result.scores[example, output, : output + 2], scores, rtol=1e-9, atol=1e-12)
        assert result.objective[example, output] == pytest.approx(float(log_probability(rows)), rel=1e-10)


def test_the_best_substitutions_are_those_of_the_scores_by_hand(model: Any) -> None:
    objective = LogProbability(np.where(np.arange(6) >= 4, IDS, -100))
    found = embgrad.substitutions(model, BATCH, objective, top=VOCAB)
    gradient = embgrad.gradients(model, BATCH, objective)
    table = np.asarray(embgrad.tables.embedding_table(model, BATCH))
    ids = found.ids[0, 1]
    scale = gradient.activations[0, 1] / table[IDS[0, 1]]  # Gemma multiplies the rows by the root of the dimension
    expected = ((table - table[IDS[0, 1]]) * scale) @ gradient.values[0, 1]
    real = ids >= 0
    np.testing.assert_allclose(found.scores[0, 1][real], expected[ids[real]], rtol=1e-9, atol=1e-12)


def test_a_search_finds_one_of_the_best_single_swaps(model: Any) -> None:
    objective = LogProbability(np.where(np.arange(6) == 5, IDS[:1], -100))
    batch = {"input_ids": IDS[:1]}
    found = embgrad.search(
        model,
        batch,
        objective,
        embgrad.methods.HotFlip(steps=1, candidates=VOCAB),
        goal="maximize",
        positions=[0, 1, 2, 3],
        allowed=np.arange(VOCAB),
    )
    swapped = [
        (position, number)
        for position, number in itertools.product(range(4), range(VOCAB))
        if number != IDS[0, position]
    ]
    tried = np.repeat(IDS[:1], len(swapped), axis=0)
    tried[range(len(swapped)), [position for position, _ in swapped]] = [number for _, number in swapped]
    values = embgrad.evaluate(model, {"input_ids": tried}, LogProbability(np.where(np.arange(6) == 5, tried, -100)))
    assert found.objective[0] > found.objective_before[0]
    assert found.objective[0] <= values.max() + 1e-9
    assert (values > found.objective[0] + 1e-9).mean() < 0.05
