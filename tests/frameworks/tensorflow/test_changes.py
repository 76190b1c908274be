"""override, add and edit: against the same change made by hand under a tape, closed forms and finite differences."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras2
from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import context, execute

import embgrad
from tests.frameworks.tensorflow.helpers import make_model
from tests.frameworks.tensorflow.transformers_by_hand import IDS, VECTOR, close

OBJECTIVE = embgrad.Projection(VECTOR)
NEW = np.random.default_rng(4).normal(size=(*IDS.shape, 4))


def masked_lstm(keras: Any) -> Any:
    ids = keras.layers.Input((None,), dtype="int32", name="ids")
    rows = keras.layers.Embedding(12, 4, mask_zero=True, name="words", dtype="float64")(ids)
    bent = keras.layers.Dense(4, activation="tanh", name="bent", dtype="float64")(rows)
    model = keras.Model(ids, keras.layers.LSTM(3, dtype="float64", use_bias=False)(bent))
    for variable in model.variables:
        if "seed" not in variable.name:
            variable.assign(np.random.default_rng(1).normal(size=variable.shape))
    return model


CHANGES: dict[str, Callable[[str], dict[str, Any]]] = {
    "read": lambda _: {},
    "overridden": lambda name: {"override": {name: lambda value: value}},
    "added to": lambda name: {"add": {name: np.zeros(4)}},
    "edited": lambda name: {"edit": {name: lambda gradient: gradient}},
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", ["word", "words:output", "bent", "bent:input"])
def test_the_keras_mask_is_not_dropped(keras: Any, name: str, change: str) -> None:
    """An LSTM behind a tensor without its mask would read the padding: the numbers differ in the second digit."""
    model = masked_lstm(keras)
    plain = model(tf.constant(IDS, tf.int32)).numpy().sum(-1)
    ends = embgrad.gradients(model, IDS, embgrad.Sum(), at=name, **CHANGES[change](name))
    np.testing.assert_array_equal(ends.objective, plain)
    assert not ends.values[1, 4].any()  # the padding
    assert ends.values[1, 3].any()
    unmasked = model.layers[-1](model.get_layer("bent")(tf.gather(model.get_layer("words").embeddings, IDS)))
    assert np.abs(unmasked.numpy().sum(-1) - plain).max() > 1e-3


class _Net(tf.Module):
    def __init__(self, look_up: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.table = tf.Variable(np.random.default_rng(0).normal(size=(12, 4)))
        self.look_up = look_up

    def __call__(self, ids: Any) -> Any:
        return tf.tanh(self.look_up(self.table, ids)) ** 2


def _one_hot(table: Any, ids: Any) -> Any:
    return tf.linalg.matmul(tf.one_hot(ids, 12, dtype=tf.float64), table)


LOOKUPS: dict[str, Callable[[Any, Any], Any]] = {
    "gather": tf.gather,
    "gather of a tensor": lambda table, ids: tf.gather(tf.convert_to_tensor(table), ids),
    "embedding_lookup": tf.nn.embedding_lookup,
    "gather_nd": lambda table, ids: tf.gather_nd(table, ids[..., None]),
    "raw operation": lambda table, ids: tf.raw_ops.ResourceGather(resource=table.handle, indices=ids, dtype=tf.float64),
    "raw operation on a tensor": lambda table, ids: tf.raw_ops.GatherV2(
        params=tf.convert_to_tensor(table), indices=ids, axis=0
    ),
    "the first of them": lambda table, ids: tf.raw_ops.Gather(params=tf.convert_to_tensor(table), indices=ids),
    "one-hot rows": lambda table, ids: tf.reshape(_one_hot(table, tf.reshape(ids, [-1])), (*ids.shape, 4)),
    "flat": lambda table, ids: tf.reshape(tf.gather(table, tf.reshape(ids, [-1])), (*ids.shape, 4)),
    "in a tf.function": tf.function(lambda table, ids: tf.gather(table, ids)),
    "parameters that are a list": lambda table, ids: tf.gather(list(tf.unstack(table)), ids),
}


def slope(rows: np.ndarray) -> np.ndarray:
    return 2 * np.tanh(rows) * (1 - np.tanh(rows) ** 2) * VECTOR


@pytest.mark.parametrize("name", LOOKUPS)
def test_changes_at_every_kind_of_lookup(name: str) -> None:
    model, fast = _Net(LOOKUPS[name]), pywrap_tfe.TFE_Py_FastPathExecute
    rows = model.table.numpy()[IDS]
    replaced = embgrad.gradients(model, IDS, OBJECTIVE, override={"word": NEW})
    close(replaced.values, slope(NEW))
    np.testing.assert_array_equal(replaced.activations, NEW)
    added = embgrad.gradients(model, IDS, OBJECTIVE, add={"word": NEW})
    close(added.values, slope(rows + NEW))
    edited = embgrad.gradients(model, IDS, OBJECTIVE, edit={"word": lambda gradient: 3 * gradient})
    close(edited.values, 3 * slope(rows))
    close(edited.before, slope(rows))
    together = embgrad.gradients(model, IDS, OBJECTIVE, override={"word": 2 * NEW}, add={"word": -NEW})
    close(together.values, slope(NEW))
    assert pywrap_tfe.TFE_Py_FastPathExecute is fast


def test_a_lookup_that_cannot_be_replaced_is_an_error() -> None:
    """Never a result of rows that went on as they were."""

    def look_up(table: Any, ids: Any) -> Any:
        operands = [tf.convert_to_tensor(table), ids, tf.constant(0)]
        attributes = ("batch_dims", 0, "Tparams", tf.float64.as_datatype_enum)
        attributes += ("Tindices", tf.int32.as_datatype_enum, "Taxis", tf.int32.as_datatype_enum)
        (rows,) = execute.execute(b"GatherV2", 1, operands, attributes, context.context())
        execute.record_gradient("GatherV2", operands, attributes, [rows])
        return rows

    def look_up_and_go_on(table: Any, ids: Any) -> Any:
        rows = look_up(table, ids)
        with contextlib.suppress(embgrad.errors.UnsupportedError):
            tf.identity(rows)
        return tf.identity(rows)

    model = _Net(look_up)
    close(embgrad.gradients(model, IDS, OBJECTIVE).values, slope(model.table.numpy()[IDS]))
    for refused in (model, _Net(look_up_and_go_on)):
        with pytest.raises(embgrad.errors.UnsupportedError, match="cannot be replaced"):
            embgrad.gradients(refused, IDS, OBJECTIVE, override={"word": NEW})
    with embgrad.capture(model) as tap, tf.GradientTape() as tape:  # which replaces nothing
        loss = tf.reduce_sum(model(tf.constant(IDS, tf.int32)) * VECTOR)
        tape.gradient(loss, model.table)
    close(tap.steps[0].values, slope(model.table.numpy()[IDS]))


def test_rows_that_are_looked_up_again() -> None:
    """Their gradient comes to the edit as TensorFlow's IndexedSlices."""

    seen: list[np.ndarray] = []
    embgrad.gradients(
        make_model(
            lambda self, ids: tf.gather(tf.gather(self.table, ids), [0, 1, 1])[:2],
            table=tf.Variable(np.random.default_rng(0).normal(size=(12, 4))),
        ),
        IDS,
        OBJECTIVE,
        edit={"word": lambda gradient: seen.append(gradient.copy())},
    )
    close(seen[0], np.broadcast_to(VECTOR, (*IDS.shape, 4)))


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_half_precision_is_widened_for_the_functions(kind: str) -> None:
    model = keras2.Sequential(
        [keras2.layers.Embedding(12, 4, dtype=kind), keras2.layers.Activation("tanh", dtype=kind)]
    )
    model(tf.constant(IDS, tf.int32))
    dtypes = []

    def look(value: np.ndarray) -> np.ndarray:
        dtypes.append(value.dtype)
        return value

    changes = {"override": {"word": look}, "add": {"word": np.ones(4)}, "edit": {"word": look}}
    found = embgrad.gradients(model, IDS, OBJECTIVE, **changes)
    assert set(dtypes) == {np.dtype(np.float32)}
    assert found.provenance["compute_dtype"] == kind
    assert found.values.dtype == np.float32


@pytest.mark.parametrize("option", ["override", "add", "edit"])
@pytest.mark.parametrize("point", ["word", "inner"])
def test_changes_in_a_recomputed_part_are_refused(keras: Any, option: str, point: str) -> None:
    """What is changed in the first run would be unchanged in the second, which the gradient is taken of."""
    inner = keras.layers.Dense(4, name="inner", dtype="float64")

    model = make_model(
        lambda self, ids: tf.recompute_grad(lambda given: self.inner(self.words(given)))(ids),
        keras.Model,
        words=keras.layers.Embedding(12, 4, dtype="float64"),
        inner=inner,
    )
    model.words.build((None,))
    inner.build((None, 4))
    with pytest.raises(embgrad.errors.UnsupportedError, match="recomputed in the pullback"):
        embgrad.gradients(model, IDS, OBJECTIVE, at=point, **{option: {point: lambda value: value}})
