"""A call leaves no trace: variables, attributes, losses, generators, tapes and settings are as they were."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import keras as keras3
import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras2
from keras.src.random.seed_generator import global_seed_generator
from tensorflow.python.framework import op_callbacks

import embgrad
from tests.contract.conformance.harness_tensorflow import Harness
from tests.frameworks.tensorflow import helpers
from tests.frameworks.tensorflow.helpers import make_model
from tests.support.growing import Cache

IDS = np.array([[5, 2, 9, 4], [3, 8, 1, 0], [6, 7, 0, 0]])
OBJECTIVE = embgrad.Projection([0.7, -1.3])


@pytest.fixture
def state() -> Any:
    return Harness().state


def functional(keras: Any, *layers: Any) -> Any:
    return helpers.functional(keras, *layers, keras.layers.Dense(2))


def weights(model: Any) -> list[bytes]:
    return [np.asarray(tf.convert_to_tensor(one)).tobytes() for one in model.variables if "seed" not in one.name]


def test_batch_norm_keeps_its_averages_in_training_mode(keras: Any, state: Any) -> None:
    model = functional(keras, keras.layers.BatchNormalization(), keras.layers.GlobalAveragePooling1D())
    before, found = state(model), weights(model)
    calm = embgrad.gradients(model, IDS, OBJECTIVE)
    trained = embgrad.gradients(model, IDS, OBJECTIVE, training=True)
    assert np.abs(calm.values - trained.values).max() > 1e-3
    assert weights(model) == found
    assert state(model) == before
    with tf.GradientTape() as tape:  # what training mode means, by hand
        rows = model.layers[1](tf.constant(IDS))
        tape.watch(rows)
        value = rows
        for layer in model.layers[2:]:
            value = layer(value, training=True) if "batch" in layer.name else layer(value)
        loss = tf.reduce_sum(value * [0.7, -1.3])
    np.testing.assert_allclose(trained.values, tape.gradient(loss, rows), rtol=1e-4, atol=1e-7)


def test_generators_move_in_training_mode_only(keras: Any) -> None:
    model = functional(keras, keras.layers.GlobalAveragePooling1D(), keras.layers.Dropout(0.5))
    generators = [one for one in model.variables if "seed" in one.name]
    assert len(generators) == (1 if keras is keras3 else 0)
    found = [one.numpy().copy() for one in generators]
    embgrad.gradients(model, IDS, OBJECTIVE)
    for now, before in zip(generators, found, strict=True):
        np.testing.assert_array_equal(now.numpy(), before)
    drawn = {embgrad.gradients(model, IDS, OBJECTIVE, training=True).values.tobytes() for _ in range(4)}
    assert len(drawn) > 1
    for now, before in zip(generators, found, strict=True):
        assert (now.numpy() != before).any()


class Noisy(tf.Module):
    """Draws in either mode, from a generator that models share."""

    def __init__(self, draw: Callable[[Any], Any]) -> None:
        super().__init__()
        self.table = tf.Variable(np.random.default_rng(0).normal(size=(12, 2)), dtype=tf.float32)
        self.draw = draw

    def __call__(self, ids: Any) -> Any:
        rows = tf.gather(self.table, ids)
        return tf.reduce_sum(tf.tanh(rows + self.draw(tf.shape(rows))), 1)


#: By a name: what draws from a generator that models share, and the variable that it counts by.
SHARED = {
    "tensorflow": (
        lambda shape: tf.random.get_global_generator().normal(shape),
        lambda: tf.random.get_global_generator().state,
    ),
    "keras3": (lambda shape: keras3.random.normal(tuple(shape)), lambda: global_seed_generator().state),
}


@pytest.mark.parametrize("name", sorted(SHARED))
@pytest.mark.parametrize("compile", [False, True])
def test_generators_that_models_share_move_in_training_mode_only(name: str, compile: bool, recwarn: Any) -> None:
    draw, state_of = SHARED[name]
    model, state = Noisy(draw), state_of()
    found = np.array(state)
    one, other = (embgrad.gradients(model, IDS, OBJECTIVE, compile=compile, check=True) for _ in range(2))
    np.testing.assert_array_equal(one.values, other.values)
    np.testing.assert_array_equal(state, found)
    with tf.GradientTape() as tape:  # it drew what the user's own pass draws next
        loss = tf.reduce_sum(model(IDS) * [0.7, -1.3])
    np.testing.assert_allclose(
        one.table().to_dense(), tf.convert_to_tensor(tape.gradient(loss, model.table)), rtol=1e-5
    )
    state.assign(found)
    embgrad.gradients(model, IDS, OBJECTIVE, compile=compile, training=True)
    assert (np.array(state) != found).any()
    if name == "tensorflow":
        assert any("that models share" in str(one.message) for one in recwarn) is compile


@pytest.mark.parametrize("given", ["by argument", "by call"])
def test_training_mode_reaches_layers_however_the_model_is_called(keras: Any, given: str) -> None:

    model = make_model(
        lambda self, x: tf.reduce_sum(self.dropout(self.table(x)), 1),
        keras.Model,
        table=keras.layers.Embedding(12, 2),
        dropout=keras.layers.Dropout(0.5),
    )
    call = (lambda m, inputs: m(inputs)) if given == "by call" else None
    calm = embgrad.gradients(model, IDS, OBJECTIVE, call=call)
    np.testing.assert_allclose(calm.values, np.broadcast_to([0.7, -1.3], (3, 4, 2)), rtol=1e-6)
    trained = embgrad.gradients(model, IDS, OBJECTIVE, call=call, training=True)
    assert (trained.values == 0).any()


def test_evaluation_mode_whatever_the_learning_phase() -> None:
    model = functional(keras2, keras2.layers.GlobalAveragePooling1D(), keras2.layers.Dropout(0.5))
    expected = embgrad.gradients(model, IDS, OBJECTIVE)
    phase = keras2.src.backend
    with phase.deprecated_internal_learning_phase_scope(1):
        called = embgrad.gradients(model, IDS, OBJECTIVE, call=lambda m, inputs: m(inputs))
        assert phase.learning_phase() == 1
    np.testing.assert_array_equal(called.values, expected.values)


def test_the_save_spec_of_a_keras_2_model_is_not_set() -> None:

    model = make_model(
        lambda self, x: tf.reduce_sum(self.table(x), 1), keras2.Model, table=keras2.layers.Embedding(12, 2)
    )
    model.build((None, None))
    embgrad.gradients(model, IDS[:, :2], OBJECTIVE)
    assert model.save_spec() is None
    model(tf.constant(IDS))
    assert model.save_spec()[0][0].shape.as_list() == [None, 4]


def test_a_model_without_weights_is_built_as_by_its_first_call(keras: Any) -> None:

    model = make_model(
        lambda self, x: self.head(tf.reduce_mean(self.table(x), 1)),
        keras.Model,
        table=keras.layers.Embedding(12, 4),
        head=keras.layers.Dense(2),
    )
    result = embgrad.gradients(model, IDS, OBJECTIVE)
    assert len(model.weights) == 3
    np.testing.assert_array_equal(result.activations, np.asarray(tf.convert_to_tensor(model.table.embeddings))[IDS])
    again = embgrad.gradients(model, IDS, OBJECTIVE)
    np.testing.assert_array_equal(again.values, result.values)
    assert model.predict(IDS, verbose=0).shape == (3, 2)


@pytest.mark.parametrize("announced", [False, True])
def test_a_module_that_makes_its_variables_late_keeps_them(announced: bool) -> None:
    class Net(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            if announced:
                self.table = None

        def __call__(self, ids: Any) -> Any:
            if getattr(self, "table", None) is None:
                self.table = tf.Variable(tf.random.normal((12, 2)))
            return tf.reduce_sum(tf.gather(self.table, ids), 1)

    model = Net()
    result = embgrad.gradients(model, IDS, OBJECTIVE)
    np.testing.assert_array_equal(result.activations, model.table.numpy()[IDS])
    assert result.provenance["path"] == "table#0"


@pytest.mark.parametrize("persistent", [False, True])
def test_the_users_tape_records_nothing_of_ours(keras: Any, persistent: bool) -> None:
    model = functional(keras, keras.layers.LSTM(3))
    expected = embgrad.gradients(model, IDS, OBJECTIVE)
    own = tf.Variable(3.0)
    with tf.GradientTape(persistent=persistent) as tape:
        squared = own * own
        inside = embgrad.gradients(model, IDS, OBJECTIVE)
        loss = squared * own
    np.testing.assert_array_equal(inside.values, expected.values)
    assert [id(one) for one in tape.watched_variables()] == [id(own)]
    assert float(tape.gradient(loss, own)) == pytest.approx(27.0)


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
def test_second_derivatives_around_a_call(keras: Any, persistent: bool, compiled: bool) -> None:
    """By a tape that records what an accumulator gives: it goes on where it stood, outside of the accumulator."""
    model = functional(keras, keras.layers.GlobalAveragePooling1D())
    expected = embgrad.gradients(model, IDS, OBJECTIVE)
    own = tf.Variable(3.0)
    with tf.GradientTape(persistent=persistent) as tape:
        with tf.autodiff.ForwardAccumulator(own, tf.constant(1.0)) as accumulator:
            cubed = own**3
            inside = embgrad.gradients(model, IDS, OBJECTIVE, compile=compiled)
            slope = accumulator.jvp(cubed * own)
        result = slope * own
    np.testing.assert_allclose(inside.values, expected.values, rtol=1e-5, atol=1e-7)
    assert float(tape.gradient(result, own)) == pytest.approx(16 * 27.0)


def test_tapes_of_other_threads_go_on(keras: Any) -> None:
    model = functional(keras, keras.layers.GlobalAveragePooling1D())
    ready, done = threading.Event(), threading.Event()
    found: list[Any] = []
    ours = tf.Variable(1.0)

    def other() -> None:
        own = tf.Variable(2.0)
        with tf.GradientTape() as tape:
            half = own * own
            ready.set()
            done.wait(30)
            loss = half * own
        found.append(float(tape.gradient(loss, own)))
        found.append([id(one) for one in tape.watched_variables()] == [id(own)])

    thread = threading.Thread(target=other)
    thread.start()
    ready.wait(30)
    with tf.GradientTape():
        embgrad.gradients(model, IDS, OBJECTIVE)
    assert float(ours * ours) == 1.0  # of which the other thread's tape knows nothing
    done.set()
    thread.join()
    assert found == [pytest.approx(12.0), True]


def test_settings_of_the_users_stay(keras: Any, state: Any) -> None:
    model = functional(keras, keras.layers.GlobalAveragePooling1D())
    seen: list[str] = []

    def mine(op_type: Any, inputs: Any, attrs: Any, outputs: Any, op_name: Any = None, graph: Any = None) -> None:
        seen.append(op_type)

    tf.config.run_functions_eagerly(True)
    tf.debugging.disable_traceback_filtering()
    op_callbacks.add_op_callback(mine)
    try:
        before = state(model)
        embgrad.gradients(model, IDS, OBJECTIVE)
        assert state(model) == before
        assert tf.config.functions_run_eagerly()
        seen.clear()
        tf.add(1, 1)
        assert seen
    finally:
        op_callbacks.remove_op_callback(mine)
        tf.debugging.enable_traceback_filtering()
        tf.config.run_functions_eagerly(False)


def test_a_write_that_cannot_be_undone_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from embgrad_tensorflow import state as state_module

    def forward(self: Any, ids: Any) -> Any:
        self.cache.assign_add(tf.ones((100, 2), tf.float64))
        return tf.reduce_sum(tf.gather(self.rows, ids), 1)

    model = make_model(forward, rows=tf.Variable(np.ones((12, 2))), cache=tf.Variable(np.zeros((100, 2))))
    embgrad.gradients(model, IDS, OBJECTIVE)
    assert not model.cache.numpy().any()
    monkeypatch.setattr(state_module, "LARGE", 100)
    with pytest.raises(embgrad.errors.UnsupportedError, match=r"wrote to the variable 'cache' in evaluation mode"):
        embgrad.gradients(model, IDS, OBJECTIVE)


class Holder:
    """No module of any framework's."""


