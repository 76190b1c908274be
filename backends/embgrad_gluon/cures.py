"""Correct the operators of MXNet whose gradient is silently wrong, and refuse those that cannot be corrected.

Each cure documents what MXNet does wrong; `tests/frameworks/gluon/test_silent_errors.py`, `test_layers.py` and
`test_rewriting.py` hold each of them against finite differences.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from embgrad.errors import UnsupportedError
from embgrad.toolkit import Interception
from embgrad_gluon.importing import import_mxnet
from embgrad_gluon.lookup import Handler, Operation, invoke
from embgrad_gluon.walk import is_recorded

__all__ = ["GUARDED", "WRONG", "Cures", "Functions", "Guards", "copy_input_of_max_pooling"]

OWN: Final = "replaces the gradient of the objective by its own"
ZERO: Final = "has a gradient of zero in MXNet, which is wrong"
FAULTY: Final = "has a wrong gradient in MXNet"

#: Operators whose gradient is not that of their value, with the reason. Cured operators are listed as well, so that one
#: that escapes its cure is refused.
WRONG: Final[Mapping[str, str]] = {
    **dict.fromkeys(("LinearRegressionOutput", "LogisticRegressionOutput", "MAERegressionOutput"), OWN),
    **dict.fromkeys(("IdentityAttachKLSparseReg", "MakeLoss", "SVMOutput", "SoftmaxOutput", "make_loss"), OWN),
    **{f"_np_atleast_{axes}d": ZERO for axes in (1, 2, 3)},
    **{
        f"_npi_{name}": ZERO
        for name in ("eigh", "eigvals", "eigvalsh", "percentile", "pinv", "pinv_scalar_rcond", "std", "var")
    },
    **{f"_npi_{name}": FAULTY for name in ("polyval", "rarctan2_scalar", "rot90", "where_lscalar", "where_rscalar")},
    **{f"_image_flip_{axis}": FAULTY for axis in ("left_right", "top_bottom")},
}

SELU_ALPHA: Final = 1.6732632423543772
SELU_SCALE: Final = 1.0507009873554805

Proceed = Callable[[], Any]


class Cures:
    """The cures of the operators in one recorded forward pass.

    Args:
        repeats: whether a part of the pass may be pulled back through several times.

    Attributes:
        extra_variables: arrays whose gradients must be computed along with those of the points, so that the latter are right.
    """

    def __init__(self, training: bool, *, parameters: bool = False, repeats: bool = False) -> None:
        self.extra_variables: list[Any] = []
        self._training = training
        self._parameters = parameters
        self._repeats = repeats

    def handlers(self) -> dict[str, Handler]:
        """Return the handlers of the cured operators by name."""
        parameters = {"Deconvolution": _deconvolution, "FullyConnected": self._fully_connected}
        return {
            **(parameters if self._parameters else {}),
            "BatchNorm": self._batch_norm,
            "Dropout": self._dropout,
            "LeakyReLU": _leaky_relu,
            "_contrib_BatchNormWithReLU": self._batch_norm,
            "_contrib_SyncBatchNorm": self._batch_norm,
            "Pooling": _pooling,
            "RNN": self._rnn,
            **_REWRITTEN,
        }

    def _rnn(self, operation: Operation, proceed: Proceed) -> Any:
        """Run a recurrent layer so that the gradients of its input and state are right.

        MXNet's native kernel, which runs every float64 layer, skips work where a gradient is not asked for, and then gives
        others wrongly: a GRU's and a vanilla RNN's input and state need a gradient of the parameters, and the state of several
        layers needs that of the input. A zero is therefore added to the input and to the parameters, and its gradient asked
        for. The kernel also applies dropout in evaluation mode, where its rate is set to 0. The gradient of a GRU with dropout
        between its layers is wrong in any case, and refused.
        """
        training, mode = import_mxnet().autograd.is_training(), operation.attributes.get("mode")
        if not training:
            operation.attributes["p"] = 0.0
        elif mode == "gru" and _drops_between_layers(operation) and _is_native(operation.inputs[0]):
            raise UnsupportedError(
                "the model runs a GRU of several layers with dropout between them in training mode, whose gradient is wrong in "
                "MXNet. Omit training=True, or stack GRUs of one layer with Dropout between them"
            )
        operation.inputs[0] = self._with_zero(operation.inputs[0])
        if mode != "lstm":
            operation.inputs[1] = self._with_zero(operation.inputs[1])
        return proceed()

    def _with_zero(self, given: Any) -> Any:
        """Return the array plus a zero whose gradient, the sum of the array's, is asked for."""
        mx = import_mxnet()
        array = given.as_nd_ndarray()
        with mx.autograd.pause():
            zero = mx.nd.zeros((1,) * array.ndim, ctx=array.ctx, dtype=array.dtype)
            zero.attach_grad()
        self.extra_variables.append(zero)
        return mx.nd.broadcast_add(array, zero)

    def _dropout(self, operation: Operation, proceed: Proceed) -> Any:
        """Run dropout so that each pullback drops what the forward pass dropped; return its input in evaluation mode.

        MXNet pulls back through dropout rightly once: the second time it passes on the gradient as it is. Where there may be a
        second time, the input is therefore multiplied by the dropout of ones, which draws the same numbers.

        In evaluation mode the gradient is right, but MXNet copies the input and holds the copy until the pullback, as large as a
        layer's attention. An array into which the model may write is copied all the same.
        """
        mx, array = import_mxnet(), operation.inputs[0]
        if not is_recorded(array):
            return proceed()
        if operation.attributes.get("mode") == "always" or mx.autograd.is_training():
            if not self._repeats:
                return proceed()
            plain = array.as_nd_ndarray()
            with mx.autograd.pause(train_mode=mx.autograd.is_training()):
                (kept,) = invoke("Dropout", [mx.nd.ones_like(plain)], operation.attributes, as_numpy=False)
            dropped = mx.nd.elemwise_mul(plain, kept, out=operation.out)
            return dropped.as_np_ndarray() if isinstance(array, mx.np.ndarray) else dropped
        return array if operation.out is None else proceed()

    def _fully_connected(self, operation: Operation, proceed: Proceed) -> Any:
        """Run a dense layer so that the gradient of its bias is right.

        Beside a frozen weight MXNet leaves the bias's gradient unwritten, and uninitialized memory is returned. A zero added to
        the weight has its gradient computed.
        """
        if len(operation.inputs) > 2 and operation.inputs[1].grad is None:
            operation.inputs[1] = self._with_zero(operation.inputs[1])
        return proceed()

    def _batch_norm(self, operation: Operation, proceed: Proceed) -> Any:
        """Run batch norm so that its gradient belongs to the mode in which it ran.

        MXNet computes the gradient in the mode of the pullback, whatever the mode of the forward pass, and moves the running
        averages during the pullback. In evaluation mode inside a training pass it therefore uses its
        averages; in training mode inside an evaluation pass it is refused; in training mode it moves copies of its averages. The
        form with ReLU has lost in evaluation mode where ReLU cut off, and is refused there.
        """
        mx = import_mxnet()
        if not mx.autograd.is_training():
            if operation.name == "_contrib_BatchNormWithReLU":
                raise UnsupportedError(
                    "the model runs BatchNormReLU in evaluation mode, whose gradient is wrong in MXNet. Use BatchNorm and ReLU"
                )
            if self._training:
                operation.attributes["use_global_stats"] = True
            return proceed()
        if not self._training:
            raise UnsupportedError(
                "the model runs batch norm under autograd.train_mode() while the rest is in evaluation mode, which gives a "
                "wrong gradient in MXNet. Run the whole model in one mode, with training=True or without train_mode()"
            )
        with mx.autograd.pause():
            operation.inputs[3:5] = [average.copy() for average in operation.inputs[3:5]]
        return proceed()


