"""What a model is made of is known again without a walk, and walked again whenever any of it is another."""

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from embgrad_tensorflow import fingerprint as module
from embgrad_tensorflow.fingerprint import structure
from embgrad_tensorflow.walk import walk

import embgrad

IDS = np.array([[1, 4, 2], [3, 3, 0]])


class Plain:
    """An object of the user's own class."""

    def __init__(self) -> None:
        self.scale = tf.Variable(2.0)
        self.numbered = {2: [tf.Variable(1.0)]}


class Model(tf.Module):
    """Holds its parts in every way there is."""

    def __init__(self) -> None:
        super().__init__()
        self.table = tf.Variable(np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32))
        self.layers_ = [tf_keras.layers.Dense(4), {"inner": tf_keras.layers.Dense(4)}]
        self.by_name = {"a": tf_keras.layers.Dense(3)}
        self.plain = Plain()
        kept = tf.Variable(3.0)
        self.function: Callable[[Any], Any] = lambda value: value * kept
        self.flag = False
        self(IDS)

    def __call__(self, ids: Any) -> Any:
        rows = tf.gather(self.table, ids)
        first, inner = self.layers_[0], self.layers_[1]["inner"]  # type: ignore[index]
        return self.by_name["a"](self.function(inner(first(rows)) * self.plain.scale))  # type: ignore[operator]


def described(parts: list[Any]) -> list[tuple[Any, ...]]:
    return [(node.path, id(node.value), node.kind, id(node.owner), node.owner_path) for node in structure(parts).nodes]


def walked(parts: list[Any]) -> list[tuple[Any, ...]]:
    return [(node.path, id(node.value), node.kind, id(node.owner), node.owner_path) for node in walk(parts)]


@pytest.fixture
def walks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often a model was walked."""
    counted: list[int] = []

    def counting(*args: Any) -> Any:
        counted.append(1)
        return walk(*args)

    monkeypatch.setattr(module, "walk", counting)
    return counted


def replace_a_layer_in_a_list(model: Model) -> None:
    model.layers_[0] = tf_keras.layers.Dense(4)


def replace_a_layer_in_a_dict_in_a_list(model: Model) -> None:
    model.layers_[1]["inner"] = tf_keras.layers.Dense(4)  # type: ignore[index]


def replace_a_list_by_an_equal_one(model: Model) -> None:
    model.layers_ = [*model.layers_]
    model.layers_.append(tf_keras.layers.Dense(2))


def rename_a_key(model: Model) -> None:
    model.by_name = {"b": model.by_name["a"], **model.by_name}


def add_a_variable(model: Model) -> None:
    model.more = tf.Variable(1.0)  # type: ignore[attr-defined]


def add_a_variable_to_an_object(model: Model) -> None:
    model.plain.more = tf.Variable(1.0)  # type: ignore[attr-defined]


def add_a_variable_to_a_layer(model: Model) -> None:
    model.layers_[0].more = tf.Variable(1.0)  # type: ignore[union-attr]


def take_a_variable_away(model: Model) -> None:
    del model.plain.numbered[2]


def replace_an_object(model: Model) -> None:
    model.plain = Plain()


def replace_a_function(model: Model) -> None:
    kept = tf.Variable(5.0)
    model.function = lambda value: value * kept


def replace_what_a_function_holds(model: Model) -> None:
    model.function.__closure__[0].cell_contents = tf.Variable(6.0)  # type: ignore[attr-defined]


def put_a_variable_where_none_was(model: Model) -> None:
    model.flag = tf.Variable(1.0)  # type: ignore[assignment]


CHANGES = [
    replace_a_layer_in_a_list,
    replace_a_layer_in_a_dict_in_a_list,
    replace_a_list_by_an_equal_one,
    rename_a_key,
    add_a_variable,
    add_a_variable_to_an_object,
    add_a_variable_to_a_layer,
    take_a_variable_away,
    replace_an_object,
    replace_a_function,
    replace_what_a_function_holds,
    put_a_variable_where_none_was,
]


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_changed_is_seen(change: Callable[[Model], None], walks: list[int]) -> None:
    model = Model()
    before = described([model])
    assert before == walked([model])
    count = len(walks)
    assert described([model]) == before
    assert len(walks) == count, "it was walked again, and nothing had changed"
    change(model)
    assert described([model]) == walked([model]) != before


@pytest.mark.slow
def test_an_object_that_takes_the_place_of_one_that_died_is_another() -> None:
    """In the memory of the one before it lies the next, so that it has the same identity."""
    model = Model()
    for _ in range(20):
        described([model])
        model.layers_[0] = None  # type: ignore[call-overload]
        gc.collect()
        model.layers_[0] = tf_keras.layers.Dense(4)
        assert described([model]) == walked([model])


def test_the_gradient_follows_a_layer_that_is_replaced() -> None:
    model = Model()
    objective = embgrad.Sum()
    before = embgrad.gradients(model, IDS, objective).values
    np.testing.assert_array_equal(embgrad.gradients(model, IDS, objective).values, before)
    model.layers_[0] = tf_keras.layers.Dense(4, kernel_initializer="ones")
    model(IDS)
    after = embgrad.gradients(model, IDS, objective).values
    with tf.GradientTape() as tape:
        rows = tf.gather(model.table, IDS)
        tape.watch(rows)
        middle = model.layers_[1]["inner"](model.layers_[0](rows)) * model.plain.scale  # type: ignore[index,operator]
        value = tf.reduce_sum(model.by_name["a"](model.function(middle)))
    np.testing.assert_allclose(after, tape.gradient(value, rows).numpy(), rtol=1e-5)
    assert np.abs(after - before).max() > 1e-3


def test_a_variable_that_comes_later_is_put_back_too() -> None:
    class Counting(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = tf.Variable(np.ones((6, 4), np.float32))
            self.counts: list[Any] = []

        def __call__(self, ids: Any) -> Any:
            for one in self.counts:
                one.assign_add(1.0)
            return tf.gather(self.table, ids)

    model = Counting()
    embgrad.gradients(model, IDS, embgrad.Sum())
    model.counts.append(tf.Variable(5.0))
    embgrad.gradients(model, IDS, embgrad.Sum())
    assert float(model.counts[0]) == 5.0


def test_a_table_that_is_renamed_by_its_attribute_goes_by_the_new_name() -> None:
    model = Model()
    assert "table" in [point.path for point in embgrad.points(model, IDS)]
    model.rows = model.table  # type: ignore[attr-defined]
    model.table = tf.Variable(np.zeros((6, 4), np.float32))

    def call(_: Any, ids: Any) -> Any:
        return tf.gather(model.rows, ids)  # type: ignore[attr-defined]

    paths = [point.path for point in embgrad.points(model, IDS, call=call)]
    assert "rows" in paths
    assert "table" not in paths
