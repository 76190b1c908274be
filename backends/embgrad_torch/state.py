"""Leave the model and the process as they were found, whatever happens in between."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

import torch
from torch.nn.utils import parametrize
from torch.overrides import TorchFunctionMode

from embgrad.backend.keras_inputs import is_keras
from embgrad.backend.locks import held, process_lock
from embgrad.backend.object_state import ObjectState
from embgrad.backend.rng import SharedGenerator
from embgrad.errors import EmbgradWarning, UnsupportedError
from embgrad_torch.inputs import is_transformed
from embgrad_torch.walk import Structure

__all__ = [
    *("ACCUMULATING", "Before", "Shared", "Weights", "preserved", "drawn_by_the_user", "is_running"),
    *("preserve_random_state", "running"),
]

#: In evaluation mode larger buffers, in numbers, are not copied: they are masks, tables and quantised weights, which
#: hardly a forward pass writes to; one that does is told of. Running statistics and counters are smaller.
LARGEST_COPIED = 1 << 20

#: The dtypes of most buffers, which no graph can hold.
WHOLE: Final = frozenset({torch.int64, torch.int32, torch.bool})

#: The kinds of devices for which autocast is looked at.
DEVICES: Final = ("cpu", "cuda")

#: The functions that have gradients accumulated in leaves.
ACCUMULATING: Final[Collection[Callable[..., Any]]] = frozenset({torch.autograd.backward, torch.Tensor.backward})

#: Does nothing, and can be entered as often as one likes.
_NOTHING: Final = contextlib.nullcontext()


@contextlib.contextmanager
def preserved(model: Structure, device: Any, *, training: bool) -> Iterator[Weights]:
    """The state for one forward and backward pass, and afterwards, also after an error, the state that was.

    Holds the locks of all modules and parameters, as these may belong to several models. Gives the parameters.

    Args:
        model: the model.
        device: where it runs.
        training: the mode.

    Raises:
        UnsupportedError: the model cannot be put into training mode, or its weights do not exist yet, or tensors have no values.
    """
    _expect_values()
    with (
        held(model.locks),
        torch.inference_mode(False),  # gradients are on in it, too
        torch._C._EnableTorchFunction(),  # also where the user has switched it off around the call
        _cast_anew(),
        _computed_anew if parametrize._cache_enabled else _NOTHING,
        _uncompiled,
        contextlib.ExitStack() as stack,
    ):
        parameters = model.parameters()
        _expect_weights(model, parameters)
        attributes = ObjectState(map(vars, model.modules))
        stack.callback(attributes.restore)
        weights = Weights(parameters, _rewritten(model, parameters, training))
        stack.callback(weights.put_back)
        if any(map(torch.Tensor.is_inference, (*parameters, *model.buffers()))):
            _make_ordinary(model, stack)
        buffers = model.buffers()
        stack.callback(_contents(_tensors_beside(attributes.values, buffers), buffers, training))
        _set_mode(model, training, stack)
        recurrent = device.type == "cuda" and any(isinstance(one, torch.nn.RNNBase) for one in model.modules)
        with _without_cudnn if recurrent and not training else _NOTHING:
            yield weights


def _tensors_beside(values: Sequence[Any], buffers: Sequence[Any]) -> list[Any]:
    """Return the plain tensors among what modules hold, such as a hidden state, that are no buffers."""
    known = set(map(id, buffers))
    return [value for value in values if type(value) is torch.Tensor and id(value) not in known]


class Weights:
    """The parameters of a model: their memory, gradients and flags, which are put back after a pass.

    Args:
        parameters: the parameters.
        rewritten: those whose numbers the pass may write to.
    """

    def __init__(self, parameters: Sequence[Any], rewritten: Sequence[Any]) -> None:
        self._plain = _plain(parameters)
        self._found = [(one, one.data, one.data_ptr(), one.requires_grad, one.grad) for one in self._plain]
        self._numbers = [(one.data, one.data.clone()) for one in rewritten]
        self._frozen: list[Any] = []

    def freeze(self, wanted: Sequence[Any]) -> bool:
        """Freeze the parameters, so that no memory is kept for gradients that nobody asks for; return whether there are any.

        Args:
            wanted: those that stay as they are.
        """
        stay = set(map(id, wanted))
        self._frozen = [one for one in self._plain if id(one) not in stay and _can_be_frozen(one)]
        _set_trainable(self._frozen, trainable=False)
        return bool(self._frozen)

    @contextlib.contextmanager
    def as_the_user_has_them(self) -> Iterator[None]:
        """Frozen parameters are trainable while a function of the user's runs, which may take gradients of its own."""
        _set_trainable(self._frozen, trainable=True)
        try:
            yield
        finally:
            _set_trainable(self._frozen, trainable=False)

    def gradients_apart(self) -> None:
        """From now on gradients are accumulated in copies of what the parameters have."""
        for one in self._plain:
            if one.grad is not None:
                one.grad = one.grad.clone()

    def put_back(self) -> None:
        """Give parameters that were frozen, or given other memory or another `grad`, their own again."""
        for one, data, place, trainable, gradient in self._found:
            if one.data_ptr() != place:
                one.data = data
            if one.requires_grad is not trainable:
                one.requires_grad_(trainable)
            if one.grad is not gradient:
                one.grad = gradient
        for data, before in self._numbers:
            if not torch.equal(data, before):
                data.copy_(before)


