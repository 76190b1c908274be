"""`compile=True`: what takes a trace of its own, and what is no part of a trace but of each call."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import embgrad
from tests.frameworks.tensorflow.test_models import functional
from tests.frameworks.tensorflow.traced import IDS, LONGER, PROJECTION, Net, both
from tests.support.compiled import calls_that_change, same

#: Of the layers that are made here.
POLICY = "float64"


FACTOR = 1.0


def test_one_trace_serves_every_length_and_number_of_examples(traces: list[Any]) -> None:
    model = Net()
    for batch in (IDS, LONGER, IDS[:2], LONGER[:, :3], IDS):
        same(*(embgrad.gradients(model, batch, PROJECTION, compile=one) for one in (False, True)))
    assert len(traces) == 1
    ran = model.ran
    embgrad.gradients(model, LONGER, PROJECTION, compile=True)
    assert model.ran == ran  # none of its Python


def test_lengths_that_python_reads_take_a_trace_each(traces: list[Any]) -> None:
    class Reading(Net):
        def __call__(self, ids: Any) -> Any:
            rows = tf.gather(self.rows, ids)
            return self.head(rows * np.linspace(1, 2, ids.shape[1])[:, None])

    model = Reading()
    for batch in (IDS, LONGER, IDS):
        same(*(embgrad.gradients(model, batch, PROJECTION, compile=one) for one in (False, True)))
    assert len(traces) == 3  # one attempt at any length, and two lengths


def test_a_change_is_called_once_in_each_call(keras: Any) -> None:
    model, _ = functional(keras, keras.layers.GlobalAveragePooling1D())
    called = []

    def twice(value: np.ndarray) -> np.ndarray:
        called.append(threading.current_thread())
        return value * (1 + len(called))  # another result each time

    for number in range(1, 4):
        found = embgrad.gradients(model, IDS, PROJECTION, override={"word": twice}, compile=True)
        assert called == [threading.current_thread()] * number
        raw = embgrad.gradients(model, IDS, PROJECTION).activations
        np.testing.assert_allclose(found.activations, raw * (1 + number), rtol=1e-12)


def test_a_variable_may_be_replaced_by_another() -> None:
    model = Net()
    same(*both(model, IDS, PROJECTION))
    model.weight = tf.Variable(3 * model.weight)
    same(*both(model, IDS, PROJECTION))
    model.rows = tf.Variable(np.random.default_rng(2).normal(size=(15, 4)))  # a larger table
    same(*both(model, IDS + 2, PROJECTION))


def test_a_lambda_created_for_each_call_reuses_its_trace(traces: list[Any]) -> None:
    model = Net()
    for factor in (1.0, 2.0, 1.0, 2.0):
        call = lambda m, inputs, factor=factor: factor * m(inputs)  # noqa: E731  # as users write it
        same(*(embgrad.gradients(model, IDS, PROJECTION, call=call, compile=one) for one in (False, True)))
    assert len(traces) == 2


def test_call_around_values_that_change(monkeypatch: Any, traces: list[Any]) -> None:
    model, array, entries = Net(), np.ones(2), [1.0]
    call = lambda m, inputs: m(inputs) * array * entries[0] * FACTOR  # noqa: E731  # as users write it
    for values in ((1.0, 1.0, 1.0), (2.0, 1.0, 1.0), (2.0, 3.0, 1.0), (2.0, 3.0, 5.0), (1.0, 1.0, 1.0)):
        array[:], entries[0] = values[:2]
        monkeypatch.setitem(globals(), "FACTOR", values[2])
        same(*(embgrad.gradients(model, IDS, PROJECTION, call=call, compile=one) for one in (False, True)))
    assert len(traces) == 4


@pytest.mark.parametrize("read", list(calls_that_change()))
def test_call_around_objects_that_change(read: str) -> None:
    model, (call, change) = Net(), calls_that_change()[read]
    _, first = both(model, IDS, PROJECTION, call=call)
    change()
    plain, compiled = both(model, IDS, PROJECTION, call=call)
    same(plain, compiled)
    np.testing.assert_allclose(compiled.values, first.values * 3, rtol=1e-5)


def _epsilon(layers: Any) -> None:
    layers["LayerNormalization"].epsilon = 0.5


def _activation(layers: Any) -> None:
    layers["Dense"].activation = tf.nn.relu


@pytest.mark.parametrize("change", [_epsilon, _activation])
def test_a_changed_setting_of_a_layer_is_noticed(keras: Any, change: Any, traces: list[Any]) -> None:
    model, _ = functional(keras, keras.layers.LayerNormalization(), keras.layers.Dense(3), keras.layers.GRU(2))
    before, first = both(model, IDS, PROJECTION)
    same(before, first)
    model(tf.constant(IDS))
    model.predict(IDS, verbose=0)
    embgrad.gradients(model, IDS, PROJECTION, compile=True)
    assert len(traces) == 1
    change({type(layer).__name__: layer for layer in model.layers})
    plain, compiled = both(model, IDS, PROJECTION)
    same(plain, compiled)
    assert np.abs(plain.values - before.values).max() > 1e-6 * np.abs(before.values).max()


@pytest.mark.parametrize(
    "change", [lambda net: net.settings.update(scale=3.0), lambda net: setattr(type(net), "by", 3.0)]
)
def test_settings_and_class_attributes_that_change_are_noticed(change: Any) -> None:
    class Scaled(Net):
        by = 1.0

        def __init__(self) -> None:
            super().__init__()
            self.settings = {"scale": 1.0}

        def head(self, rows: Any) -> Any:
            return super().head(rows) * self.settings["scale"] * self.by

    model = Scaled()
    _, before = both(model, IDS, PROJECTION)
    change(model)
    plain, compiled = both(model, IDS, PROJECTION)
    same(plain, compiled)
    np.testing.assert_allclose(compiled.values, 3 * before.values, rtol=1e-12)
