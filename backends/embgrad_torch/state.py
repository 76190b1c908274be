"""Restore the state of the model and of the process after a pass, also after an error."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

import torch
from torch.nn.utils import parametrize
from torch.overrides import TorchFunctionMode

from embgrad.errors import EmbgradWarning, UnsupportedError
from embgrad.keras import Node, value_of
from embgrad.toolkit import ObjectState, SharedGenerator, held, may_be_state, process_lock, record_change, record_kept
from embgrad_torch.inputs import is_transformed
from embgrad_torch.walk import Structure, held_tensors

__all__ = [
    *("Weights", "drawn_by_the_user", "is_running", "preserve", "preserve_random_state", "running", "set_trainable"),
    "uncompiled",
]

#: The largest size, in elements, of buffers that are copied in evaluation mode. Larger ones are masks, tables and quantised
#: weights, which forward passes rarely write to; a warning reports one that does.
LARGEST_COPIED = 1 << 20

#: The largest size of Keras's weights that are copied in evaluation mode where they may be hidden states: those of frozen layers,
#: and of classes of the user's.
LARGEST_STATE: Final = 1 << 16

#: Dtypes that cannot require gradients.
NOT_DIFFERENTIABLE: Final = frozenset({torch.int64, torch.int32, torch.bool})

#: The device types whose autocast is read.
DEVICES: Final = ("cpu", "cuda")

#: A context that does nothing, and can be entered any number of times.
_NOTHING: Final = contextlib.nullcontext()


@contextlib.contextmanager
def preserve(model: Structure, device: Any, *, training: bool) -> Iterator[Weights]:
    """Set the state for one forward and backward pass, and restore it afterwards, also after an error.

    Hold the locks of all modules and parameters, as these may belong to several models. Yield the weights.

    Args:
        model: the model.
        device: the device of the model.
        training: whether the pass runs in training mode.

    Raises:
        UnsupportedError: the model cannot be put into training mode, or its weights do not exist yet, or tensors have no values.
    """
    _expect_values()
    with (
        held(model.locks),
        torch.inference_mode(False),  # switches gradients on, too
        torch._C._EnableTorchFunction(),  # also where the user has switched it off around the call
        _without_cast_cache(),
        _without_weight_cache if parametrize._cache_enabled else _NOTHING,
        contextlib.ExitStack() as stack,
    ):
        parameters = model.parameters()
        _expect_weights(model, parameters)
        attributes = ObjectState(map(vars, model.modules))
        stack.callback(attributes.restore)
        if any(map(torch.Tensor.is_inference, (*parameters, *model.buffers()))):
            _make_ordinary(model, stack)
            parameters = model.parameters()
        weights = Weights(parameters, _find_written(model, parameters, training))
        stack.callback(weights.restore)
        weights.put_gradients_aside()
        buffers = model.buffers()
        stack.callback(_contents_restorer(_plain_tensors(attributes.values, buffers), buffers, training))
        _set_mode(model, training, stack)
        recurrent = device.type == "cuda" and any(isinstance(module, torch.nn.RNNBase) for module in model.modules)
        with _without_cudnn if recurrent and not training else _NOTHING:
            yield weights


def _plain_tensors(values: Sequence[Any], buffers: Sequence[Any]) -> list[Any]:
    """Return the plain tensors among the values of attributes, such as a hidden state, that are no buffers."""
    known = set(map(id, buffers))
    return [value for value in values if type(value) is torch.Tensor and id(value) not in known]


class Weights:
    """The parameters of a model: their memory, gradients and flags, which are restored after a pass.

    Args:
        written: the parameters whose values the pass may change in place.
    """

    def __init__(self, parameters: Sequence[Any], written: Sequence[Any]) -> None:
        self._plain = _plain(parameters)
        self._states = [
            (weight, weight.data, weight.data_ptr(), weight.requires_grad, weight.grad) for weight in self._plain
        ]
        self._values = [(weight.data, weight.data.clone()) for weight in written]
        self._frozen: list[Any] = []

    def put_gradients_aside(self) -> None:
        """Take each parameter's `grad` away, so that what the model or a user's function accumulates begins at zero."""
        for weight, *_, gradient in self._states:
            if gradient is not None:
                weight.grad = None

    def freeze(self, requested: Sequence[Any]) -> bool:
        """Freeze the parameters, so that no operands are saved for their gradients; return whether any was trainable.

        Args:
            requested: the parameters that stay trainable.
        """
        trainable = set(map(id, requested))
        self._frozen = [
            weight
            for weight in self._plain
            if id(weight) not in trainable and weight.requires_grad and not weight.is_inference()
        ]
        set_trainable(self._frozen, trainable=False)
        return bool(self._frozen)

    @contextlib.contextmanager
    def trainable(self) -> Iterator[None]:
        """Make the frozen parameters trainable while a function of the user's runs, which may take gradients itself."""
        set_trainable(self._frozen, trainable=True)
        try:
            yield
        finally:
            set_trainable(self._frozen, trainable=False)

    def restore(self) -> None:
        """Restore the memory, the flag, the `grad` and the values of each parameter."""
        for weight, data, address, required, gradient in self._states:
            if weight.data_ptr() != address:
                weight.data = data
            if weight.requires_grad is not required:
                weight.requires_grad_(required)
            if weight.grad is not gradient:
                weight.grad = gradient
        record_kept(data for data, _ in self._values)
        for data, before in self._values:
            if not torch.equal(data, before):
                record_change(f"a variable of shape {tuple(data.shape)}")
                data.copy_(before)


