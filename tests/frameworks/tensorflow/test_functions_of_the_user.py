"""Functions of the user's inside a call: they find the model in the mode that is asked for, and what they do to it is undone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import embgrad

IDS = np.array([[5, 2, 9, 4, 1], [3, 8, 7, 0, 0], [6, 10, 0, 0, 0]])
VECTOR = np.array([1.0, -2.0, 0.5, 3.0])


#: Of the layers that are made here.
POLICY = "float64"


def with_a_part(keras: Any, part: Any) -> Any:
    """A model that has a part which it does not call, such as a head."""

    class Parted(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.table = keras.layers.Embedding(12, 4)
            self.part = part
            part.build((None, 4))

        def call(self, ids: Any, training: Any = None) -> Any:
            return tf.reduce_mean(tf.tanh(self.table(ids)), 1)

    keras.utils.set_random_seed(0)
    model = Parted()
    model(tf.constant(IDS))
    return model


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("option", ["objective", "override", "add", "edit"])
def test_callbacks_that_call_parts_of_the_model_run_in_its_mode(keras: Any, option: str, training: bool) -> None:
    model = with_a_part(keras, keras.layers.BatchNormalization())

    def normalised(value: Any) -> np.ndarray:
        rows = value.reshape(-1, value.shape[-1])
        deviation, average = (rows.std(0), rows.mean(0)) if training else (np.ones(4), np.zeros(4))
        whole: np.ndarray = ((rows - average) / np.sqrt(deviation**2 + 1e-3)).reshape(value.shape)
        return whole

    def part(value: Any) -> np.ndarray:
        return model.part(tf.reshape(value, (-1, 4))).numpy().reshape(value.shape)

    before = [np.array(one) for one in model.get_weights()]
    if option == "objective":
        objective = lambda out: tf.linalg.matvec(model.part(out), VECTOR)  # noqa: E731  # as users write it
        asked: dict[str, Any] = {"training": training}
        own = {}
    else:
        objective, asked = embgrad.Projection(VECTOR), {"training": training, option: {"word": part}}
        own = {"training": training, option: {"word": normalised}}
        expected = embgrad.gradients(model, IDS, objective, **own)
    for compiled in (False, True, True):
        found = embgrad.gradients(model, IDS, objective, compile=compiled, **asked)
        for one, was in zip(model.get_weights(), before, strict=True):
            np.testing.assert_array_equal(one, was)
        assert found.provenance.get("compiled", False) is compiled
        if option == "objective":
            hidden = np.tanh(found.activations).mean(1)
            np.testing.assert_allclose(found.objective, normalised(hidden) @ VECTOR, rtol=1e-8)
        else:
            np.testing.assert_allclose(found.values, expected.values, rtol=1e-8, atol=1e-12)
            np.testing.assert_allclose(found.objective, expected.objective, rtol=1e-8)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("option", ["objective", "add", "edit"])
def test_writes_of_callbacks_are_restored_also_when_they_raise(keras: Any, option: str, compiled: bool) -> None:
    model = with_a_part(keras, keras.layers.Dense(2))
    kernel = np.array(model.part.get_weights()[0])
    raising = [False]

    def written(value: Any) -> Any:
        model.part.kernel.assign_add(tf.ones_like(model.part.kernel))
        model.part.seen = value
        if raising[0]:
            raise KeyboardInterrupt
        return value

    objective, changes = embgrad.Projection(VECTOR), {option: {"word": written}}
    if option == "objective":
        objective, changes = (lambda out: tf.reduce_sum(written(out), 1)), {}  # type: ignore[assignment]
    for raising[0] in (False, False, True):
        if raising[0]:
            with pytest.raises(KeyboardInterrupt):
                embgrad.gradients(model, IDS, objective, compile=compiled, **changes)
        else:
            embgrad.gradients(model, IDS, objective, compile=compiled, **changes)
        np.testing.assert_array_equal(model.part.get_weights()[0], kernel)
        assert not hasattr(model.part, "seen")
