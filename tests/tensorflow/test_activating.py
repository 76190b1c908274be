"""Activation functions' gradients in traces, as those of one operation: against TensorFlow's own, finite differences, and
where there is none.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from embgrad_tensorflow import activating
from tensorflow.python.eager import record

import embgrad
from tests.sampling import slow
from tests.tensorflow.helpers import KERAS, assert_slopes, halved, own_of_sum, own_table_gradient, recorded_halved
from tests.tensorflow.programs import Language, Step, Steps, expected_of

EXAMPLES, POSITIONS, DIM = 3, 5, 7
IDS = np.random.default_rng(0).permutation(EXAMPLES * POSITIONS).reshape(EXAMPLES, POSITIONS)

#: Of a tensor x, and of a number that is known only when the model runs.
Function = Callable[[Any, Any], Any]


class Activated(tf.Module):
    """Rows → a function of each entry → one number an example."""

    def __init__(
        self, function: Function, dtype: str = "float64", table: np.ndarray | None = None, read: Any = tf.sin
    ) -> None:
        super().__init__()
        random = np.random.default_rng(1)
        made = [random.normal(size=shape) for shape in ((20, DIM), (DIM, DIM), (EXAMPLES, POSITIONS, DIM))]
        self.table = tf.Variable(made[0] if table is None else table, dtype=dtype)
        self.kernel = tf.Variable(made[1], dtype=dtype, name="kernel")
        self.number = tf.Variable(1.5, dtype=dtype, name="number")
        self.weights = tf.constant(made[2], dtype=dtype)
        self.function = function
        self.read = read

    def __call__(self, input_ids: Any, **_: Any) -> Any:
        rows = tf.nn.embedding_lookup(self.table, input_ids) @ tf.convert_to_tensor(self.kernel)
        given = self.function(rows, tf.convert_to_tensor(self.number))
        return tf.reduce_sum(self.read(given) * self.weights, [1, 2])


def gelu(x: Any, number: Any) -> Any:
    return tf.nn.gelu(x)


def gelu_by_tanh(x: Any, number: Any) -> Any:
    return tf.nn.gelu(x, approximate=True)


def gelu_by_erf(x: Any, number: Any) -> Any:
    return 0.5 * x * (1.0 + tf.math.erf(x / math.sqrt(2.0)))


def gelu_by_sigmoid(x: Any, number: Any) -> Any:
    return x * tf.sigmoid(1.702 * x)


def silu_by_exponential(x: Any, number: Any) -> Any:
    return x / (1.0 + tf.exp(-x))


def silu_of_a_weight(x: Any, number: Any) -> Any:
    return x * tf.sigmoid(number * x)


def mish(x: Any, number: Any) -> Any:
    return x * tf.tanh(tf.math.softplus(x))


def divided_by_a_weight(x: Any, number: Any) -> Any:
    return tf.tanh(x) * (number - x / number)


def number_divided(x: Any, number: Any) -> Any:
    return x * (number / (2.0 + tf.square(x)))


def quotient(x: Any, number: Any) -> Any:
    return tf.tanh(x) / (1.0 + x**2)


def with_itself(x: Any, number: Any) -> Any:
    return x * x


def powers(x: Any, number: Any) -> Any:
    """Products of products, of which only the last is pulled back through."""
    x = tf.tanh(x)  # the sine of a large number is another in another rounding
    return x * x * x - 2 * x * x**3


def added_to_what_it_is_of(x: Any, number: Any) -> Any:
    return x + x * tf.sigmoid(x)


def factors_used_elsewhere(x: Any, number: Any) -> Any:
    gate = tf.sigmoid(x)
    product = x * gate
    return product + tf.cumsum(gate, axis=1) * tf.reduce_mean(product, -1, keepdims=True)


def one_after_the_other(x: Any, number: Any) -> Any:
    return tf.nn.gelu(tf.nn.gelu(x) * 2.0)


def of_a_gradient_halved(x: Any, number: Any) -> Any:
    return halved(tf.nn.gelu(halved(x)))


def factor_used_before_it_is_recorded_anew(x: Any, number: Any) -> Any:
    """What is recorded anew is no part of the product."""
    gate = tf.sigmoid(x)
    product = x * gate
    return product + recorded_halved(tf.sin(x), x)


def by_an_author(x: Any, number: Any) -> Any:
    """Its author has written the gradient, too: what is found inside is not pulled back through."""
    return tf.nn.silu(x)


#: By name, with how many products are found.
SERVED: dict[str, tuple[Function, int]] = {
    function.__name__: (function, times)
    for function, times in (
        (gelu, 1),
        (gelu_by_tanh, 1),
        (gelu_by_erf, 1),
        (gelu_by_sigmoid, 1),
        (silu_by_exponential, 1),
        (silu_of_a_weight, 1),
        (mish, 1),
        (divided_by_a_weight, 1),
        (number_divided, 1),
        (quotient, 1),
        (with_itself, 1),
        (powers, 3),
        (added_to_what_it_is_of, 1),
        (factors_used_elsewhere, 1),
        (one_after_the_other, 2),
        (of_a_gradient_halved, 1),
        (factor_used_before_it_is_recorded_anew, 1),
        (by_an_author, 1),
    )
}


def no_product(x: Any, number: Any) -> Any:
    return x - tf.tanh(x) + 0.5 * tf.sigmoid(x)


def of_another(x: Any, number: Any) -> Any:
    return x * tf.sigmoid(tf.cumsum(x, axis=-1))


def of_two_halves(x: Any, number: Any) -> Any:
    return tf.concat([x[..., :3] * tf.sigmoid(x[..., 4:]), x[..., :4]], -1)


def factor_stopped(x: Any, number: Any) -> Any:
    return x * tf.stop_gradient(tf.sigmoid(x))


def source_stopped(x: Any, number: Any) -> Any:
    return tf.stop_gradient(x) * tf.sigmoid(x)


def masked(x: Any, number: Any) -> Any:
    return x * tf.sigmoid(x * tf.cast(tf.range(DIM) % 2, x.dtype))


def factor_halved(x: Any, number: Any) -> Any:
    return x * halved(tf.sigmoid(x))


def factor_not_recorded(x: Any, number: Any) -> Any:
    with record.stop_recording():
        gate = tf.sigmoid(x)
    return x * gate


def factor_recorded_anew(x: Any, number: Any) -> Any:
    return x * recorded_halved(tf.sigmoid(x), x)


def factor_recorded_anew_afterwards(x: Any, number: Any) -> Any:
    gate = tf.sigmoid(x)
    product = x * gate
    recorded_halved(gate, tf.sin(x))
    return product


def product_recorded_anew(x: Any, number: Any) -> Any:
    return recorded_halved(x * tf.sigmoid(x), x)


def recomputed(x: Any, number: Any) -> Any:
    return tf.recompute_grad(lambda x: x * tf.sigmoid(x))(x)


def tape_of_its_own(x: Any, number: Any) -> Any:
    gate = tf.sigmoid(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        inside = tf.reduce_sum(tf.square(x * gate))
    return tape.gradient(inside, x)


def too_long(x: Any, number: Any) -> Any:
    y = x
    for _ in range(40):
        y = 0.99 * y + 0.1
    return x * y


def doubled_again_and_again(x: Any, number: Any) -> Any:
    """As many ways from the product back as 2⁴⁰."""
    y = x
    for _ in range(40):
        y = 0.5 * (y + y)
    return x * y


def number_to_a_power(x: Any, number: Any) -> Any:
    return x * 2.0**x


LEFT_ALONE: dict[str, Function] = {
    function.__name__: function
    for function in (
        no_product,
        of_another,
        of_two_halves,
        factor_stopped,
        source_stopped,
        masked,
        factor_halved,
        factor_not_recorded,
        factor_recorded_anew,
        factor_recorded_anew_afterwards,
        product_recorded_anew,
        recomputed,
        tape_of_its_own,
        too_long,
        doubled_again_and_again,
        number_to_a_power,
    )
}


@pytest.fixture
def activations(served: list[str]) -> Callable[[], int]:
    """Tells how many products have had their gradient from here."""
    return lambda: served.count("Activation")


@pytest.fixture
def pulled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int | None, ...]]:
    """Grows by the shape of each gradient that is pulled back through a product."""
    shapes: list[tuple[int | None, ...]] = []
    by_rows = activating.by_rows

    def noted(name: str, gradient: Any, operands: Any, compute: Any) -> Any:
        def computed(gradient: Any, *others: Any) -> Any:
            shapes.append(tuple(gradient.shape))
            return compute(gradient, *others)

        return by_rows(name, gradient, operands, computed)

    monkeypatch.setattr(activating, "by_rows", noted)
    return shapes


@pytest.mark.sampled(14)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("name", SERVED)
def test_an_activation_is_tensorflows_in_one_step(
    name: str, split: bool, dtype: str, activations: Callable[[], int]
) -> None:
    function, products = SERVED[name]
    model = Activated(function, dtype)
    first = embgrad.gradients(model, IDS, embgrad.Sum(), compile=True, split=split)
    assert activations() == products
    found = embgrad.gradients(model, IDS, embgrad.Sum(), compile=True, split=split)
    assert activations() == products
    assert found.provenance["compiled"]
    expected = own_of_sum(model, IDS)
    rounding = 2e-6 if dtype == "float32" else 1e-14
    for one in (first, found):
        np.testing.assert_allclose(one.table().to_dense(), expected, rtol=0, atol=rounding * np.abs(expected).max())


#: Where a gradient is another than the function's, it is no slope.
SLOPES = sorted({*SERVED} - {of_a_gradient_halved.__name__, factor_used_before_it_is_recorded_anew.__name__})


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", SLOPES)
def test_an_activation_is_the_slope_of_the_model(name: str) -> None:
    model = Activated(SERVED[name][0])
    found = embgrad.gradients(model, IDS, embgrad.Sum(), compile=True)
    assert_slopes(found, model.table, lambda: tf.reduce_sum(model(IDS)), step=1e-5, rel=1e-6)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", LEFT_ALONE)
def test_what_is_no_such_product_is_tensorflows(name: str, activations: Callable[[], int]) -> None:
    model = Activated(LEFT_ALONE[name])
    found = embgrad.gradients(model, IDS, embgrad.Sum(), compile=True)
    assert found.provenance["compiled"]
    assert activations() == 0
    expected = own_of_sum(model, IDS)
    np.testing.assert_allclose(found.table().to_dense(), expected, rtol=0, atol=1e-14 * np.abs(expected).max())


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", SERVED)
def test_the_ends_of_the_range_are_tensorflows(name: str) -> None:
    """Where a factor is 0, or the other, or too large for the dtype."""
    table = np.random.default_rng(3).normal(size=(20, DIM))
    table[:4], table[4:8], table[8] = 40 * table[:4], 1e-30 * table[4:8], 0
    model = Activated(SERVED[name][0], "float32", table, tf.identity)
    expected = own_of_sum(model, IDS)
    if not np.isfinite(expected).all():
        with pytest.raises(embgrad.NoGradientError, match="nan"):
            embgrad.gradients(model, IDS, embgrad.Sum(), compile=True)
        return
    embgrad.gradients(model, IDS, embgrad.Sum(), compile=True)
    found = embgrad.gradients(model, IDS, embgrad.Sum(), compile=True)
    assert found.provenance["compiled"]
    np.testing.assert_allclose(found.table().to_dense(), expected, rtol=2e-5, atol=1e-6 * np.abs(expected).max())


@pytest.mark.parametrize("split", [False, True])
def test_where_a_trace_overflows_the_model_tells(split: bool) -> None:
    """(1 + x)·eˣ is infinite before eˣ is; behind the other branch it counts 0 times."""
    model = Activated(lambda x, number: tf.where(x > 0, x, x * tf.exp(x)), "float32", read=tf.identity)
    model.kernel.assign(np.eye(DIM))
    assert embgrad.gradients(model, IDS, embgrad.Sum(), compile=True, split=split).provenance["compiled"]
    before = model.table.numpy()
    model.table[3, 0].assign(86.0)
    with pytest.warns(embgrad.EmbgradWarning, match="its graph's gradient is not finite"):
        found = embgrad.gradients(model, IDS, embgrad.Sum(), compile=True, split=split)
    assert found.provenance["compiled"] is False
    np.testing.assert_allclose(found.table().to_dense(), own_of_sum(model, IDS), rtol=1e-5, atol=1e-6)
    model.table.assign(before)
    assert embgrad.gradients(model, IDS, embgrad.Sum(), compile=True, split=split).provenance["compiled"]


def test_where_the_models_own_gradient_is_not_finite_it_is_refused_by_that() -> None:
    table = np.random.default_rng(5).uniform(1, 2, size=(20, DIM))
    model = Activated(lambda x, number: tf.sqrt(tf.nn.relu(x)), table=table)
    model.kernel.assign(np.eye(DIM))
    assert embgrad.gradients(model, IDS, embgrad.Sum(), compile=True).provenance["compiled"]
    model.table[3, 0].assign(-1.0)
    with pytest.raises(embgrad.NoGradientError, match=r"is nan at example \d, position \d, and in 7 of 105 entries"):
        embgrad.gradients(model, IDS, embgrad.Sum(), compile=True)


def test_a_gate_that_is_nearly_1_keeps_its_slope() -> None:
    """σ′ = σ · (1 − σ) is as small as 1 − σ there, and multiplied by what is large."""
    table, found = np.random.default_rng(4).uniform(8, 11, size=(20, DIM)), []
    for dtype in ("float32", "float64"):
        model = Activated(lambda x, number: tf.exp(x) * (1.0 - tf.sigmoid(x)), dtype, read=tf.identity)
        model.kernel.assign(np.eye(DIM))
        embgrad.gradients(model, IDS, embgrad.Sum(), compile=True)
        model.table.assign(table)
        found.append(embgrad.gradients(model, IDS, embgrad.Sum(), compile=True))
        assert found[-1].provenance["compiled"]
    rounded, exact = (one.values for one in found)
    np.testing.assert_allclose(rounded, exact, rtol=0, atol=1e-2 * np.abs(exact).max())


def test_the_models_own_run_keeps_the_operations(activations: Callable[[], int]) -> None:
    """Nothing would be won there: the tape holds what went before all the same."""
    model = Activated(gelu)
    found = embgrad.gradients(model, IDS, embgrad.Sum())
    assert activations() == 0
    np.testing.assert_array_equal(found.table().to_dense(), own_of_sum(model, IDS))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_numbers_are_left_alone(dtype: str, activations: Callable[[], int]) -> None:
    model = Activated(gelu_by_sigmoid, dtype)
    embgrad.gradients(model, IDS, embgrad.Sum(), compile=True)
    assert activations() == 0


@pytest.mark.parametrize("keras", KERAS)
@pytest.mark.parametrize("activation", ["gelu", "mish"])
def test_keras_has_its_layers_so(keras: str, activation: str, activations: Callable[[], int]) -> None:
    layers = KERAS[keras].layers
    model = KERAS[keras].Sequential([layers.Embedding(20, DIM), layers.Dense(6, activation=activation)])
    model(IDS)
    found = embgrad.gradients(model, IDS, embgrad.Sum(), compile=True)
    assert found.provenance["compiled"]
    assert activations() == 1
    expected = own_table_gradient(model.layers[0].embeddings, lambda: tf.reduce_sum(model(IDS)))
    np.testing.assert_allclose(found.table().to_dense(), expected, rtol=0, atol=2e-6 * np.abs(expected).max())


def test_the_weight_of_a_slope_is_read_anew(activations: Callable[[], int]) -> None:
    model = Activated(silu_of_a_weight)
    embgrad.gradients(model, IDS, embgrad.Sum(), compile=True)
    model.number.assign(-0.7)
    found = embgrad.gradients(model, IDS, embgrad.Sum(), compile=True)
    assert activations() == 1
    expected = own_of_sum(model, IDS)
    np.testing.assert_allclose(found.table().to_dense(), expected, rtol=0, atol=1e-14 * np.abs(expected).max())


def test_few_rows_are_computed_alone(pulled: list[tuple[int | None, ...]]) -> None:
    """Of an objective that reads one position."""
    layers = KERAS["keras2"].layers
    random = np.random.default_rng(2)
    model = KERAS["keras2"].Sequential(
        [layers.Embedding(50, 64), layers.Dense(64, activation="gelu"), layers.Dense(64, activation="tanh")]
    )
    ids = random.integers(0, 50, (16, 80))
    found = embgrad.gradients(model, ids, embgrad.Projection(np.ones(64), position=3), compile=True)
    assert found.provenance["compiled"]
    assert [len(shape) for shape in pulled] == [2]
    plain = embgrad.gradients(model, ids, embgrad.Projection(np.ones(64), position=3))
    np.testing.assert_allclose(found.values, plain.values, rtol=1e-5, atol=1e-7)


#: What is given: x, and a number.
X, NUMBER, FIRST = range(3)

LANGUAGE: Final = Language(
    FIRST,
    of_one={
        "erf": tf.math.erf,
        "erfc": tf.math.erfc,
        "exponential": tf.exp,
        "halved": halved,
        "negative": lambda x: -x,
        "sigmoid": tf.sigmoid,
        "sine": tf.sin,
        "softplus": tf.math.softplus,
        "square": tf.square,
        "stopped": tf.stop_gradient,
        "tanh": tf.tanh,
    },
    of_two={
        "sum": lambda x, y: x + y,
        "difference": lambda x, y: x - y,
        "product": lambda x, y: x * y,
        "quotient": lambda x, y: x / y,
    },
)

ACTIVATIONS: Final[tuple[tuple[Step, ...], ...]] = (
    (
        ("product", (NUMBER, X)),
        ("negative", (X,)),
        ("quotient", (FIRST + 1, NUMBER)),
        ("erfc", (FIRST + 2,)),
        ("product", (FIRST, FIRST + 3)),
    ),
    (
        ("square", (X,)),
        ("product", (FIRST, X)),
        ("sum", (X, FIRST + 1)),
        ("tanh", (FIRST + 2,)),
        ("sum", (FIRST + 3, NUMBER)),
        ("product", (FIRST + 4, X)),
    ),
    (
        ("softplus", (X,)),
        ("tanh", (FIRST,)),
        ("product", (X, FIRST + 1)),
        ("difference", (NUMBER, FIRST + 2)),
        ("sigmoid", (FIRST + 3,)),
        ("product", (FIRST + 4, FIRST + 2)),
    ),
    (
        ("negative", (X,)),
        ("exponential", (FIRST,)),
        ("sum", (FIRST + 1, NUMBER)),
        ("quotient", (X, FIRST + 2)),
    ),
)


def activated(program: Steps) -> Activated:
    """A model of what a program makes of rows: a sum as wide as they are."""

    def read(x: Any, number: Any) -> Any:
        return sum(LANGUAGE.run(program, [tf.tanh(x), number]), tf.zeros_like(x))

    return Activated(read)


@pytest.mark.parametrize("examples", [10, slow(80)])
def test_a_changed_activation_is_tensorflows(examples: int) -> None:
    @hypothesis.settings(max_examples=examples, deadline=None, derandomize=True)
    @hypothesis.given(program=LANGUAGE.changed(ACTIVATIONS))
    def check(program: Steps) -> None:
        model = activated(program)
        expected = expected_of(model, IDS)
        if expected is None:
            with pytest.raises(embgrad.NoGradientError):
                embgrad.gradients(model, IDS, embgrad.Sum(), compile=True)
            return
        found = embgrad.gradients(model, IDS, embgrad.Sum(), compile=True)
        assert found.provenance["compiled"]
        np.testing.assert_allclose(
            found.table().to_dense(), expected, rtol=0, atol=1e-12 + 1e-9 * np.abs(expected).max()
        )

    check()


def test_each_activation_as_it_is_has_its_gradient_from_here(activations: Callable[[], int]) -> None:
    """Else nothing above would be about what it is meant to be."""
    for number, (steps, products) in enumerate(zip(ACTIVATIONS, (1, 2, 2, 1), strict=True)):
        before = activations()
        embgrad.gradients(activated(LANGUAGE.unchanged(steps)), IDS, embgrad.Sum(), compile=True)
        assert activations() - before == products, number