def _deconvolution(operation: Operation, proceed: Proceed) -> Any:
    """Run a transposed convolution in float64, by MXNet's own kernel.

    oneDNN's kernel, which runs float32, fails at the gradient of the weight in `autograd.grad` and breaks the process.
    """
    if operation.inputs[0].dtype != np.float32 or operation.out is not None:
        return proceed()
    operation.inputs = [array.astype("float64") for array in operation.inputs]
    return proceed().astype("float32")


def _drops_between_layers(operation: Operation) -> bool:
    """Return whether a recurrent operator applies dropout between its layers in training mode."""
    return float(operation.attributes.get("p", 0)) > 0 and int(operation.attributes.get("num_layers", 1)) > 1


def _is_native(array: Any) -> bool:
    """Return whether MXNet's own kernel runs a recurrent layer: oneDNN runs float32 alone, and can be switched off."""
    switches = ("MXNET_MKLDNN_ENABLED", "MXNET_USE_MKLDNN_RNN")
    disabled = any(os.environ.get(switch, "1") == "0" for switch in switches)
    return array.ctx.device_type == "cpu" and (disabled or array.dtype != np.float32)


def _pooling(operation: Operation, proceed: Proceed) -> Any:
    """Run max pooling in training mode, on memory of its own.

    In evaluation mode oneDNN does not record where the maxima were, and its gradient is garbage. Pooling has no other
    difference between the modes.
    """
    copy_input_of_max_pooling(operation)
    with import_mxnet().autograd.train_mode():
        return proceed()


