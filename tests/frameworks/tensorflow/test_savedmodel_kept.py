"""A SavedModel is a graph already: it runs as one, cut at the points, which is kept; and each call gives the same bits."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from embgrad_tensorflow import graphs

import embgrad
from tests.frameworks.tensorflow.savedmodels import (
    SMALL,
    TINY,
    TOTAL,
    Net,
    close,
    slices,
    weighed,
    weighed_gradient,
)

IDS = {
    "input_word_ids": np.array([[51, 7, 9, 52], [51, 8, 52, 0]], np.int32),
    "input_mask": np.array([[1, 1, 1, 1], [1, 1, 1, 0]], np.int32),
    "input_type_ids": np.zeros((2, 4), np.int32),
}


@pytest.fixture
def made(monkeypatch: Any) -> list[Any]:
    """The graphs that are made meanwhile."""
    graphs_made: list[Any] = []
    flattened = graphs.flatten

    def counted(function: Any) -> Any:
        graphs_made.append(function)
        return flattened(function)

    monkeypatch.setattr(graphs, "flatten", counted)
    return graphs_made


def by_slices(model: Any, ids: Any) -> Any:
    return slices(model.rows, lambda: tf.reduce_sum(model(tf.constant(ids))), ids)


def test_each_call_runs_one_graph(made: list[Any]) -> None:
    model = tf.saved_model.load(str(TINY))
    objective = embgrad.Sum(output="pooled")
    longer = {name: np.pad(one, [(0, 1), (0, 3)]) for name, one in IDS.items()}

    def own(inputs: Any) -> Any:
        given = {name: tf.constant(value) for name, value in inputs.items()}
        total = lambda: tf.reduce_sum(model(given, training=False)["pooled_output"])  # noqa: E731
        return slices(model.variables[0], total, inputs["input_word_ids"])

    first = embgrad.gradients(model, IDS, objective)
    for _ in range(3):
        found = embgrad.gradients(model, IDS, objective)
        np.testing.assert_array_equal(found.values, first.values)
        np.testing.assert_array_equal(found.objective, first.objective)
        close(found.values, own(IDS))
        assert "compiled" not in found.provenance
    close(embgrad.gradients(model, longer, objective).values, own(longer))
    assert len(made) == 1


def test_points_and_changes(made: list[Any]) -> None:
    model = tf.saved_model.load(str(TINY))
    objective = embgrad.Sum(output="pooled")
    names = ["word", "layer.0", "layer.-1"]
    table = model.variables[0].numpy()
    for factor in (0.5, -3.0):
        found = embgrad.gradients(model, IDS, objective, at=names, add={"word": lambda value, f=factor: f * value})
        rows = (1 + factor) * table[IDS["input_word_ids"]]
        close(found["word"].activations, rows)
        same = embgrad.gradients(model, IDS, objective, at=names, override={"word": rows})
        alone = embgrad.gradients(
            model, IDS, objective, override={"layer.0": found["layer.0"].activations}, at="layer.0"
        )
        for name in names:
            close(found[name].values, same[name].values)
            close(found[name].activations, same[name].activations)
        close(alone.values, found["layer.0"].values)
    assert len(made) == 1


def test_weights_of_a_saved_model_may_change(tmp_path: Any, made: list[Any]) -> None:
    model = Net(lambda rows, ids: weighed(tf.gather(rows, ids))).saved(tmp_path)
    embgrad.gradients(model, SMALL, TOTAL)
    model.rows.assign(2 * model.rows)
    close(embgrad.gradients(model, SMALL, TOTAL).values, weighed_gradient(model.rows.numpy()[SMALL]))
    assert len(made) == 1


def test_branches_and_loops_in_a_saved_graph(tmp_path: Any, made: list[Any]) -> None:
    def forward(table: Any, ids: Any) -> Any:
        rows = tf.gather(table, ids)
        rows = tf.cond(tf.reduce_sum(ids) > 40, lambda: 3 * rows, lambda: tf.tanh(rows))
        _, rows = tf.while_loop(lambda n, _: n < tf.reduce_max(ids), lambda n, rows: (n + 3, rows * rows), (0, rows))
        return weighed(rows)

    model = Net(forward).saved(tmp_path)
    for ids in (SMALL, SMALL // 3, SMALL, SMALL // 3):
        close(embgrad.gradients(model, ids, TOTAL).values, by_slices(model, ids))
    assert len(made) == 1


def test_a_saved_model_is_not_kept_alive(tmp_path: Any) -> None:
    def ask(model: Any) -> weakref.ref[Any]:
        for _ in range(3):
            embgrad.gradients(model, SMALL, TOTAL)
        return weakref.ref(model)

    alive = ask(Net(lambda rows, ids: weighed(tf.gather(rows, ids))).saved(tmp_path))
    gc.collect()
    assert alive() is None