@pytest.mark.parametrize("held", ["closure", "object", "method", "call"])
def test_state_in_closures_and_plain_objects_is_restored(keras: Any, held: str) -> None:
    table, norm = keras.layers.Embedding(12, 2), keras.layers.BatchNormalization()
    table.build(None)
    norm.build((None, 2))

    def forward(ids: Any) -> Any:
        return norm(tf.reduce_sum(table(ids), 1), training=True)

    class Net(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = Holder()
            self.parts.table, self.parts.norm = table, norm

        def __call__(self, ids: Any) -> Any:
            return self.parts.norm(tf.reduce_sum(self.parts.table(ids), 1), training=True)

        @tf.function
        def method(self, ids: Any) -> Any:
            return self(ids)

    net = Net()
    models = {"closure": tf.function(forward), "object": net, "method": net.method, "call": table}
    call = (lambda _, ids: forward(ids)) if held == "call" else None
    before = norm.get_weights()
    result = embgrad.gradients(models[held], IDS, OBJECTIVE, call=call, training=True)
    for now, then in zip(norm.get_weights(), before, strict=True):
        np.testing.assert_array_equal(now, then)
    paths = {"closure": "table#0", "object": "parts.table#0", "method": "self.parts.table#0"}
    if held in paths:
        assert result.provenance["path"] == paths[held]


class Slotted:
    """Its attributes are in no dict."""

    __slots__ = ("count", "nothing", "table")

    def __init__(self, table: Any, count: Any) -> None:
        self.table, self.count = table, count


class Pair(NamedTuple):
    table: Any
    count: Any


HOLDERS: dict[str, tuple[Callable[..., Any], str]] = {
    "tuple": (lambda table, count: (table, count), "held.0"),
    "named tuple": (Pair, "held.0"),
    "dict of tuples": (lambda table, count: {"both": (table, count)}, "held.both.0"),
    "tuple of lists": (lambda table, count: ([table], [count]), "held.0.0"),
    "slots": (Slotted, "held.table"),
    "namespace": (lambda table, count: SimpleNamespace(table=table, count=count), "held.table"),
}


@pytest.mark.parametrize("compile", [False, True])
@pytest.mark.parametrize("base", [tf.Module, keras2.Model, keras3.Model])
@pytest.mark.parametrize("holder", HOLDERS)
def test_variables_in_containers_and_objects(holder: str, base: type, compile: bool) -> None:
    make, path = HOLDERS[holder]
    tables, count = [tf.Variable(tf.ones((12, 2)) * factor) for factor in (1, 2)], tf.Variable(1.0, trainable=False)

    class Net(base):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.held = make(tables[0], count)

        def call(self, ids: Any) -> Any:
            return tf.reduce_sum(tf.square(tf.gather(tables[0], ids)), 1) * count.assign_add(1.0)

        if base is tf.Module:
            __call__ = call

    model = Net()
    for factor in (1, 2):  # the variables are others the second time, which a trace has to see
        for _ in range(2):
            result = embgrad.gradients(model, IDS, embgrad.Sum(), compile=compile)
            np.testing.assert_array_equal(result.values, np.full((3, 4, 2), 4 * factor))
            assert result.provenance["path"] == f"{path}#0"
            assert result.provenance.get("compiled", False) is compile
            assert count.numpy() == 1
        tables.reverse()
        model.held = make(tables[0], count)


MIRRORED = """
import numpy as np, tensorflow as tf, embgrad
(cpu,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)

class Net(tf.Module):
    def __init__(self):
        super().__init__()
        self.table = tf.Variable(tf.ones((12, 2)))
        self.count = tf.Variable(0, trainable=False, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)

    def __call__(self, ids):
        self.count.assign_add(1)
        return tf.reduce_sum(tf.gather(self.table, ids), 1)

strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
with strategy.scope():
    model = Net()
for options in ({}, {"compile": True}, {"training": True}):
    embgrad.gradients(model, np.array([[5, 2]]), embgrad.Sum(), **options)
print([int(one) for one in model.count.values])
"""


REPLICAS = f"""{MIRRORED}
def one():
    try:
        embgrad.gradients(model, np.array([[5, 2]]), embgrad.Sum())
    except embgrad.errors.UnsupportedError as error:
        print(error.message)

strategy.run(one)
print([int(one) for one in model.count.values])
model.count = tf.Variable(0, trainable=False)
ones = strategy.run(lambda: tf.constant(embgrad.gradients(model, np.array([[5, 2]]), embgrad.Sum()).values))
print(all((one.numpy() == 1).all() for one in ones.values), int(model.count))
"""


def test_a_model_on_several_devices_is_restored_and_a_call_in_one_of_its_replicas_is_refused() -> None:
    """Replicas would wait for each other for ever."""
    done = subprocess.run([sys.executable, "-c", REPLICAS], capture_output=True, text=True, timeout=300, check=True)
    restored, *refused, counted, apart = done.stdout.strip().splitlines()
    assert restored == "[0, 0]"
    assert len(refused) == 2
    assert all("one of 2 replicas" in one and "outside of Strategy.run" in one for one in refused)
    assert (counted, apart) == ("[0, 0]", "True 0")


class OneOfTwo(tf.distribute.ReplicaContext):  # type: ignore[misc]
    """The context of a replica beside another."""

    num_replicas_in_sync = 2


def test_a_model_that_waits_for_other_replicas_is_refused() -> None:
    def forward(self: Any, ids: Any) -> Any:
        tf.distribute.get_replica_context().merge_call(lambda strategy: None)
        return tf.reduce_sum(tf.gather(self.table, ids), 1)

    model = make_model(forward, table=tf.Variable(np.ones((12, 2))))
    embgrad.gradients(model, IDS, OBJECTIVE)
    with (
        OneOfTwo(tf.distribute.get_strategy(), 0),
        pytest.raises(
            embgrad.errors.UnsupportedError, match=r"one of 2 replicas .* Call embgrad outside of Strategy\.run"
        ),
    ):
        embgrad.gradients(model, IDS, OBJECTIVE)
    embgrad.gradients(model, IDS, OBJECTIVE)


@pytest.mark.filterwarnings("ignore:compile=True")  # a cache is no plain argument
@pytest.mark.parametrize("by_call", [False, True])
def test_each_pass_receives_a_copy_of_further_inputs_with_a_trace(by_call: bool) -> None:
    def forward(self: Any, ids: Any, given: Any) -> Any:
        if isinstance(given, list):
            given.append(1.0)
        length = len(given) if isinstance(given, list) else given["cache"].grow()
        return length * tf.reduce_sum(tf.gather(self.table, ids), 1)

    model = make_model(forward, table=tf.Variable(np.random.default_rng(0).normal(size=(12, 2))))
    call = (lambda model, inputs: model(inputs["input_ids"], inputs["given"])) if by_call else None
    for given in ([], {"cache": Cache(), "lock": threading.Lock()}):
        found = embgrad.gradients(model, {"input_ids": IDS, "given": given}, OBJECTIVE, call=call, compile=True)
        np.testing.assert_allclose(found.values, np.broadcast_to([0.7, -1.3], found.values.shape), rtol=1e-12)
        assert not (given if isinstance(given, list) else given["cache"].steps)