def copy_input_of_max_pooling(operation: Operation) -> None:
    """Copy the input of max pooling: of a view (`x.reshape(...)`, `x[1]`) oneDNN does not record where the maxima were."""
    if operation.attributes.get("pool_type", "max") != "max":
        return
    (array,) = operation.inputs
    operation.inputs = invoke("identity", [array], {}, isinstance(array, import_mxnet().np.ndarray))


def _leaky_relu(operation: Operation, proceed: Proceed) -> Any:
    """Run SELU by ELU, and refuse randomised leaky ReLU.

    MXNet's gradient of SELU is wrong below zero, and that of the randomised form is wrong in evaluation mode; in training
    mode the latter crashes the process.
    """
    attributes = operation.attributes
    if attributes.get("act_type") == "selu":
        attributes.update(act_type="elu", slope=SELU_ALPHA)
        return proceed() * SELU_SCALE
    if attributes.get("act_type") == "rrelu":
        raise UnsupportedError(
            "the model uses LeakyReLU of type 'rrelu', whose gradient is wrong in MXNet. Use the type 'leaky'"
        )
    return proceed()


# Operators in terms of others, of the same value, whose gradient is right

#: MXNet counts indices in float32, which represents whole numbers up to this one.
LARGEST_INDEX: Final = 1 << 24


def _where(operation: Operation, proceed: Proceed) -> Any:
    """Choose between two arrays: between a number and an array MXNet gives the gradient to the wrong entries."""
    np = import_mxnet().np
    condition, array = operation.inputs
    number = np.full((1,), operation.attributes["scalar"], dtype=array.dtype, ctx=array.ctx)
    choices = (number, array) if "lscalar" in operation.name else (array, number)
    return np.where(condition, *choices)


def _deviation(operation: Operation, proceed: Proceed) -> Any:
    """Compute variance and standard deviation from means: MXNet's own have the gradient zero."""
    if operation.out is not None:
        return proceed()
    np, attributes = import_mxnet().np, operation.attributes
    array = operation.inputs[0]
    array = array.astype(attributes["dtype"]) if attributes.get("dtype") is not None else array
    axis, keepdims = attributes.get("axis"), attributes.get("keepdims", False)
    squares = np.square(array - np.mean(array, axis=axis, keepdims=True))
    mean = np.mean(squares, axis=axis, keepdims=keepdims)
    count = array.size // max(mean.size, 1)
    variance = mean * (count / (count - attributes.get("ddof", 0)))
    return np.sqrt(variance) if operation.name.endswith("std") else variance


def _matmul(operation: Operation, proceed: Proceed) -> Any:
    """Repeat the operands along the axes of batches first: a repeated operand gets the gradient of some batches alone."""
    if operation.out is None and min(array.ndim for array in operation.inputs) > 1:
        batches = [array.shape[:-2] for array in operation.inputs]
        shared = np.broadcast_shapes(*batches)
        broadcast_to = import_mxnet().np.broadcast_to
        operation.inputs = [
            array if batch == shared else broadcast_to(array, shared + array.shape[-2:])
            for array, batch in zip(operation.inputs, batches, strict=True)
        ]
    return proceed()


