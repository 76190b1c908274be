"""The call of a model: the batch as tensors on the model's device, under the names of `forward`'s parameters."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from embgrad.backend import Call, TokenBatch
from embgrad.errors import BatchError, OutputError, UnsupportedError
from embgrad.keras import is_keras, plan_keras_call
from embgrad.toolkit import coarsest, copy_nest, parameters_of, plan_call
from embgrad_torch.walk import original

__all__ = [
    *("TorchTensors", "computation_dtype", "dtype_name", "has_values", "is_floating", "is_quantised"),
    *("is_transformed", "like", "parameters", "plan", "to_numpy", "to_tensors", "unparallel"),
]

#: The kinds of parameters that can be passed by position.
POSITIONAL: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)

#: The classes of PyTorch's own tensors.
PLAIN: Final = (torch.Tensor, torch.nn.Parameter)

#: The dtypes that cross to NumPy unchanged.
UNCHANGED: Final = {torch.float32: np.float32, torch.float64: np.float64}


def plan(model: Any, batch: TokenBatch, call: Call | None, device: Any) -> tuple[Callable[[], Any], tuple[str, ...]]:
    """Return the call of the model, ready to be made, and the inputs of the batch that the model does not take.

    Raises:
        BatchError: the model needs an input that the batch has nothing for.
        UnsupportedError: a sequence of parts, or a module without a forward, without `call`.
    """
    if call is not None:
        inputs = to_tensors(batch.inputs(), device, len(batch))
        return functools.partial(call, model, inputs), ()
    if isinstance(model, (list, tuple)):
        raise UnsupportedError(
            f"the model is a sequence of {len(model)} parts, which embgrad cannot call without a function that combines them. "
            "Pass call=lambda parts, inputs: outputs"
        )
    module = original(model)
    if is_keras(module):  # its `forward` passes on everything, and `training` sets the mode
        planned = plan_keras_call(module, batch, functools.partial(to_tensors, device=device, examples=len(batch)))
        keywords = {**planned.kwargs, "training": module.training}
        return functools.partial(model, *planned.args, **keywords), planned.unused
    if _forward_of_class(module) is torch.nn.Module.forward and "forward" not in vars(module):
        children = ", ".join(name for name, _ in module.named_children())
        raise UnsupportedError(
            f"{type(module).__name__} defines no forward, so that it cannot be called. Give one of its children "
            f"({children or 'none'}), or pass call=lambda model, inputs: outputs"
        )
    planned = plan_call(parameters(model), batch)
    args = [to_tensors(argument, device, len(batch)) for argument in planned.args]
    kwargs = to_tensors(dict(planned.kwargs), device, len(batch))
    return functools.partial(unparallel(model), *args, **kwargs), planned.unused


def unparallel(model: Any) -> Any:
    """Return the module inside a parallel wrapper: its replicas would run in other threads, where lookups are not recorded."""
    parallel = (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)
    return unparallel(model.module) if isinstance(model, parallel) else model


def parameters(module: Any) -> Sequence[inspect.Parameter]:
    """Return the parameters of `forward`, or of Keras's `call`; of a wrapper that passes on everything, those of the one inside.

    A `torch.nn.Sequential` passes one argument to its first module. Through a wrapper that takes only keywords the parameters
    can be passed only by name, and through one that takes no keywords only by position.
    """
    if is_keras(module):
        return parameters_of(module.call)
    direct = _direct_parameters(module)
    children = list(module.children())
    if _forward_of_class(module) is torch.nn.Sequential.forward and children:
        taken = [p for p in parameters(children[0]) if p.kind in POSITIONAL][:1]
        return [p.replace(kind=p.POSITIONAL_ONLY, default=p.empty) for p in taken] or direct
    if len(children) != 1 or any(p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in direct):
        return direct
    inner = parameters(children[0])
    kinds = {p.kind for p in direct}
    if inspect.Parameter.VAR_KEYWORD not in kinds:
        return [p.replace(kind=inspect.Parameter.POSITIONAL_ONLY) for p in inner if p.kind in POSITIONAL]
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return inner
    return [p.replace(kind=p.KEYWORD_ONLY) if p.kind is p.POSITIONAL_OR_KEYWORD else p for p in inner]


def _forward_of_class(module: Any) -> Any:
    """Return the `forward` of the module's class without evaluating it: TorchScript's raises."""
    return inspect.getattr_static(type(module), "forward", None)


def _direct_parameters(module: Any) -> Sequence[inspect.Parameter]:
    if isinstance(module, torch.fx.GraphModule) and (by_name := _find_exported_by_name(module)):
        taken = parameters_of(module.forward)
        return [p.replace(kind=p.KEYWORD_ONLY) if p.name in by_name else p for p in taken]
    if not isinstance(module, torch.jit.ScriptModule):
        return parameters_of(module.forward)
    return [
        inspect.Parameter(
            argument.name,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=argument.default_value if argument.has_default_value() else inspect.Parameter.empty,
        )
        for argument in module.forward.schema.arguments[1:]  # without the module itself
    ]


def _find_exported_by_name(module: Any) -> frozenset[str]:
    """Return the parameters that an exported graph takes only by name, which its `forward` does not declare."""
    spec = getattr(getattr(module.graph._codegen, "pytree_info", None), "in_spec", None)
    match None if spec is None else pytree.tree_unflatten([None] * spec.num_leaves, spec):
        case (_, dict(by_name)):  # args and kwargs
            return frozenset(by_name)
    return frozenset()


def to_tensors(value: Any, device: Any, examples: int) -> Any:
    """Return the structure with tensors on the device in place of arrays.

    Arrays, tensors and objects, such as a cache, are copied, never shared: models write into their inputs. A list counts
    as an array where its first axis is the examples.
    """
    if isinstance(value, np.ndarray):
        return _from_numpy(value).to(device)
    if isinstance(value, torch.Tensor):
        moved = value.to(device)
        return (
            moved.clone() if moved is value or moved.is_inference() else moved
        )  # autograd cannot save inference tensors
    if isinstance(value, Mapping):
        entries = {key: to_tensors(entry, device, examples) for key, entry in value.items()}
        return entries if type(value) is dict else _with_entries(value, entries)
    if isinstance(value, list) and (array := _numbers(value)) is not None and len(array) == examples:
        return torch.tensor(array, device=device)
    if isinstance(value, list) or type(value) is tuple:
        return type(value)(to_tensors(entry, device, -1) for entry in value)  # a list in a list is not an array
    with _Cloning():
        return copy_nest(value)


def _from_numpy(value: np.ndarray) -> Any:
    """Return a copy of an array as a tensor; the dtypes that ml_dtypes adds to NumPy, such as bfloat16, keep their bits."""
    copied = np.array(value, order="C")
    if copied.dtype.isbuiltin != 2:  # 2 for a dtype that another library has added
        return torch.from_numpy(copied)
    dtype = getattr(torch, copied.dtype.name, None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point or dtype.itemsize != copied.dtype.itemsize:
        raise BatchError(
            f"an input holds numbers of dtype {copied.dtype}, which PyTorch does not have. Pass it as float32, or as integers"
        )
    return torch.from_numpy(copied.view(f"u{copied.dtype.itemsize}")).view(dtype)


def _with_entries(value: Mapping[Any, Any], entries: dict[Any, Any]) -> Any:
    """Return a mapping of the same class, such as a `ModelOutput`, with these entries; a dict for an immutable mapping."""
    if not isinstance(value, MutableMapping):
        return entries
    other = copy.copy(value)
    for key, entry in entries.items():
        other[key] = entry
    return other


class _Cloning(TorchFunctionMode):  # type: ignore[misc]  # PyTorch need not be there where types are checked
    """Mode in which `copy.deepcopy` clones tensors, also those on a graph, and shares parameters."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Handle a call of a PyTorch function; PyTorch calls this with the mode switched off."""
        if func is not torch.Tensor.__deepcopy__:
            return func(*args, **(kwargs or {}))
        tensor, memo = args
        memo[id(tensor)] = copied = tensor if isinstance(tensor, torch.nn.Parameter) else tensor.clone()
        return copied


