"""The call of a model: the batch as tensors on the model's device, under the names of `forward`'s parameters."""

from __future__ import annotations

import copy
import functools
import inspect
import itertools
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from embgrad.backend import Call
from embgrad.backend.keras_inputs import MASKS, MODES, cast_exactly, declared, filled, is_keras
from embgrad.backend.signature import CallPlan, parameters_of, plan_call
from embgrad.common import pytree as structures
from embgrad.common.tolerance import coarsest
from embgrad.errors import OutputError, UnsupportedError
from embgrad.inputs.batch import TokenBatch

__all__ = [
    *("TorchTensors", "computed_in", "device_of", "dtype_name", "has_values", "is_floating", "is_transformed"),
    *("like", "plan", "to_numpy", "to_tensors"),
]

CPU: Final = torch.device("cpu")

#: The kinds of parameters that can be passed by their places.
PLACED: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)

#: The dtypes that NumPy has, too, in which tensors cross over as they are.
PLAIN: Final = {torch.float32: np.float32, torch.float64: np.float64}


def plan(model: Any, batch: TokenBatch, call: Call | None, device: Any) -> tuple[Callable[[], Any], tuple[str, ...]]:
    """Return the call of the model, ready to be made, and what of the batch it leaves out.

    Raises:
        BatchError: the model needs an input that the batch has nothing for.
        UnsupportedError: a sequence of parts, or a module without a forward, without `call`.
    """
    if call is not None:
        inputs = to_tensors(batch.inputs(), device, len(batch))
        return lambda: call(model, inputs), ()
    if isinstance(model, (list, tuple)):
        raise UnsupportedError(
            f"the model is a sequence of {len(model)} parts, and only you know how they go together: pass call=lambda parts, "
            "inputs: outputs"
        )
    if is_keras(model):
        return _plan_keras(model, batch, device)
    if _forward_of_class(model) is torch.nn.Module.forward and "forward" not in vars(model):
        children = ", ".join(name for name, _ in model.named_children())
        raise UnsupportedError(
            f"{type(model).__name__} has no forward of its own: expected a module that can be called, such as one of its "
            f"children ({children or 'none'}), or call=lambda model, inputs: outputs, which says how they go together"
        )
    planned = plan_call(parameters(model), batch)
    args = [to_tensors(argument, device, len(batch)) for argument in planned.args]
    kwargs = to_tensors(dict(planned.kwargs), device, len(batch))
    runner = _unparallel(model)
    return lambda: runner(*args, **kwargs), planned.unused


def _plan_keras(model: Any, batch: TokenBatch, device: Any) -> tuple[Callable[[], Any], tuple[str, ...]]:
    """For a Keras model on PyTorch: Keras's `forward` passes everything on, and knows of no mode but the argument `training`."""

    def native(name: str, value: Any, dtype: Any) -> Any:
        if isinstance(value, np.ndarray) and dtype is not None:
            value = cast_exactly(name, value, dtype, str(dtype))
        return to_tensors(value, device, len(batch))

    structure = declared(model)
    if structure is not None:
        inputs, unused = filled(structure, batch, native)
        args, kwargs = [inputs], {}
    else:
        found = _plan_keras_call(parameters_of(model.call, skip=MODES), batch)
        names = [p.name for p in parameters_of(model.call, skip=MODES)]
        dtypes = {"mask": np.bool_}  # as Keras's own masks are
        args = [native(name, value, dtypes.get(name)) for name, value in zip(names, found.args, strict=False)]
        kwargs = {name: native(name, value, dtypes.get(name)) for name, value in found.kwargs.items()}
        unused = found.unused
    training = model.training
    return lambda: model(*args, **kwargs, training=training), unused


def _plan_keras_call(parameters: Sequence[inspect.Parameter], batch: TokenBatch) -> CallPlan:
    """The arguments of a Keras model's `call`; of one that passes everything on, the batch as it was given."""
    if any(p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters):
        return plan_call(parameters, batch, masks=MASKS)
    inputs = batch.inputs()
    left = [name for name in ("mask", "types") if getattr(batch, name) is not None and not isinstance(inputs, dict)]
    return CallPlan((inputs,), {}, tuple(left))


