"""Gradients with less work are TensorFlow's own to the bit, in this thread alone, and only while they are asked for."""

import re
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from embgrad_tensorflow.leangradients import RULES, lean_gradients
from tensorflow.python.framework import op_callbacks, ops

Shape = tuple[int, ...]


def drawn(shape: Shape, seed: int, dtype: Any = tf.float32) -> Any:
    values = np.random.default_rng(seed).normal(size=shape)
    return tf.cast(tf.constant(np.where(np.abs(values) < 0.1, 0.5, values)), dtype)


def pulled(function: Callable[..., Any], operands: list[Any], watched: tuple[int, ...]) -> list[np.ndarray | None]:
    """The gradients of the operands watched, of a weighted sum whose weights differ."""
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        sources = [operands[number] for number in watched]
        tape.watch(sources)
        result = function(*operands)
    weights = drawn(tuple(result.shape), 7, result.dtype)
    found = tape.gradient(result, sources, output_gradients=weights)
    return [None if one is None else tf.convert_to_tensor(one).numpy() for one in found]


def operations(run: Callable[[], Any]) -> Counter[str]:
    """The operations that this thread runs meanwhile."""
    return Counter(name for name, _ in heard(run))


def heard(run: Callable[[], Any]) -> list[tuple[str, Any]]:
    """The same in order, each with its operands."""
    seen: list[tuple[str, Any]] = []

    def called(kind: Any, inputs: Any, *_: Any, **__: Any) -> None:
        seen.append((tf.compat.as_str(kind), inputs))

    op_callbacks.add_op_callback(called)
    try:
        run()
    finally:
        op_callbacks.remove_op_callback(called)
    return seen


BINARY = {
    "AddV2": tf.add,
    "Mul": tf.multiply,
    "RealDiv": tf.divide,
    "SquaredDifference": tf.math.squared_difference,
    "Sub": tf.subtract,
}
SPREADS: list[tuple[Shape, Shape]] = [
    ((2, 3, 4), (2, 3, 4)),
    ((2, 3, 4), ()),
    ((), (2, 3, 4)),
    ((2, 3, 4), (4,)),
    ((4,), (2, 3, 4)),
    ((2, 1, 4), (1, 3, 1)),
    ((2, 3, 1), (2, 3, 4)),
    ((1, 1), (1,)),
    ((0, 3), (3,)),
]


@pytest.mark.parametrize("watched", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float32, tf.float64])
@pytest.mark.parametrize("shapes", SPREADS)
@pytest.mark.parametrize("name", BINARY)
def test_operands_that_are_spread(name: str, shapes: tuple[Shape, Shape], dtype: Any, watched: tuple[int, ...]) -> None:
    operands = [drawn(shape, seed, dtype) for seed, shape in enumerate(shapes)]
    expect_equal(BINARY[name], operands, watched)


