"""Gradients whose rows are mostly zeros are TensorFlow's own, with less multiplied, and whatever is not rowwise is left to it."""

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from embgrad_tensorflow import kept, trace
from embgrad_tensorflow.fewrows import ROWWISE
from embgrad_tensorflow.leangradients import lean_gradients
from embgrad_tensorflow.tracedrows import TracedRows
from tensorflow.python.framework import ops

import embgrad
from tests.tensorflow.test_leangradients import drawn, heard, operations

#: Large enough to be looked through.
SHAPE = (8, 64, 128)
ROWS = 8 * 64

Function = Callable[..., Any]


def one_position(values: Any, position: int = 3) -> Any:
    return values[:, position] * tf.constant(np.linspace(-1, 1, values.shape[-1]), values.dtype)


def pulled(function: Function, operands: list[Any], watched: tuple[int, ...]) -> list[np.ndarray]:
    """The gradients of the operands watched, of what one position of each example gives."""
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        sources = [operands[number] for number in watched]
        tape.watch(sources)
        result = one_position(function(*operands))
    return [tf.convert_to_tensor(one).numpy() for one in tape.gradient(result, sources)]


def expect_close(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        rounding = {"bfloat16": 2e-2, "float16": 2e-3, "float32": 1e-6, "float64": 1e-14}[str(one.dtype)]
        np.testing.assert_allclose(
            one.astype(np.float64), other.astype(np.float64), rtol=rounding, atol=rounding * np.abs(other).max()
        )


def normed(x: Any, scale: Any) -> Any:
    mean = tf.reduce_mean(x, -1, keepdims=True)
    variance = tf.reduce_mean(tf.math.squared_difference(x, tf.stop_gradient(mean)), -1, keepdims=True)
    return tf.nn.batch_normalization(x, mean, variance, scale, scale, 1e-12)


def multiplied(x: Any, kernel: Any) -> Any:
    return tf.reshape(tf.matmul(tf.reshape(x, (-1, x.shape[-1])), kernel), (*x.shape[:-1], kernel.shape[-1]))


CASES: dict[str, tuple[Function, tuple[tuple[int, ...], ...]]] = {
    "gelu": (lambda x: tf.nn.gelu(x), (SHAPE,)),
    "gelu by tanh": (lambda x: tf.nn.gelu(x, approximate=True), (SHAPE,)),
    "erf, square, square root": (lambda x: tf.math.erf(x) + tf.sqrt(tf.square(x) + 1.0), (SHAPE,)),
    "relu, sigmoid": (lambda x: tf.nn.relu(x) * tf.sigmoid(x), (SHAPE,)),
    "softmax": (lambda x: tf.nn.softmax(x / 3.0), (SHAPE,)),
    "layer norm": (normed, (SHAPE, (128,))),
    "product with a matrix": (multiplied, (SHAPE, (128, 192))),
    "product with a square matrix of as many rows": (multiplied, ((8, 64, ROWS), (ROWS, ROWS))),
    "product with a transposed matrix": (
        lambda x, y: tf.reshape(tf.matmul(tf.reshape(x, (-1, 128)), y, transpose_b=True), (8, 64, -1)),
        (SHAPE, (192, 128)),
    ),
    "product with one matrix for all examples": (tf.matmul, (SHAPE, (128, 192))),
    "product with one transposed matrix for all": (lambda x, y: tf.matmul(x, y, transpose_b=True), (SHAPE, (192, 128))),
    "products with a matrix each": (tf.matmul, (SHAPE, (8, 128, 192))),
    "products of the transposed with one for all": (
        lambda x, y: tf.matmul(x, y, transpose_a=True),
        ((8, 128, 64), (128, 192)),
    ),
    "transposed product": (
        lambda x, y: tf.reshape(tf.matmul(x, y, transpose_a=True), (8, 64, 192)),
        ((128, ROWS), (128, 192)),
    ),
    "operands of one shape": (lambda x, y: (x - y) * x / (y + 20.0), (SHAPE, SHAPE)),
    "one number a row": (lambda x, y: tf.math.squared_difference(x, y) * y, (SHAPE, (8, 64, 1))),
    "one number a row first": (lambda x, y: y * x - y, (SHAPE, (8, 64, 1))),
    "one vector": (lambda x, y: x * y, (SHAPE, (128,))),
    "one number": (lambda x, y: x * y, (SHAPE, ())),
    "examples share": (lambda x, y: x * y, (SHAPE, (1, 64, 128))),
    "positions share": (lambda x, y: x * y, (SHAPE, (8, 1, 128))),
    "reduced over rows": (lambda x: x * tf.reduce_sum(x, 1, keepdims=True), (SHAPE,)),
    "reduced and not kept": (lambda x: x * tf.reduce_mean(x, -1)[..., None], (SHAPE,)),
    "reshaped to longer rows": (lambda x: tf.tanh(tf.reshape(x * 2.0, (8, 32, 256))), (SHAPE,)),
    "reshaped to shorter rows": (lambda x: tf.tanh(tf.reshape(x * 2.0, (8, 64, 4, 32))[:, :, 1]), (SHAPE,)),
    "transposed": (lambda x: tf.transpose(tf.tanh(tf.transpose(tf.tanh(x), (0, 2, 1))), (0, 2, 1)), (SHAPE,)),
    "used twice": (lambda x: tf.tanh(x) + multiplied(tf.tanh(x), tf.eye(128, dtype=x.dtype)), (SHAPE,)),
}


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float32, tf.float64])
@pytest.mark.parametrize("case", CASES)
def test_operations_behind_one_position(case: str, dtype: Any) -> None:
    function, shapes = CASES[case]
    operands = [drawn(shape, seed, dtype) for seed, shape in enumerate(shapes)]
    for watched in [(0,), (1,), (0, 1)][: 3 if len(shapes) == 2 else 1]:
        expected = pulled(function, operands, watched)
        with lean_gradients():
            found = pulled(function, operands, watched)
        expect_close(found, expected)


