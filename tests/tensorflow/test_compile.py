"""`compile=True`: a kept trace gives what the model gives, for every call's own values, and leaves everything as it was."""

from __future__ import annotations

import _thread
import gc
import random
import threading
import warnings
import weakref
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from embgrad_tensorflow import kept

import embgrad
from tests.compiled import calls_that_change, same
from tests.tensorflow.helpers import KERAS, assert_slopes
from tests.tensorflow.test_models import BODIES, VECTOR, functional

IDS = np.array([[5, 2, 9, 4, 1], [3, 8, 7, 0, 0], [6, 10, 0, 0, 0]])
LONGER = np.array([[5, 2, 9, 4, 1, 11, 7], [3, 8, 7, 0, 0, 0, 0]])
LABELS = np.array([1, 0, 1])
PROJECTION = embgrad.Projection(VECTOR)
FACTOR = 1.0


#: Of the layers that are made here.
POLICY = "float64"


@pytest.fixture
def traces(monkeypatch: Any) -> list[Any]:
    """The traces that are made meanwhile."""
    made: list[Any] = []

    def counted(*args: Any, **kwargs: Any) -> Any:
        made.append(args)
        return traced(*args, **kwargs)

    traced = kept.traced
    monkeypatch.setattr(kept, "traced", counted)
    return made