def _unparallel(model: Any) -> Any:
    """The module that is to run in parallel: its replicas run in other threads, which cannot be watched."""
    parallel = (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)
    return _unparallel(model.module) if isinstance(model, parallel) else model


def parameters(module: Any) -> Sequence[inspect.Parameter]:
    """The parameters of `forward`; of a wrapper that passes everything on, those of the module inside it.

    A `torch.nn.Sequential` passes on one argument, to its first module. Through a wrapper that takes names alone they can be
    passed by name alone, and through one that takes none by their places.
    """
    own = _own_parameters(module)
    inside = list(module.children())
    if _forward_of_class(module) is torch.nn.Sequential.forward and inside:
        named = [p for p in parameters(inside[0]) if p.kind in PLACED][:1]
        return [p.replace(kind=p.POSITIONAL_ONLY, default=p.empty) for p in named] or own
    if len(inside) != 1 or any(p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in own):
        return own
    further = parameters(inside[0])
    kinds = {p.kind for p in own}
    if inspect.Parameter.VAR_KEYWORD not in kinds:
        return [p.replace(kind=inspect.Parameter.POSITIONAL_ONLY) for p in further if p.kind in PLACED]
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return further
    return [p.replace(kind=p.KEYWORD_ONLY) if p.kind is p.POSITIONAL_OR_KEYWORD else p for p in further]


def _forward_of_class(module: Any) -> Any:
    """Return the `forward` that the module's class has, as it stands there: TorchScript's cannot be read from the class."""
    return inspect.getattr_static(type(module), "forward", None)


def _own_parameters(module: Any) -> Sequence[inspect.Parameter]:
    if isinstance(module, torch.fx.GraphModule) and (by_name := _exported_by_name(module)):
        own = parameters_of(module.forward)
        return [p.replace(kind=p.KEYWORD_ONLY) if p.name in by_name else p for p in own]
    if not isinstance(module, torch.jit.ScriptModule):
        return parameters_of(module.forward)
    return [
        inspect.Parameter(
            argument.name,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=argument.default_value if argument.has_default_value() else inspect.Parameter.empty,
        )
        for argument in module.forward.schema.arguments[1:]  # less the module itself
    ]


def _exported_by_name(module: Any) -> frozenset[str]:
    """The parameters that an exported graph was given by name, and takes by name alone, though its `forward` does not say so."""
    form = getattr(getattr(module.graph._codegen, "pytree_info", None), "in_spec", None)
    given = None if form is None else pytree.tree_unflatten([None] * form.num_leaves, form)
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], dict):  # by their places, and by name
        return frozenset(given[1])
    return frozenset()


def to_tensors(value: Any, device: Any, examples: int) -> Any:
    """Return the structure with tensors on the device in place of arrays.

    Arrays, tensors and objects, such as a cache, are copied, never shared: models write into what they are given. A list counts
    as an array where its first axis is the examples.
    """
    if isinstance(value, np.ndarray):
        return torch.from_numpy(np.array(value, order="C")).to(device)
    if isinstance(value, torch.Tensor):
        moved = value.to(device)
        return moved.clone() if moved is value or moved.is_inference() else moved  # which autograd cannot save
    if isinstance(value, Mapping):
        entries = {key: to_tensors(entry, device, examples) for key, entry in value.items()}
        return entries if type(value) is dict else _with_entries(value, entries)
    if isinstance(value, list) and (array := _numbers(value)) is not None and len(array) == examples:
        return torch.tensor(array, device=device)
    if isinstance(value, list) or type(value) is tuple:
        return type(value)(to_tensors(entry, device, -1) for entry in value)  # a list in a list is not an array
    return _copied(value)


def _with_entries(value: Mapping[Any, Any], entries: dict[Any, Any]) -> Any:
    """A mapping of the same kind, such as what another model returned, with these entries; a dict where none can be made."""
    if not isinstance(value, MutableMapping):
        return entries
    other = copy.copy(value)
    for key, entry in entries.items():
        other[key] = entry
    return other


def _copied(value: Any) -> Any:
    """A copy of an object and of the tensors in it."""
    with _Cloning():
        return structures.copied(value)