def set_trainable(parameters: Sequence[Any], *, trainable: bool) -> None:
    """Set `requires_grad` of the parameters."""
    for parameter in parameters:
        parameter.requires_grad_(trainable)


def _plain(parameters: Sequence[Any]) -> list[Any]:
    """Return the strided parameters of PyTorch's own class: those of subclasses may have no memory to restore."""
    return [weight for weight in parameters if type(weight) is torch.nn.Parameter and weight.layout is torch.strided]


def _find_written(model: Structure, parameters: Sequence[Any], training: bool) -> list[Any]:
    """Return the parameters whose values a pass may change in place.

    An overridden `train` may unmerge adapters from the weights. Keras keeps moving averages and hidden states in frozen floating
    parameters, and seeds in integer ones, which training moves on.
    """
    if not training:
        kept = [value_of(node.value) for node in model.walked.variables if _may_be_written(node)]
        return [value for value in _plain(kept) if not (value.is_inference() or value.is_meta)]
    overridden = any("train" in vars(part) or type(part).train is not torch.nn.Module.train for part in model.modules)
    keras = bool(model.walked.keras)
    return [
        weight
        for weight in _plain(parameters)
        if not (weight.is_inference() or weight.is_meta)  # a weight on 'meta' is loaded elsewhere for the pass
        and (overridden or (keras and not weight.requires_grad and weight.is_floating_point()))
    ]


def _may_be_written(node: Node) -> bool:
    """Return whether a pass in evaluation mode may write to a variable of Keras's; weights that say they are none are larger."""
    value, trainable = value_of(node.value), bool(node.value.trainable)
    if not value.is_floating_point():
        return True
    is_state = may_be_state(node.owner, trainable=trainable)
    largest = LARGEST_COPIED if is_state and not trainable else LARGEST_STATE if is_state or not trainable else 0
    return bool(value.numel() <= largest)


def _expect_values() -> None:
    if is_transformed():
        raise UnsupportedError(
            "embgrad is called inside torch.vmap, torch.func.grad or another transform of torch.func, where the values of "
            "tensors cannot be read. Call it outside the transform; to transform the model's own call, pass call=..."
        )