def both(model: Any, batch: Any, objective: Any, **options: Any) -> tuple[Any, Any]:
    """Without a trace, and with one that was made before."""
    plain = embgrad.gradients(model, batch, objective, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error", embgrad.EmbgradWarning)
        embgrad.gradients(model, batch, objective, compile=True, **options)
        return plain, embgrad.gradients(model, batch, objective, compile=True, **options)


class Net(tf.Module):
    """Looks rows up and adds them up, weighed."""

    def __init__(self) -> None:
        super().__init__()
        random = np.random.default_rng(1)
        self.rows = tf.Variable(random.normal(size=(12, 4)))
        self.weight = tf.Variable(random.normal(size=(4, 2)))
        self.ran = 0

    def __call__(self, ids: Any) -> Any:
        self.ran += 1
        return self.head(tf.gather(self.rows, ids))

    def head(self, rows: Any) -> Any:
        return tf.matmul(tf.reduce_mean(tf.tanh(rows), 1), self.weight)


@pytest.mark.parametrize("body", BODIES)
def test_keras(keras: Any, body: str) -> None:
    model, table = functional(keras, *BODIES[body](keras))
    plain, compiled = both(model, IDS, PROJECTION)
    same(plain, compiled)
    assert_slopes(compiled, table, lambda: tf.reduce_sum(model(tf.constant(IDS, tf.int32)) * VECTOR))


def test_masks_of_keras(keras: Any) -> None:
    model, _ = functional(keras, keras.layers.LSTM(3), mask_zero=True)
    plain, compiled = both(model, IDS, PROJECTION)
    same(plain, compiled)
    assert compiled.pad_leak == plain.pad_leak


def test_one_trace_serves_every_length_and_number_of_examples(traces: list[Any]) -> None:
    model = Net()
    for batch in (IDS, LONGER, IDS[:2], LONGER[:, :3], IDS):
        same(*(embgrad.gradients(model, batch, PROJECTION, compile=one) for one in (False, True)))
    assert len(traces) == 1
    ran = model.ran
    embgrad.gradients(model, LONGER, PROJECTION, compile=True)
    assert model.ran == ran  # none of its Python


@pytest.mark.parametrize(
    "batch", [IDS[:1], IDS[:2], LONGER, IDS[:, :2]], ids=lambda one: f"{one.shape[0]}x{one.shape[1]}"
)
def test_lengths_that_are_new_are_compared(batch: np.ndarray) -> None:
    """Python may treat one apart, which a trace that was made with others knows nothing of."""

    class Apart(Net):
        def __call__(self, ids: Any) -> Any:
            self.ran += 1
            rows = tf.gather(self.rows, ids)
            return self.head(2 * rows if tuple(ids.shape) == batch.shape else rows)

    model = Apart()
    others = [one for one in (IDS, LONGER[:, :6], IDS[:2, :2]) if one.shape != batch.shape]
    for _ in range(2):
        for other in others:
            assert embgrad.gradients(model, other, PROJECTION, compile=True).provenance["compiled"]
    ran = model.ran
    for other in others:
        embgrad.gradients(model, other, PROJECTION, compile=True)
    assert model.ran == ran
    with pytest.warns(embgrad.EmbgradWarning, match="a trace of it differ from what it gives itself"):
        one = embgrad.gradients(model, batch, PROJECTION, compile=True)
    plain = embgrad.gradients(model, batch, PROJECTION)
    np.testing.assert_array_equal(one.values, plain.values)
    assert one.provenance["compiled"] is False


def test_lengths_that_python_reads_take_a_trace_each(traces: list[Any]) -> None:
    class Reading(Net):
        def __call__(self, ids: Any) -> Any:
            rows = tf.gather(self.rows, ids)
            return self.head(rows * np.linspace(1, 2, ids.shape[1])[:, None])

    model = Reading()
    for batch in (IDS, LONGER, IDS):
        same(*(embgrad.gradients(model, batch, PROJECTION, compile=one) for one in (False, True)))
    assert len(traces) == 3  # one attempt at any length, and two lengths


def test_labels_are_no_part_of_the_trace(keras: Any, traces: list[Any]) -> None:
    model, _ = functional(keras, keras.layers.GRU(3))
    for labels in (LABELS, 1 - LABELS):
        objective = embgrad.CrossEntropy(labels)
        same(embgrad.gradients(model, IDS, objective), embgrad.gradients(model, IDS, objective, compile=True))
    assert len(traces) == 1


@pytest.mark.parametrize("option", ["override", "add", "edit"])
@pytest.mark.parametrize("at", ["word", "inner"])
def test_changes_are_no_part_of_the_trace(keras: Any, traces: list[Any], option: str, at: str) -> None:
    ids = keras.layers.Input((None,), dtype="int32")
    rows = keras.layers.Embedding(12, 4)(ids)
    inner = keras.layers.Dense(3, name="inner", activation="tanh")(rows)
    model = keras.Model(ids, keras.layers.Dense(2)(keras.layers.GlobalAveragePooling1D()(inner)))
    for factor in (0.5, -2.0):
        options = {option: {at: lambda value, factor=factor: factor * value}}
        names = [at] if option == "override" else ["word", "inner"]  # nothing is below an override
        plain, compiled = (
            embgrad.gradients(model, IDS, PROJECTION, at=names, compile=one, **options) for one in (False, True)
        )
        for name in plain:
            same(plain[name], compiled[name])
            if option == "edit" and name == at:
                np.testing.assert_allclose(compiled[name].before, plain[name].before, rtol=1e-10)
    assert len(traces) == 1


def test_functions_are_called_once_a_call(keras: Any) -> None:
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


@pytest.mark.parametrize("option", ["override", "add"])
def test_functions_are_called_once_where_a_trace_turns_out_not_to_serve(option: str) -> None:
    class PerPosition(Net):
        def __call__(self, ids: Any) -> Any:
            rows = tf.gather(self.rows, ids)
            return {"all": tf.matmul(tf.tanh(rows), self.weight), "mean": self.head(rows)}

    model, called = PerPosition(), [0]
    few, full = np.full(IDS.shape, -100), np.full(IDS.shape, 1)
    few[:, 2] = 1
    labelled = [embgrad.CrossEntropy(one, output="all") for one in (few, full)]
    native = [lambda out: tf.reduce_sum(out["all"], (1, 2)), lambda out: tf.reduce_sum(out["mean"], 1)]

    def other_each_time(value: np.ndarray) -> np.ndarray:
        called[0] += 1
        return value * called[0]

    def asked(objective: Any, compiled: bool) -> Any:
        return embgrad.gradients(model, IDS, objective, compile=compiled, **{option: {"word": other_each_time}})

    for objectives in (labelled, native):
        for number, place in enumerate((0, 1, 1, 0, 1, 0)):
            called[0] = number
            compiled = asked(objectives[place], True)
            assert called == [number + 1]
            called[0] = number
            same(asked(objectives[place], False), compiled)


def test_split_and_training(keras: Any) -> None:
    ids = keras.layers.Input((None,), dtype="int32")
    pooled = keras.layers.GlobalAveragePooling1D()(keras.layers.Embedding(12, 4)(ids))
    norm = keras.layers.BatchNormalization()
    model = keras.Model(ids, keras.layers.Dense(2)(norm(pooled)))
    found = [np.array(one) for one in model.get_weights()]
    for options in ({"split": True}, {"training": True}, {"split": True, "training": True}):
        same(*both(model, IDS, embgrad.CrossEntropy(LABELS), **options), rel=1e-8)
    for one, was in zip(model.get_weights(), found, strict=True):
        np.testing.assert_array_equal(one, was)


def test_objectives_of_the_users(keras: Any, traces: list[Any]) -> None:
    ids = keras.layers.Input((None,), dtype="int32")
    rows = keras.layers.LSTM(3)(keras.layers.Embedding(12, 4)(ids))
    model = keras.Model(ids, {"a": keras.layers.Dense(2)(rows), "b": keras.layers.Dense(3)(rows)})
    for factor in (1.0, 3.0):
        for objective in (
            lambda out, factor=factor: factor * tf.reduce_sum(out["a"], 1),
            lambda out, factor=factor: factor * tf.reduce_sum(out["b"] ** 2, 1) + out["a"][:, 0],
            embgrad.Scalar(lambda out, factor=factor: factor * tf.reduce_sum(out["b"])),
        ):
            same(*(embgrad.gradients(model, IDS, objective, compile=one) for one in (False, True)))
    assert len(traces) == 3  # which outputs are pulled back, and whether it is a scalar
    same(*both(model, IDS, lambda out: tf.reduce_sum(out["a"], 1), split=True))


def test_per_position_outputs_by_rows(keras: Any, traces: list[Any]) -> None:
    ids = keras.layers.Input((None,), dtype="int32")
    rows = keras.layers.GRU(3, return_sequences=True)(keras.layers.Embedding(12, 4)(ids))
    model = keras.Model(ids, keras.layers.Dense(7)(rows))
    for objective in (embgrad.Logit(2, position=1), embgrad.Logit(2), embgrad.Logit(1, position=-1)):
        same(*(embgrad.gradients(model, IDS, objective, compile=one) for one in (False, True)))
    assert len(traces) == 2  # for a row an example, and for all
    same(*both(model, IDS, embgrad.Logit(3, position=0), split=True))


def test_weights_may_change() -> None:
    model = Net()
    embgrad.gradients(model, IDS, PROJECTION, compile=True)
    model.weight.assign(3 * model.weight)
    model.rows.assign_add(tf.ones_like(model.rows))
    same(*(embgrad.gradients(model, IDS, PROJECTION, compile=one) for one in (False, True)))


def test_a_variable_may_be_replaced_by_another() -> None:
    model = Net()
    same(*both(model, IDS, PROJECTION))
    model.weight = tf.Variable(3 * model.weight)
    same(*both(model, IDS, PROJECTION))
    model.rows = tf.Variable(np.random.default_rng(2).normal(size=(15, 4)))  # a larger table
    same(*both(model, IDS + 2, PROJECTION))


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt(), tf.errors.UnknownError(None, None, "mine")])
def test_what_functions_raise(error: BaseException) -> None:
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


