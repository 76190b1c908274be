"""Attributions of pairs of texts and influences are the same on real weights in four frameworks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tokenizers

import embgrad
from embgrad.loading.minilm import minilm_folder
from tests.support.sampling import slow

FRAMEWORKS = ("torch", "tensorflow", "gluon", "jax")

#: The largest relative L2 distance to PyTorch's scores.
MOST = 5e-6


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    """Return MiniLM in each framework."""
    return {framework: embgrad.zoo.load_bert(minilm_folder(), framework) for framework in FRAMEWORKS}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """Return MiniLM's tokenizer."""
    return tokenizers.Tokenizer.from_file(str(minilm_folder() / "tokenizer.json"))


@pytest.mark.parametrize(
    "method",
    ["input_x_gradient", slow(embgrad.methods.IntegratedJacobians(4, "pad", keep_special=True))],
    ids=["gradients", "integrated"],
)
@pytest.mark.filterwarnings("ignore:with 4 steps:embgrad.EmbgradWarning")
def test_pairs_agree_between_frameworks(models: dict[str, Any], tokenizer: Any, method: Any) -> None:
    pairs = [("A kitten sleeps.", "The cat naps."), ("Stocks fell on Monday.", "The weather is nice.")]
    options = {"output": "sequence", "pooling": "mean", "tokenizer": tokenizer}
    results = {name: embgrad.attribute_pairs(model, pairs, method, **options) for name, model in models.items()}
    expected = results.pop("torch")
    assert expected.scores.shape == (2, 7, 7)
    for framework, found in results.items():
        apart = np.linalg.norm(found.scores - expected.scores) / np.linalg.norm(expected.scores)
        assert apart <= 10 * MOST, (framework, apart)
        np.testing.assert_allclose(found.similarity, expected.similarity, rtol=MOST)


def test_influences_agree_between_frameworks(models: dict[str, Any], tokenizer: Any) -> None:
    train = ["A warm and funny film.", "The actors are wonderful.", "A dull and empty film.", "I hated every minute."]
    test = ["A charming film with wonderful actors.", "An empty story."]
    objective = embgrad.Projection(np.random.default_rng(0).normal(size=384), output="sequence", position=0)
    results = {
        name: embgrad.tables.influence(model, train, test, objective, tokenizer=tokenizer, top=None, tokens=3)
        for name, model in models.items()
    }
    expected = results.pop("torch")
    for framework, found in results.items():
        np.testing.assert_array_equal(found.proponents, expected.proponents)
        apart = np.linalg.norm(found.proponent_scores - expected.proponent_scores)
        assert apart <= MOST * np.linalg.norm(expected.proponent_scores), (framework, apart)
        np.testing.assert_array_equal(found.proponent_ids, expected.proponent_ids)
        assert found.names == expected.names
