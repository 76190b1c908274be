"""Keeps MXNet's operators from giving a wrong gradient without a word."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from embgrad.errors import UnsupportedError
from embgrad_gluon import rewriting
from embgrad_gluon.importing import import_mxnet
from embgrad_gluon.operators import Handler, Operation, invoke

__all__ = ["OWN", "WRONG", "Cures", "drops_between_layers", "expect_no_view", "is_native"]

OWN: Final = "gives its input a gradient of its own in place of the objective's"
ZERO: Final = "has the gradient zero in MXNet, which is wrong"
OTHER: Final = "has a wrong gradient in MXNet"

#: Operators whose gradient is not that of their value. Those that are replaced by others are here too, so that one that
#: escapes is noticed.
WRONG: Final[Mapping[str, str]] = {
    **dict.fromkeys(("LinearRegressionOutput", "LogisticRegressionOutput", "MAERegressionOutput"), OWN),
    **dict.fromkeys(("IdentityAttachKLSparseReg", "MakeLoss", "SVMOutput", "SoftmaxOutput", "make_loss"), OWN),
    **dict.fromkeys(("_np_atleast_1d", "_np_atleast_2d", "_np_atleast_3d", "_npi_percentile"), ZERO),
    **dict.fromkeys(("_npi_eigh", "_npi_eigvals", "_npi_eigvalsh"), ZERO),
    **dict.fromkeys(("_npi_pinv", "_npi_pinv_scalar_rcond", "_npi_std", "_npi_var"), ZERO),
    **dict.fromkeys(("_npi_polyval", "_npi_rarctan2_scalar", "_npi_rot90"), OTHER),
    **dict.fromkeys(("_npi_where_lscalar", "_npi_where_rscalar"), OTHER),
    **dict.fromkeys(("_image_flip_left_right", "_image_flip_top_bottom"), OTHER),
}

SELU_ALPHA: Final = 1.6732632423543772
SELU_SCALE: Final = 1.0507009873554805

Proceed = Callable[[], Any]


class Cures:
    """What is done to operators in one recorded forward pass.

    Args:
        training: the mode of the pass, and of the pullbacks after it.
        parameters: whether gradients of parameters are asked for.

    Attributes:
        also: arrays whose gradient must be asked for along with those of the points.
    """

    def __init__(self, training: bool, *, parameters: bool = False) -> None:
        self.also: list[Any] = []
        self._training = training
        self._parameters = parameters

    def handlers(self) -> dict[str, Handler]:
        """By the operators' names."""
        return {
            "BatchNorm": self._batch_norm,
            "Deconvolution": self._deconvolution,
            "FullyConnected": self._fully_connected,
            "LeakyReLU": _leaky_relu,
            "_contrib_BatchNormWithReLU": self._batch_norm_with_relu,
            "_contrib_SyncBatchNorm": self._batch_norm,
            "Pooling": _pooling,
            "RNN": self._rnn,
            **rewriting.HANDLERS,
        }

    def _rnn(self, operation: Operation, proceed: Proceed) -> Any:
        """The native fused layers compute some gradients wrongly unless others are asked for along with them.

        That of a GRU's and a vanilla RNN's input and state needs a parameter's, and that of the state of several layers the
        input's. So zeros are added to both, and their gradients are asked for. The native kernel also drops out in
        evaluation mode.
        """
        training, mode = import_mxnet().autograd.is_training(), operation.attributes.get("mode")
        if not training:
            operation.attributes["p"] = 0.0
        elif mode == "gru" and drops_between_layers(operation) and is_native(operation.inputs[0]):
            raise UnsupportedError(
                "the model runs a GRU of several layers with dropout between them in training mode, and MXNet's gradient of "
                "that is wrong: leave training=True out, or use a GRU without dropout, one for each layer with Dropout between"
            )
        operation.inputs[0] = self._with_zero(operation.inputs[0])
        if mode != "lstm":
            operation.inputs[1] = self._with_zero(operation.inputs[1])
        return proceed()

    def _with_zero(self, given: Any) -> Any:
        """The array plus a zero whose gradient, the sum of the array's, is asked for."""
        mx = import_mxnet()
        array = given.as_nd_ndarray()
        with mx.autograd.pause():
            zero = mx.nd.zeros((1,) * array.ndim, ctx=array.ctx, dtype=array.dtype)
            zero.attach_grad()
        self.also.append(zero)
        return mx.nd.broadcast_add(array, zero)

    def _fully_connected(self, operation: Operation, proceed: Proceed) -> Any:
        """The gradient of its bias is what lay in memory unless that of its weight, which is frozen here, is asked for too."""
        if self._parameters and len(operation.inputs) > 2 and operation.inputs[1].grad is None:
            operation.inputs[1] = self._with_zero(operation.inputs[1])
        return proceed()

    def _deconvolution(self, operation: Operation, proceed: Proceed) -> Any:
        """oneDNN's gradient of its weight fails in `autograd.grad`, and breaks the process; MXNet's own kernel is float64's."""
        if not self._parameters or operation.inputs[0].dtype != np.float32 or operation.out is not None:
            return proceed()
        operation.inputs = [array.astype("float64") for array in operation.inputs]
        return proceed().astype("float32")

    def _batch_norm(self, operation: Operation, proceed: Proceed) -> Any:
        """Batch norm goes by the mode of the pullback, not by that in which it ran; and moves its averages in it."""
        mx = import_mxnet()
        if not mx.autograd.is_training():
            if self._training:
                operation.attributes["use_global_stats"] = True
            return proceed()
        if not self._training:
            raise UnsupportedError(
                "the model runs batch norm under autograd.train_mode() while the rest is in evaluation mode, and MXNet's "
                "gradient of that is wrong: run all of it in one mode, with training=True or without train_mode()"
            )
        with mx.autograd.pause():
            operation.inputs[3:5] = [average.copy() for average in operation.inputs[3:5]]
        return proceed()

    def _batch_norm_with_relu(self, operation: Operation, proceed: Proceed) -> Any:
        """In evaluation mode it has lost where it cut off, and its gradient is wrong: those of its two parts are not."""
        mx = import_mxnet()
        if mx.autograd.is_training() or operation.out is not None:
            return self._batch_norm(operation, proceed)
        as_numpy = isinstance(operation.inputs[0], mx.np.ndarray)
        rows, *others = invoke("BatchNorm", operation.inputs, operation.attributes, as_numpy)
        rectified = invoke("relu", [rows], {}, as_numpy)
        return [*rectified, *others] if others else rectified[0]


