"""Gradients of operations as TensorFlow computes them, to the bit, less what a pullback to points throws away.

TensorFlow's own functions compute the gradients of biases, constants and kernels that nobody asked for, and find out shapes
that are known by running operations. Where one is not known here to do the same with less, TensorFlow's own is called.
Rows of zeros are left out too, which may change the last bits of others: a product with fewer rows adds up in another order.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import backprop
from tensorflow.python.framework import ops
from tensorflow.python.ops import gen_array_ops, gen_linalg_ops, gen_math_ops, gen_nn_ops, math_ops

from embgrad_tensorflow.fewrows import Compute, FewRows, Rows
from embgrad_tensorflow.tracedrows import TracedRows

__all__ = ["by_rows", "lean_gradients"]

#: The dtypes that the rules below are for: complex numbers would have to be conjugated.
REAL: Final = frozenset({tf.bfloat16, tf.float16, tf.float32, tf.float64})

#: Gradients with respect to the operands, None for one that is not needed.
Gradients = Sequence[Any]

_inside = 0
_guard = threading.Lock()  # held for a moment only, unlike the process's lock, which a forward pass holds
_local = threading.local()


@contextlib.contextmanager
def lean_gradients(known: Iterable[tuple[Any, Rows]] = ()) -> Iterator[None]:
    """Gradients that this thread asks a tape for are computed so; other threads' are as ever.

    Args:
        known: in a graph that is being traced gradients of which it is known which rows are not zero.
    """
    _count(1)
    was = getattr(_local, "rows", None)
    _local.rows = FewRows() if tf.executing_eagerly() else TracedRows(known)
    try:
        yield
    finally:
        _local.rows = was
        _count(-1)


def by_rows(name: str, gradient: Any, operands: Sequence[Any], compute: Compute) -> Sequence[Any]:
    """The gradients with respect to the operands, those of few rows where that of the result has no others.

    Args:
        name: what takes each row by itself.
        gradient: that of its result, (…, dim).
        operands: its operands, of which the gradient with respect to the first is asked for.
        compute: computes it.
    """
    rows: FewRows | None = getattr(_local, "rows", None)
    if rows is None or not _is_plain(gradient) or not _is_for(rows, gradient):
        return compute(gradient, operands, None)
    others = frozenset(range(1, len(operands)))
    found = rows.gradients(name, dict, gradient, (operands, None), others, compute)
    if found is None:
        found = compute(gradient, operands, None)
        rows.went_on(gradient, found)
    return found


def _count(more: int) -> None:
    """TensorFlow has one function for all threads that finds an operation's gradient."""
    global _inside
    with _guard:
        _inside += more
        if _inside == max(more, 0):  # the first has come, or the last has gone
            pywrap_tfe.TFE_Py_RegisterGradientFunction(_gradient if _inside else backprop._gradient_function)


def _gradient(
    name: Any,
    attrs: Any,
    count: int,
    inputs: Any,
    outputs: Any,
    gradients: Any,
    skipped: Any,
    scope: Any,
) -> Any:
    """In place of TensorFlow's function of the same arguments."""
    rows: FewRows | None = getattr(_local, "rows", None)
    if rows is None or len(gradients) != 1 or not _is_plain(gradients[0]):
        return backprop._gradient_function(name, attrs, count, inputs, outputs, gradients, skipped, scope)
    called = name if type(name) is str else name.decode()
    left_out = frozenset(skipped or ())
    ours = (called in RULES or called in rows.names) and _is_tensorflows(called)
    rule = RULES.get(called) if ours and isinstance(gradients[0], ops.EagerTensor) else None

    def compute(gradient: Any, inputs: Any, outputs: Any) -> Any:
        found = None if rule is None else rule(gradient, inputs, attrs, left_out)
        if found is None:
            found = backprop._gradient_function(name, attrs, count, inputs, outputs, [gradient], skipped, scope)
        if ours and called != "GatherNd":  # which takes out rows, so that those of others are zero
            rows.went_on(gradient, found)
        return found

    if ours and called in rows.names and _is_for(rows, gradients[0]):
        operands = ([None] * count if inputs is None else inputs, outputs)
        found = rows.gradients(called, lambda: _said(attrs), gradients[0], operands, left_out, compute)
        if found is not None:
            return found
    return compute(gradients[0], inputs, outputs)


def _is_for(rows: FewRows, gradient: Any) -> bool:
    """Whether both are of a graph, or both of none."""
    return (type(rows) is FewRows) == isinstance(gradient, ops.EagerTensor)