@pytest.mark.parametrize("position", [0, 31, 32, 63])
def test_whichever_position_it_is(position: int) -> None:
    def run() -> np.ndarray:
        x = drawn(SHAPE, 0)
        with tf.GradientTape() as tape:
            tape.watch(x)
            result = one_position(multiplied(x, drawn((128, 192), 1)), position)
        found: np.ndarray = tape.gradient(result, x).numpy()
        return found

    expected = run()
    with lean_gradients():
        expect_close([run()], [expected])


def sizes_of_products(run: Callable[[], Any]) -> list[int]:
    """How many rows the products with a matrix have that a pullback makes."""
    products = ("MatMul", "BatchMatMulV2")
    return [math.prod(operands[0].shape[:-1]) for name, operands in heard(run) if name in products]


@pytest.mark.parametrize(
    ("weights", "rows"),
    [
        ([0, 0, 0, 1.0, *[0] * 60], 8),  # one position of eight examples
        ([1.0] * 16 + [0] * 48, 8 * 16),
        ([1.0] * 17 + [0] * 47, ROWS),  # not few
        ([1.0] * 64, ROWS),
        ([0] * 64, ROWS),  # none
        ([np.nan, *[0] * 63], 8),
    ],
)
@pytest.mark.parametrize("product", [multiplied, tf.matmul])
def test_only_rows_that_are_not_zero_are_multiplied(product: Function, weights: list[float], rows: int) -> None:
    x, kernel = drawn(SHAPE, 0), drawn((128, 192), 1)
    with tf.GradientTape() as tape:
        tape.watch(x)
        result = product(x, kernel)
    given = np.broadcast_to(np.array(weights, np.float32)[:, None], (8, 64, 192)) * drawn((8, 64, 192), 2).numpy()
    found: list[Any] = []
    with lean_gradients():
        seen = sizes_of_products(lambda: found.append(tape.gradient(result, x, output_gradients=tf.constant(given))))
    assert seen == [rows]
    expected = given.astype(np.float64) @ kernel.numpy().astype(np.float64).T
    np.testing.assert_allclose(found[0].numpy(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("count", [5, 16, 200])
def test_rows_that_were_gathered_are_those_that_are_not_zero(count: int) -> None:
    """As an objective takes those that it reads; some twice. Where they are many, all are multiplied."""
    random = np.random.default_rng(1)
    numbers = tf.constant(np.stack([random.integers(0, 8, count), random.integers(0, 64, count)], 1))
    operands = [drawn(SHAPE, 0), drawn((128, 192), 1)]
    found: list[Any] = []

    def run() -> None:
        with tf.GradientTape() as tape:
            tape.watch(operands[0])
            result = tf.tanh(tf.gather_nd(tf.matmul(*operands), numbers))
        found.append(tape.gradient(result, operands[0]).numpy())

    run()
    with lean_gradients():
        seen = sizes_of_products(run)
    assert seen == [ROWS, count if 4 * count <= ROWS else ROWS]
    expect_close(found[1:], found[:1])


def test_zeros_of_both_signs_are_zeros_and_what_is_infinite_elsewhere_is_nobodys() -> None:
    """Where a row's gradient is zero the objective does not depend on it: zero, and not zero times infinity."""
    values = drawn(SHAPE, 0).numpy()
    values[:, 40] = np.inf
    given = np.full(SHAPE, -0.0, np.float32)
    given[:, 3] = 1

    def run() -> np.ndarray:
        x, y = tf.constant(np.ones(SHAPE, np.float32)), tf.constant(values)
        with tf.GradientTape() as tape:
            tape.watch(x)
            result = x * y
        found: np.ndarray = tape.gradient(result, x, output_gradients=tf.constant(given)).numpy()
        return found

    assert np.isnan(run()[:, 40]).all()  # as TensorFlow has it
    with lean_gradients():
        found = run()
    np.testing.assert_array_equal(found, np.where(given != 0, values, 0))


def test_small_gradients_are_not_looked_through() -> None:
    def run() -> None:
        with lean_gradients():
            pulled(tf.tanh, [drawn((4, 8, 16), 0)], (0,))

    assert operations(run)["GatherNd"] == 0


def test_a_gradient_that_is_somebody_elses_is_given_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes: list[tuple[int, ...]] = []

    def theirs(operation: Any, gradient: Any) -> Any:
        shapes.append(tuple(gradient.shape))
        return gradient * tf.cast(tf.range(gradient.shape[0]), gradient.dtype)[:, None, None]

    registry = ops._gradient_registry._registry
    monkeypatch.setitem(registry, "Tanh", {**registry["Tanh"], "type": theirs})
    with lean_gradients():
        (found,) = pulled(tf.tanh, [drawn(SHAPE, 0)], (0,))
    assert shapes == [SHAPE]
    expected = np.zeros(SHAPE, np.float32)
    expected[:, 3] = np.linspace(-1, 1, 128).astype(np.float32) * np.arange(8, dtype=np.float32)[:, None]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_a_gradient_of_the_users_own_is_given_the_whole() -> None:
    shapes: list[tuple[int, ...]] = []

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def theirs(x: Any) -> Any:
        def backward(gradient: Any) -> Any:
            shapes.append(tuple(gradient.shape))
            return tf.cumsum(gradient, 1)

        return tf.identity(x), backward

    def whole(x: Any) -> Any:
        return tf.tanh(theirs(tf.tanh(x)))

    expected = pulled(whole, [drawn(SHAPE, 0)], (0,))
    with lean_gradients():
        expect_close(pulled(whole, [drawn(SHAPE, 0)], (0,)), expected)
    assert shapes == [SHAPE] * 2


def test_the_gradient_of_a_pooled_output_is_that_of_the_tape() -> None:
    """A model of two blocks, read at its first position, as an encoder's pooled output is."""
    keras = tf.keras
    ids = keras.Input((64,), dtype="int32", name="input_ids")
    x = keras.layers.Embedding(100, 128)(ids)
    for _ in range(2):
        x = keras.layers.LayerNormalization()(x + keras.layers.MultiHeadAttention(2, 64)(x, x))
        wide = keras.layers.Dense(256, activation="gelu")(x)
        x = keras.layers.LayerNormalization()(x + keras.layers.Dense(128)(wide))
    pooled = keras.layers.Dense(128, activation="tanh")(x[:, 0])
    model = keras.Model(ids, pooled)
    given = np.random.default_rng(0).integers(0, 100, (16, 64))
    found = embgrad.gradients(model, given, embgrad.Sum())
    table = model.layers[1].embeddings
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(model(tf.constant(given, tf.int32), training=False))
    slices = tape.gradient(total, table)
    expected = slices.values.numpy().reshape(16, 64, 128)
    np.testing.assert_allclose(found.values, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("name", sorted(ROWWISE))
def test_each_is_an_operation_of_tensorflows(name: str) -> None:
    assert ops._gradient_registry.lookup(name).__module__.startswith("tensorflow.python.ops.")


# In a graph that is being traced


class Blocks(tf.Module):
    """Rows, two blocks of what an encoder's layers are made of, and what stands at one position of them."""

    def __init__(self, take: Function = lambda x: x) -> None:
        super().__init__()
        self.ran = 0
        random = np.random.default_rng(3)
        self.rows = tf.Variable(random.normal(size=(50, 16)))
        self.scale = tf.Variable(random.uniform(0.5, 1.5, 16))
        self.kernels = [tf.Variable(random.normal(size=size) / 4) for size in ((16, 16), (16, 40), (40, 16))]
        self._take = take

    def __call__(self, ids: Any) -> Any:
        self.ran += 1
        x = tf.gather(self.rows, ids)
        for _ in range(2):
            weights = tf.nn.softmax(tf.matmul(x, x, transpose_b=True) / 4.0)
            x = normed(x + tf.tensordot(tf.matmul(weights, x), self.kernels[0], 1), self.scale)
            wide = tf.nn.gelu(tf.nn.bias_add(tf.tensordot(x, self.kernels[1], 1), tf.repeat(self.scale[:1], 40)))
            x = normed(x + tf.tensordot(wide - tf.sigmoid(wide) * 0.5, self.kernels[2], 1), self.scale)
        return tf.tanh(self._take(x))


TAKES: dict[str, tuple[Function, bool]] = {
    "the first": (lambda x: x[:, 0], True),
    "another, all axes named": (lambda x: x[:, 2, :], True),
    "the last": (lambda x: x[:, -1], False),
    "one, its axis kept": (lambda x: x[:, 1:2][:, 0], False),
    "every other column": (lambda x: x[:, 1, ::2], False),
    "columns backwards": (lambda x: x[:, 1, ::-1], False),
    "some examples": (lambda x: tf.concat([x[:1, 1], x[1:, 1]], 0), False),
    "one and all": (lambda x: x[:, 0] * tf.reduce_mean(x, 1), False),
    "all": (lambda x: tf.reduce_mean(x, 1), False),
}


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The operations whose gradients were computed for some rows alone."""
    found: list[str] = []
    whole = TracedRows._spread

    def spread(*args: Any) -> Any:
        found.append(args[0])
        return whole(*args)

    monkeypatch.setattr(TracedRows, "_spread", spread)
    return found


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.sampled(8)
@pytest.mark.parametrize("take", TAKES)
def test_traces(take: str, split: bool, known: list[Any]) -> None:
    function, is_known = TAKES[take]
    model = Blocks(function)
    random = np.random.default_rng(4)
    for shape in ((3, 5), (3, 5), (1, 4), (4, 3), (2, 9)):
        ids = random.integers(0, 50, shape)
        with warnings.catch_warnings():
            warnings.simplefilter("error", embgrad.EmbgradWarning)
            found = embgrad.gradients(model, ids, embgrad.Sum(), compile=True, split=split).values
        rows = tf.gather(model.rows, ids)
        with tf.GradientTape() as tape:
            total = tf.reduce_sum(model(tf.constant(ids)))
        slices = tape.gradient(total, model.rows)
        expected = slices.values.numpy().reshape(rows.shape)
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9 * np.abs(expected).max())
    assert bool(known) == is_known


@pytest.mark.parametrize("way", [tf.multiply, tf.add, lambda x, few: tf.stop_gradient(x) * few, lambda x, few: few - x])
def test_traces_of_operands_that_are_one_row_for_all_at_some_lengths(way: Any) -> None:
    """A size that no trace can know: where it is 1 at a later call, the model runs without the trace, and is right."""

    def call(model: Any, ids: Any) -> Any:
        x = tf.tanh(model(ids))
        few = x[:, : tf.where(tf.shape(x)[1] > 5, 1, tf.shape(x)[1])]
        return tf.tanh(way(x, tf.concat([few, few[:, :0]], 1)))[:, 2]

    random = np.random.default_rng(5)
    table = tf.Variable(random.normal(size=(50, 8)))
    model = tf.Module()
    model.table = table
    for shape in ((3, 4), (3, 4), (3, 7), (2, 6), (3, 4)):
        ids = random.integers(0, 50, shape)
        options = {"call": lambda model, ids: call(lambda ids: tf.gather(model.table, ids), ids)}
        plain = embgrad.gradients(model, ids, embgrad.Sum(), **options)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", embgrad.EmbgradWarning)
            found = embgrad.gradients(model, ids, embgrad.Sum(), compile=True, **options)
        np.testing.assert_allclose(found.values, plain.values, rtol=1e-9, atol=1e-12)
        assert (found.provenance["uncompiled"] is None) == (shape[1] <= 5)


def expect_compiled(model: Any, ids: np.ndarray, objective: Any) -> None:
    """A trace is run, and gives what the model gives."""
    plain, compiled = (embgrad.gradients(model, ids, objective, compile=one) for one in (False, True))
    np.testing.assert_allclose(compiled.values, plain.values, rtol=1e-9, atol=1e-12)
    assert compiled.provenance["compiled"]


def slices_of(model: Blocks, ids: np.ndarray, weigh: Callable[[Any], Any]) -> np.ndarray:
    """The gradient of weighed outputs at the rows, by a tape alone."""
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(weigh(model(tf.constant(ids))))
    slices = tape.gradient(total, model.rows)
    return slices.values.numpy().reshape(*ids.shape, -1)


def test_traces_for_objectives_that_read_one_position(known: list[str]) -> None:
    """One of few rows, and one of all, whichever comes; where an example has one position, few are all."""
    model = Blocks()
    random = np.random.default_rng(6)
    for shape in ((3, 5), (3, 5), (1, 4), (2, 1), (4, 3), (2, 9)):
        ids = random.integers(0, 50, shape)
        places = random.integers(0, shape[1], shape[0])
        weights = np.zeros((*shape, 1))
        weights[np.arange(shape[0]), places] = 1
        for _ in range(2):
            for position, weighed in ((places, weights), (None, 1.0), (-1, np.eye(shape[1])[-1:].T)):
                objective = embgrad.Sum(position=position)
                with warnings.catch_warnings():
                    warnings.simplefilter("error", embgrad.EmbgradWarning)
                    found = embgrad.gradients(model, ids, objective, compile=True).values
                expected = slices_of(model, ids, lambda out, weighed=weighed: out * weighed)
                np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9 * np.abs(expected).max())
    assert known
    ran, computed = model.ran, len(known)
    for position in (0, None, 1, None):
        embgrad.gradients(model, ids, embgrad.Sum(position=position), compile=True)
    assert (model.ran, len(known)) == (ran, computed)


def test_what_a_trace_for_one_position_multiplies() -> None:
    """The products behind the last attention have as many rows as there are examples."""
    model = Blocks()
    ids = np.random.default_rng(7).integers(0, 50, (3, 8))
    made: list[Any] = []
    genuine = kept.run_trace

    def run(trace: Any, *args: Any) -> Any:
        made.append(trace)
        return genuine(trace, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kept, "run_trace", run)
        for position in (None, 2):
            embgrad.gradients(model, ids, embgrad.Sum(position=position), compile=True)
    whole, few = ([one.type for one in trace.function.graph.get_operations()].count("GatherNd") for trace in made)
    assert few > whole + 8


def test_where_a_trace_for_few_rows_does_not_serve_one_for_all_does() -> None:
    """An operand has one row for all at some lengths, which a trace for few rows cannot know."""

    class Model(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = tf.Variable(np.random.default_rng(8).normal(size=(50, 8)))

        def __call__(self, ids: Any) -> Any:
            x = tf.tanh(tf.gather(self.table, ids))
            few = x[:, : tf.where(tf.shape(x)[1] > 5, 1, tf.shape(x)[1])]
            return tf.tanh(x * tf.concat([few, few[:, :0]], 1))

    model = Model()
    for shape in ((3, 4), (3, 4), (3, 7), (2, 6), (3, 4)):
        ids = np.random.default_rng(9).integers(0, 50, shape)
        expect_compiled(model, ids, embgrad.Sum(position=2))


@pytest.mark.parametrize("way", ["gate", "difference", "quotient", "distance"])
def test_rows_of_some_examples_alone_take_no_trace_for_few_rows(way: str) -> None:
    """With fewer rows than examples a row of one example may be taken for that of another, in an operand of one row each."""

    class Model(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            random = np.random.default_rng(8)
            self.table = tf.Variable(random.normal(size=(50, 8)))
            self.head = tf.Variable(random.normal(size=(8, 5)))

        def __call__(self, ids: Any) -> Any:
            x = tf.tanh(tf.gather(self.table, ids))
            first = x[:, :1]
            made = {
                "gate": lambda: x * tf.sigmoid(first),
                "difference": lambda: x - first * first,
                "quotient": lambda: x / (2.0 + tf.stop_gradient(first)),
                "distance": lambda: tf.math.squared_difference(x, tf.stop_gradient(first)),
            }
            return tf.matmul(tf.tanh(made[way]()), self.head)

    model, ids = Model(), np.random.default_rng(9).integers(0, 50, (8, 6))
    for places in (
        [(0, 0)],
        [(0, 1)],
        [(0, 5)],
        [(1, 1)],
        [(0, 2), (0, 3)],
        [(1, 0), (2, 0)],
        [(n, n % 6) for n in range(8)],
    ):
        labels = np.full(ids.shape, -100)
        labels[tuple(np.transpose(places))] = 1
        expect_compiled(model, ids, embgrad.CrossEntropy(labels))


def test_another_fault_of_a_trace_for_few_rows_is_no_fault_of_one_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(self: Any, place: int, one: Any, rows: Any, target: Any, shape: Any) -> Any:
        return 2 * few(self, place, one, rows, target, shape)

    few = trace._Tracing._of_few
    monkeypatch.setattr(trace._Tracing, "_of_few", wrong)
    expect_compiled(Blocks(), np.random.default_rng(7).integers(0, 50, (3, 8)), embgrad.Sum(position=2))