def drops_between_layers(operation: Operation) -> bool:
    """Whether a recurrent operator drops out between its layers in training mode."""
    return float(operation.attributes.get("p", 0)) > 0 and int(operation.attributes.get("num_layers", 1)) > 1


def is_native(array: Any) -> bool:
    """Whether MXNet's own kernel runs a recurrent layer: oneDNN has none but float32, and can be switched off."""
    switches = ("MXNET_MKLDNN_ENABLED", "MXNET_USE_MKLDNN_RNN")
    off = any(os.environ.get(switch, "1") == "0" for switch in switches)
    return array.ctx.device_type == "cpu" and (off or array.dtype != np.float32)


def _pooling(operation: Operation, proceed: Proceed) -> Any:
    """Max pooling that was recorded in evaluation mode has no record of where the maxima were; nor has that of a view."""
    expect_no_view(operation)
    with import_mxnet().autograd.train_mode():
        return proceed()


def expect_no_view(operation: Operation) -> None:
    """What has its maxima taken has memory of its own: of another array's (x.reshape(...), x[1]) oneDNN loses where they were."""
    if operation.attributes.get("pool_type", "max") != "max":
        return
    array = operation.inputs[0]
    operation.inputs[0] = invoke("_copy", [array], {}, isinstance(array, import_mxnet().np.ndarray))[0]


def _leaky_relu(operation: Operation, proceed: Proceed) -> Any:
    """SELU has a wrong gradient below zero, and ELU has not. Randomised leaky ReLU has a wrong one in evaluation mode."""
    mx, attributes = import_mxnet(), operation.attributes
    if attributes.get("act_type") == "selu":
        attributes.update(act_type="elu", slope=SELU_ALPHA)
        return proceed() * SELU_SCALE
    if attributes.get("act_type") != "rrelu":
        return proceed()
    if mx.autograd.is_training():
        raise UnsupportedError(
            "the model uses LeakyReLU of type 'rrelu', on which MXNet crashes in training mode: leave training=True out"
        )
    mean = (float(attributes.get("lower_bound", 0.125)) + float(attributes.get("upper_bound", 0.334))) / 2
    attributes.update(act_type="leaky", slope=mean)
    rows = proceed()
    return [rows, mx.nd.zeros_like(rows)]  # the random slopes, of which there are none
