"""Hands functions the values of weights in place of the weights, so that no memory is kept for gradients nobody asks for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import torch
from torch.nn import functional

__all__ = ["DIFFERENTIATING", "OPERATORS", "Differentiated", "has_weights", "values_of_weights"]


class Differentiated(BaseException):
    """The model takes gradients of weights in its own forward pass, which must then be there. Nobody's handler is to stop it."""


def values_of_weights(
    args: Sequence[Any], kwargs: Mapping[str, Any], wanted: Collection[int]
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """The arguments of an operator with detached weights, where what it gives requires gradients even so.

    A weight is a leaf that requires gradients. A function that keeps an operand for its weight's gradient then keeps it no
    longer; what it computes is the same. The model's own weights are not touched.

    Args:
        args: the positional arguments.
        kwargs: the arguments by name.
        wanted: the identities of the weights whose gradients are asked for, which stay.
    """
    weights = carried = False
    for one in (*args, *kwargs.values()):
        kind = type(one)
        if kind is torch.nn.Parameter:
            if one.requires_grad:
                if id(one) in wanted:
                    carried = True
                else:
                    weights = True
        elif kind is torch.Tensor:
            carried = carried or one.requires_grad
        elif kind is list or kind is tuple:  # as recurrent layers and einsum have them
            for inner in one:
                weights = weights or (_is_weight(inner) and id(inner) not in wanted)
                carried = carried or (type(inner) is torch.Tensor and inner.requires_grad)
    if not (weights and carried) or torch._C._functorch.maybe_current_level() is not None:
        return args, kwargs
    values = [_value(one, wanted) if type(one) in REPLACED else one for one in args]
    return values, {name: _value(one, wanted) for name, one in kwargs.items()} if kwargs else kwargs


def _is_weight(one: Any) -> bool:
    # Only the plain kind: what a subclass of parameters does when it is detached is its own affair.
    return type(one) is torch.nn.Parameter and one.requires_grad


def _value(one: Any, wanted: Collection[int]) -> Any:
    kind = type(one)
    if kind is torch.nn.Parameter:
        return one.detach() if one.requires_grad and id(one) not in wanted else one
    if kind is list or kind is tuple:
        return kind(_value(inner, wanted) for inner in one)
    return one


def has_weights(value: Any) -> bool:
    """Whether it is a weight, or a sequence with one in it."""
    if isinstance(value, (list, tuple)):
        return any(has_weights(one) for one in value)
    return isinstance(value, torch.nn.Parameter)


#: The types of arguments that are, or may hold, weights.
REPLACED: Final = frozenset({torch.nn.Parameter, list, tuple})

#: The functions that combine weights with activations and keep these for the weights' gradients.
OPERATORS: Final[Collection[Callable[..., Any]]] = frozenset(
    {
        *(functional.linear, functional.bilinear, torch.bilinear, functional.multi_head_attention_forward),
        *(functional.layer_norm, functional.rms_norm, functional.group_norm, functional.batch_norm),
        *(functional.instance_norm, torch.layer_norm, torch.rms_norm, torch.group_norm, torch.batch_norm),
        *(torch.instance_norm, torch.native_layer_norm, functional.prelu, torch.prelu),
        *(torch.conv1d, torch.conv2d, torch.conv3d, functional.conv1d, functional.conv2d, functional.conv3d),
        *(torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d),
        *(functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d),
        *(torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu),
        *(torch.lstm_cell, torch.gru_cell, torch.rnn_tanh_cell, torch.rnn_relu_cell),
        *(torch.matmul, torch.mm, torch.bmm, torch.mv, torch.addmm, torch.addbmm, torch.baddbmm, torch.addmv),
        *(torch.Tensor.matmul, torch.Tensor.mm, torch.Tensor.bmm, torch.Tensor.mv, torch.Tensor.addmm),
        *(torch.Tensor.__matmul__, torch.Tensor.__rmatmul__, torch.einsum, torch.tensordot, torch.chain_matmul),
        *(torch.mul, torch.Tensor.mul, torch.Tensor.__mul__, torch.Tensor.__rmul__, torch.multiply),
        *(torch.div, torch.Tensor.div, torch.Tensor.__truediv__, torch.addcmul),
    }
)

#: The functions that take gradients.
DIFFERENTIATING: Final[Collection[Callable[..., Any]]] = frozenset(
    {torch.autograd.grad, torch.autograd.backward, torch.Tensor.backward}
)
