"""Faithfulness on real weights is the same in each framework."""

from __future__ import annotations

import numpy as np
import pytest
import tokenizers

import embgrad
from embgrad.loading.minilm import minilm_folder
from tests.support.sampling import slow

#: Two short texts, of which one is padded, and a pair.
TEXTS: list[str | tuple[str, str]] = ["A gripping film.", "Never again!", ("A man plays.", "Music.")]

#: The largest difference, relative to the largest figure: each is a difference of two sums of float32.
TOLERANCE = 1e-5


def expect_near(actual: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(actual, expected, atol=TOLERANCE * np.nanmax(np.abs(expected)))


# JAX compiles each operation anew for each number of tokens that are left.
@pytest.mark.parametrize("other", [slow("tensorflow"), "gluon", slow("jax")])
def test_faithfulness_infidelity_and_sensitivity_are_those_of_pytorch(other: str) -> None:
    folder = minilm_folder()
    batch = embgrad.encode(TEXTS, tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")))
    vector = np.random.default_rng(0).normal(size=384)
    objective = embgrad.Projection(vector, output="sequence", position=0)
    scores = {str(seed): np.random.default_rng(seed).normal(size=batch.shape) for seed in range(2)}
    results = {}
    for framework in ("torch", other):
        model = embgrad.zoo.load_bert(folder, framework)
        results[framework] = (
            embgrad.metrics.faithfulness(model, batch, objective, scores),
            embgrad.metrics.faithfulness(
                model, batch, objective, scores, remove="zero", curves=False, leave_one_out=False
            ),
            embgrad.metrics.infidelity(model, batch, objective, scores["0"], samples=5),
            embgrad.metrics.sensitivity(model, batch, objective, embgrad.methods.InputXGradient(), samples=2),
        )
    deleted, replaced, infidelity, sensitivity = results.pop("torch")
    for others in results.values():
        for name in ("objective", "deletion", "insertion", "leave_one_out", "comprehensiveness", "sufficiency"):
            expect_near(getattr(others[0], name), getattr(deleted, name))
        np.testing.assert_allclose(others[0].loo_correlation, deleted.loo_correlation, atol=1e-9)
        expect_near(others[1].comprehensiveness, replaced.comprehensiveness)
        expect_near(others[2], infidelity)
        expect_near(others[3], sensitivity)
    np.testing.assert_allclose(replaced.objective, deleted.objective, rtol=1e-4)  # without padding and with it