def _expect_weights(model: Structure, parameters: Sequence[Any]) -> None:
    unbuilt = [layer for layer in model.walked.keras if not layer.built]
    if any(map(torch.nn.parameter.is_lazy, parameters)):
        unbuilt += [
            module
            for module in model.modules
            if any(torch.nn.parameter.is_lazy(parameter) for parameter in module._parameters.values())
        ]
    if unbuilt:
        raise UnsupportedError(
            f"{type(unbuilt[0]).__name__} creates its weights in its first call, which embgrad does not make for you. Call the "
            "model once before"
        )


def _set_mode(model: Structure, training: bool, stack: contextlib.ExitStack) -> None:
    """Set evaluation mode; or training mode, by the model's own `train` where the model is not in it yet.

    The flags are restored one by one: modules may be in different modes, and an overridden `train` may do more.
    """
    flags = _modes(model.modules)
    stack.callback(_set_flags, model.modules, flags)
    if not training:
        _set_flags(model.modules, [False] * len(flags))
    for part in model.parts if training else ():
        if not part.training or "train" in vars(part):
            _train(part)


def _modes(modules: Sequence[Any]) -> list[bool]:
    """Return which modules are in training mode; False for frozen TorchScript modules, which have no mode."""
    return [getattr(module, "training", False) for module in modules]


def _set_flags(modules: Sequence[Any], flags: Sequence[bool]) -> None:
    now = _modes(modules)
    if now != flags:
        for module, mode, flag in zip(modules, now, flags, strict=True):
            if mode is not flag:
                module.training = flag


def _train(part: Any) -> None:
    try:  # the `train` of an exported program raises
        part.train()
    except NotImplementedError as error:
        raise UnsupportedError(
            f"training=True failed, because {type(part).__name__}.train raised NotImplementedError: {error}. Leave "
            "training=True out: an exported program keeps the mode in which it was exported"
        ) from error


def _contents_restorer(tensors: Sequence[Any], buffers: Sequence[Any], training: bool) -> Callable[[], None]:
    """Return a function that restores buffers and plain tensors that a pass has written to or put on a graph."""
    small = [buffer for buffer in buffers if not buffer.is_meta and (training or buffer.numel() <= LARGEST_COPIED)]
    large = [(buffer, buffer._version) for buffer in buffers if buffer.numel() > LARGEST_COPIED and not training]
    copied = [(tensor, tensor.detach().clone()) for tensor in (*small, *filter(_can_be_restored, tensors))]
    detached = [
        tensor for tensor, _ in [*copied, *large] if tensor.dtype not in NOT_DIFFERENTIABLE and tensor.grad_fn is None
    ]
    # A restored tensor must keep its version: a graph of the user may have saved it.
    preserve = torch.autograd._unsafe_preserve_version_counter
    versions = [preserve(tensor) for tensor, _ in copied if not tensor.is_inference()]

    def restore() -> None:
        record_kept((*buffers, *tensors))
        for tensor in detached:
            if tensor.grad_fn is not None:
                tensor.detach_()
        for tensor, before in copied:
            if not torch.equal(tensor, before):
                record_change(f"a tensor of shape {tuple(tensor.shape)}")
                tensor.data.copy_(before)
        for version in versions:
            version.__exit__()
        for buffer, version in large:
            if buffer._version != version:
                warnings.warn(
                    f"the model wrote to a buffer of shape {tuple(buffer.shape)} in evaluation mode, which is too large to be "
                    "restored. Use a copy of the model, or a model without this buffer",
                    EmbgradWarning,
                    stacklevel=1,
                )

    return restore


def _can_be_restored(tensor: Any) -> bool:
    """Return whether a tensor's contents can be restored; a view cannot be detached in place."""
    in_memory = tensor.layout is torch.strided and tensor.device.type != "meta" and not tensor.is_quantized
    return in_memory and tensor.numel() <= LARGEST_COPIED and not (tensor._is_view() or tensor.is_inference())


