"""Leave the model and the process as they were found, whatever happens in between."""

from __future__ import annotations

import collections
import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from embgrad.errors import EmbgradWarning, UnsupportedError
from embgrad.locks import model_lock, process_lock

__all__ = ["as_found", "random_as_found"]

#: In evaluation mode larger buffers, in numbers, are not copied: they are masks, tables and quantised weights, which
#: hardly a forward pass writes to; one that does is told of. Running statistics and counters are smaller.
LARGEST_COPIED = 1 << 20

#: The containers in a module's attributes that a forward pass may fill: the user's own, and those of hooks and buffers.
CONTAINERS = (list, dict, set, collections.deque, collections.OrderedDict, collections.defaultdict)


@contextlib.contextmanager
def as_found(parts: Sequence[Any], modules: Sequence[Any], device: Any, *, training: bool) -> Iterator[None]:
    """The state for one forward and backward pass, and afterwards, also after an error, the state that was.

    Holds the locks of all modules: a module may belong to several models.

    Args:
        parts: the model's parts.
        modules: all modules in them, each once.
        device: where the model runs.
        training: the mode.

    Raises:
        UnsupportedError: the model cannot be put into training mode, or its weights do not exist yet.
    """
    _expect_weights(modules)
    with contextlib.ExitStack() as stack:
        stack.enter_context(model_lock(modules))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())  # which the line above does, too, though nothing says so
        stack.enter_context(_uncompiled())
        stack.enter_context(_attributes(modules))
        stack.enter_context(_parameters(modules, training))
        stack.enter_context(_ordinary_tensors(modules))
        stack.enter_context(_contents(modules, training))
        stack.enter_context(_mode(parts, modules, training))
        recurrent = any(isinstance(module, torch.nn.RNNBase) for module in modules)
        if recurrent and device.type == "cuda" and not training:
            stack.enter_context(_without_cudnn())
        yield


def random_as_found(device: Any, *, training: bool) -> Any:
    """Outside training mode, random numbers that a forward pass draws even so are as if they had not been drawn."""
    return contextlib.nullcontext() if training else torch.random.fork_rng([device] if device.type == "cuda" else [])


def _expect_weights(modules: Sequence[Any]) -> None:
    for module in modules:
        if any(torch.nn.parameter.is_lazy(parameter) for parameter in module._parameters.values()):
            raise UnsupportedError(
                f"{type(module).__name__} has no weights before its first call, and a call here would leave them behind: "
                "expected a model that has been called once"
            )


@contextlib.contextmanager
def _mode(parts: Sequence[Any], modules: Sequence[Any], training: bool) -> Iterator[None]:
    """Evaluation mode, or training mode as the user set it up, or else as the model's own `train` sets it up.

    The flags are put back one by one: a model may be in both modes, and a `train` of the user's own may do more.
    """
    found = [module.training for module in modules]
    try:
        if not training:
            _set_flags(modules, [False] * len(modules))
        for part in parts:
            if training and (not part.training or "train" in vars(part)):
                _train(part)
        yield
    finally:
        _set_flags(modules, found)


def _set_flags(modules: Sequence[Any], flags: Sequence[bool]) -> None:
    for module, flag in zip(modules, flags, strict=True):
        if module.training is not flag:
            module.training = flag


def _train(part: Any) -> None:
    try:  # an exported program has a `train` of its own, which raises
        part.train()
    except NotImplementedError as error:
        raise UnsupportedError(
            f"training=True needs a model that can be put into training mode, and {type(part).__name__} says: {error}; an "
            "exported program keeps the mode in which it was exported"
        ) from error


@contextlib.contextmanager
def _attributes(modules: Sequence[Any]) -> Iterator[None]:
    """What modules keep from call to call (a hidden state, a cache, a list of maps, a replaced buffer) is what it was."""
    found = [(vars(module), dict(vars(module))) for module in modules]
    held = {id(value): value for _, before in found for value in before.values() if type(value) in CONTAINERS}
    contents = [(container, container.copy()) for container in held.values() if container]
    empty = [container for container in held.values() if not container]  # most are, such as those of hooks
    try:
        yield
    finally:
        for container in empty:
            if container:
                container.clear()
        for own, before in (*found, *contents):
            _put_back(own, before)


def _put_back(own: Any, before: Any) -> None:
    """A container's entries, in their order; what is the same is left alone, as other threads may be reading it."""
    if isinstance(own, (list, collections.deque)):
        if len(own) != len(before) or any(a is not b for a, b in zip(own, before, strict=True)):
            own.clear()
            own.extend(before)
    elif isinstance(own, set):
        own.intersection_update(before)
        own.update(before)
    elif own.keys() != before.keys():
        own.clear()
        own.update(before)
    else:
        for name, value in before.items():
            if own[name] is not value:
                own[name] = value


