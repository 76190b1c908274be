"""Leave the model and the process as they were found, whatever happens in between."""

from __future__ import annotations

import contextlib
import operator
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import torch

from embgrad.errors import EmbgradWarning, UnsupportedError
from embgrad.locks import held, process_lock
from embgrad_torch.attributes import Attributes
from embgrad_torch.structure import Structure

__all__ = ["as_found"]

#: In evaluation mode larger buffers, in numbers, are not copied: they are masks, tables and quantised weights, which
#: hardly a forward pass writes to; one that does is told of. Running statistics and counters are smaller.
LARGEST_COPIED = 1 << 20

#: The types of parameters that have weights from the beginning.
PLAIN: Final = frozenset({torch.nn.Parameter})

#: What of a parameter the model may change: its place in memory, whether it is trainable, its gradient.
_place: Final = torch.Tensor.data_ptr
_trainable: Final = operator.attrgetter("requires_grad")
_gradient: Final = operator.attrgetter("grad")


@contextlib.contextmanager
def as_found(model: Structure, device: Any, *, training: bool) -> Iterator[None]:
    """The state for one forward and backward pass, and afterwards, also after an error, the state that was.

    Holds the locks of all modules: a module may belong to several models.

    Args:
        model: the model.
        device: where it runs.
        training: the mode.

    Raises:
        UnsupportedError: the model cannot be put into training mode, or its weights do not exist yet.
    """
    # The first of the two switches gradients on, too, though nothing says so.
    with (
        held(model.locks),
        torch.inference_mode(False),
        torch.enable_grad(),
        _heard(),
        _uncompiled,
        contextlib.ExitStack() as stack,
    ):
        model.look()
        attributes = Attributes(model)
        stack.callback(attributes.put_back)
        parameters, buffers = model.parameters(), model.buffers()
        _expect_weights(model, parameters)
        stack.callback(_parameters(model, parameters, training))
        if any(map(torch.Tensor.is_inference, parameters)) or any(map(torch.Tensor.is_inference, buffers)):
            _make_ordinary(model, stack)
            model.look()
            buffers = model.buffers()
        stack.callback(_contents(buffers, attributes.tensors(), training))
        _set_mode(model, training, stack)
        recurrent = device.type == "cuda" and any(isinstance(one, torch.nn.RNNBase) for one in model.modules)
        if recurrent and not training:
            stack.enter_context(_without_cudnn)
        yield


def _heard() -> Any:
    """What watches functions is told of them, also where the user has switched that off around the call."""
    return contextlib.nullcontext() if torch._C._is_torch_function_enabled() else torch._C._EnableTorchFunction()


def _expect_weights(model: Structure, parameters: Sequence[Any]) -> None:
    if set(map(type, parameters)) <= PLAIN or not any(map(torch.nn.parameter.is_lazy, parameters)):
        return
    for module in model.modules:
        if any(torch.nn.parameter.is_lazy(parameter) for parameter in module._parameters.values()):
            raise UnsupportedError(
                f"{type(module).__name__} has no weights before its first call, and a call here would leave them behind: "
                "expected a model that has been called once"
            )


def _set_mode(model: Structure, training: bool, stack: contextlib.ExitStack) -> None:
    """Evaluation mode, or training mode as the user set it up, or else as the model's own `train` sets it up.

    The flags are put back one by one: a model may be in both modes, and a `train` of the user's own may do more.
    """
    flags = [module.training for module in model.modules]
    stack.callback(_set_flags, model.modules, flags)
    if not training and any(flags):
        _set_flags(model.modules, [False] * len(flags))
    for part in model.parts:
        if training and (not part.training or "train" in vars(part)):
            _train(part)


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


def _parameters(model: Structure, parameters: Sequence[Any], training: bool) -> Callable[[], None]:
    """What gives parameters that the model freezes, or gives other memory or another `grad`, their own again.

    A `train` of the user's own may take adapters out of the weights, so that their numbers are kept, too.
    """
    rewritten = training and any(
        "train" in vars(one) or type(one).train is not torch.nn.Module.train for one in model.modules
    )
    plain = [one for one in parameters if type(one) is torch.nn.Parameter and one.layout is torch.strided]
    contents = [one.data for one in plain]
    places, trainable, gradients = [list(map(get, plain)) for get in (_place, _trainable, _gradient)]
    copied = [(one, one.clone()) for one in contents if rewritten and not one.is_inference()]

    def put_back() -> None:
        if list(map(_place, plain)) != places:
            for parameter, data, place in zip(plain, contents, places, strict=True):
                if parameter.data_ptr() != place:
                    parameter.data = data
        if list(map(_trainable, plain)) != trainable:
            for parameter, flag in zip(plain, trainable, strict=True):
                if parameter.requires_grad is not flag:
                    parameter.requires_grad_(flag)
        for parameter, gradient in zip(plain, gradients, strict=True):
            if parameter.grad is not gradient:
                parameter.grad = gradient
        for data, before in copied:
            if not torch.equal(data, before):
                data.copy_(before)

    return put_back


def _contents(buffers: Sequence[Any], tensors: Sequence[Any], training: bool) -> Callable[[], None]:
    """What makes buffers, and tensors in plain attributes, that were written to or hung on a graph what they were."""
    plain = [one for one in tensors if _is_copied(one)]
    copied = [(b, b.detach().clone()) for b in buffers if training or b.numel() <= LARGEST_COPIED] + [
        (tensor, tensor.detach().clone()) for tensor in plain
    ]
    large = [(b, b._version) for b in buffers if not training and b.numel() > LARGEST_COPIED]
    attached = [tensor for tensor in (*buffers, *plain) if tensor.grad_fn is None]
    # What holds the numbers that it held may still be what a graph of the user's saved.
    versions = [torch.autograd._unsafe_preserve_version_counter(one) for one, _ in copied if not one.is_inference()]

    def put_back() -> None:
        for tensor in attached:
            if tensor.grad_fn is not None:
                tensor.detach_()
        for tensor, before in copied:
            if not torch.equal(tensor, before):
                tensor.data.copy_(before)
        for one in versions:
            one.__exit__()
        for buffer, version in large:
            if buffer._version != version:
                _tell_of(buffer)

    return put_back


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


def _make_ordinary(model: Structure, stack: contextlib.ExitStack) -> None:
    """Parameters made under inference mode, which autograd cannot take, as ordinary tensors in the same memory."""
    ordinary: dict[int, Any] = {}
    for module in model.modules:
        for name, tensor in [*module._parameters.items(), *module._buffers.items()]:
            if tensor is not None and tensor.is_inference():
                if id(tensor) not in ordinary:
                    ordinary[id(tensor)] = _ordinary(tensor)
                stack.callback(setattr, module, name, tensor)
                setattr(module, name, ordinary[id(tensor)])


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

    def __enter__(self) -> None:
        with process_lock:
            if self._users == 0:
                self._made = self._make()
                self._made.__enter__()
            self._users += 1

    def __exit__(self, *told: object) -> None:
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