def _can_be_frozen(parameter: Any) -> bool:
    return bool(parameter.requires_grad and not parameter.is_inference())


def _set_trainable(parameters: Sequence[Any], *, trainable: bool) -> None:
    for one in parameters:
        one.requires_grad_(trainable)


class Before(TorchFunctionMode):  # type: ignore[misc]  # PyTorch need not be there where types are checked
    """Calls a function before any of some functions of PyTorch's runs.

    Args:
        functions: those of PyTorch's.
        call: the function that is called.
    """

    def __init__(self, functions: Collection[Callable[..., Any]], call: Callable[[], None]) -> None:
        super().__init__()
        self._functions = functions
        self._call = call

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Called by PyTorch in place of each of its functions, with this mode off meanwhile."""
        if func in self._functions:
            self._call()
        return func(*args, **kwargs) if kwargs else func(*args)


def _plain(parameters: Sequence[Any]) -> list[Any]:
    """The parameters whose place in memory, gradient and numbers are kept; those of other classes see to themselves."""
    return [one for one in parameters if type(one) is torch.nn.Parameter and one.layout is torch.strided]


def _rewritten(model: Structure, parameters: Sequence[Any], training: bool) -> list[Any]:
    """The parameters whose numbers a pass in training mode may write to.

    A `train` of the user's own may take adapters out of the weights. Keras's averages are parameters that are not trained; its
    seeds are left to move.
    """
    if not training:
        return []
    every = any("train" in vars(one) or type(one).train is not torch.nn.Module.train for one in model.modules)
    averages = any(map(is_keras, model.modules))
    return [
        one
        for one in _plain(parameters)
        if not one.is_inference() and (every or (averages and not one.requires_grad and one.is_floating_point()))
    ]


def _expect_values() -> None:
    if is_transformed():
        raise UnsupportedError(
            "embgrad is called inside torch.vmap, torch.func.grad or another transform of torch.func, where tensors have no "
            "values to be read: expected a call outside of it; to transform the model's own call, pass call=..."
        )


def _expect_weights(model: Structure, parameters: Sequence[Any]) -> None:
    if not any(map(torch.nn.parameter.is_lazy, parameters)):
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
    flags = list(map(_mode, model.modules))
    stack.callback(_set_flags, model.modules, flags)
    if not training:
        _set_flags(model.modules, [False] * len(flags))
    for part in model.parts if training else ():
        if not part.training or "train" in vars(part):
            _train(part)


def _mode(module: Any) -> bool:
    """Return whether a module is in training mode; False for frozen TorchScript modules, which have no mode."""
    mode: bool = getattr(module, "training", False)
    return mode


def _set_flags(modules: Sequence[Any], flags: Sequence[bool]) -> None:
    for module, flag in zip(modules, flags, strict=True):
        if _mode(module) is not flag:
            module.training = flag


def _train(part: Any) -> None:
    try:  # an exported program has a `train` of its own, which raises
        part.train()
    except NotImplementedError as error:
        raise UnsupportedError(
            f"training=True needs a model that can be put into training mode, and {type(part).__name__} says: {error}; an "
            "exported program keeps the mode in which it was exported"
        ) from error


def _contents(tensors: Sequence[Any], buffers: Sequence[Any], training: bool) -> Callable[[], None]:
    """Return a function that restores buffers and plain attributes' tensors that a pass has written to or put on a graph."""
    small = [one for one in buffers if not one.is_meta and (training or one.numel() <= LARGEST_COPIED)]
    large = [(one, one._version) for one in buffers if one.numel() > LARGEST_COPIED and not training]
    copied = [(one, one.detach().clone()) for one in (*small, *filter(_is_copied, tensors))]
    attached = [one for one, _ in [*copied, *large] if one.dtype not in WHOLE and one.grad_fn is None]
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
    """Return whether a tensor's contents can be restored; a view cannot be cut off a graph by itself."""
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