OTHERS: dict[str, tuple[Callable[..., Any], tuple[Shape, ...]]] = {
    "bias": (tf.nn.bias_add, ((2, 3, 4), (4,))),
    "bias, channels first": (lambda x, y: tf.nn.bias_add(x, y, data_format="NCHW"), ((2, 4, 3, 5), (4,))),
    "mean": (lambda x: tf.reduce_mean(x, -1), ((2, 3, 4),)),
    "mean of all": (tf.reduce_mean, ((2, 3, 4),)),
    "mean kept": (lambda x: tf.reduce_mean(x, [0, -1], keepdims=True), ((2, 3, 5),)),
    "mean over no axis": (lambda x: tf.reduce_mean(x, []), ((2, 3),)),
    "mean of a number": (tf.reduce_mean, ((),)),
    "sum": (lambda x: tf.reduce_sum(x, 1), ((2, 3, 4),)),
    "sum of all": (tf.reduce_sum, ((2, 3, 4),)),
    "reshape": (lambda x: tf.reshape(x, (6, -1)), ((2, 3, 4),)),
    "reshape of a number": (lambda x: tf.reshape(x, (1, 1)), ((),)),
    "transpose": (lambda x: tf.transpose(x, (2, 0, 1)), ((2, 3, 4),)),
    "matrices": (tf.matmul, ((3, 4), (4, 5))),
    "matrices, the second transposed": (lambda x, y: tf.matmul(x, y, transpose_b=True), ((3, 4), (5, 4))),
    "matrices, the first transposed": (lambda x, y: tf.matmul(x, y, transpose_a=True), ((4, 3), (4, 5))),
    "batches": (tf.matmul, ((2, 3, 4), (2, 4, 5))),
    "batches of one": (tf.matmul, ((2, 3, 4), (1, 4, 5))),
    "batches, one matrix for all": (tf.matmul, ((2, 3, 4), (4, 5))),
    "batches, one matrix for all, transposed": (lambda x, y: tf.matmul(x, y, transpose_b=True), ((2, 3, 4), (5, 4))),
    "batches, one matrix for all first": (tf.matmul, ((3, 4), (2, 4, 5))),
    "batches of batches, each shared": (tf.matmul, ((2, 1, 3, 4), (7, 4, 5))),
    "einsum": (lambda x, y: tf.einsum("bsd,dnh->bsnh", x, y), ((2, 3, 4), (4, 5, 6))),
    "einsum, swapped": (lambda x, y: tf.einsum("dnh,bsd->bsnh", x, y), ((4, 5, 6), (2, 3, 4))),
    "einsum with more axes": (lambda x, y: tf.einsum("...d,de->...e", x, y), ((2, 3, 4), (4, 5))),
    "einsum of a diagonal": (lambda x, y: tf.einsum("bii,ij->bj", x, y), ((2, 3, 3), (3, 4))),
    "einsum that sums one away": (lambda x, y: tf.einsum("bsd,de->be", x, y), ((2, 3, 4), (4, 5))),
    "convolution": (lambda x, y: tf.nn.conv2d(x, y, 2, "SAME"), ((2, 5, 6, 3), (2, 3, 3, 4))),
    "convolution of one axis": (lambda x, y: tf.nn.conv1d(x, y, 2, "VALID"), ((2, 9, 3), (3, 3, 4))),
}