def test_ids_outside_the_table() -> None:
    model = Net()
    embgrad.gradients(model, IDS, PROJECTION, compile=True)
    ids = IDS.copy()
    ids[1, 2] = 12
    with pytest.raises(embgrad.BatchError, match="id 12 at example 1, position 2 is outside"):
        embgrad.gradients(model, ids, PROJECTION, compile=True)


def test_lookups_of_other_indices_are_checked_too() -> None:
    class Shifted(Net):
        def __call__(self, ids: Any) -> Any:
            return self.head(tf.gather(self.rows, ids) + tf.gather(self.rows, ids + 3))

    model = Shifted()
    small = np.minimum(IDS, 8)
    same(*both(model, small, PROJECTION))
    said = []
    for compiled in (False, True):
        with pytest.raises(embgrad.BatchError) as raised:
            embgrad.gradients(model, IDS, PROJECTION, compile=compiled)
        said.append(str(raised.value))
    assert said[0] == said[1]


def test_a_lookup_that_is_another_ones_by_chance() -> None:
    class Positions(Net):
        def __call__(self, ids: Any) -> Any:
            places = tf.gather(self.rows, tf.range(tf.shape(ids)[1])[None])
            return self.head(tf.gather(self.rows, ids) + 2 * places)

    model = Positions()
    same(*both(model, IDS[:1], PROJECTION))
    same(*both(model, np.arange(5)[None], PROJECTION))


