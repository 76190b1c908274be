"""The gradient of layer norms in a few passes, against TensorFlow's own and finite differences, and where there is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from embgrad_tensorflow import normalising
from tensorflow.python.eager import record

import embgrad
from tests.tensorflow.helpers import KERAS, assert_slopes, halved, own_of_sum, own_table_gradient, recorded_halved

EXAMPLES, POSITIONS, DIM = 3, 5, 7
IDS = np.random.default_rng(0).permutation(EXAMPLES * POSITIONS).reshape(EXAMPLES, POSITIONS)
EPSILON = 1e-3

#: Of rows, a scale and a shift.
Function = Callable[[Any, Any, Any], Any]


class Normed(tf.Module):
    """Rows → a function of theirs, a scale and a shift → one number an example."""

    def __init__(self, function: Function, dtype: str = "float64", table: np.ndarray | None = None) -> None:
        super().__init__()
        random = np.random.default_rng(1)
        made = [random.normal(size=shape) for shape in ((20, DIM), (DIM,), (DIM,), (EXAMPLES, POSITIONS, DIM))]
        self.table = tf.Variable(made[0] if table is None else table, dtype=dtype)
        self.scale = tf.Variable(made[1], dtype=dtype, name="scale")
        self.shift = tf.Variable(made[2], dtype=dtype, name="shift")
        self.weights = tf.constant(made[3], dtype=dtype)
        self.function = function

    def __call__(self, input_ids: Any, **_: Any) -> Any:
        rows = tf.tanh(tf.nn.embedding_lookup(self.table, input_ids))
        normed = self.function(rows, tf.convert_to_tensor(self.scale), tf.convert_to_tensor(self.shift))
        return tf.reduce_sum(tf.sin(normed) * self.weights, [1, 2])


@pytest.fixture
def pulled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, bool]]:
    """Grows by the shape of each gradient that ours is given, and whether that is in a trace."""
    shapes: list[tuple[Any, bool]] = []
    gradient = normalising._gradient

    def noted(given: Any, *others: Any) -> Any:
        shapes.append((tuple(given.shape), not tf.executing_eagerly()))
        return gradient(given, *others)

    monkeypatch.setattr(normalising, "_gradient", noted)
    return shapes


def mean(x: Any, axis: Any = -1) -> Any:
    return tf.reduce_mean(x, axis, keepdims=True)


def variance(x: Any, axis: Any = -1) -> Any:
    return mean(tf.math.squared_difference(x, mean(x, axis)), axis)


def by_moments(x: Any, scale: Any, shift: Any, axes: Any = (-1,)) -> Any:
    return tf.nn.batch_normalization(x, *tf.nn.moments(x, list(axes), keepdims=True), shift, scale, EPSILON)


def without_scale(x: Any, scale: Any, shift: Any) -> Any:
    return tf.nn.batch_normalization(x, *tf.nn.moments(x, [-1], keepdims=True), None, None, EPSILON)


def of_a_difference(x: Any, scale: Any, shift: Any) -> Any:
    difference = x - mean(x)
    return difference * tf.math.rsqrt(mean(tf.square(difference)) + EPSILON) * scale + shift


def divided(x: Any, scale: Any, shift: Any) -> Any:
    return scale * (x - mean(x)) / tf.sqrt(tf.math.reduce_variance(x, -1, keepdims=True) + EPSILON) + shift


def divided_first(x: Any, scale: Any, shift: Any) -> Any:
    return scale * ((x - mean(x)) / tf.sqrt(variance(x) + EPSILON)) + shift


def scaled_first(x: Any, scale: Any, shift: Any) -> Any:
    return (x - mean(x)) * (scale * tf.math.rsqrt(EPSILON + variance(x)))


def in_keras_3(x: Any, scale: Any, shift: Any) -> Any:
    factor = tf.math.rsqrt(variance(x) + EPSILON) * scale
    return x * factor + (-mean(x) * factor + shift)


def taken_off(x: Any, scale: Any, shift: Any) -> Any:
    factor = tf.math.rsqrt(variance(x) + EPSILON)
    return factor * x - mean(x) * factor


def taken_off_with_shift(x: Any, scale: Any, shift: Any) -> Any:
    factor = tf.math.rsqrt(variance(x) + EPSILON)
    return factor * x - (mean(x) * factor - shift)


def root_mean_square(x: Any, scale: Any, shift: Any) -> Any:
    return scale * (x * tf.math.rsqrt(mean(tf.square(x)) + EPSILON))


def root_mean_square_divided(x: Any, scale: Any, shift: Any) -> Any:
    return x / tf.sqrt(mean(tf.square(x)) + EPSILON) * scale


def of_what_is_centred(x: Any, scale: Any, shift: Any) -> Any:
    """Its mean is taken off, but has no gradient: a root mean square of what is left."""
    difference = x - tf.stop_gradient(mean(x))
    return difference * tf.math.rsqrt(mean(tf.square(difference)) + EPSILON)


def over_two_axes(x: Any, scale: Any, shift: Any) -> Any:
    return by_moments(x, scale, shift, (1, 2))


def over_positions(x: Any, scale: Any, shift: Any) -> Any:
    return by_moments(x, scale, shift, (1,))


def parts_used_elsewhere(x: Any, scale: Any, shift: Any) -> Any:
    """What the norm computes on its way has other uses, whose gradients come to it by their own ways."""
    average, factor = mean(x), tf.math.rsqrt(variance(x) + EPSILON)
    product = x * factor
    return (product - average * factor) * tf.tanh(product) + average * factor**2 + x


def norm_of_a_norm(x: Any, scale: Any, shift: Any) -> Any:
    return by_moments(tf.nn.gelu(by_moments(x, scale, shift) * 1.5) + x, shift, scale)


def rows_and_norm_halved(x: Any, scale: Any, shift: Any) -> Any:
    return halved(by_moments(halved(x), scale, shift))


SERVED: dict[str, tuple[Function, int]] = {
    function.__name__: (function, 2 if function is norm_of_a_norm else 1)
    for function in (
        by_moments,
        without_scale,
        of_a_difference,
        divided,
        divided_first,
        scaled_first,
        in_keras_3,
        taken_off,
        taken_off_with_shift,
        root_mean_square,
        root_mean_square_divided,
        of_what_is_centred,
        over_two_axes,
        over_positions,
        parts_used_elsewhere,
        norm_of_a_norm,
        rows_and_norm_halved,
    )
}


def statistics_stopped(x: Any, scale: Any, shift: Any) -> Any:
    return (x - tf.stop_gradient(mean(x))) * tf.stop_gradient(tf.math.rsqrt(variance(x) + EPSILON))


def mean_stopped(x: Any, scale: Any, shift: Any) -> Any:
    average, factor = tf.stop_gradient(mean(x)), tf.math.rsqrt(variance(x) + EPSILON)
    return x * factor - average * factor


def mean_and_difference_stopped(x: Any, scale: Any, shift: Any) -> Any:
    return (x - tf.stop_gradient(mean(x))) * tf.math.rsqrt(variance(x) + EPSILON)


def factor_stopped(x: Any, scale: Any, shift: Any) -> Any:
    return (x - mean(x)) * tf.stop_gradient(tf.math.rsqrt(variance(x) + EPSILON))


def epsilon_for_each(x: Any, scale: Any, shift: Any) -> Any:
    return (x - mean(x)) * tf.math.rsqrt(variance(x) + tf.abs(shift))


def epsilon_with_a_gradient(x: Any, scale: Any, shift: Any) -> Any:
    return (x - mean(x)) * tf.math.rsqrt(variance(x) + tf.square(mean(x * scale)))


def scale_with_a_gradient(x: Any, scale: Any, shift: Any) -> Any:
    factor = tf.math.rsqrt(variance(x) + EPSILON) * tf.sigmoid(x * scale)
    return x * factor - mean(x) * factor


def other_axes(x: Any, scale: Any, shift: Any) -> Any:
    return (x - mean(x)) * tf.math.rsqrt(variance(x, 1) + EPSILON)


def anothers_variance(x: Any, scale: Any, shift: Any) -> Any:
    return (x - mean(x)) * tf.math.rsqrt(variance(tf.sin(x)) + EPSILON)


def added_instead(x: Any, scale: Any, shift: Any) -> Any:
    factor = tf.math.rsqrt(variance(x) + EPSILON)
    return x * factor + mean(x) * factor


def difference_not_recorded(x: Any, scale: Any, shift: Any) -> Any:
    average = mean(x)
    with record.stop_recording():
        difference = x - average
    return difference * tf.math.rsqrt(variance(x) + EPSILON)


def tape_begun_in_the_midst(x: Any, scale: Any, shift: Any) -> Any:
    """To the inner tape the statistics are constants."""
    average, factor = mean(x), tf.math.rsqrt(variance(x) + EPSILON)
    with tf.GradientTape() as tape:
        tape.watch(x)
        inside = tf.reduce_sum(tf.square((x - average) * factor))
    return tape.gradient(inside, x)


def mean_halved(x: Any, scale: Any, shift: Any) -> Any:
    return (x - halved(mean(x))) * tf.math.rsqrt(variance(x) + EPSILON)


def factor_halved(x: Any, scale: Any, shift: Any) -> Any:
    return (x - mean(x)) * halved(tf.math.rsqrt(variance(x) + EPSILON))


def recomputed(x: Any, scale: Any, shift: Any) -> Any:
    return tf.recompute_grad(by_moments)(x, scale, shift)


def factor_recorded_anew(x: Any, scale: Any, shift: Any) -> Any:
    whole = variance(x) + EPSILON
    return (x - mean(x)) * recorded_halved(tf.math.rsqrt(whole), whole)


def mean_recorded_anew(x: Any, scale: Any, shift: Any) -> Any:
    """After it was taken off, from which it goes on all the same."""
    average = mean(x)
    difference = x - average
    recorded_halved(average, mean(tf.sin(x)))
    return difference * tf.math.rsqrt(variance(x) + EPSILON)


LEFT_ALONE: dict[str, Function] = {
    function.__name__: function
    for function in (
        statistics_stopped,
        mean_stopped,
        mean_and_difference_stopped,
        factor_stopped,
        epsilon_for_each,
        epsilon_with_a_gradient,
        scale_with_a_gradient,
        other_axes,
        anothers_variance,
        added_instead,
        difference_not_recorded,
        tape_begun_in_the_midst,
        mean_halved,
        factor_halved,
        recomputed,
        factor_recorded_anew,
        mean_recorded_anew,
    )
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", SERVED)
def test_a_norm_is_tensorflows_in_fewer_passes(name: str, dtype: str, served: list[str]) -> None:
    function, norms = SERVED[name]
    model = Normed(function, dtype)
    found = embgrad.gradients(model, IDS, embgrad.Sum())
    assert served == ["LayerNorm"] * norms
    expected = own_of_sum(model, IDS)
    rounding = 2e-6 if dtype == "float32" else 1e-14
    np.testing.assert_allclose(found.table().to_dense(), expected, rtol=0, atol=rounding * np.abs(expected).max())


#: Where a gradient is stopped, or another, it is no slope.
SLOPES = sorted({*SERVED} - {of_what_is_centred.__name__, rows_and_norm_halved.__name__})


@pytest.mark.parametrize("name", SLOPES)
def test_a_norm_is_the_slope_of_the_model(name: str) -> None:
    model = Normed(SERVED[name][0])
    found = embgrad.gradients(model, IDS, embgrad.Sum())
    assert_slopes(found, model.table, lambda: tf.reduce_sum(model(IDS)), step=1e-4)


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_what_is_no_layer_norm_is_tensorflows_to_the_bit(name: str, served: list[str]) -> None:
    model = Normed(LEFT_ALONE[name])
    found = embgrad.gradients(model, IDS, embgrad.Sum())
    assert served == []
    np.testing.assert_array_equal(found.table().to_dense(), own_of_sum(model, IDS))


def test_constant_rows_have_the_gradient_that_epsilon_gives_them(served: list[str]) -> None:
    model = Normed(by_moments, table=np.ones((20, DIM)))
    found = embgrad.gradients(model, IDS, embgrad.Sum())
    assert served == ["LayerNorm"]
    assert_slopes(found, model.table, lambda: tf.reduce_sum(model(IDS)), step=1e-5, rel=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_numbers_are_left_alone(dtype: str, served: list[str]) -> None:
    model = Normed(of_a_difference, dtype)
    found = embgrad.gradients(model, IDS, embgrad.Sum())
    assert served == []
    np.testing.assert_array_equal(found.table().to_dense(), own_of_sum(model, IDS).astype(np.float32))


def test_weights_keep_their_gradients(served: list[str]) -> None:
    model = Normed(by_moments)
    found = embgrad.parameter_gradients(model, IDS, embgrad.Sum())
    variables = [model.scale, model.shift]
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(model(IDS))
    for name, expected in zip(("scale:0", "shift:0"), tape.gradient(total, variables), strict=True):
        np.testing.assert_array_equal(found[name], expected.numpy())
    assert served == []


def test_each_of_several_pullbacks_has_its_own(served: list[str]) -> None:
    model = Normed(norm_of_a_norm)
    split = embgrad.gradients(model, IDS, embgrad.Sum(), split=True)
    whole = embgrad.gradients(model, IDS, embgrad.Sum())
    assert served
    np.testing.assert_allclose(split.values, whole.values, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("keras", KERAS)
@pytest.mark.parametrize("epsilon", [1e-12, 1e-6])
def test_keras_has_its_layers_so(keras: str, epsilon: float, served: list[str]) -> None:
    layers = KERAS[keras].layers
    model = KERAS[keras].Sequential(
        [layers.Embedding(20, DIM), layers.LayerNormalization(epsilon=epsilon), layers.Dense(4, activation="tanh")]
    )
    model(IDS)
    found = embgrad.gradients(model, IDS, embgrad.Sum())
    assert served == ["LayerNorm"]
    table = model.layers[0].embeddings
    expected = own_table_gradient(table, lambda: tf.reduce_sum(model(IDS)))
    np.testing.assert_allclose(found.table().to_dense(), expected, rtol=0, atol=2e-6 * np.abs(expected).max())


def test_few_rows_are_computed_alone(served: list[str], pulled: list[tuple[Any, bool]]) -> None:
    """Of an objective that reads one position, in a batch that is large enough to be looked through."""
    random = np.random.default_rng(2)

    class Wide(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.scale = (tf.Variable(random.normal(size=shape)) for shape in ((50, 64), (64,)))

        def __call__(self, input_ids: Any, **_: Any) -> Any:
            rows = tf.nn.embedding_lookup(self.table, input_ids)
            return by_moments(rows, tf.convert_to_tensor(self.scale), tf.constant(0.5, tf.float64))

    def read(returned: Any) -> Any:
        return tf.reduce_sum(tf.sin(returned[:, 3]), -1)

    model, ids = Wide(), random.integers(0, 50, (16, 80))
    found = embgrad.gradients(model, ids, read)
    assert served == ["LayerNorm"]
    assert pulled == [((16, 64), False)]
    expected = own_table_gradient(model.table, lambda: tf.reduce_sum(read(model(ids))))
    np.testing.assert_allclose(found.table().to_dense(), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("name", SERVED)
def test_a_norm_in_a_trace_is_tensorflows_too(name: str, split: bool, served: list[str]) -> None:
    function, norms = SERVED[name]
    model = Normed(function)
    first = embgrad.gradients(model, IDS, embgrad.Sum(), compile=True, split=split)
    assert served == ["LayerNorm"] * 2 * norms  # in the trace, and in the model that it is compared with
    found = embgrad.gradients(model, IDS, embgrad.Sum(), compile=True, split=split)
    assert len(served) == 2 * norms
    assert found.provenance["compiled"]
    expected = own_of_sum(model, IDS)
    for one in (first, found):
        np.testing.assert_allclose(one.table().to_dense(), expected, rtol=0, atol=1e-14 * np.abs(expected).max())


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_what_is_no_layer_norm_in_a_trace_is_tensorflows(name: str, served: list[str]) -> None:
    model = Normed(LEFT_ALONE[name])
    found = embgrad.gradients(model, IDS, embgrad.Sum(), compile=True)
    assert found.provenance["compiled"]
    assert served == []
    expected = own_of_sum(model, IDS)
    np.testing.assert_allclose(found.table().to_dense(), expected, rtol=0, atol=1e-14 * np.abs(expected).max())


def test_a_scale_of_unknown_shape_may_spread_out_a_norm_in_a_trace(served: list[str]) -> None:
    """Which it does here, where the rows of one example are given to two."""

    def spread(x: Any, scale: Any, shift: Any) -> Any:
        copies = tf.shape(x)[0]
        return (x[:1] - mean(x[:1])) * (
            tf.math.rsqrt(variance(x[:1]) + EPSILON) * tf.ones((copies, 1, DIM), x.dtype)
        ) + 0 * x

    model = Normed(spread)
    found = embgrad.gradients(model, IDS, embgrad.Sum(), compile=True)
    assert found.provenance["compiled"]
    assert served == []
    expected = own_of_sum(model, IDS)
    np.testing.assert_allclose(found.table().to_dense(), expected, rtol=0, atol=1e-14 * np.abs(expected).max())


def test_a_norm_in_a_branch_of_a_trace_keeps_its_own(served: list[str]) -> None:
    def branching(x: Any, scale: Any, shift: Any) -> Any:
        return tf.cond(tf.reduce_any(x > 0), lambda: by_moments(x, scale, shift), lambda: x)

    model = Normed(branching)
    found = embgrad.gradients(model, IDS, embgrad.Sum(), compile=True)
    expected = own_of_sum(model, IDS)
    np.testing.assert_allclose(found.table().to_dense(), expected, rtol=0, atol=1e-14 * np.abs(expected).max())
    assert found.provenance["compiled"]
    assert served == ["LayerNorm"]  # in the model that the trace is compared with


def test_few_rows_are_computed_alone_in_a_trace(pulled: list[tuple[Any, bool]]) -> None:
    random = np.random.default_rng(2)
    layers = KERAS["keras2"].layers
    model = KERAS["keras2"].Sequential(
        [layers.Embedding(50, 64), layers.LayerNormalization(epsilon=1e-6), layers.Dense(64, activation="tanh")]
    )
    ids = random.integers(0, 50, (16, 80))
    found = embgrad.gradients(model, ids, embgrad.Projection(np.ones(64), position=3), compile=True)
    assert found.provenance["compiled"]
    assert [len(shape) for shape, traced in pulled if traced] == [2]
    plain = embgrad.gradients(model, ids, embgrad.Projection(np.ones(64), position=3))
    np.testing.assert_allclose(found.values, plain.values, rtol=1e-5, atol=1e-7)
