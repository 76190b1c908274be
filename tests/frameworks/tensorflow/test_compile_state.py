"""`compile=True` leaves everything as it was: functions, models, tapes, threads; and errors come out as without."""

from __future__ import annotations

import _thread
import threading
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import embgrad
from tests.frameworks.tensorflow.traced import IDS, LONGER, PROJECTION, Net, both
from tests.support.compiled import same

#: Of the layers that are made here.
POLICY = "float64"


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt(), tf.errors.UnknownError(None, None, "mine")])
def test_exceptions_of_callbacks_pass_unchanged_through_a_trace(error: BaseException) -> None:
    model = Net()

    def raises(value: np.ndarray) -> np.ndarray:
        if armed:
            raise error
        return value

    class Raising(embgrad.Sum):
        def evaluate(self, output: np.ndarray, batch: Any) -> Any:
            raises(output)
            return super().evaluate(output, batch)

    def native(output: Any) -> Any:
        raises(output)
        return tf.reduce_sum(output, 1)

    for options in (
        {"objective": Raising()},
        {"objective": native},
        {"add": {"word": raises}},
        {"edit": {"word": raises}},
    ):
        objective = options.pop("objective", PROJECTION)
        armed = False
        expected = embgrad.gradients(model, IDS, objective, compile=True, **options)
        armed = True
        with pytest.raises(type(error)) as raised:
            embgrad.gradients(model, IDS, objective, compile=True, **options)
        assert raised.value is error
        armed = False
        same(expected, embgrad.gradients(model, IDS, objective, compile=True, **options))


def test_tf_functions_of_the_user_keep_their_traces() -> None:
    class Function(Net):
        @tf.function
        def __call__(self, ids: Any) -> Any:
            state = tf.zeros([tf.shape(ids)[0], 4], tf.float64)
            rows = tf.gather(self.rows, ids)
            for position in tf.range(tf.shape(ids)[1]):
                state = tf.tanh(state + rows[:, position])
            return tf.matmul(state, self.weight)

    model = Function()
    same(*both(model, IDS, PROJECTION))
    assert model.__call__.experimental_get_tracing_count() == 0
    assert not tf.config.functions_run_eagerly()
    before = model(tf.constant(IDS))
    same(*both(model, LONGER, PROJECTION))
    np.testing.assert_array_equal(model(tf.constant(IDS)), before)
    assert model.__call__.experimental_get_tracing_count() == 1


def test_another_thread_runs_another_model_meanwhile() -> None:
    """Which has TensorFlow run functions eagerly, in all threads: that is not the user's wish."""
    model = Net()
    same(*both(model, IDS, PROJECTION))
    begun, done = threading.Event(), threading.Event()

    def waits(value: np.ndarray) -> np.ndarray:
        begun.set()
        done.wait(60)
        return value

    thread = threading.Thread(
        target=lambda: embgrad.gradients(Net(), IDS, PROJECTION, override={"word": waits}), daemon=True
    )
    thread.start()
    assert begun.wait(60)
    try:
        found = embgrad.gradients(model, IDS, PROJECTION, compile=True)
        assert not done.is_set()
    finally:
        done.set()
        thread.join(60)
    assert found.provenance["uncompiled"] is None
    assert not tf.config.functions_run_eagerly()


def test_an_interrupt_waits_until_the_graph_has_ended(monkeypatch: Any) -> None:
    model = Net()
    expected, compiled = both(model, IDS, PROJECTION)
    evaluate = embgrad.Projection.evaluate

    def interrupted(self: Any, output: np.ndarray, batch: Any) -> Any:
        _thread.interrupt_main()
        return evaluate(self, output, batch)

    with monkeypatch.context() as patched:
        patched.setattr(embgrad.Projection, "evaluate", interrupted)
        with pytest.raises(KeyboardInterrupt):
            embgrad.gradients(model, IDS, PROJECTION, compile=True)
    same(expected, compiled)
    same(expected, embgrad.gradients(model, IDS, PROJECTION, compile=True))


@pytest.mark.filterwarnings("ignore:compile=True. a callback of another embgrad call:embgrad.EmbgradWarning")
def test_a_callback_may_call_embgrad() -> None:
    """What it runs inside uses the same model, whose lock the call holds; without a trace, since TensorFlow may have one
    thread for graphs alone, which waits for the function."""
    model = Net()
    inner = []

    def asks(value: np.ndarray) -> np.ndarray:
        found = embgrad.gradients(model, IDS, PROJECTION, compile=True)
        inner.append(found.values)
        uncompiled.append(found.provenance.get("uncompiled"))
        return value

    uncompiled: list[Any] = []

    asked_by = embgrad.gradients(model, IDS, PROJECTION, add={"word": lambda value: asks(value) * 0})
    np.testing.assert_array_equal(asked_by.values, inner.pop())
    for _ in range(2):
        found = embgrad.gradients(model, IDS, PROJECTION, add={"word": lambda value: asks(value) * 0}, compile=True)
    plain = embgrad.gradients(model, IDS, PROJECTION)
    for one in (*inner, found.values):
        np.testing.assert_allclose(one, plain.values, rtol=1e-10)
    assert set(uncompiled) == {"a callback of another embgrad call requested it"}
