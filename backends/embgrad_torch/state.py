"""Leave the model and the process as they were found, whatever happens in between."""

from __future__ import annotations

import contextlib
import functools
import operator
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import torch

from embgrad.errors import EmbgradWarning, UnsupportedError
from embgrad.keras_inputs import is_keras
from embgrad.locks import held
from embgrad_torch.attributes import Attributes
from embgrad_torch.operands import Accumulating
from embgrad_torch.settings import cast_anew, computed_anew, is_computing_once, uncompiled, without_cudnn
from embgrad_torch.structure import Changed, Structure
from embgrad_torch.tap import Differentiable
from embgrad_torch.undoing import Undoing
from embgrad_torch.versions import HAVE_VERSIONS

__all__ = ["as_found", "gradients_apart", "with_gradients_apart"]

#: In evaluation mode larger buffers, in numbers, are not copied: they are masks, tables and quantised weights, which
#: hardly a forward pass writes to; one that does is told of. Running statistics and counters are smaller.
LARGEST_COPIED = 1 << 20

#: The dtypes of most buffers, which no graph can hold.
WHOLE: Final = frozenset({torch.int64, torch.int32, torch.bool})

#: The types of parameters that have weights from the beginning.
PLAIN: Final = frozenset({torch.nn.Parameter})

#: What of a parameter the model may change: its place in memory, whether it is trainable, its gradient.
_place: Final = torch.Tensor.data_ptr
_trainable: Final = operator.attrgetter("requires_grad")
_gradient: Final = operator.attrgetter("grad")
_data: Final = operator.attrgetter("data")

#: Does nothing, and can be entered as often as one likes.
_NOTHING: Final = contextlib.nullcontext()


@contextlib.contextmanager
def as_found(model: Structure, device: Any, *, training: bool) -> Iterator[Attributes]:
    """The state for one forward and backward pass, and afterwards, also after an error, the state that was.

    Holds the locks of all modules: a module may belong to several models. Gives their attributes.

    Args:
        model: the model.
        device: where it runs.
        training: the mode.

    Raises:
        UnsupportedError: the model cannot be put into training mode, or its weights do not exist yet, or tensors have no values.
        Changed: the structure was recalled, and does not hold any more.
    """
    _expect_values()
    with (
        held(model.locks),
        Differentiable(),
        _heard(),
        cast_anew(),
        computed_anew if is_computing_once() else _NOTHING,
        uncompiled,
        Undoing() as stack,
    ):
        found = _found(model)
        stack.callback(found.attributes.put_back)
        stack.callback(_parameters(model, found.plain, training))
        if found.inferring:
            _make_ordinary(model, stack)
            model.look()
        stack.callback(_contents(found, model.buffers(), training))
        _set_mode(model, found, training, stack)
        recurrent = device.type == "cuda" and any(isinstance(one, torch.nn.RNNBase) for one in model.modules)
        with without_cudnn if recurrent and not training else _NOTHING:
            yield found.attributes


def gradients_apart(model: Structure) -> None:
    """From now on gradients are accumulated in copies of what the parameters have, until they are given their own again.

    Args:
        model: the model, whose state is kept.
    """
    for parameter in _plain(model.parameters()):
        if parameter.grad is not None:
            parameter.grad = parameter.grad.clone()