def _is_plain(gradient: Any) -> bool:
    return isinstance(gradient, tf.Tensor) and gradient.dtype in REAL


def _is_tensorflows(name: str) -> bool:
    """Whether an operation's gradient is TensorFlow's own, and not somebody else's in its place."""
    own: bool = ops._gradient_registry.lookup(name).__module__.startswith("tensorflow.python.ops.")
    return own


def _bias_add(gradient: Any, inputs: Any, attrs: Any, skipped: frozenset[int]) -> Gradients | None:
    return [gradient, None] if 1 in skipped else None


def _add(gradient: Any, inputs: Any, attrs: Any, skipped: frozenset[int]) -> Gradients | None:
    return _of_operands(gradient, inputs, skipped, lambda x, y: gradient, lambda x, y: gradient)


def _subtract(gradient: Any, inputs: Any, attrs: Any, skipped: frozenset[int]) -> Gradients | None:
    return _of_operands(gradient, inputs, skipped, lambda x, y: gradient, lambda x, y: gen_math_ops.neg(gradient))


def _multiply(gradient: Any, inputs: Any, attrs: Any, skipped: frozenset[int]) -> Gradients | None:
    return _of_operands(
        gradient,
        inputs,
        skipped,
        lambda x, y: gen_math_ops.mul(gradient, y),
        lambda x, y: gen_math_ops.mul(x, gradient),
    )


def _divide(gradient: Any, inputs: Any, attrs: Any, skipped: frozenset[int]) -> Gradients | None:
    if 1 not in skipped:
        return None
    return _of_operands(gradient, inputs, skipped, lambda x, y: gen_math_ops.real_div(gradient, y), None)


def _squared_difference(gradient: Any, inputs: Any, attrs: Any, skipped: frozenset[int]) -> Gradients | None:
    def above(x: Any, y: Any) -> Any:
        two = tf.constant(2.0, gradient.dtype)
        return gen_math_ops.mul(gen_math_ops.mul(two, gradient), gen_math_ops.sub(x, y))

    return _of_operands(gradient, inputs, skipped, above, None) if 1 in skipped else None


def _of_operands(gradient: Any, inputs: Any, skipped: frozenset[int], *ways: Any) -> Gradients | None:
    """The gradients of two operands that are broadcast, each made by its own way and summed where it was spread."""
    if inputs is None or any(one is None for one in inputs):
        return None
    given, shapes = gradient._shape_tuple(), [one._shape_tuple() for one in inputs]
    if any(one.dtype != gradient.dtype for one in inputs) or np.broadcast_shapes(*shapes) != given:
        return None
    return [
        None if number in skipped else _summed(way(*inputs), given, shape)
        for number, (way, shape) in enumerate(zip(ways, shapes, strict=True))
    ]


def _summed(gradient: Any, given: tuple[int, ...], shape: tuple[int, ...]) -> Any:
    """The gradient with respect to an operand of this shape that was spread out to the given one."""
    if shape == given:
        return gradient
    more = len(given) - len(shape)
    spread = [number for number, size in enumerate(given) if number < more or shape[number - more] != size]
    return gen_array_ops.reshape(gen_math_ops._sum(gradient, spread, True), _constant(shape))


def _reshape(gradient: Any, inputs: Any, attrs: Any, skipped: frozenset[int]) -> Gradients | None:
    return [gen_array_ops.reshape(gradient, _constant(inputs[0]._shape_tuple())), None]


def _transpose(gradient: Any, inputs: Any, attrs: Any, skipped: frozenset[int]) -> Gradients | None:
    order = inputs[1].numpy()
    if (order < 0).any():
        return None
    return [gen_array_ops.transpose(gradient, _constant(np.argsort(order).tolist())), None]


def _sum(gradient: Any, inputs: Any, attrs: Any, skipped: frozenset[int]) -> Gradients | None:
    return [_spread(gradient, *inputs), None]


