"""Texts that begin alike, run from where they differ, in Hugging Face's TensorFlow classes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import embgrad
from embgrad.backend.registry import bind
from embgrad.token_search.prefix import SharedPrefixes
from tests.frameworks.tensorflow.helpers import policy, small_bert, small_gpt2

IDS = np.tile([2, 7, 5, 9, 4, 3, 8, 6], (6, 1))
IDS[np.arange(6), [2, 2, 3, 3, 4, 4]] = [10, 11, 10, 11, 10, 11]
OBJECTIVE = embgrad.LogProbability(np.where(np.arange(8) >= 6, IDS, -100))


def shared(model: Any) -> tuple[np.ndarray, SharedPrefixes]:
    prefixes = SharedPrefixes(bind(model, None), None)
    return prefixes.evaluate(embgrad.TokenBatch(IDS), np.zeros(len(IDS), int), OBJECTIVE), prefixes


@pytest.mark.parametrize(("dtype", "rtol"), [("float32", 1e-5), ("float64", 1e-12)])
def test_the_objective_is_that_of_whole_texts(dtype: str, rtol: float) -> None:
    with policy(tf_keras, dtype):
        model = small_gpt2("TFGPT2LMHeadModel", initializer_range=0.4, eos_token_id=1, bos_token_id=1)
        expected = embgrad.evaluate(model, IDS, OBJECTIVE)
        weights = [weight.numpy() for weight in model.weights]
        values, prefixes = shared(model)
    assert prefixes.describe() == {"prefix_cache": True}
    np.testing.assert_allclose(values, expected, rtol=rtol)
    for weight, before in zip(model.weights, weights, strict=True):
        np.testing.assert_array_equal(weight.numpy(), before)


def test_a_text_is_run_from_where_it_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_gpt2("TFGPT2LMHeadModel", eos_token_id=1, bos_token_id=1)
    lengths: list[tuple[int, ...]] = []
    call = model.transformer.call

    def counted(*args: Any, **options: Any) -> Any:
        lengths.append(tuple(tf.shape(options.get("input_ids", args[0] if args else None)).numpy()))
        return call(*args, **options)

    monkeypatch.setattr(model.transformer, "call", counted)
    _, prefixes = shared(model)
    assert prefixes.used
    assert lengths[:3] == [(1, 7), (1, 8), (1, 8)]
    assert lengths[3:] == [(7, 5)]


@pytest.mark.parametrize("name", ["TFBertForMaskedLM", "TFBertLMHeadModel"])
def test_an_encoder_runs_whole_texts(name: str) -> None:
    values, prefixes = shared(small_bert(name))
    assert np.isnan(values).all()
    assert prefixes.reason