@contextlib.contextmanager
def _parameters(modules: Sequence[Any], training: bool) -> Iterator[None]:
    """Parameters that the model freezes, or gives other memory or another `grad`, have their own again.

    A `train` of the user's own may take adapters out of the weights, so that their numbers are kept, too.
    """
    rewritten = training and any(
        "train" in vars(one) or type(one).train is not torch.nn.Module.train for one in modules
    )
    unique = {id(parameter): parameter for module in modules for parameter in module._parameters.values()}
    found = [
        (parameter, parameter.data, parameter.requires_grad, parameter.grad)
        for parameter in unique.values()
        if type(parameter) is torch.nn.Parameter and parameter.layout is torch.strided
    ]
    copied = [(data, data.clone()) for _, data, _, _ in found if rewritten and not data.is_inference()]
    try:
        yield
    finally:
        for parameter, data, trainable, gradient in found:
            if parameter.data_ptr() != data.data_ptr():
                parameter.data = data
            if parameter.requires_grad is not trainable:
                parameter.requires_grad_(trainable)
            if parameter.grad is not gradient:
                parameter.grad = gradient
        for data, before in copied:
            if not torch.equal(data, before):
                data.copy_(before)


@contextlib.contextmanager
def _contents(modules: Sequence[Any], training: bool) -> Iterator[None]:
    """Buffers, and tensors in plain attributes, written to or hung on a graph (running averages, caches) are what they were."""
    buffers = list({id(b): b for module in modules for b in module._buffers.values() if b is not None}.values())
    plain = list({id(tensor): tensor for module in modules for tensor in _plain_tensors(module)}.values())
    copied = [(b, b.detach().clone()) for b in buffers if training or b.numel() <= LARGEST_COPIED] + [
        (tensor, tensor.detach().clone()) for tensor in plain
    ]
    large = [(b, b._version) for b in buffers if not training and b.numel() > LARGEST_COPIED]
    attached = [tensor for tensor in (*buffers, *plain) if tensor.grad_fn is None]
    try:
        yield
    finally:
        for tensor in attached:
            if tensor.grad_fn is not None:
                tensor.detach_()
        for tensor, before in copied:
            if not torch.equal(tensor, before):
                tensor.data.copy_(before)
        for buffer, version in large:
            if buffer._version != version:
                _tell_of(buffer)


def _plain_tensors(module: Any) -> Iterator[Any]:
    """The tensors in a module's plain attributes, such as a hidden state, by themselves or as a pair."""
    for value in vars(module).values():
        kind = type(value)
        if kind is torch.Tensor:
            if _is_copied(value):
                yield value
        elif kind is tuple or kind is list:
            yield from (one for one in value if type(one) is torch.Tensor and _is_copied(one))


def _is_copied(tensor: Any) -> bool:
    """Whether it has contents that can be put back; a view cannot be cut off a graph by itself."""
    in_memory = tensor.layout is torch.strided and tensor.device.type != "meta" and not tensor.is_quantized
    return in_memory and tensor.numel() <= LARGEST_COPIED and not (tensor._is_view() or tensor.is_inference())


def _tell_of(buffer: Any) -> None:
    warnings.warn(
        f"the model wrote to a buffer of shape {tuple(buffer.shape)} in evaluation mode, which is too large to be kept and is "
        "not what it was; give a copy of the model, or one without the cache",
        EmbgradWarning,
        stacklevel=2,
    )


@contextlib.contextmanager
def _ordinary_tensors(modules: Sequence[Any]) -> Iterator[None]:
    """Parameters made under inference mode, which autograd cannot take, as ordinary tensors in the same memory."""
    swapped: list[tuple[Any, str, Any]] = []
    ordinary: dict[int, Any] = {}
    try:
        for module in modules:
            for name, tensor in [*module._parameters.items(), *module._buffers.items()]:
                if tensor is not None and tensor.is_inference():
                    if id(tensor) not in ordinary:
                        ordinary[id(tensor)] = _ordinary(tensor)
                    swapped.append((module, name, tensor))
                    setattr(module, name, ordinary[id(tensor)])
        yield
    finally:
        for module, name, tensor in swapped:
            setattr(module, name, tensor)


def _ordinary(tensor: Any) -> Any:
    empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    same = empty.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride())
    return torch.nn.Parameter(same, requires_grad=False) if isinstance(tensor, torch.nn.Parameter) else same


class _Shared:
    """A process-wide setting that is made while at least one thread needs it."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._users = 0
        self._made: Any = None

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        with process_lock:
            if self._users == 0:
                self._made = self._make()
                self._made.__enter__()
            self._users += 1
        try:
            yield
        finally:
            with process_lock:
                self._users -= 1
                if self._users == 0:
                    self._made.__exit__(None, None, None)


def _eager() -> Any:
    """Compiled functions run as the Python that they were made from: a compiler would trace into the watching."""
    set_stance = getattr(torch.compiler, "set_stance", None)  # before PyTorch 2.6 watching itself made them do so
    return contextlib.nullcontext() if set_stance is None else set_stance("force_eager")


_uncompiled = _Shared(_eager)

#: cuDNN has no backward pass for recurrent layers in evaluation mode.
_without_cudnn = _Shared(lambda: torch.backends.cudnn.flags(enabled=False))
