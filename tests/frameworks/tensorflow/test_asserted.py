"""Assertions of a model's own on its ids, which fail before the lookup would: the error names the id and the table."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import transformers

import embgrad
from tests.frameworks.tensorflow.savedmodels import saved
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


class Net(tf.Module):
    """Two tables of one length, and a third; `check(ids)` comes first."""

    def __init__(self, check: Callable[[Any], Any], shared: bool = False) -> None:
        super().__init__()
        self.check = check
        self.table = tf.Variable(np.ones((12, 4), np.float32), name="table")
        self.other = tf.Variable(np.ones((12 if shared else 8, 4), np.float32), name="other")

    @tf.function(input_signature=[tf.TensorSpec((None, None), tf.int32, name="ids")])
    def __call__(self, ids: Any) -> Any:
        with tf.control_dependencies([one for one in [self.check(ids)] if one is not None]):
            ids = tf.identity(ids)
        return tf.reduce_sum(tf.gather(self.table, ids) + tf.gather(self.other, tf.minimum(ids, 1)), 1)


CHECKS = {
    "less": lambda ids: tf.debugging.assert_less(ids, 12, message="no such word"),
    "less or equal": lambda ids: tf.debugging.assert_less_equal(ids, 11),
    "greater": lambda ids: tf.debugging.assert_greater(12, ids),
    "the largest": lambda ids: tf.debugging.assert_less(tf.reduce_max(ids), 12),
    "assert": lambda ids: tf.debugging.Assert(tf.reduce_all(ids < 12), [ids]),
}


@pytest.mark.parametrize("is_saved", [False, True], ids=["module", "saved"])
@pytest.mark.parametrize("check", CHECKS)
def test_a_failed_assertion_on_ids_names_the_id_and_the_table(check: str, is_saved: bool, tmp_path: Any) -> None:
    model = Net(CHECKS[check])
    model = saved(model, tmp_path) if is_saved else model
    with pytest.raises(embgrad.errors.BatchError, match=FIRST.format("table", 12, 11)):
        embgrad.gradients(model, IDS, embgrad.Sum())


def test_an_assertion_that_fits_several_tables_names_none() -> None:
    with pytest.raises(embgrad.errors.BatchError, match=FIRST.format("lookup", 12, 11)):
        embgrad.gradients(Net(CHECKS["less"], shared=True), IDS, embgrad.Sum())


@pytest.mark.parametrize(
    "check",
    [lambda ids: tf.debugging.assert_less(ids, 50), lambda ids: tf.debugging.assert_equal(ids[:, 0], ids[:, -1])],
    ids=["another length", "another comparison"],
)
def test_other_assertions_pass_unchanged(check: Any) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError):
        embgrad.gradients(Net(check), IDS, embgrad.Sum())
