"""`compile=True`: what cannot be traced runs as without, and says why."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import embgrad
from tests.frameworks.tensorflow.helpers import make_model
from tests.frameworks.tensorflow.test_models import functional
from tests.frameworks.tensorflow.traced import IDS, PROJECTION, Net, both
from tests.support.compiled import same

#: Of the layers that are made here.
POLICY = "float64"


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
            rows = self.table()
            total = tf.zeros([tf.shape(ids)[0], 4], tf.float64)
            _, total = tf.while_loop(
                lambda place, _: place < tf.shape(ids)[1],
                lambda place, total: (place + 1, total + tf.gather(rows, ids[:, place])),
                (0, total),
                shape_invariants=(tf.TensorShape([]), tf.TensorShape([None, 4])),
            )
            return tf.matmul(total + tf.reduce_sum(tf.gather(self.rows, ids), 1), self.weight)

        def table(self) -> Any:
            return self.rows

    class Writes(Net):
        def __call__(self, ids: Any) -> Any:
            variable = tf.raw_ops.VarHandleOp(dtype=tf.float64, shape=[], shared_name="in the graph")
            tf.raw_ops.AssignVariableOp(resource=variable, value=tf.constant(1, tf.float64))
            return super().__call__(ids) * tf.raw_ops.ReadVariableOp(resource=variable, dtype=tf.float64)

    class LoopsOverValues(Loops):
        def table(self) -> Any:
            return tf.convert_to_tensor(self.rows)


@pytest.mark.parametrize("sort", [random.Random, np.random.default_rng, np.random.RandomState, random.SystemRandom])
def test_a_model_that_holds_a_random_generator_has_no_trace(sort: Any) -> None:
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
        (Untraceable.Writes, "writes (AssignVariableOp) to a resource that is not a variable of the model"),
        (Untraceable.Asks, "the gradients at 'word' differ between a trace and the model itself"),
        (Untraceable.Loops, "a lookup lies inside While 'while', which is a loop or a branch"),
        (Untraceable.LoopsOverValues, "a lookup lies inside StatelessWhile 'while', which is a loop or a branch"),
    ],
)
def test_a_model_that_cannot_be_traced_runs_without_a_trace(net: Any, why: str) -> None:
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


class Counted(Net):
    """A part runs in a loop, and another returns whole numbers alone."""

    def __init__(self) -> None:
        super().__init__()
        self.part = make_model(lambda self, rows: tf.tanh(rows))
        self.largest = make_model(lambda self, rows: tf.argmax(rows, -1))

    def __call__(self, ids: Any) -> Any:
        rows = tf.gather(self.rows, ids)
        self.largest(rows)
        _, rows = tf.while_loop(lambda turn, _: turn < 2, lambda turn, rows: (turn + 1, self.part(rows)), (0, rows))
        return self.head(rows)


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("part#0", "the point 'part' lies inside a loop or a branch of the graph"),
        ("largest:input#0", "a call of 'largest' returns no floating-point tensor"),
    ],
)
def test_points_at_which_a_graph_cannot_be_cut(key: str, why: str) -> None:
    model, add = Counted(), {key: np.ones(4)}
    same(*both(model, IDS, PROJECTION))
    plain = embgrad.gradients(model, IDS, PROJECTION, add=add)
    with pytest.warns(embgrad.EmbgradWarning, match=f"compile=True: {why}; the model ran without a trace"):
        found = embgrad.gradients(model, IDS, PROJECTION, add=add, compile=True)
    np.testing.assert_array_equal(found.values, plain.values)


@pytest.mark.parametrize("draw", [lambda: random.uniform(0, 1), lambda: np.random.rand()])
def test_a_part_that_python_skips_at_random_has_no_trace(draw: Any) -> None:
    """As Hugging Face's layer drop does, which draws in evaluation mode as well."""

    class Dropping(Net):
        def __call__(self, ids: Any, training: bool = False) -> Any:
            rows = tf.gather(self.rows, ids)
            share = draw()
            return self.head(2 * rows if training and share < 0.5 else rows)

    model = Dropping()
    with pytest.warns(embgrad.EmbgradWarning, match="from Python's or NumPy's generator"):
        found = [embgrad.gradients(model, IDS, PROJECTION, compile=True) for _ in range(3)]
    for one in found:
        np.testing.assert_array_equal(one.values, embgrad.gradients(model, IDS, PROJECTION).values)
    random.seed(2)
    np.random.seed(0)  # with either, the first two draws are above 0.5: those of the model and the trace
    with pytest.warns(embgrad.EmbgradWarning, match="from Python's or NumPy's generator"):
        found = [embgrad.gradients(model, IDS, PROJECTION, training=True, compile=True) for _ in range(12)]
    assert len({one.values.tobytes() for one in found}) == 2


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
def test_an_objective_that_reads_no_plain_tensor_runs_without_a_trace(kind: str, returned: Any, read: Any) -> None:
    model = Net()
    options: dict[str, Any] = {"call": lambda net, inputs: returned(net(inputs))}
    with pytest.warns(
        embgrad.EmbgradWarning, match=f"it returns a {kind}, which is neither a tensor nor a plain value"
    ):
        found = embgrad.gradients(model, IDS, read, compile=True, **options)
    for plain in (embgrad.gradients(model, IDS, read, **options), embgrad.gradients(model, IDS, embgrad.Sum())):
        np.testing.assert_allclose(found.values, plain.values, rtol=1e-12)


def test_the_reason_has_no_text_added_by_keras(keras: Any) -> None:

    model, _ = functional(
        keras,
        make_model(lambda self, rows: rows + 0 * tf.random.uniform([], dtype=rows.dtype), keras.layers.Layer),
        keras.layers.GlobalAveragePooling1D(),
    )
    with pytest.warns(embgrad.EmbgradWarning) as told:
        found = embgrad.gradients(model, IDS, PROJECTION, compile=True)
    why = "the model draws random numbers (RandomUniform), which a trace would draw differently"
    assert found.provenance["uncompiled"] == why
    assert str(told[0].message) == f"compile=True: {why}; the model ran without a trace"


def test_run_functions_eagerly_is_respected() -> None:
    model = Net()
    tf.config.run_functions_eagerly(True)
    try:
        with pytest.warns(embgrad.EmbgradWarning, match=r"run_functions_eagerly\(True\) is set"):
            embgrad.gradients(model, IDS, PROJECTION, compile=True)
        assert tf.config.functions_run_eagerly()
    finally:
        tf.config.run_functions_eagerly(False)
    same(*both(model, IDS, PROJECTION))