def _einsum(operation: Operation, proceed: Proceed) -> Any:
    """Refuse an index that comes twice in an operand: its gradient goes to other entries."""
    subscripts = operation.attributes.get("subscripts", "")
    terms = [list(filter(str.isalpha, term)) for term in subscripts.partition("->")[0].split(",")]
    if any(len(set(term)) < len(term) for term in terms):
        raise UnsupportedError(
            f"the model calls np.einsum({subscripts!r}), with an index twice in an operand, which has a "
            "wrong gradient in MXNet. Take np.diagonal of it first"
        )
    return proceed()


def _norm(operation: Operation, proceed: Proceed) -> Any:
    """Refuse the norms of matrices other than the root of the sum of squares: their gradients are wrong."""
    axes, order = operation.attributes.get("axis"), operation.attributes.get("ord")
    if operation.attributes.get("flag") == -1 and (axes is None or len(axes) == 2):
        raise UnsupportedError(
            f"the model calls np.linalg.norm with ord={order} on matrices, which has a wrong gradient in MXNet. Use ord=None, "
            "or other operators, such as np.abs(x).sum(axis=-1).max(axis=-1)"
        )
    return proceed()


def _extreme(operation: Operation, proceed: Proceed) -> Any:
    """Give the gradient of a maximum or minimum to the first of equal entries; MXNet gives the whole of it to each."""
    mx, attributes, array = import_mxnet(), operation.attributes, operation.inputs[0]
    axes = _reduced_axes(array, attributes)
    if operation.out is not None or attributes.get("initial") is not None or not axes:
        return proceed()
    kept, reduced = axes
    as_numpy = isinstance(array, mx.np.ndarray)
    module, pick = (mx.np, mx.npx.pick) if as_numpy else (mx.nd, mx.nd.pick)
    with mx.autograd.pause():
        value = proceed()
    rows = module.reshape(
        module.transpose(array, axes=(*kept, *reduced)), (int(np.prod([array.shape[axis] for axis in kept])), -1)
    )
    with mx.autograd.pause():
        argument_of_extreme = module.argmax if "max" in operation.name else module.argmin
        indices = argument_of_extreme(rows, axis=1)
    picked = module.reshape(pick(rows, indices, axis=1), value.shape)
    with mx.autograd.pause():
        same = picked == value  # they differ where there is a NaN
    return module.where(same, picked, value)


def _reduced_axes(array: Any, attributes: Any) -> tuple[list[int], list[int]] | None:
    """Return the axes that are kept and those that are reduced; None where there is at most one, or too many to count."""
    given = attributes.get("axis")
    axes: Sequence[int] = () if given is None else given if isinstance(given, (tuple, list)) else (given,)
    reduced = sorted({axis % array.ndim for axis in axes}) if axes else list(range(array.ndim))
    kept = [axis for axis in range(array.ndim) if axis not in reduced]
    if str(attributes.get("exclude", False)) in ("True", "1"):
        kept, reduced = reduced, kept
    length = int(np.prod([array.shape[axis] for axis in reduced]))
    return (kept, reduced) if 1 < length <= LARGEST_INDEX and array.size else None


#: The handlers of these operators by name.
_REWRITTEN: Final[dict[str, Handler]] = {
    **{f"_npi_{name}": _deviation for name in ("std", "var")},
    **{f"_npi_{name}": _where for name in ("where_lscalar", "where_rscalar")},
    **{f"_npi_{name}": handler for name, handler in {"einsum": _einsum, "matmul": _matmul, "norm": _norm}.items()},
    **dict.fromkeys(("max", "min", "_np_max", "_np_min"), _extreme),
}


# Functions and operators of the user

_function_calls = Interception(lambda: import_mxnet().autograd.Function, "__call__")
_created = Interception(lambda: import_mxnet().operator.CustomOp, "__init__")