def test_objective_that_does_not_depend_on_the_point() -> None:
    class Two(Net):
        def __call__(self, ids: Any) -> Any:
            return {
                "logits": super().__call__(ids),
                "other": tf.reduce_sum(self.weight) * tf.ones([tf.shape(ids)[0], 1], tf.float64),
            }

    model = Two()
    for _ in range(2):
        with pytest.raises(embgrad.NoGradientError):
            embgrad.gradients(model, IDS, embgrad.Sum(output="other"), compile=True)
        same(*both(model, IDS, PROJECTION))
        with pytest.raises(embgrad.NoGradientError):
            embgrad.gradients(model, IDS, lambda out: out["other"][:, 0], compile=True)


class Untraceable:
    """Models whose Python cannot be traced, or does otherwise then."""

    class Reads(Net):
        def __call__(self, ids: Any) -> Any:
            return super().__call__(tf.constant(ids.numpy()))

    class Branches(Net):
        def __call__(self, ids: Any) -> Any:
            if tf.reduce_max(ids) > 100:
                return super().__call__(ids * 0)
            return super().__call__(ids)

    class Draws(Net):
        def __call__(self, ids: Any) -> Any:
            return super().__call__(ids) + 0 * tf.random.uniform([2], dtype=tf.float64)

    class Runs(Net):
        """It writes to a variable where nothing of a graph tells so."""

        def __init__(self) -> None:
            super().__init__()
            self.count = tf.Variable(0, trainable=False)

        def __call__(self, ids: Any) -> Any:
            def count(values: Any) -> Any:
                self.count.assign_add(1)
                return values

            return super().__call__(self.run(count, ids))

        def run(self, function: Any, ids: Any) -> Any:
            return tf.ensure_shape(tf.py_function(function, [ids], ids.dtype), ids.shape)

    class RunsNumPy(Runs):
        def run(self, function: Any, ids: Any) -> Any:
            return tf.ensure_shape(tf.numpy_function(function, [ids], ids.dtype), ids.shape)

    class Asks(Net):
        def __call__(self, ids: Any) -> Any:
            out = super().__call__(ids)
            return out if tf.executing_eagerly() else 2 * out

    class Counts(Net):
        def __call__(self, ids: Any) -> Any:
            out = super().__call__(ids)
            return out * self.ran

    class Loops(Net):
        def __call__(self, ids: Any) -> Any:
            total = tf.zeros([tf.shape(ids)[0], 4], tf.float64)
            _, total = tf.while_loop(
                lambda place, _: place < tf.shape(ids)[1],
                lambda place, total: (place + 1, total + tf.gather(self.rows, ids[:, place])),
                (0, total),
                shape_invariants=(tf.TensorShape([]), tf.TensorShape([None, 4])),
            )
            return tf.matmul(total + tf.reduce_sum(tf.gather(self.rows, ids), 1), self.weight)


