"""What a model is made of is known again without a walk, and walked again whenever any of it is another."""

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from embgrad_tensorflow.fingerprint import Fingerprint, structure
from embgrad_tensorflow.walk import is_the_users, walk

import embgrad
from tests.frameworks.tensorflow.savedmodels import saved

IDS = np.array([[1, 4, 2], [3, 3, 0]])


class Plain:
    def __init__(self) -> None:
        self.scale = tf.Variable(2.0)
        self.numbered = {2: [tf.Variable(1.0)]}


class Model(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = tf.Variable(np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32))
        self.layers_ = [tf_keras.layers.Dense(4), {"inner": tf_keras.layers.Dense(4)}]
        self.by_name = {"a": tf_keras.layers.Dense(3)}
        self.plain = Plain()
        self.function = closed_over(3.0)
        self.flag = False
        self(IDS)

    def __call__(self, ids: Any) -> Any:
        rows = tf.gather(self.table, ids)
        first, inner = self.layers_[0], self.layers_[1]["inner"]  # type: ignore[index]
        return self.by_name["a"](self.function(inner(first(rows)) * self.plain.scale))  # type: ignore[operator]


def test_functions_of_libraries_are_not_the_users() -> None:
    assert is_the_users(closed_over)
    assert is_the_users(tf.function(closed_over))
    assert not is_the_users(tf.zeros_like)
    assert not is_the_users(Path.read_text)


def described(parts: list[Any]) -> list[tuple[Any, ...]]:
    return [(node.path, id(node.value), node.kind, id(node.owner), node.owner_path) for node in structure(parts).nodes]


def walked(parts: list[Any]) -> list[tuple[Any, ...]]:
    return [(node.path, id(node.value), node.kind, id(node.owner), node.owner_path) for node in walk(parts)]


def closed_over(value: float) -> Callable[[Any], Any]:
    variable = tf.Variable(value)
    return lambda rows: rows * variable


CHANGES: dict[str, Callable[[Any], Any]] = {
    "a layer in a list": lambda model: model.layers_.__setitem__(0, tf_keras.layers.Dense(4)),
    "a layer in a dict in a list": lambda model: model.layers_[1].update(inner=tf_keras.layers.Dense(4)),
    "a longer list": lambda model: setattr(model, "layers_", [*model.layers_, tf_keras.layers.Dense(2)]),
    "another key": lambda model: setattr(model, "by_name", {"b": model.by_name["a"], **model.by_name}),
    "a new variable": lambda model: setattr(model, "more", tf.Variable(1.0)),
    "a new variable of an object": lambda model: setattr(model.plain, "more", tf.Variable(1.0)),
    "a new variable of a layer": lambda model: setattr(model.layers_[0], "more", tf.Variable(1.0)),
    "a variable less": lambda model: model.plain.numbered.pop(2),
    "another object": lambda model: setattr(model, "plain", Plain()),
    "another function": lambda model: setattr(model, "function", closed_over(5.0)),
    "another variable of a function": lambda model: setattr(
        model.function.__closure__[0], "cell_contents", tf.Variable(6.0)
    ),
    "a variable in place of a flag": lambda model: setattr(model, "flag", tf.Variable(1.0)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_model_is_walked_again(change: str) -> None:
    model = Model()
    before = described([model])
    assert described([model]) == before == walked([model])
    CHANGES[change](model)
    assert described([model]) == walked([model]) != before


@pytest.mark.slow
def test_an_object_in_the_memory_of_a_freed_one_is_another() -> None:
    """In the memory of the one before it lies the next, so that it has the same identity."""
    model = Model()
    for _ in range(20):
        described([model])
        model.layers_[0] = None  # type: ignore[call-overload]
        gc.collect()
        model.layers_[0] = tf_keras.layers.Dense(4)
        assert described([model]) == walked([model])


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


class Stack(tf.Module):
    """Layers each of which is saved with a function of its own, as Keras saves its layers."""

    class Layer(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = tf.Variable(2.0)

        @tf.function(input_signature=[tf.TensorSpec((None, None, 4))])
        def __call__(self, rows: Any) -> Any:
            return rows * self.scale

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.table = tf.Variable(np.ones((6, 4), np.float32))
        for number in range(layers):
            setattr(self, f"layer_{number}", self.Layer())

    @tf.function(input_signature=[tf.TensorSpec((None, None), tf.int32)])
    def __call__(self, ids: Any) -> Any:
        rows = tf.gather(self.table, ids)
        for layer in self.submodules:
            rows = layer(rows)
        return rows


def test_a_saved_model_is_compared_in_a_time_that_grows_with_its_layers(tmp_path: Path) -> None:
    sizes = [
        len(repr(vars(Fingerprint([saved(Stack(layers), tmp_path / str(layers))]))["_entries"])) for layers in (4, 32)
    ]
    assert sizes[1] < 9 * sizes[0]


@pytest.mark.parametrize(
    "change",
    [
        lambda model: setattr(model, "head", tf_keras.layers.Dense(4)),
        lambda model: setattr(model.layer_1, "more", tf.Variable(1.0)),
        lambda model: setattr(model, "layer_0", Stack.Layer()),
    ],
)
def test_a_saved_model_to_which_something_is_added_is_walked_again(
    change: Callable[[Any], Any], tmp_path: Path
) -> None:
    model = saved(Stack(2), tmp_path)
    before = described([model])
    assert described([model]) == before == walked([model])
    change(model)
    assert described([model]) == walked([model]) != before
