"""Keras models that take no mask and make one of the ids, `mask_zero`: nothing is said where it is the batch's."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import embgrad

IDS = np.array([[5, 2, 9, 4], [3, 8, 0, 0]])
MASK = IDS > 0
OBJECTIVE = embgrad.Logit(1)
TEXT = "cannot take the mask, so that it reads padding as text"


def built(keras: Any, *, mask_zero: bool = True, heeds: bool = True) -> Any:
    keras.utils.set_random_seed(0)
    words, head = keras.layers.Embedding(12, 6, mask_zero=mask_zero), keras.layers.Dense(3)
    middle = keras.layers.LSTM(4) if heeds else keras.layers.Lambda(lambda rows: tf.reduce_sum(tf.tanh(rows), 1))
    model = keras.Sequential([words, middle, head])
    model(tf.constant(IDS, tf.int32))
    return model


@pytest.mark.parametrize("options", [{}, {"compile": True}, {"batch_size": 1}], ids=["whole", "compiled", "one by one"])
def test_a_model_that_makes_the_batchs_mask_gives_no_warning(keras: Any, options: dict[str, Any]) -> None:
    model, batch = built(keras), embgrad.TokenBatch(IDS, mask=MASK)
    with warnings.catch_warnings():
        warnings.simplefilter("error", embgrad.EmbgradWarning)
        found = [embgrad.gradients(model, batch, OBJECTIVE, **options) for _ in range(2)][-1]
        table = embgrad.tables.table_gradients(model, batch, OBJECTIVE)
        report = embgrad.metrics.padding_report(model, batch, OBJECTIVE)
        embgrad.tables.parameter_gradients(model, batch, OBJECTIVE)
    assert found.provenance["unused"] == table.provenance["unused"] == []
    assert found.provenance["masked_id"] == 0
    assert report.mask_taken
    assert found.pad_leak == 0
    np.testing.assert_array_equal(found.values, embgrad.gradients(model, IDS, OBJECTIVE, **options).values)


@pytest.mark.parametrize("kind", [{"mask_zero": False}, {"heeds": False}], ids=["no mask_zero", "nobody heeds it"])
def test_padding_that_is_read_is_a_warning(keras: Any, kind: dict[str, Any]) -> None:
    with pytest.warns(embgrad.EmbgradWarning, match=TEXT):
        found = embgrad.gradients(built(keras, **kind), embgrad.TokenBatch(IDS, mask=MASK), OBJECTIVE)
    assert found.provenance["unused"] == ["mask"]
    assert found.pad_leak > 0