def test_what_python_draws_counts_in_evaluation_mode_too() -> None:
    class Dropping(Net):
        def head(self, rows: Any) -> Any:
            return super().head(rows) * (3.0 if random.uniform(0, 1) < 0.1 else 1.0)

    model = Dropping()
    random.seed(2)  # whose first numbers leave nothing out
    for _ in range(2):
        with pytest.warns(embgrad.EmbgradWarning, match="compile=True: .*from Python's or NumPy's generator"):
            embgrad.gradients(model, IDS, PROJECTION, compile=True)


@pytest.mark.parametrize("sort", [random.Random, np.random.default_rng, np.random.RandomState, random.SystemRandom])
def test_a_generator_of_the_models_own(sort: Any) -> None:
    class Dropping(Net):
        def __init__(self) -> None:
            super().__init__()
            self.held = {"generator": sort(0)}

        def head(self, rows: Any) -> Any:
            return super().head(rows) * (0 * self.held["generator"].random() + 1.0)

    model = Dropping()
    for _ in range(2):
        with pytest.warns(embgrad.EmbgradWarning, match="compile=True: .*from Python's or NumPy's generator"):
            embgrad.gradients(model, IDS, PROJECTION, compile=True)


@pytest.mark.parametrize(
    ("net", "why"),
    [
        (Untraceable.Reads, "has no attribute 'numpy'"),
        (Untraceable.Branches, "OperatorNotAllowedInGraphError: Using a symbolic `tf.Tensor` as a Python `bool`"),
        (Untraceable.Draws, "draws random numbers"),
        (Untraceable.Runs, "runs Python in its graph (EagerPyFunc)"),
        (Untraceable.RunsNumPy, "runs Python in its graph (PyFunc)"),
        (Untraceable.Asks, "the gradients at 'word' of a trace of it differ from what it gives itself"),
        (Untraceable.Loops, "inside a loop"),
    ],
)
def test_what_cannot_be_traced_runs_without(net: Any, why: str) -> None:
    model = net()
    plain = embgrad.gradients(model, IDS, PROJECTION)
    for _ in range(2):
        with pytest.warns(embgrad.EmbgradWarning, match="compile=True: .*the model ran without a trace") as told:
            found = embgrad.gradients(model, IDS, PROJECTION, compile=True)
        assert len(told) == 1
        assert why in str(told[0].message)
        assert why in found.provenance["uncompiled"]
        assert found.provenance["compiled"] is False
        np.testing.assert_array_equal(found.values, plain.values)
        assert not hasattr(model, "count") or model.count.numpy() == 0


@pytest.mark.parametrize("draw", [lambda: random.uniform(0, 1), lambda: np.random.rand()])
def test_a_part_that_python_leaves_out_at_random(draw: Any) -> None:
    """In evaluation mode the draw has no say, as in Hugging Face's layer drop."""

    class Dropping(Net):
        def __call__(self, ids: Any, training: bool = False) -> Any:
            rows = tf.gather(self.rows, ids)
            share = draw()
            return self.head(2 * rows if training and share < 0.5 else rows)

    model = Dropping()
    same(*both(model, IDS, PROJECTION))
    random.seed(2)
    np.random.seed(0)  # with either, the first two draws are above 0.5: those of the model and the trace
    with pytest.warns(embgrad.EmbgradWarning, match="from Python's or NumPy's generator"):
        found = [embgrad.gradients(model, IDS, PROJECTION, training=True, compile=True) for _ in range(12)]
    assert len({one.values.tobytes() for one in found}) == 2


def test_an_objective_that_draws_has_no_trace_and_others_do() -> None:
    model = Net()

    def drawing(out: Any) -> Any:
        return tf.reduce_sum(out * tf.random.normal(tf.shape(out), dtype=out.dtype), 1)

    for _ in range(2):
        with pytest.warns(embgrad.EmbgradWarning, match="or the objective gives something else each time"):
            embgrad.gradients(model, IDS, drawing, compile=True)
    for objective in (lambda out: out[:, 0], PROJECTION):
        same(*both(model, IDS, objective))


