"""JAX models that carry a state from call to call."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from flax import nnx

import embgrad
from tests.frameworks.keras_state import keras_model_of_one_number
from tests.support.company import LOGIT, expect_of_own_number, expect_state_of_one_number

IDS = np.array([[5, 6, 2], [7, 8, 1], [3, 3, 4]])


def test_a_stateful_layer_of_keras() -> None:
    given = keras.Input(batch_shape=(3, 3), dtype="int32")
    model = keras.Model(given, keras.layers.LSTM(4, stateful=True)(keras.layers.Embedding(9, 4)(given)))
    model(IDS[::-1].copy())
    lstm = model.layers[-1]
    state = [np.array(value) for value in lstm.states]
    own = np.array(model(IDS))[:, 1]
    for variable, value in zip(lstm.states, state, strict=True):
        variable.assign(value)
    expect_of_own_number(model, IDS, own, cut=False)


class OfOneNumber(nnx.Module):
    """A sum of rows that begins with what it kept, in a pass of as many examples alone."""

    def __init__(self, kind: type, count: int) -> None:
        self.table, self.head = nnx.Embed(9, 4, rngs=nnx.Rngs(0)), nnx.Linear(4, 2, rngs=nnx.Rngs(1))
        self.state = kind(jax.random.normal(jax.random.key(0), (count, 4)))

    def __call__(self, ids: Any) -> Any:
        rows = self.table(ids).sum(1)
        if self.state.shape[0] != ids.shape[0]:
            return self.head(jnp.tanh(rows))
        out = jnp.tanh(rows + self.state[...])
        self.state.set_value(out)
        return self.head(out)


@pytest.mark.parametrize("kind", [nnx.BatchStat, nnx.Variable, nnx.Param])
def test_a_state_that_passes_of_one_number_of_examples_write(kind: type) -> None:
    expect_state_of_one_number(lambda count: OfOneNumber(kind, count), IDS)


@pytest.mark.parametrize("count", [3, 1])
def test_a_kept_trace_remembers_what_the_model_writes(count: int) -> None:
    model = OfOneNumber(nnx.Variable, count)
    for _ in range(3):
        with pytest.raises(
            embgrad.errors.UnsupportedError, match="the model keeps 'state' from call to call, and L of example"
        ):
            embgrad.gradients(model, IDS, LOGIT, batch_size=2, compile=True)


@pytest.mark.parametrize("frozen", [False, True])
def test_a_state_that_a_layer_of_keras_writes_for_one_number_of_examples(frozen: bool) -> None:
    expect_state_of_one_number(lambda count: keras_model_of_one_number(count, frozen=frozen), IDS)