@pytest.mark.parametrize("watched", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("case", OTHERS)
def test_other_operations(case: str, watched: tuple[int, ...]) -> None:
    function, shapes = OTHERS[case]
    if max(watched) >= len(shapes):
        watched = (0,)
    expect_equal(function, [drawn(shape, seed) for seed, shape in enumerate(shapes)], watched)


@pytest.mark.parametrize("watched", [(0,), (1,), (0, 1)])
def test_a_dilated_convolution(watched: tuple[int, ...]) -> None:
    """TensorFlow itself has no gradient of it on a CPU for which it leaves oneDNN alone."""

    def function(x: Any, y: Any) -> Any:
        return tf.nn.conv1d(x, y, 1, "VALID", dilations=2)

    operands = [drawn((2, 9, 3), 0), drawn((3, 3, 4), 1)]
    try:
        pulled(function, operands, watched)
    except tf.errors.InvalidArgumentError as error:
        with lean_gradients(), pytest.raises(tf.errors.InvalidArgumentError, match=re.escape(error.message)):
            pulled(function, operands, watched)
    else:
        expect_equal(function, operands, watched)


@pytest.mark.parametrize("transposed", [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize("watched", [(0,), (1,), (0, 1)])
def test_batches_of_matrices_however_they_lie(transposed: tuple[bool, bool], watched: tuple[int, ...]) -> None:
    shapes = [(2, 4, 3) if transposed[0] else (2, 3, 4), (2, 5, 4) if transposed[1] else (2, 4, 5)]
    operands = [drawn(shape, seed) for seed, shape in enumerate(shapes)]
    expect_equal(lambda x, y: tf.matmul(x, y, adjoint_a=transposed[0], adjoint_b=transposed[1]), operands, watched)


def expect_equal(function: Callable[..., Any], operands: list[Any], watched: tuple[int, ...]) -> None:
    expected = pulled(function, operands, watched)
    with lean_gradients():
        found = pulled(function, operands, watched)
    for one, other in zip(expected, found, strict=True):
        assert one is not None
        assert other is not None
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("watched", [0, 1])
def test_of_a_matrix_for_all_no_gradient_is_computed_that_nobody_asked_for(watched: int) -> None:
    """As of a language model's table, which takes more than all else."""
    operands = [drawn((2, 3, 4), 0), drawn((5, 4), 1)]
    with lean_gradients():
        seen = operations(lambda: pulled(lambda x, y: tf.matmul(x, y, transpose_b=True), operands, (watched,)))
    assert seen["BatchMatMulV2"] == (2 if watched == 0 else 3)  # the function's own is one


def test_complex_numbers_are_left_to_tensorflow() -> None:
    operands = [tf.complex(drawn((2, 3), 0), drawn((2, 3), 1)), tf.complex(drawn((3,), 2), drawn((3,), 3))]
    expect_equal(tf.multiply, operands, (0, 1))


def test_gradients_that_are_rows_of_a_table_are_left_to_tensorflow() -> None:
    expect_equal(lambda table: tf.gather(tf.reshape(table, (4, 3)), [1, 1, 0]), [drawn((2, 6), 0)], (0,))


def test_what_nobody_asked_for_is_not_computed() -> None:
    def run() -> None:
        operands = [drawn((2, 3, 4), 0), drawn((4,), 1)]
        pulled(lambda x, y: tf.nn.bias_add(x / tf.constant(3.0), y), operands, (0,))

    def lean() -> None:
        with lean_gradients():
            run()

    own, less = operations(run), operations(lean)
    assert own["BiasAddGrad"] == 1
    assert own["RealDiv"] == 4
    assert less["BiasAddGrad"] == 0
    assert less["RealDiv"] == 2


def test_other_threads_and_what_comes_after_are_as_ever() -> None:
    def run() -> None:
        pulled(tf.nn.bias_add, [drawn((2, 3), 0), drawn((3,), 1)], (0,))

    seen: list[int] = []
    with lean_gradients():
        thread = threading.Thread(target=lambda: seen.append(operations(run)["BiasAddGrad"]))
        thread.start()
        thread.join()
        with lean_gradients():
            assert operations(run)["BiasAddGrad"] == 0
        assert operations(run)["BiasAddGrad"] == 0
    assert seen == [1]
    assert operations(run)["BiasAddGrad"] == 1


def test_an_exception_ends_it_too() -> None:
    with pytest.raises(KeyboardInterrupt), lean_gradients():
        raise KeyboardInterrupt
    assert operations(lambda: pulled(tf.nn.bias_add, [drawn((2, 3), 0), drawn((3,), 1)], (0,)))["BiasAddGrad"] == 1


def test_a_gradient_that_is_somebody_elses_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    def theirs(operation: Any, gradient: Any) -> Any:
        return gradient * 3.0, None

    registry = ops._gradient_registry._registry
    monkeypatch.setitem(registry, "BiasAdd", {**registry["BiasAdd"], "type": theirs})
    with lean_gradients():
        (found,) = pulled(tf.nn.bias_add, [drawn((2, 3), 0), drawn((3,), 1)], (0,))
    assert found is not None
    np.testing.assert_array_equal(found, drawn((2, 3), 7).numpy() * np.float32(3))


@pytest.mark.parametrize("name", sorted(RULES))
def test_each_rule_is_for_an_operation_of_tensorflows(name: str) -> None:
    assert ops._gradient_registry.lookup(name).__module__.startswith("tensorflow.python.ops.")