class Found:
    """What a model may return that is no nest."""

    def __init__(self, hidden: Any) -> None:
        self.hidden = hidden


@pytest.mark.parametrize(
    ("kind", "returned", "read"),
    [
        ("RaggedTensor", lambda out: tf.RaggedTensor.from_tensor(out), lambda out: tf.reduce_sum(out, 1)),
        ("SparseTensor", tf.sparse.from_dense, lambda out: tf.sparse.reduce_sum(out, 1)),
        ("Found", Found, lambda out: tf.reduce_sum(out.hidden, 1)),
    ],
)
def test_an_objective_that_reads_what_is_no_tensor_runs_without_a_trace(kind: str, returned: Any, read: Any) -> None:
    model = Net()
    options: dict[str, Any] = {"call": lambda net, inputs: returned(net(inputs))}
    with pytest.warns(embgrad.EmbgradWarning, match=f"it returns a {kind}, which is neither a tensor nor plain"):
        found = embgrad.gradients(model, IDS, read, compile=True, **options)
    for plain in (embgrad.gradients(model, IDS, read, **options), embgrad.gradients(model, IDS, embgrad.Sum())):
        np.testing.assert_allclose(found.values, plain.values, rtol=1e-12)


def test_why_is_told_without_what_keras_adds(keras: Any) -> None:
    class Draws(keras.layers.Layer):  # type: ignore[misc, name-defined]
        def call(self, rows: Any) -> Any:
            return rows + 0 * tf.random.uniform([], dtype=rows.dtype)

    model, _ = functional(keras, Draws(), keras.layers.GlobalAveragePooling1D())
    with pytest.warns(embgrad.EmbgradWarning) as told:
        found = embgrad.gradients(model, IDS, PROJECTION, compile=True)
    why = "the model draws random numbers (RandomUniform), which a trace would draw otherwise"
    assert found.provenance["uncompiled"] == why
    assert str(told[0].message) == f"compile=True: {why}; the model ran without a trace"


def test_running_eagerly_is_respected() -> None:
    model = Net()
    tf.config.run_functions_eagerly(True)
    try:
        with pytest.warns(embgrad.EmbgradWarning, match=r"run_functions_eagerly\(True\) is in force"):
            embgrad.gradients(model, IDS, PROJECTION, compile=True)
        assert tf.config.functions_run_eagerly()
    finally:
        tf.config.run_functions_eagerly(False)
    same(*both(model, IDS, PROJECTION))


def test_the_users_own_functions_are_left_alone() -> None:
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


def test_predict_is_left_alone(keras: Any) -> None:
    model, _ = functional(keras, keras.layers.LSTM(3))
    before = model.predict(IDS, verbose=0)
    was = model.predict_function
    same(*both(model, IDS, PROJECTION))
    assert model.predict_function is was
    np.testing.assert_array_equal(model.predict(IDS, verbose=0), before)


@pytest.mark.parametrize("make", [Net, lambda: functional(KERAS["keras2"], KERAS["keras2"].layers.LSTM(3))[0]])
def test_a_trace_does_not_keep_its_model(make: Any) -> None:
    def ask(model: Any) -> weakref.ref[Any]:
        for objective in (PROJECTION, lambda out: tf.reduce_sum(out, 1)):
            assert embgrad.gradients(model, IDS, objective, compile=True).provenance["compiled"]
        embgrad.gradients(model, IDS, PROJECTION, compile=True, call=lambda _, inputs: 2 * model(inputs))
        return weakref.ref(model)

    alive = ask(make())
    gc.collect()
    assert alive() is None


def test_call_made_anew_each_time(traces: list[Any]) -> None:
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


