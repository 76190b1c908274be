"""Layers of Keras that are given for a tokenizer and are no preprocessing model as TF Hub has them."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf
import tf_keras

import embgrad


@pytest.fixture(params=[tf.keras.layers, tf_keras.layers], ids=["keras", "tf_keras"])
def vectorising(request: pytest.FixtureRequest) -> Any:
    """The layer that makes ids of strings: an array of them, and nothing beside."""
    return request.param.TextVectorization(vocabulary=["a", "film"])


def test_a_preprocessing_model_without_a_dict_is_refused(vectorising: Any) -> None:
    message = (
        r"the preprocessing model returned EagerTensor: expected a dict of ids, mask and types, such as input_word_ids, "
        "input_mask and input_type_ids"
    )
    with pytest.raises(embgrad.errors.BatchError, match=message):
        embgrad.encode(["a film", "film"], vectorising)


def test_a_preprocessing_model_without_pairs_is_refused(vectorising: Any) -> None:
    message = (
        r"example 0 is a pair of texts, and the preprocessing model of type TextVectorization has no tokenize and "
        "bert_pack_inputs that would take it: expected single texts; or give a tokenizer"
    )
    with pytest.raises(embgrad.errors.BatchError, match=message):
        embgrad.encode([("a film", "film")], vectorising)