def _mean(gradient: Any, inputs: Any, attrs: Any, skipped: frozenset[int]) -> Gradients | None:
    """Divided before it is spread out, which gives the same numbers."""
    size, size_after = (int(np.prod(one._shape_tuple())) for one in (inputs[0], gradient))
    share = gen_math_ops.real_div(gradient, tf.constant(size // max(size_after, 1), gradient.dtype))
    return [_spread(share, *inputs), None]


def _spread(gradient: Any, source: Any, axes: Any) -> Any:
    shape = source._shape_tuple()
    reduced = {axis % len(shape) for axis in axes.numpy().ravel().tolist()} if shape else set()
    kept = tuple(1 if number in reduced else size for number, size in enumerate(shape))
    if gradient._shape_tuple() != kept:
        gradient = gen_array_ops.reshape(gradient, _constant(kept))
    return gen_array_ops.broadcast_to(gradient, _constant(shape))


def _matrices(gradient: Any, inputs: Any, attrs: Any, skipped: frozenset[int]) -> Gradients | None:
    """A product with a matrix of weights, of which TensorFlow's own function does the same, by more detours."""
    said = _said(attrs)
    if skipped != {1} or said.get("transpose_a"):
        return None
    straight = not said.get("transpose_b")
    return [gen_math_ops.mat_mul(gradient, inputs[1], transpose_b=straight, grad_a=True), None]


def _batches(gradient: Any, inputs: Any, attrs: Any, skipped: frozenset[int]) -> Gradients | None:
    """A product of batches of matrices, of which one may be a single matrix for all."""
    x, y = inputs
    given = gradient._shape_tuple()[:-2]
    wanted = [one for number, one in enumerate(inputs) if number not in skipped]
    if any(one._shape_tuple()[:-2] != given for one in wanted) or not x.dtype == y.dtype == gradient.dtype:
        return None
    said = _said(attrs)
    adjoint_x, adjoint_y = bool(said.get("adj_x")), bool(said.get("adj_y"))
    of_x = (y, gradient, adjoint_y, True) if adjoint_x else (gradient, y, False, not adjoint_y)
    of_y = (gradient, x, True, adjoint_x) if adjoint_y else (x, gradient, not adjoint_x, False)
    return [
        None if number in skipped else _product(*operands, **{which: True})
        for number, (operands, which) in enumerate(((of_x, "grad_a"), (of_y, "grad_b")))
    ]


def _product(a: Any, b: Any, adjoint_a: bool, adjoint_b: bool, **which: bool) -> Any:
    return math_ops.matmul(a, b, adjoint_a=adjoint_a, adjoint_b=adjoint_b, **which)


def _einsum(gradient: Any, inputs: Any, attrs: Any, skipped: frozenset[int]) -> Gradients | None:
    """Of a product of two, where each label of an operand stands in the other or the result, too, and none in it twice."""
    equation = tf.compat.as_str(_said(attrs).get("equation", ""))
    sides, arrow, result = equation.partition("->")
    labels = sides.split(",")
    if not skipped or not arrow or len(labels) != 2 or not equation.replace(",", "").replace("->", "").isalpha():
        return None
    if any(len(set(one)) != len(one) for one in (*labels, result)):
        return None
    found: list[Any] = [None, None]
    for number, other in ((0, 1), (1, 0)):
        if not set(labels[number]) <= {*labels[other], *result}:
            return None
        if number not in skipped:
            way = f"{result},{labels[other]}->{labels[number]}"
            found[number] = gen_linalg_ops.einsum([gradient, inputs[other]], way)
    return found


def _convolution(gradient: Any, inputs: Any, attrs: Any, skipped: frozenset[int]) -> Gradients | None:
    if 1 not in skipped:
        return None
    operation = backprop._MockOp(attrs, inputs, None, "Conv2D", None)
    names = ("dilations", "strides", "padding", "explicit_paddings", "use_cudnn_on_gpu", "data_format")
    said = {name: operation.get_attr(name) for name in names}
    shape = _constant(inputs[0]._shape_tuple())
    return [gen_nn_ops.conv2d_backprop_input(shape, inputs[1], gradient, **said), None]


def _said(attrs: Any) -> Mapping[str, Any]:
    return dict(zip(map(tf.compat.as_str, attrs[::2]), attrs[1::2], strict=True))


def _constant(sizes: Sequence[int]) -> Any:
    return _kept_constant(tuple(sizes))


@functools.lru_cache(1024)
def _kept_constant(sizes: tuple[int, ...]) -> Any:
    """A pullback asks for the same few shapes again and again."""
    return tf.constant(sizes, tf.int32)


#: By operation.
RULES: Final[Mapping[str, Callable[..., Gradients | None]]] = {
    "Add": _add,
    "AddV2": _add,
    "BatchMatMulV2": _batches,
    "BiasAdd": _bias_add,
    "Conv2D": _convolution,
    "Einsum": _einsum,
    "MatMul": _matrices,
    "Mean": _mean,
    "Mul": _multiply,
    "RealDiv": _divide,
    "Reshape": _reshape,
    "SquaredDifference": _squared_difference,
    "Sub": _subtract,
    "Sum": _sum,
    "Transpose": _transpose,
}
