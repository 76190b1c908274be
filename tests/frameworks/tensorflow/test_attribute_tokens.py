"""Attributions of output tokens in a GPT-2 of Hugging Face's TensorFlow classes, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import embgrad
from embgrad import LogProbability, attribute_tokens
from tests.frameworks.tensorflow.helpers import policy, small_gpt2

IDS = np.array([[5, 2, 9, 4, 3], [0, 0, 7, 8, 6]])
MASK = np.array([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]])
BATCH = {"input_ids": IDS, "attention_mask": MASK}


@pytest.fixture(scope="module")
def model() -> Any:
    with policy(tf_keras, "float64"):
        return small_gpt2("TFGPT2LMHeadModel", initializer_range=0.4, eos_token_id=1, bos_token_id=1, pad_token_id=0)


@pytest.mark.parametrize(
    ("method", "atol"),
    [
        ("saliency", 0),
        ("input_x_gradient", 1e-15),
        (embgrad.methods.IntegratedGradients(10), 1e-10),
        (embgrad.methods.Occlusion(3), 1e-10),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:.*contributions:embgrad.EmbgradWarning")
def test_each_output_equals_a_single_call(model: Any, method: Any, atol: float) -> None:
    result = attribute_tokens(model, BATCH, method=method)
    np.testing.assert_array_equal(result.outputs, [[1, 2, 3, 4], [3, 4, -1, -1]])
    for example in range(2):
        real = MASK[example] == 1
        ids = IDS[example : example + 1, real]
        for output in range(ids.shape[1] - 1):
            objective = LogProbability(np.where(np.arange(ids.shape[1]) == output + 1, ids, -100))
            if isinstance(method, str):
                single = embgrad.gradients(model, {"input_ids": ids}, objective)
                products = (single.values * single.activations).sum(-1)
                expected = single.saliency("norm") if method == "saliency" else products
            else:
                expected = embgrad.attribute(model, {"input_ids": ids}, objective, method).scores
            np.testing.assert_allclose(
                result.scores[example, output][real], expected[0], rtol=1e-10, atol=max(atol, 1e-13)
            )
            assert result.objective[example, output] == pytest.approx(
                float(embgrad.evaluate(model, {"input_ids": ids}, objective)[0]), rel=1e-11
            )


def test_prompts_of_different_lengths_are_continued(model: Any) -> None:
    result = attribute_tokens(model, BATCH, generate=3)
    np.testing.assert_array_equal(result.ids[:, :5], IDS)
    for example in range(2):
        real = result.real[example]
        ids = result.ids[example : example + 1, real]
        start = int(MASK[example].sum())
        single = attribute_tokens(model, {"input_ids": ids}, targets=slice(start, None))
        count = single.shape[1]
        np.testing.assert_allclose(result.scores[example, :count][:, real], single.scores[0], rtol=0, atol=1e-12)
        for output in range(count):
            logits = model(ids[:, : start + output]).logits[0, -1].numpy()
            assert ids[0, start + output] == logits.argmax()


class Prompted(tf_keras.Model):  # type: ignore[misc]
    """A language model behind two virtual tokens, which predicts a token from the sum of those before it."""

    def __init__(self) -> None:
        super().__init__()
        self.words = tf_keras.layers.Embedding(20, 4)
        self.head = tf_keras.layers.Dense(20)

    def call(self, input_ids: Any) -> Any:
        rows = self.words(input_ids)
        virtual = tf.ones_like(rows[:, :1]) / 2
        return self.head(tf.tanh(tf.cumsum(tf.concat([virtual, virtual, rows], 1), 1)))


@pytest.mark.parametrize("compiled", [False, True])
def test_virtual_tokens_before_the_batchs_do_not_count(compiled: bool) -> None:
    with policy(tf_keras, "float64"):
        model = Prompted()
        model(IDS)

    def cut(model: Any, inputs: Any) -> Any:
        return model(inputs)[:, 2:]

    for objective in (embgrad.Logit(4, position=-1), embgrad.Logit(4), LogProbability(IDS)):
        whole = embgrad.gradients(model, IDS, objective, compile=compiled)
        own = embgrad.gradients(model, IDS, objective, call=cut)
        np.testing.assert_allclose(whole.values, own.values, rtol=1e-10, atol=1e-14)
        np.testing.assert_allclose(whole.objective, own.objective, rtol=1e-12)
    whole_scores, own_scores = (attribute_tokens(model, IDS, call=call).scores for call in (None, cut))
    np.testing.assert_allclose(whole_scores, own_scores, rtol=1e-10, atol=1e-14)
