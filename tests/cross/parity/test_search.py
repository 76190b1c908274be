"""Each search makes the same run from one checkpoint in each framework: the same texts at each step, and the same figures."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

import embgrad
from embgrad.loading.minilm import minilm_folder
from embgrad.results.search import Search
from embgrad.token_search import PEZ, SearchMethod, UniversalTrigger, is_word
from tests.support.sampling import slow

FRAMEWORKS = ("tensorflow", "gluon", "jax")
TEXTS = [
    "a tired and confused script",
    "the plot collapses halfway through",
    "nobody in the audience cared",
    "a warm film",
    "a tired script",
    "an honest and funny portrait",
]
METHODS: dict[str, SearchMethod] = {
    "universal_trigger": UniversalTrigger(2, steps=3, candidates=4, beam=2, examples=3),
    "universal_trigger_at_the_end": UniversalTrigger(1, "end", steps=1, candidates=6, examples=None),
    "pez": PEZ(steps=10),
}


def run(framework: str, method: SearchMethod) -> Search:
    folder = minilm_folder()
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    vector = np.random.default_rng(0).normal(size=384)
    return embgrad.search(
        embgrad.zoo.load_bert(folder, framework),
        TEXTS,
        embgrad.Projection(vector, output="sequence", position=0),
        dataclasses.replace(method),
        goal="minimize",
        tokenizer=tokenizer,
        allowed=is_word,
    )


#: JAX compiles each operation anew for each shape of a batch, of which a search has many.
ASKED = [(framework, method) for framework in FRAMEWORKS for method in METHODS]
ORDINARY = [("tensorflow", "pez"), ("gluon", "universal_trigger")]


@pytest.mark.parametrize(("framework", "method"), [*ORDINARY, *(slow(one) for one in ASKED if one not in ORDINARY)])
def test_a_search_makes_the_same_run_as_in_pytorch(framework: str, method: str) -> None:
    expected, found = (run(name, METHODS[method]) for name in ("torch", framework))
    assert (expected.objective <= expected.objective_before + 1e-6).sum() >= 4
    assert expected.texts != expected.texts_before
    np.testing.assert_array_equal(found.history.ids, expected.history.ids)
    np.testing.assert_array_equal(found.history.evaluations, expected.history.evaluations)
    np.testing.assert_array_equal(found.history.gradients, expected.history.gradients)
    np.testing.assert_allclose(found.history.objective, expected.history.objective, rtol=2e-5, atol=2e-5)
    assert found.texts == expected.texts
    assert found.batch.ids.tolist() == expected.batch.ids.tolist()
    if expected.trigger is not None:
        assert found.trigger is not None
        assert found.trigger.tolist() == expected.trigger.tolist()