def with_gradients_apart(model: Structure, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A function of the user's: what it has accumulated is accumulated apart.

    Args:
        model: the model, whose state is kept while it runs.
        function: the function.
    """

    def called(given: Any) -> Any:
        with Accumulating(functools.partial(gradients_apart, model)):
            return function(given)

    return called


def _plain(parameters: Sequence[Any]) -> list[Any]:
    """The parameters whose place in memory, gradient and numbers are taken down."""
    return [one for one in parameters if type(one) is torch.nn.Parameter and one.layout is torch.strided]


class _Found:
    """What of a model can be another after a pass, and what is known of it. It holds while nobody writes to the model.

    Args:
        model: the model, which has just been looked at.

    Attributes:
        attributes: its modules' attributes.
        plain: the parameters whose place in memory, gradient and numbers are taken down.
        inferring: whether parameters or buffers were made under inference mode.
        flags: the modules' modes, by `training`, as they are now.
        flagged: whether these are all attributes like others, and none is computed by a property or shared.

    Raises:
        UnsupportedError: there are parameters without weights.
    """

    def __init__(self, model: Structure) -> None:
        parameters, buffers = model.parameters(), model.buffers()
        _expect_weights(model, parameters)
        self.attributes = Attributes(model)
        self.plain = _plain(parameters)
        self._all = [*parameters, *buffers]
        self.inferring = self._is_inferring()
        self.flags = _flags(model)
        kinds = set(map(type, model.modules))
        self.flagged = all("training" in own for own in model.own) and not any(
            hasattr(one, "training") for one in kinds
        )
        self._tensors = [one for one in self.attributes.tensors() if _is_copied(one)]
        self._copies: list[tuple[Any, Any]] = []
        self._looked = model.looked

    def hold(self, model: Structure) -> bool:
        """Whether it does, of the model as it is now."""
        if not (model.types_hold() and self.attributes.hold(model.own_now())) or self._is_inferring():
            return False
        if not self.flagged:  # no attribute of the modules need tell that these are others
            self.flags = _flags(model)
        model.looked = self._looked
        return True

    def _is_inferring(self) -> bool:
        return any(map(torch.Tensor.is_inference, self._all))

    def contents(self, buffers: Sequence[Any]) -> list[tuple[Any, Any]]:
        """The buffers, and the tensors in plain attributes, with copies of what they hold now."""
        tensors = [*buffers, *self._tensors]
        known = {id(one): copy for one, copy in self._copies}
        copies = [(one, _copy_of(one, known.get(id(one)))) for one in tensors]
        self._copies = copies if sum(one.numel() for one in tensors) <= LARGEST_COPIED else []
        return copies


def _found(model: Structure) -> _Found:
    """What was found by an earlier pass, where it holds, or is found now."""
    known: _Found | None = model.found
    if known is not None and known.hold(model):
        return known
    if model.recalled:
        raise Changed
    model.look()
    found = _Found(model)
    if HAVE_VERSIONS and not found.inferring:  # else nothing can tell that it holds
        model.keep(found)
    return found


def _copy_of(tensor: Any, known: Any) -> Any:
    """A copy of a tensor: an earlier one that still is one, where telling that takes no wait for a device."""
    if (
        known is not None
        and tensor.is_cpu
        and known.is_cpu
        and known.dtype == tensor.dtype
        and torch.equal(tensor, known)
    ):
        return known
    return tensor.detach().clone()


def _heard() -> Any:
    """What watches functions is told of them, also where the user has switched that off around the call."""
    return _NOTHING if torch._C._is_torch_function_enabled() else torch._C._EnableTorchFunction()


def _expect_values() -> None:
    if torch._C._functorch.maybe_current_level() is not None:
        raise UnsupportedError(
            "embgrad is called inside torch.vmap, torch.func.grad or another transform of torch.func, where tensors have no "
            "values to be read: expected a call outside of it; to transform the model's own call, pass call=..."
        )


def _expect_weights(model: Structure, parameters: Sequence[Any]) -> None:
    if set(map(type, parameters)) <= PLAIN or not any(map(torch.nn.parameter.is_lazy, parameters)):
        return
    for module in model.modules:
        if any(torch.nn.parameter.is_lazy(parameter) for parameter in module._parameters.values()):
            raise UnsupportedError(
                f"{type(module).__name__} has no weights before its first call, and a call here would leave them behind: "
                "expected a model that has been called once"
            )


def _set_mode(model: Structure, found: _Found, training: bool, stack: Undoing) -> None:
    """Evaluation mode, or training mode as the user set it up, or else as the model's own `train` sets it up.

    The flags are put back one by one: a model may be in both modes, and a `train` of the user's own may do more.
    """
    evaluating = not training and any(found.flags)
    if training or evaluating or not found.flagged:  # else they are put back as attributes are
        stack.callback(functools.partial(_set_flags, model.modules, found.flags))
    if evaluating:
        _set_flags(model.modules, [False] * len(found.flags))
    for part in model.parts if training else ():
        if not part.training or "train" in vars(part):
            _train(part)


def _flags(model: Structure) -> list[bool]:
    return list(map(_mode, model.modules))


def _mode(module: Any) -> bool:
    """Whether it is in training mode. Frozen TorchScript modules are in none."""
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


def _parameters(model: Structure, plain: Sequence[Any], training: bool) -> Callable[[], None]:
    """What gives parameters that the model freezes, or gives other memory or another `grad`, their own again.

    A `train` of the user's own may take adapters out of the weights, so that their numbers are kept, too. So are those of
    Keras's averages, which are parameters that are not trained; its seeds are left to move.
    """
    rewritten = training and any(
        "train" in vars(one) or type(one).train is not torch.nn.Module.train for one in model.modules
    )
    contents = list(map(_data, plain))
    places, trainable, gradients = [list(map(get, plain)) for get in (_place, _trainable, _gradient)]
    averages = training and any(map(is_keras, model.modules))
    copied = [
        (data, data.clone())
        for data, trains in zip(contents, trainable, strict=True)
        if (rewritten or (averages and not trains and data.is_floating_point())) and not data.is_inference()
    ]

    def put_back() -> None:
        if list(map(_place, plain)) != places:
            for parameter, data, place in zip(plain, contents, places, strict=True):
                if parameter.data_ptr() != place:
                    parameter.data = data
        if list(map(_trainable, plain)) != trainable:
            for parameter, flag in zip(plain, trainable, strict=True):
                if parameter.requires_grad is not flag:
                    parameter.requires_grad_(flag)
        if not all(map(operator.is_, map(_gradient, plain), gradients)):
            for parameter, gradient in zip(plain, gradients, strict=True):
                if parameter.grad is not gradient:
                    parameter.grad = gradient
        for data, before in copied:
            if not torch.equal(data, before):
                data.copy_(before)

    return put_back


def _contents(found: _Found, buffers: Sequence[Any], training: bool) -> Callable[[], None]:
    """What makes buffers, and tensors in plain attributes, that were written to or hung on a graph what they were."""
    small = [one for one in buffers if not one.is_meta and (training or one.numel() <= LARGEST_COPIED)]
    copied = found.contents(small)
    large = [(b, b._version) for b in buffers if b.numel() > LARGEST_COPIED] if len(small) < len(buffers) else []
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


def _make_ordinary(model: Structure, stack: Undoing) -> None:
    """Parameters made under inference mode, which autograd cannot take, as ordinary tensors in the same memory."""
    ordinary: dict[int, Any] = {}
    for module in model.modules:
        for name, tensor in [*module._parameters.items(), *module._buffers.items()]:
            if tensor is not None and tensor.is_inference():
                if id(tensor) not in ordinary:
                    ordinary[id(tensor)] = _ordinary(tensor)
                stack.callback(functools.partial(setattr, module, name, tensor))
                setattr(module, name, ordinary[id(tensor)])


def _ordinary(tensor: Any) -> Any:
    empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    same = empty.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride())
    return torch.nn.Parameter(same, requires_grad=False) if isinstance(tensor, torch.nn.Parameter) else same