class _Cloning(TorchFunctionMode):  # type: ignore[misc]  # PyTorch need not be there where types are checked
    """While objects are copied: tensors are cloned where they are, on a graph as well; weights are whose they are."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Called by PyTorch in place of each of its functions, with this mode off meanwhile."""
        if func is not torch.Tensor.__deepcopy__:
            return func(*args, **(kwargs or {}))
        tensor, memo = args
        memo[id(tensor)] = made = tensor if isinstance(tensor, torch.nn.Parameter) else tensor.clone()
        return made


def _numbers(value: Sequence[Any]) -> np.ndarray | None:
    if any(isinstance(entry, torch.Tensor) for entry in value):
        return None
    try:
        array = np.asarray(value)
    except ValueError:  # ragged
        return None
    return array if array.dtype.kind in "biuf" and array.ndim else None


def to_numpy(tensor: Any) -> np.ndarray:
    """A tensor's values in memory of their own, C-contiguous; half precision widened to float32."""
    values = tensor.detach()
    if values.dtype in PLAIN and values.is_cpu and values.layout is torch.strided and not values.is_neg():
        return np.array(values.numpy(), order="C", copy=True)  # as most are
    if values.layout is not torch.strided:
        values = values.to_dense()
    if values.is_floating_point() and values.dtype not in PLAIN:
        values = values.float()
    if values.device.type != "cpu" or values.is_complex() or values.is_neg():
        values = values.cpu().resolve_conj().resolve_neg()
    return np.array(values.numpy(), order="C", copy=True)


def like(values: np.ndarray, tensor: Any) -> Any:
    """The values as a tensor of their own, in another's dtype and on its device."""
    dtype = PLAIN.get(tensor.dtype) if tensor.is_cpu else None
    if dtype is not None:
        return torch.from_numpy(np.array(values, dtype=dtype, order="C"))
    return torch.from_numpy(np.array(values, order="C")).to(tensor.device, tensor.dtype)


def device_of(modules: Iterable[Any]) -> Any:
    """Return the device of the inputs: that of the modules' first parameter or buffer with values."""
    for module in modules:
        for tensor in itertools.chain(module._parameters.values(), module._buffers.values()):
            if tensor is None or tensor.is_meta:
                continue
            return CPU if tensor.is_cpu else tensor.device
    return CPU


@functools.cache
def dtype_name(dtype: Any) -> str:
    """A dtype of PyTorch's, as NumPy would spell it."""
    return str(dtype).removeprefix("torch.")


def computed_in(tensors: Sequence[Any]) -> str:
    """The coarsest dtype of some tensors and of autocast, if that is on where they are."""
    dtypes = {one.dtype for one in tensors}
    for kind in {one.device.type for one in tensors} & {"cpu", "cuda"}:
        if torch.is_autocast_enabled(kind):
            dtypes.add(torch.get_autocast_dtype(kind))
    return coarsest(dtype_name(one) for one in dtypes)


def is_transformed() -> bool:
    """Return whether this runs inside torch.vmap or another transform of torch.func."""
    return torch._C._functorch.maybe_current_level() is not None


def has_values(tensor: Any) -> bool:
    """Return whether a strided tensor has memory of its own: those inside a transform of torch.func have none to be read."""
    try:
        tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return False
    return True


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

    def is_tensor(self, value: object) -> bool:
        """Return whether the value is a `torch.Tensor`."""
        return isinstance(value, torch.Tensor)

    def dtype(self, tensor: Any) -> str:
        """The dtype's name."""
        return dtype_name(tensor.dtype)

    def to_numpy(self, tensor: Any) -> np.ndarray:
        """See `to_numpy`."""
        if tensor.device.type == "meta":
            raise OutputError(
                f"the output of shape {tuple(tensor.shape)} is on the device 'meta', which holds no values: expected one that "
                "was computed; give the model its weights (to_empty, then load_state_dict), and leave .to('meta') out"
            )
        return to_numpy(tensor)

    def rows(self, tensor: Any, examples: np.ndarray, positions: np.ndarray) -> Any:
        """The rows, on the graph where gradients are on."""
        where = [torch.from_numpy(one).to(tensor.device) for one in (examples, positions)]
        return tensor[where[0], where[1]]
