"""`compile=True`: no tensor of a graph stays where a program keeps what its model computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import embgrad
from tests.leaving import KEEPS, Store, assert_draws, assert_values_left, keeping

GENERATOR = np.random.default_rng(0)
IDS = np.array([[1, 2, 3, 4], [5, 6, 7, 1]])


class Model(tf.Module):
    def __init__(self, keep: Any) -> None:
        super().__init__()
        self.table = tf.Variable(np.random.default_rng(0).normal(size=(9, 4)))
        self.keep = keep

    def __call__(self, ids: Any) -> Any:
        bent = tf.tanh(tf.gather(self.table, ids))
        self.keep(bent)
        return tf.reduce_mean(bent, 1)


class Compiled(Model):
    """Its author compiles it."""

    @tf.function
    def __call__(self, ids: Any) -> Any:
        return super().__call__(ids)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("where", KEEPS)
def test_what_a_program_keeps_has_values(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    keeping(globals(), monkeypatch)

    class Own(Model):
        latest: Any = None

    store = Store()
    model = Own(KEEPS[where](globals(), Own, store))
    assert_values_left(model, IDS, globals(), store, lambda one: not tf.is_symbolic_tensor(one))


def test_what_a_compiled_call_keeps_has_values() -> None:
    kept: list[Any] = []
    embgrad.gradients(Compiled(kept.append), IDS, embgrad.Sum(), compile=True)
    assert kept
    assert not any(map(tf.is_symbolic_tensor, kept))


def test_shapes_of_any_length_are_taken_back() -> None:
    kept: list[Any] = []
    embgrad.gradients(Model(lambda bent: kept.append(bent.shape)), IDS, embgrad.Sum(), compile=True)
    assert kept == [tf.TensorShape([2, 4, 4])]


def test_what_was_there_before_stays() -> None:
    """A graph's tensor that the user has put there, beside those that are taken back."""
    kept: list[Any] = []
    tf.function(lambda: kept.append(tf.zeros(()))).get_concrete_function()
    (own,) = kept
    embgrad.gradients(Model(kept.append), IDS, embgrad.Sum(), compile=True)
    assert kept[0] is own
    assert not any(map(tf.is_symbolic_tensor, kept[1:]))


class Noisy(Model):
    """Draws from a generator of its program's."""

    def __call__(self, ids: Any) -> Any:
        return super().__call__(ids) * GENERATOR.normal()


def test_a_program_s_generator() -> None:
    assert_draws(Noisy([].append), IDS)
