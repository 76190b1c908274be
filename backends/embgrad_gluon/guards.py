"""Notices in the user's own passes, in which nothing may be cured, what gives a wrong gradient in MXNet."""

from __future__ import annotations

from typing import Final

from embgrad.errors import UnsupportedError
from embgrad_gluon.cures import OWN, WRONG, drops_between_layers, is_native
from embgrad_gluon.graph import Way
from embgrad_gluon.importing import import_mxnet
from embgrad_gluon.operators import Operation
from embgrad_gluon.walk import is_recorded

__all__ = ["GUARDED", "Guards"]

#: The forms of batch norm.
NORMS: Final = ("BatchNorm", "_contrib_BatchNormWithReLU", "_contrib_SyncBatchNorm")

#: The operators that are looked at.
GUARDED: Final = (*NORMS, "LeakyReLU", "Pooling", "RNN")


class Guards:
    """What the user's forward passes held. What is wrong is wrong in their training, too."""

    def __init__(self) -> None:
        self._wrong: dict[str, str] = {}
        self._norm_modes: set[bool] = set()

    def look_at(self, operation: Operation) -> None:
        """An operator is about to run, while it is recorded."""
        if operation.name in NORMS:
            self._batch_norm(operation)
        elif operation.name == "Pooling":
            self._pooling(operation)
        elif operation.name == "LeakyReLU":
            self._leaky_relu(operation)
        elif operation.name == "RNN":
            self._rnn(operation)

    def expect_right(self, way: Way, *, training: bool) -> None:
        """Refuse a backward pass whose gradient is wrong.

        Args:
            way: what lies between the user's loss and the point.
            training: the mode of the backward pass.

        Raises:
            UnsupportedError: it is.
        """
        wrong = {name: reason for name, reason in WRONG.items() if reason != OWN}  # a loss of its own is the user's
        wrong |= self._wrong
        if self._norm_modes - {training}:
            reason = "ran in another mode than that of the backward pass, of which MXNet's gradient is wrong: give both one mode"
            wrong |= dict.fromkeys(NORMS, reason)
        for operator in sorted(way.operators & wrong.keys()):
            raise UnsupportedError(
                f"between the point and the loss is the operator {operator!r}, which {wrong[operator]}; expected operators whose "
                "gradient is right, since this one is wrong in your training, too"
            )

    def _batch_norm(self, operation: Operation) -> None:
        if str(operation.attributes.get("use_global_stats", False)) != "True":
            self._norm_modes.add(bool(import_mxnet().autograd.is_training()))

    def _pooling(self, operation: Operation) -> None:
        if operation.attributes.get("pool_type", "max") == "max" and not import_mxnet().autograd.is_training():
            self._wrong["Pooling"] = "takes the maxima in evaluation mode, of which MXNet keeps no record: use record()"

    def _leaky_relu(self, operation: Operation) -> None:
        kind = operation.attributes.get("act_type")
        if kind == "selu" or (kind == "rrelu" and not import_mxnet().autograd.is_training()):
            self._wrong["LeakyReLU"] = f"is of the type {kind!r}, which has a wrong gradient in MXNet"

    def _rnn(self, operation: Operation) -> None:
        data, weights = operation.inputs[:2]
        training, mode = import_mxnet().autograd.is_training(), operation.attributes.get("mode")
        if is_native(data):
            if not is_recorded(data) or (mode != "lstm" and not is_recorded(weights)):
                self._wrong["RNN"] = (
                    "is a recurrent layer of which MXNet computes some gradients wrongly unless those of its input and its "
                    "weights are computed, too: do not freeze it"
                )
            if training and mode == "gru" and drops_between_layers(operation):
                self._wrong["RNN"] = (
                    "is a GRU of several layers with dropout between them, of which MXNet's gradient is wrong"
                )