class Functions:
    """The `autograd.Function`s that one forward pass calls, and the `CustomOp`s that it makes.

    MXNet calls their `backward` from C, in another thread, and swallows what they raise: an Exception becomes an error that
    does not name it, and after Ctrl-C or SystemExit the gradient is uninitialized memory. So the first exception is kept
    here, and `reraise` raises it.
    """

    def __init__(self) -> None:
        self._error: BaseException | None = None

    @contextlib.contextmanager
    def intercept(self) -> Iterator[None]:
        """Record what the functions that this thread calls raise while it is open."""
        with _function_calls.by(self._wrap_function), _created.by(self._wrap_operator):
            yield

    @contextlib.contextmanager
    def reraise(self) -> Iterator[None]:
        """Raise on exit what one of them raised while gradients were computed and read."""
        try:
            yield
        finally:
            if self._error is not None:
                raise self._error

    def _wrap_function(self, original: Callable[..., Any], function: Any, *inputs: Any) -> Any:
        function.backward = self._catching(
            function.backward, [(array.shape, array.ctx, array.dtype) for array in inputs]
        )
        return original(function, *inputs)  # once: MXNet lets no function be called again

    def _wrap_operator(self, original: Callable[..., Any], operator: Any, *given: Any, **keywords: Any) -> None:
        original(operator, *given, **keywords)
        operator.backward = self._catching(operator.backward)  # it writes its gradients, and returns None

    def _catching(
        self, backward: Callable[..., Any], inputs: Sequence[tuple[Any, Any, Any]] = ()
    ) -> Callable[..., Any]:
        def catching(*gradients: Any, **keywords: Any) -> Any:
            try:
                return backward(*gradients, **keywords)
            except BaseException as error:
                self._error = error
            zeros = import_mxnet().nd.zeros  # they are discarded
            return tuple(zeros(shape, context, dtype) for shape, context, dtype in inputs)

        return catching


# Passes of the user

#: The forms of batch norm.
NORMS: Final = ("BatchNorm", "_contrib_BatchNormWithReLU", "_contrib_SyncBatchNorm")

#: The operators that `Guards` records.
GUARDED: Final = (*NORMS, "LeakyReLU", "Pooling", "RNN")


class Guards:
    """The operators in the user's forward passes whose gradient is wrong there.

    A capture may not change what the user computes, so that a backward pass with a wrong gradient is refused, not cured.
    """

    def __init__(self) -> None:
        self._wrong: dict[str, str] = {}
        self._norm_modes: set[bool] = set()

    def record(self, operation: Operation) -> None:
        """Record an operator that is about to run under `autograd.record`."""
        name, attributes, training = operation.name, operation.attributes, bool(import_mxnet().autograd.is_training())
        if name in NORMS and str(attributes.get("use_global_stats", False)) != "True":
            self._norm_modes.add(training)
        elif name == "Pooling" and attributes.get("pool_type", "max") == "max" and not training:
            self._wrong[name] = (
                "takes maxima in evaluation mode, where MXNet does not record their positions (use record())"
            )
        elif name == "LeakyReLU":
            kind = attributes.get("act_type")
            if kind == "selu" or (kind == "rrelu" and not training):
                self._wrong[name] = f"has the type {kind!r}, whose gradient is wrong in MXNet"
        elif name == "RNN" and _is_native(operation.inputs[0]):
            self._record_recurrent(operation, training=training)

    def expect_right(self, operators: Collection[str], *, training: bool) -> None:
        """Refuse a backward pass whose gradient is wrong."""
        wrong = {name: reason for name, reason in WRONG.items() if reason != OWN}  # the user has chosen such a loss
        wrong |= self._wrong
        if self._norm_modes - {training}:
            reason = "ran in another mode than the backward pass, so that its gradient is wrong (use one mode for both)"
            wrong |= dict.fromkeys(NORMS, reason)
        for operator in sorted(wrong.keys() & set(operators)):
            raise UnsupportedError(
                f"between the point and the loss is the operator {operator!r}, which {wrong[operator]}. Replace it: its gradient "
                "is wrong in your training, too"
            )

    def _record_recurrent(self, operation: Operation, *, training: bool) -> None:
        (data, weights), mode = operation.inputs[:2], operation.attributes.get("mode")
        if not is_recorded(data) or (mode != "lstm" and not is_recorded(weights)):
            self._wrong["RNN"] = (
                "is a recurrent layer with frozen input or weights, whose gradient is wrong (do not freeze it)"
            )
        if training and mode == "gru" and _drops_between_layers(operation):
            self._wrong["RNN"] = "is a GRU of several layers with dropout between them, whose gradient is wrong"
