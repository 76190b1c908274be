"""Assertions of a model on its ids, which fail before the lookup would."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import transformers

import embgrad
from tests.frameworks.tensorflow.test_huggingface import MODELS

IDS = np.array([[5, 2, 9, 4], [3, 99, 1, 0]])
FIRST = (
    r"id 99 at example 1, position 1 is outside the table: table '{}' has {} rows: expected 0 to {}; use the tokenizer"
)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("called", [False, True], ids=["anew", "called before"])
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", ["bert", "roberta", "gpt2", "t5"])
def test_ids_outside_the_table_of_hugging_faces_classes(name: str, compiled: bool, called: bool) -> None:
    model_class, config_class, options, path, output, _ = MODELS[name]
    objective = embgrad.Sum(output=output)
    model = getattr(transformers, model_class)(getattr(transformers, config_class)(**options))
    others = {"decoder_input_ids": np.ones_like(IDS)} if name == "t5" else {}
    if called:
        model({"input_ids": IDS % 20, **others})
    with pytest.raises(embgrad.errors.BatchError, match=FIRST.format(re.escape(path), 20, 19)):
        embgrad.gradients(model, {"input_ids": IDS, **others}, objective, compile=compiled)
    found = embgrad.gradients(model, {"input_ids": IDS % 20, **others}, objective, compile=compiled)
    assert found.values.any()


class Checked(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = tf.Variable(np.ones((12, 4), np.float32))

    def __call__(self, ids: Any) -> Any:
        tf.debugging.assert_less(ids, 12, message="no such word")
        return tf.reduce_sum(tf.gather(self.table, ids), 1)


def test_an_assertion_of_the_models_own_passes_unchanged() -> None:
    model = Checked()
    with pytest.raises(tf.errors.InvalidArgumentError, match="no such word"):
        embgrad.gradients(model, IDS, embgrad.Sum())
    assert embgrad.gradients(model, IDS % 12, embgrad.Sum()).values.all()
