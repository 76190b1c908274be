"""A SavedModel is a graph already: it runs as one, without asking, and each call gives the same bits."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from embgrad_tensorflow import compile as kept
from embgrad_tensorflow import run as running

import embgrad
from embgrad.backend import Request
from tests.tensorflow.savedmodels import SMALL, TINY, TOTAL, Net, close, saved, weighed

IDS = {
    "input_word_ids": np.array([[51, 7, 9, 52], [51, 8, 52, 0]], np.int32),
    "input_mask": np.array([[1, 1, 1, 1], [1, 1, 1, 0]], np.int32),
    "input_type_ids": np.zeros((2, 4), np.int32),
}


@pytest.fixture
def traces(monkeypatch: Any) -> list[Any]:
    """The traces that are run meanwhile."""
    run: list[Any] = []

    def counted(trace: Any, *args: Any) -> Any:
        run.append(trace)
        return run_trace(trace, *args)

    run_trace = kept.run_trace
    monkeypatch.setattr(kept, "run_trace", counted)
    return run


def interpreted(monkeypatch: Any, *args: Any, **kwargs: Any) -> Any:
    """As without a trace."""
    with monkeypatch.context() as patch:
        patch.setattr(running, "run_kept", lambda model, batch, request, planned, plain: plain(request))
        return embgrad.gradients(*args, **kwargs)


def test_each_call_runs_one_trace(monkeypatch: Any, traces: list[Any]) -> None:
    model = tf.saved_model.load(str(TINY))
    objective = embgrad.Sum(output="pooled")
    expected = interpreted(monkeypatch, model, IDS, objective)
    longer = {name: np.pad(one, [(0, 1), (0, 3)]) for name, one in IDS.items()}
    other = interpreted(monkeypatch, model, longer, objective)
    found = first = embgrad.gradients(model, IDS, objective)
    for number in range(1, 4):
        assert len(traces) == number
        np.testing.assert_array_equal(found.values, first.values)
        close(found.values, expected.values)
        close(found.objective, expected.objective)
        assert found.provenance["path"] == expected.provenance["path"]
        assert "compiled" not in found.provenance
        found = embgrad.gradients(model, IDS, objective)
    close(embgrad.gradients(model, longer, objective).values, other.values)
    assert len(traces) == 5
    assert len(set(traces)) == 1


class Gated(tf.Module):
    """The slope (1 + x)·eˣ of what the other branch hides is infinite before eˣ is."""

    def __init__(self) -> None:
        super().__init__()
        self.table = tf.Variable(np.random.default_rng(0).normal(size=(12, 4)), dtype=tf.float32)

    @tf.function(input_signature=[tf.TensorSpec((None, None), tf.int32, name="input_word_ids")])
    def __call__(self, ids: Any) -> Any:
        rows = tf.gather(self.table, ids)
        return {"sequence_output": tf.where(rows > 0, rows, rows * tf.exp(rows))}


def test_where_its_graph_overflows_the_model_tells(tmp_path: Any, traces: list[Any]) -> None:
    model, ids = saved(Gated(), tmp_path), np.array([[1, 2, 3], [4, 5, 6]])
    embgrad.gradients(model, ids, embgrad.Sum())
    assert len(traces) == 1  # and not refused, so that the next is run as well
    model.table.assign(tf.tensor_scatter_nd_update(model.table, [[3, 0]], [86.0]))
    called: list[None] = []

    def nothing(value: np.ndarray) -> np.ndarray:
        called.append(None)
        return np.zeros_like(value)

    found = embgrad.gradients(model, ids, embgrad.Sum(), add={"word": nothing})
    rows = np.asarray(model.table.numpy()[ids], np.float64)
    with np.errstate(over="ignore"):
        close(found.values, np.where(rows > 0, 1, (1 + rows) * np.exp(rows)))
    assert len(traces) == 2
    assert len(called) == 1  # as whoever counts or draws expects


def test_points_and_changes(monkeypatch: Any, traces: list[Any]) -> None:
    model = tf.saved_model.load(str(TINY))
    objective = embgrad.Sum(output="pooled")
    names = ["word", "layer.0", "layer.-1"]
    for factor in (0.5, 2.0, -3.0):
        options = {"at": names, "add": {"word": lambda value, factor=factor: factor * value}}
        expected = interpreted(monkeypatch, model, IDS, objective, **options)
        found = embgrad.gradients(model, IDS, objective, **options)
        for name in names:
            close(found[name].values, expected[name].values)
            close(found[name].activations, expected[name].activations)
    assert len(traces) == 3


def test_its_weights_may_change(tmp_path: Any, monkeypatch: Any, traces: list[Any]) -> None:
    model = Net(lambda rows, ids: weighed(tf.gather(rows, ids))).saved(tmp_path)
    for _ in range(2):
        embgrad.gradients(model, SMALL, TOTAL)
    model.rows.assign(2 * model.rows)
    close(embgrad.gradients(model, SMALL, TOTAL).values, interpreted(monkeypatch, model, SMALL, TOTAL).values)
    assert len(traces) == 3


def test_ids_outside_the_table(tmp_path: Any, traces: list[Any]) -> None:
    model = Net(lambda rows, ids: weighed(tf.gather(rows, ids))).saved(tmp_path)
    for _ in range(3):
        embgrad.gradients(model, SMALL, TOTAL)
        with pytest.raises(embgrad.BatchError, match="id 12 at example 0, position 0 is outside"):
            embgrad.gradients(model, SMALL + 7, TOTAL)
    assert traces


def test_choices_and_loops(tmp_path: Any, monkeypatch: Any, traces: list[Any]) -> None:
    def forward(table: Any, ids: Any) -> Any:
        rows = tf.gather(table, ids)
        rows = tf.cond(tf.reduce_sum(ids) > 40, lambda: 3 * rows, lambda: tf.tanh(rows))
        _, rows = tf.while_loop(lambda n, _: n < tf.reduce_max(ids), lambda n, rows: (n + 3, rows * rows), (0, rows))
        return weighed(rows)

    model = Net(forward).saved(tmp_path)
    for ids in (SMALL, SMALL // 3, SMALL, SMALL // 3):
        close(embgrad.gradients(model, ids, TOTAL).values, interpreted(monkeypatch, model, ids, TOTAL).values)
    assert len(traces) == 4


def test_concatenations(tmp_path: Any, monkeypatch: Any, traces: list[Any]) -> None:
    def forward(table: Any, ids: Any) -> Any:
        rows = tf.gather(table, ids)
        _, rows = tf.while_loop(
            lambda n, _: n < 2, lambda n, rows: (n + 1, tf.concat([rows[:, 1:], rows[:, :1]], 1)), (0, rows)
        )
        return weighed(tf.concat([tf.tanh(rows[..., :1]), rows[..., 1:]], -1))

    model = Net(forward).saved(tmp_path)
    for ids in (SMALL, SMALL + 1, SMALL // 2):
        close(embgrad.gradients(model, ids, TOTAL).values, interpreted(monkeypatch, model, ids, TOTAL).values)
    assert len(traces) == 3


def test_a_lookup_in_a_loop_is_run_step_by_step(tmp_path: Any, monkeypatch: Any, traces: list[Any]) -> None:
    def forward(table: Any, ids: Any) -> Any:
        step = lambda n, sum_: (n + 1, sum_ + tf.reduce_sum(tf.gather(table, ids[:, n])))  # noqa: E731
        _, more = tf.while_loop(lambda n, _: n < 2, step, (0, 0.0))
        return weighed(tf.gather(table, ids)) * more

    model = Net(forward).saved(tmp_path)
    expected = interpreted(monkeypatch, model, SMALL, TOTAL)
    for _ in range(3):
        found = embgrad.gradients(model, SMALL, TOTAL)
        np.testing.assert_array_equal(found.values, expected.values)
    assert not traces
    with pytest.warns(embgrad.EmbgradWarning, match="inside a loop or a branch of the graph"):
        embgrad.gradients(model, SMALL, TOTAL, compile=True)


def test_it_is_not_kept_alive(tmp_path: Any) -> None:
    def ask(model: Any) -> weakref.ref[Any]:
        for _ in range(3):
            embgrad.gradients(model, SMALL, TOTAL)
        return weakref.ref(model)

    alive = ask(Net(lambda rows, ids: weighed(tf.gather(rows, ids))).saved(tmp_path))
    gc.collect()
    assert alive() is None


def test_values_alone(monkeypatch: Any, traces: list[Any]) -> None:
    """A request without cotangents, as bisection makes it."""
    model = tf.saved_model.load(str(TINY))
    batch = embgrad.TokenBatch(IDS["input_word_ids"], IDS["input_mask"], convention="tfhub")
    seen: list[Any] = []
    request = Request(("word",), lambda outputs: seen.append(outputs["pooled"]) or [], ("pooled",))  # type: ignore[func-returns-value]
    for _ in range(2):
        found = running.run(model, batch, request)
        assert found.points["word"].gradients == ()
    assert len(traces) == 2
    expected = embgrad.gradients(model, batch, embgrad.Sum(output="pooled"))
    close(found.points["word"].activation.reshape(expected.shape), expected.activations)
    close(seen[-1].sum(1), expected.objective)
