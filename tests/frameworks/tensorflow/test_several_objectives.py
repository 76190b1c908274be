"""A list of objectives through one forward pass: Keras models, saved graphs and `compile=True`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras2

import embgrad
from embgrad.backend.registry import bind
from embgrad.engine.options import GradientOptions
from embgrad.engine.question import Question
from embgrad.engine.run import reduce_run, run_located
from tests.support.compiled import same

IDS = np.array([[5, 2, 9, 4], [3, 8, 1, 7]])
OBJECTIVES = [embgrad.Logit(1, position=0), embgrad.Logit(2), embgrad.Projection([1.0, -1.0, 2.0], position=-1)]


def sequence_model(keras: Any, *, mask_zero: bool = False) -> Any:
    keras.utils.set_random_seed(0)
    ids = keras.Input((None,), dtype="int32")
    rows = keras.layers.Embedding(12, 4, mask_zero=mask_zero, dtype="float64")(ids)
    hidden = keras.layers.Dense(4, activation="tanh", dtype="float64")(rows)
    return keras.Model(ids, keras.layers.Dense(3, dtype="float64")(hidden))


def test_a_trace_takes_several_objectives(keras: Any) -> None:
    model = sequence_model(keras)
    for _ in range(2):
        results = embgrad.gradients(model, IDS, OBJECTIVES, compile=True)
        for result, objective in zip(results, OBJECTIVES, strict=True):
            same(embgrad.gradients(model, IDS, objective), result)


def test_graphs_with_loops_are_pulled_back_several_times(keras: Any) -> None:
    """A loop reads variables, whose shapes its gradient needs."""
    ids = keras.Input((None,), dtype="int32")
    rows = keras.layers.GRU(3, dtype="float64")(keras.layers.Embedding(12, 4, dtype="float64")(ids))
    model = keras.Model(ids, keras.layers.Dense(3, dtype="float64")(rows))
    function = tf.function(lambda ids: model(ids, training=False))
    graph = function.get_concrete_function(tf.TensorSpec([None, None], tf.int32))
    objectives = [embgrad.Sum(), embgrad.Logit(2), lambda outputs: outputs[:, 1]]
    for objective in (objectives, objectives[2]):
        for options in ({}, {"split": True}):
            plain, found = (embgrad.gradients(each, IDS, objective, **options) for each in (model, graph))
            for one, other in zip(plain, found, strict=True) if objective is objectives else [(plain, found)]:
                np.testing.assert_allclose(other.values, one.values, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("objectives", [OBJECTIVES[:1], OBJECTIVES])
def test_gradients_are_reduced_with_compile_and_beside_a_mask_of_the_model(objectives: Any) -> None:
    model = sequence_model(keras2, mask_zero=True)
    ids = np.array([[5, 2, 9, 0], [3, 8, 0, 0]])
    batch = embgrad.TokenBatch(ids, (ids != 0).astype(int))
    runs = []
    for compiled in (False, True):
        options = GradientOptions(("word",), compile=compiled)
        question = Question(bind(model, None), batch, tuple(objectives), options)
        run, located = run_located(question, lambda key, gradient, value: (gradient * value).sum(-1, keepdims=True))
        runs.append((run, located["word"].arrangement))
    assert run.uncompiled == "a trace returns whole gradients, and reduced ones are requested"
    results = embgrad.gradients(model, batch, objectives)
    for run, arrangement in runs:
        for result, scores in zip(results, reduce_run(run.points["word"], arrangement), strict=True):
            np.testing.assert_allclose(scores, (result.values * result.activations).sum(-1), rtol=1e-10, atol=1e-14)
        assert run.masked_id == results[0].provenance.get("masked_id")
        assert list(run.unused) == results[0].provenance["unused"]