def _numbers(value: Sequence[Any]) -> np.ndarray | None:
    if any(isinstance(entry, torch.Tensor) for entry in value):
        return None
    try:
        array = np.asarray(value)
    except ValueError:  # ragged
        return None
    return array if array.dtype.kind in "biuf" and array.ndim else None


def to_numpy(tensor: Any) -> np.ndarray:
    """Return a copy of a tensor's values, C-contiguous; half precision is widened to float32."""
    values = tensor.detach()
    if values.dtype in UNCHANGED and values.is_cpu and values.layout is torch.strided and not values.is_neg():
        return np.array(values.numpy(), order="C", copy=True)  # the usual case
    if values.layout is not torch.strided:
        values = values.to_dense()
    if values.is_floating_point() and values.dtype not in UNCHANGED:
        values = values.float()
    if values.device.type != "cpu" or values.is_complex() or values.is_neg():
        values = values.cpu().resolve_conj().resolve_neg()
    return np.array(values.numpy(), order="C", copy=True)


def like(values: np.ndarray, tensor: Any) -> Any:
    """Return the values as a new tensor of the dtype and on the device of another tensor."""
    dtype = UNCHANGED.get(tensor.dtype)  # NumPy converts byte orders and long doubles, which PyTorch refuses
    return torch.from_numpy(np.array(values, dtype=dtype, order="C")).to(tensor.device, tensor.dtype)


@functools.cache
def dtype_name(dtype: Any) -> str:
    """Return the name of a dtype as NumPy spells it."""
    return str(dtype).removeprefix("torch.")


def computation_dtype(tensors: Sequence[Any]) -> str:
    """Return the coarsest dtype of the tensors and of autocast, where that is on for their devices."""
    dtypes = {tensor.dtype for tensor in tensors}
    for device in {tensor.device.type for tensor in tensors} & {"cpu", "cuda"}:
        if torch.is_autocast_enabled(device):
            dtypes.add(torch.get_autocast_dtype(device))
    return coarsest(map(dtype_name, dtypes))


