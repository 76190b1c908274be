"""Hands functions the values of weights in place of the weights, so that no memory is kept for gradients nobody asks for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import torch
from torch.autograd.graph import GradientEdge
from torch.nn import functional
from torch.overrides import TorchFunctionMode

__all__ = [
    *(
        "ACCUMULATING",
        "DIFFERENTIATING",
        "MAYBE_BY_WEIGHTS",
        "OPERATORS",
        "Accumulating",
        "ByWeights",
        "Differentiated",
    ),
    *("is_by_weights", "values_of_weights"),
]


class Differentiated(BaseException):
    """The model, or the objective, takes gradients of weights, which must then be there. Nobody's handler is to stop it."""


class ByWeights(TorchFunctionMode):  # type: ignore[misc]  # PyTorch need not be there where types are checked
    """Stops an objective that takes gradients of weights, of which what the model returned has the values alone.

    Attributes:
        found: whether it did, also where it has caught what told of it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Called by PyTorch in place of each of its functions, with this mode off meanwhile."""
        if func in MAYBE_BY_WEIGHTS and is_by_weights(func, args, kwargs or {}):
            self.found = True
            raise Differentiated
        return func(*args, **kwargs) if kwargs else func(*args)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        """The objective has ended.

        Raises:
            Differentiated: it took gradients of weights, whatever it made of being stopped.
        """
        super().__exit__(kind, error, trace)
        if self.found and (error is None or isinstance(error, Exception)):
            raise Differentiated from None


class Accumulating(TorchFunctionMode):  # type: ignore[misc]  # PyTorch need not be there where types are checked
    """Tells before a function has gradients accumulated in leaves.

    Args:
        told: what is told.
    """

    def __init__(self, told: Callable[[], None]) -> None:
        super().__init__()
        self._told = told

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Called by PyTorch in place of each of its functions, with this mode off meanwhile."""
        if func in ACCUMULATING:
            self._told()
        return func(*args, **kwargs) if kwargs else func(*args)


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


def is_by_weights(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], *, pulling: bool = False) -> bool:
    """Whether a call of one of `MAYBE_BY_WEIGHTS` may be about the gradients of weights.

    Without `inputs` all leaves of the graph get theirs, in a pullback as far as there are any: that is how segments which run
    again are differentiated, whatever becomes of their weights. A weight as a view of itself is how PyTorch comes by the node
    at which its gradient arrives, which may then stand for the weight.
    """
    if func is torch.Tensor.view_as:
        return len(args) == 2 and args[0] is args[1] and _is_weight(args[0])
    inputs = args[1] if func is torch.autograd.grad else kwargs.get("inputs")
    return not pulling if inputs is None else _has_weights(inputs)


def _has_weights(value: Any) -> bool:
    """Whether it is a weight, or holds one; what can be gone through but once may."""
    if isinstance(value, torch.Tensor):
        return isinstance(value, torch.nn.Parameter)
    if isinstance(value, GradientEdge):
        return hasattr(value.node, "variable")  # as a leaf's has
    if isinstance(value, Mapping):
        value = list(value.values())
    return not isinstance(value, (list, tuple)) or any(map(_has_weights, value))


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

#: The functions that have gradients accumulated in leaves.
ACCUMULATING: Final[Collection[Callable[..., Any]]] = frozenset({torch.autograd.backward, torch.Tensor.backward})

#: The functions that take gradients.
DIFFERENTIATING: Final[Collection[Callable[..., Any]]] = frozenset({torch.autograd.grad, *ACCUMULATING})

#: These, and the one by which PyTorch finds the node at which a weight's gradient arrives.
MAYBE_BY_WEIGHTS: Final[Collection[Callable[..., Any]]] = frozenset({*DIFFERENTIATING, torch.Tensor.view_as})
