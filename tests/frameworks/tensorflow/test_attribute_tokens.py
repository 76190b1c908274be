"""Prompts of different lengths continued by a GPT-2 of Hugging Face's TensorFlow classes, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tf_keras

from embgrad import attribute_tokens
from tests.frameworks.tensorflow.helpers import policy, small_gpt2

IDS = np.array([[5, 2, 9, 4, 3], [0, 0, 7, 8, 6]])
MASK = np.array([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]])
BATCH = {"input_ids": IDS, "attention_mask": MASK}


@pytest.fixture(scope="module")
def model() -> Any:
    with policy(tf_keras, "float64"):
        return small_gpt2("TFGPT2LMHeadModel", initializer_range=0.4, eos_token_id=1, bos_token_id=1, pad_token_id=0)


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