def is_transformed() -> bool:
    """Return whether this runs inside torch.vmap or another transform of torch.func."""
    return torch._C._functorch.maybe_current_level() is not None


def has_values(tensor: Any) -> bool:
    """Return whether a strided tensor has memory that can be read: one inside a transform of torch.func has none."""
    try:
        tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return False
    return True


def is_quantised(tensor: Any) -> bool:
    """Return whether a tensor stands for floating-point numbers and stores quantised ones, such as torchao's weights."""
    return getattr(type(tensor), "dequantize", None) is not torch.Tensor.dequantize


def is_floating(value: object) -> bool:
    """Return whether it is a tensor at which a gradient can be taken and read."""
    return (
        isinstance(value, torch.Tensor)
        and value.is_floating_point()
        and value.layout is torch.strided
        and not value.is_nested
        and value.device.type != "meta"
        and has_values(value)
    )


class TorchTensors:
    """The properties of PyTorch's tensors that the core reads."""

    kind = "a torch.Tensor"
    scalars: tuple[tuple[int, ...], ...] = ((),)

    def __init__(self, head: Head | None = None) -> None:
        self._head = head

    def is_tensor(self, value: object) -> bool:
        """Return whether the value is a `torch.Tensor`."""
        return isinstance(value, torch.Tensor)

    def dtype(self, tensor: Any) -> str:
        """Return the dtype's name."""
        return dtype_name(tensor.dtype)

    def to_numpy(self, tensor: Any) -> np.ndarray:
        """Return a copy of a tensor's values, see the function `to_numpy`."""
        if tensor.device.type == "meta":
            raise OutputError(
                f"the output of shape {tuple(tensor.shape)} is on the device 'meta', which holds no values. Give the model its "
                "weights (to_empty, then load_state_dict), and do not move it to 'meta'"
            )
        return to_numpy(tensor)

    def rows(self, tensor: Any, examples: np.ndarray, positions: np.ndarray) -> Any:
        """Return the rows, on the graph where gradients are on."""
        chosen = torch.from_numpy(examples).to(tensor.device), torch.from_numpy(positions).to(tensor.device)
        if self._head is not None and torch.is_grad_enabled() and self._head.is_computed(tensor):
            return _RowsOfHead.apply(self._head.input[chosen], self._head.weight, tensor.detach()[chosen])
        return tensor[chosen]


class Head:
    """The last linear map of a pass, which in a language model computes the logits.

    Where some rows of its output are read, their cotangents are multiplied by the weight alone. PyTorch's own gradient multiplies
    those of all positions, of which all others are zero: in a model with a large vocabulary that is most of the backward pass.

    Args:
        input: the input, (example, position, dim).
        weight: the weight, (class, dim).
        bias: the bias, (class,), or None.
        output: the output, (example, position, class).
    """

    def __init__(self, input: Any, weight: Any, bias: Any, output: Any) -> None:
        self.input = input
        self.weight = weight
        self._bias = bias
        self._output = output
        self._versions = self._now()

    def _now(self) -> tuple[int, int, int]:
        """Return the tensors' versions, which change when a tensor is written to."""
        return self.input._version, self.weight._version, self._output._version

    def is_computed(self, tensor: Any) -> bool:
        """Return whether a tensor is the output, unchanged since, and its gradient flows to the input and to nothing else."""
        parts = (self.input, self.weight, self._output)
        return (
            tensor is self._output
            and all(type(part) in PLAIN and part.layout is torch.strided for part in parts)
            and (self.input.ndim, self.weight.ndim) == (3, 2)
            and self.input.dtype == self.weight.dtype == tensor.dtype
            and self.weight.grad_fn is None
            and (self._bias is None or self._bias.grad_fn is None)
            and self.input.requires_grad  # neither has been detached in place
            and tensor.grad_fn is not None
            and self._now() == self._versions
            and not tensor._backward_hooks
            and not tensor.retains_grad
            and not any(map(_is_hooked, _nodes_between(tensor, self.input)))
        )


def _nodes_between(output: Any, input: Any) -> Iterator[Any]:
    """Yield the nodes of a graph from a tensor down to another one, without the leaves."""
    waiting = [output.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node is not input.grad_fn and not hasattr(node, "variable"):
            yield node
            waiting.extend(below for below, _ in node.next_functions)


def _is_hooked(node: Any) -> bool:
    """Return whether a node of a graph has hooks, which may replace gradients; only another hook shows them."""
    for register in (node.register_hook, node.register_prehook):
        handle = register(lambda *gradients: None)
        hooks = len(handle.hooks_dict_ref())
        handle.remove()
        if hooks > 1:
            return True
    return False


class _RowsOfHead(torch.autograd.Function):  # type: ignore[misc]  # PyTorch need not be there where types are checked
    """The rows of a linear map's output, from those of its input."""

    @staticmethod
    def forward(ctx: Any, input: Any, weight: Any, rows: Any) -> Any:
        """Return the rows, which have been computed."""
        ctx.weight = weight
        return rows

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        """Return the gradient at the rows of the input."""
        return gradient @ ctx.weight, None, None