def _make_ordinary(model: Structure, stack: contextlib.ExitStack) -> None:
    """Replace tensors made under inference mode, which autograd refuses, by ordinary ones in the same memory."""
    ordinary: dict[int, Any] = {}
    for module in model.modules:
        for name, tensor in held_tensors(module):
            if tensor.is_inference():
                if id(tensor) not in ordinary:
                    ordinary[id(tensor)] = _ordinary(tensor)
                stack.callback(setattr, module, name, tensor)
                setattr(module, name, ordinary[id(tensor)])


def _ordinary(tensor: Any) -> Any:
    empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    same = empty.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride())
    return torch.nn.Parameter(same, tensor.requires_grad) if isinstance(tensor, torch.nn.Parameter) else same


# Settings of the process and of the thread


class Shared:
    """A process-wide setting that is in effect while at least one thread needs it."""

    def __init__(self, create: Callable[[], Any]) -> None:
        self._create = create
        self._users = 0
        self._context: Any = None

    def __enter__(self) -> None:
        with process_lock:
            if self._users == 0:
                self._context = self._create()
                self._context.__enter__()
            self._users += 1

    def __exit__(self, *exc_info: object) -> None:
        with process_lock:
            self._users -= 1
            if self._users == 0:
                self._context.__exit__(None, None, None)


#: Runs compiled functions as the Python that they were made from: a compiler would trace into the hooks and modes.
uncompiled: Final = Shared(lambda: torch.compiler.set_stance("force_eager"))

#: cuDNN has no backward pass for recurrent layers in evaluation mode.
_without_cudnn: Final = Shared(lambda: torch.backends.cudnn.flags(enabled=False))


class _Uncached(TorchFunctionMode):  # type: ignore[misc]  # PyTorch need not be there where types are checked
    """A mode that keeps the cache of casts off, also where an autocast block of the model switches it on again."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Handle a call of a PyTorch function; PyTorch calls this with the mode switched off."""
        if torch.is_autocast_cache_enabled():
            torch.set_autocast_cache_enabled(False)
        return func(*args, **kwargs) if kwargs else func(*args)


@contextlib.contextmanager
def _without_cast_cache() -> Iterator[None]:
    """Switch off autocast's cache, which keeps casts of weights for the length of the user's block, even if weights change."""
    torch.autocast_increment_nesting()
    if not (torch.autocast_decrement_nesting() or any(map(torch.is_autocast_enabled, DEVICES))):
        yield  # an autocast block of the model clears the cache at its end
        return
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        with _Uncached():
            yield
    finally:
        torch.set_autocast_cache_enabled(before)


@contextlib.contextmanager
def _with_another_cache() -> Iterator[None]:
    before, parametrize._cache = parametrize._cache, {}
    try:
        yield
    finally:
        parametrize._cache = before if parametrize._cache_enabled else {}


#: Replaces the cache of `parametrize.cached`, which keeps computed weights with their graphs for the length of the user's block.
_without_weight_cache: Final = Shared(_with_another_cache)


# Random numbers

_generator: Final = SharedGenerator(torch.default_generator.get_state, torch.default_generator.set_state)

#: Keeps the random numbers that a function of the user's draws inside a pass.
drawn_by_the_user: Final = _generator.for_user_code


def preserve_random_state(device: Any, *, training: bool) -> AbstractContextManager[Any]:
    """Restore the state of the random generator after a pass in evaluation mode."""
    if training:
        return contextlib.nullcontext()
    return torch.random.fork_rng([device]) if device.type == "cuda" else _generator.preserve()


# Passes of embgrad

_local = threading.local()


def is_running() -> bool:
    """Return whether this thread is in a pass of embgrad's own."""
    return getattr(_local, "depth", 0) > 0


@contextlib.contextmanager
def running() -> Iterator[None]:
    """Mark this thread as running a pass of embgrad's own, which captures ignore, while the context is open."""
    _local.depth = getattr(_local, "depth", 0) + 1
    try:
        yield
    finally:
        _local.depth -= 1