def test_call_that_changes_what_it_reads_runs_without() -> None:
    model, times = Net(), [0]

    def counting(model: Any, inputs: Any) -> Any:
        times[0] += 1
        return model(inputs) * float(times[0])

    for number in range(1, 4):
        with pytest.warns(embgrad.EmbgradWarning, match="the function call changes, as it runs, what it reads"):
            found = embgrad.gradients(model, IDS, PROJECTION, call=counting, compile=True)
        times[0] = number - 1
        np.testing.assert_array_equal(found.values, embgrad.gradients(model, IDS, PROJECTION, call=counting).values)


def test_threads() -> None:
    model = Net()
    embgrad.gradients(model, IDS, PROJECTION, compile=True)
    batches = [IDS, LONGER, IDS[:2], LONGER[:, :4]]
    expected = [embgrad.gradients(model, batch, PROJECTION).values for batch in batches]
    found: list[Any] = [None] * len(batches)

    def run(number: int) -> None:
        for _ in range(3):
            found[number] = embgrad.gradients(model, batches[number], PROJECTION, compile=True).values

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(batches))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10)


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


def test_the_users_code_runs_in_the_callers_thread_and_embgrads_own_where_it_is_asked(monkeypatch: Any) -> None:
    called: list[threading.Thread] = []

    class Theirs(embgrad.Projection):
        def evaluate(self, output: np.ndarray, batch: Any) -> Any:
            called.append(threading.current_thread())
            return super().evaluate(output, batch)

    def counted(*args: Any, **kwargs: Any) -> Any:
        started.append(args)
        return thread(*args, **kwargs)

    model = Net()
    same(*both(model, IDS, Theirs(VECTOR)))
    assert set(called) == {threading.current_thread()}
    same(*both(model, IDS, PROJECTION))
    started: list[Any] = []
    thread = threading.Thread
    monkeypatch.setattr(threading, "Thread", counted)
    embgrad.gradients(model, IDS, PROJECTION, compile=True)
    assert not started
    for options in ({"objective": Theirs(VECTOR)}, {"objective": PROJECTION, "add": {"word": np.zeros(4)}}):
        embgrad.gradients(model, IDS, options.pop("objective"), compile=True, **options)
        started.clear()


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


@pytest.mark.filterwarnings("ignore:compile=True. it is asked for by a function:embgrad.EmbgradWarning")
def test_a_function_may_ask_again() -> None:
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
    assert set(uncompiled) == {"it is asked for by a function that another call waits for"}


def test_table_gradients_are_as_before() -> None:
    model = Net()
    before = embgrad.table_gradients(model, IDS, PROJECTION).total
    embgrad.gradients(model, IDS, PROJECTION, compile=True)
    after = embgrad.table_gradients(model, IDS, PROJECTION).total
    np.testing.assert_array_equal(after, before)
    compiled = embgrad.gradients(model, IDS, PROJECTION, compile=True)
    np.testing.assert_allclose(compiled.table().to_dense(), before, atol=1e-12)


def test_a_persistent_tape_of_the_users_stays_out() -> None:
    model = Net()
    embgrad.gradients(model, IDS, PROJECTION, compile=True)
    with tf.GradientTape() as tape:
        found = embgrad.gradients(model, IDS, PROJECTION, compile=True)
        loss = tf.reduce_sum(model(tf.constant(IDS)) * VECTOR)
    np.testing.assert_allclose(
        tf.convert_to_tensor(tape.gradient(loss, model.rows)), found.table().to_dense(), atol=1e-12
    )


def test_transformers_with_layers() -> None:
    from transformers import BertConfig, TFBertForSequenceClassification

    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    model = TFBertForSequenceClassification(BertConfig(vocab_size=40, max_position_embeddings=16, **sizes))
    batch = {"input_ids": IDS + 1, "attention_mask": (IDS > 0).astype(int)}
    names = ["word", "layer.0", "layer.-1"]
    plain, compiled = both(model, batch, embgrad.CrossEntropy(LABELS), at=names)
    for name in names:
        same(plain[name], compiled[name], rel=2e-6)
    same(*both(model, batch, embgrad.CrossEntropy(LABELS), split=True), rel=2e-6)
