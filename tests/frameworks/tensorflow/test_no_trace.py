"""No public function leaves a trace in Keras models and saved ones, nor keeps wrapped calls of the user's own from being made."""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import embgrad
from embgrad.testing.calls import CALLS, Asked
from embgrad.testing.examples import VOCAB, example_batch
from embgrad.testing.leaving import Trial
from embgrad.testing.snapshot import different
from tests.contract.conformance.harness_tensorflow import Harness, telling
from tests.frameworks.tensorflow.helpers import KERAS
from tests.frameworks.tensorflow.savedmodels import saved
from tests.support.sampling import slow

pytestmark = pytest.mark.filterwarnings("ignore:`build:UserWarning", "ignore:Layer '.*mask:UserWarning")  # of Keras 3

LABELS = np.array([2, 0, 1])
WIDTH = 4
CLOSED = frozenset({"forward", "backward"})


@functools.cache
def classes(keras: Any) -> tuple[type, type]:
    """A layer and a model that write to their variables, lists, dicts and attributes at every call."""

    class Layer(keras.layers.Layer):  # type: ignore[misc]
        def __init__(self, *, recurrent: bool) -> None:
            super().__init__()
            self.norm, self.dropout = keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)
            self.inner = keras.layers.Dense(WIDTH, activity_regularizer="l2")
            if recurrent:
                self.inner = keras.layers.SimpleRNN(WIDTH, return_sequences=True)

        def call(self, x: Any) -> Any:
            return x + self.dropout(self.inner(self.norm(x)))

    class Net(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = keras.layers.Embedding(VOCAB, WIDTH, mask_zero=True), keras.layers.Dense(3)
            self.parts = [Layer(recurrent=number == 1) for number in range(3)]
            self.count = tf.Variable(0, trainable=False)
            self.last, self.seen, self.kept, self.met = "mine", {"x": 1}, [], {1}

        def call(self, ids: Any) -> Any:
            hidden = self.table(ids)
            for number, part in enumerate(self.parts):
                hidden = part(hidden)
                if number == 0:
                    hidden = telling(hidden)
            self.count.assign_add(1)
            self.last, self.newest, self.seen["x"] = hidden, hidden, hidden
            self.kept.append(hidden)
            self.met.add(len(self.met))
            return self.head(tf.reduce_mean(hidden, 1))

    return Layer, Net


def net(keras: Any) -> Any:
    """In use: compiled and called, with an optimizer that has slots and losses of the last call."""
    model = classes(keras)[1]()
    model.compile(optimizer=keras.optimizers.Adam(), loss="mse", run_eagerly=True)
    model(tf.constant(example_batch().ids))
    model.optimizer.build(model.trainable_variables)
    model.parts[1].trainable = False
    return model


def step(model: Any, ids: np.ndarray, labels: np.ndarray) -> None:
    with tf.GradientTape() as tape:
        logits = model(tf.constant(ids, tf.int32), training=False)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
    tape.gradient(loss, model.trainable_variables)


def trial(model: Any, silent: frozenset[str] = frozenset()) -> Trial:
    asked = Asked(model, example_batch(), LABELS, lambda logits: logits[:, 1], step)
    return Trial(asked, partial(Harness().state, model), Harness(), silent=silent)


IN_KERAS_2 = ["gradients, compiled", "gradients at points, with changes", "gradients, in training", "capture"]
IN_KERAS_3 = ["gradients at points, with changes", "capture of a layer"]
#: Those that run the model in no other way than these.
OTHERS = [*(("keras2", name) for name in ("gradients", "points", "table_gradients", "parameter_gradients"))]
OTHERS += [("keras2", "stream, left before its end"), ("keras3", "gradients, in training")]
CASES = [*(("keras2", name) for name in IN_KERAS_2), *(("keras3", name) for name in IN_KERAS_3), *map(slow, OTHERS)]


@pytest.mark.filterwarnings("ignore::embgrad.EmbgradWarning")
@pytest.mark.parametrize(("keras", "name"), CASES)
def test_a_call_leaves_a_keras_model_as_it_was(keras: str, name: str) -> None:
    tried = trial(net(KERAS[keras]))
    assert [*tried.traces(CALLS[name]), *tried.traces_of_mistakes(CALLS[name])] == []


class Module(tf.Module):
    """Its own variables, one of which it writes to; a compiled call, and a compiled method."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = tf.Variable(tf.random.normal((VOCAB, WIDTH)), name="rows")
        self.weight = tf.Variable(tf.random.normal((WIDTH, 3)), name="weight")
        self.count = tf.Variable(0, trainable=False)

    @tf.function(input_signature=[tf.TensorSpec((None, None), tf.int32, name="ids")])
    def __call__(self, ids: Any) -> Any:
        self.count.assign_add(1)
        return tf.matmul(tf.tanh(tf.reduce_mean(tf.gather(self.rows, ids), 1)), self.weight)


#: Those that a model without layers can stand.
FLAT = [
    "gradients",
    "gradients, compiled",
    *map(slow, ("gradients of a native objective", "gradients, split", "points")),
]


@pytest.mark.parametrize("name", FLAT)
@pytest.mark.parametrize("kept", ["compiled", "saved"])
def test_a_call_leaves_a_compiled_model_as_it_was(kept: str, name: str, tmp_path: Any) -> None:
    model = saved(Module(), tmp_path) if kept == "saved" else Module()
    tried = trial(model, CLOSED)
    CALLS[name].make(tried.asked)  # the first call makes a pass more, to look at the graph
    mistakes = [] if kept == "saved" else tried.traces_of_mistakes(CALLS["points"])
    assert [*tried.traces(CALLS[name]), *mistakes] == []


def logging(log: list[str], original: Callable[..., Any], layer: Any = None) -> Callable[..., Any]:
    """Return a user's function in place of a layer's `call`, or of its class's `__call__`, that logs the layer's name."""

    @functools.wraps(original)
    def called(*args: Any, **kwargs: Any) -> Any:
        log.append((args[0] if layer is None else layer).name)
        return original(*args, **kwargs)

    return called


@pytest.fixture(params=["the call of each layer", "the class's call"])
def log(request: Any, keras: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[str]]:
    """A model whose calls a user has wrapped, and the names of the layers that were called."""
    model, names = net(keras), list[str]()
    if request.param == "the class's call":
        layer_class = keras.layers.Layer
        monkeypatch.setattr(layer_class, "__call__", logging(names, vars(layer_class)["__call__"]))
    else:
        for layer in model._flatten_layers(include_self=False):
            layer.call = logging(names, layer.call, layer)
    return model, names


@pytest.mark.parametrize("options", [{}, {"training": True}, {"split": True}, None], ids=str)
def test_wrapped_calls_are_made_as_in_the_users_pass(log: tuple[Any, list[str]], options: Any) -> None:
    model, names = log

    def names_of(run: Callable[[], Any]) -> list[str]:
        names.clear()
        run()
        return list(names)

    own = functools.partial(step, model, example_batch().ids, LABELS)
    expected = names_of(own)
    assert len(expected) > 10
    before = Harness().state(model)
    if options is None:
        with embgrad.capture(model):
            assert names_of(own) == expected
    else:
        objective = embgrad.CrossEntropy(LABELS)
        assert names_of(lambda: embgrad.gradients(model, example_batch(), objective, **options)) == expected
        assert options or different("", before, Harness().state(model)) == {}
    assert names_of(own) == expected