# Settings of the process and of the thread


class Shared:
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


#: Makes compiled functions run as the Python that they were made from: a compiler would trace into the watching.
_uncompiled: Final = Shared(lambda: torch.compiler.set_stance("force_eager"))

#: cuDNN has no backward pass for recurrent layers in evaluation mode.
_without_cudnn: Final = Shared(lambda: torch.backends.cudnn.flags(enabled=False))


class _Uncached(TorchFunctionMode):  # type: ignore[misc]  # PyTorch need not be there where types are checked
    """While active no cast is taken or kept, also where a block of the model's own, made earlier, turns that on again."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Called by PyTorch in place of each of its functions, with this mode off meanwhile."""
        if torch.is_autocast_cache_enabled():
            torch.set_autocast_cache_enabled(False)
        return func(*args, **kwargs) if kwargs else func(*args)


@contextlib.contextmanager
def _cast_anew() -> Iterator[None]:
    """Under `torch.autocast` PyTorch keeps casts of weights as long as the user's block runs, whatever becomes of the weights."""
    torch.autocast_increment_nesting()
    if not (torch.autocast_decrement_nesting() or any(map(torch.is_autocast_enabled, DEVICES))):
        yield  # a block of the model's own drops them at its end
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
    kept, parametrize._cache = parametrize._cache, {}
    try:
        yield
    finally:
        parametrize._cache = kept if parametrize._cache_enabled else {}


#: Weights that parametrizations compute, which PyTorch keeps with their graphs for as long as the user's block runs, are neither
#: taken nor left.
_computed_anew: Final = Shared(_with_another_cache)


# Random numbers

_generator: Final = SharedGenerator(torch.default_generator.get_state, torch.default_generator.set_state)

#: A function of the user's runs inside the pass: what it draws is drawn.
drawn_by_the_user: Final = _generator.for_user_code


def preserve_random_state(device: Any, *, training: bool) -> AbstractContextManager[Any]:
    """Outside training mode, random numbers that a pass draws even so are as if they had not been drawn."""
    if training:
        return contextlib.nullcontext()
    return torch.random.fork_rng([device]) if device.type == "cuda" else _generator.preserved()


# Whose pass it is

_local = threading.local()


def is_running() -> bool:
    """Return whether this thread is in a pass of embgrad's own."""
    return getattr(_local, "depth", 0) > 0


@contextlib.contextmanager
def running() -> Iterator[None]:
    """Meanwhile this thread is in a pass of embgrad's own, which no capture hears of."""
    _local.depth = getattr(_local, "depth", 0) + 1
    try:
        yield
    finally:
        _local.depth -= 1
