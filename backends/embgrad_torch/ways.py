"""Watches small passes of libraries' models where rows are looked up alone, once a pass watched as a whole went the same way."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.nn.modules import module as _of_all

from embgrad.errors import EmbgradError
from embgrad_torch.libraries import are_of_libraries, forwards_of, is_of_libraries
from embgrad_torch.lookup import LookupMode, unheard
from embgrad_torch.modules import heard, hooked
from embgrad_torch.segments import in_segment

if TYPE_CHECKING:
    from embgrad_torch.attributes import Attributes

__all__ = ["Elsewhere", "Watched", "Ways"]

#: Weights times tokens up to which watching each function shows in the time, and the memory that it saves does not.
SMALL: Final = 10**10

#: What part of a model's modules may lie in one that is watched.
SHARE: Final = 4

#: How many ways through one model are told apart.
MOST_WAYS: Final = 16

#: How many operations autograd has recorded in this thread: each gets the next number.
_recorded: Final = torch.autograd._get_sequence_nr


#: What a plain lookup is made by.
_FORWARD: Final = torch.nn.Embedding.forward
_FUNCTION: Final = torch.nn.functional.embedding


class Elsewhere(BaseException):
    """The pass went another way than those that are known. Nobody's handler is to stop it."""


@dataclass
class Ways:
    """The ways that forward passes have been seen to take through a model.

    A pass that autograd records as many operations of, with the same lookups, is taken for one that was watched as a whole.
    The operations are counted, not looked at, which costs nothing, and tells two ways apart, but not surely: no pass is taken
    for another where code of the user's runs, which may look up rows anywhere.

    Attributes:
        weights: how many numbers the model's parameters have.
        types: the types of its modules, each once.
        inside: the places, among the model's modules, of those in which rows are looked up, or may be.
        segments: those of them that a gradient checkpoint runs, and runs again to the same saved tensors.
        seen: of each way how many operations were recorded, and the lookups by key.
        open: whether rows are looked up outside of small modules, so that the whole of each pass must be watched.
        suspended: whether a pass switched gradients off somewhere.
        settings: of the model's attributes after the last pass: what was written to since may lead another way.
        forwards: what the modules did in the last pass that was watched as a whole, by their types.
    """

    weights: int
    types: Sequence[type] = ()
    inside: set[int] = field(default_factory=set)
    segments: set[int] = field(default_factory=set)
    seen: set[tuple[int, tuple[str, ...]]] = field(default_factory=set)
    open: bool = False
    suspended: bool = False
    settings: Any = None
    forwards: Sequence[Any] = ()

    def serve(self, tokens: int) -> bool:
        """Whether a pass on so many tokens may be watched in part, once its way is known."""
        return self.weights * tokens <= SMALL

    def learn(self, attributes: Attributes) -> bool:
        """Whether there is anything to be learned of a pass that is watched as a whole; if not, all is forgotten."""
        functions = (*attributes.functions(), *attributes.hooks)
        if self.open or not are_of_libraries(self.types, functions):
            self.seen.clear()
            return False
        self.forwards = forwards_of(self.types)
        return True

    def expect_settled(self, attributes: Attributes) -> None:
        """Refuse a pass that is not watched as a whole where the model is not as the last pass left it.

        Raises:
            Elsewhere: something has been written to an attribute since, or others hear of the pass.
        """
        if attributes.settings != self.settings or forwards_of(self.types) != self.forwards:
            raise Elsewhere
        if _of_all._global_forward_hooks or _of_all._global_forward_pre_hooks:
            raise Elsewhere
        if not all(map(is_of_libraries, attributes.hooks)):
            raise Elsewhere


class Watched:
    """The watching of one small pass.

    Args:
        mode: what watches.
        modules: the model's.
        ways: those that are known.
        whole: whether to watch every function, and to learn the way.
        cut: whether rows that are asked for are cut off their table.
    """

    def __init__(self, mode: LookupMode, modules: Sequence[Any], ways: Ways, *, whole: bool, cut: bool) -> None:
        self._mode = mode
        self._modules = modules
        self._ways = ways
        self._whole = whole
        self._cut = cut
        self._thread = threading.get_ident()
        self._depth = 0
        self._start = 0
        self._hooks: list[hooked | heard] = []

    def __enter__(self) -> None:
        self._start = _recorded()
        if self._whole:
            self._mode.on_read = self._learn
            self._mode.__enter__()
            return
        self._mode.suspended_grad = self._ways.suspended
        unpatched = _is_unpatched()
        try:
            for place in self._ways.inside:
                one = self._modules[place]
                plain = unpatched and place not in self._ways.segments and _is_plain(one)
                self._hooks.append(heard(one, self._gave) if plain else hooked(one, self._before, self._after))
                self._hooks[-1].__enter__()
        except BaseException:
            self._leave()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        """The pass ended.

        Raises:
            Elsewhere: it went no known way; it must be made again, and watched as a whole.
        """
        if self._whole:
            self._mode.__exit__(kind, error, trace)
            self._mode.on_read = unheard
        else:
            self._leave()
        if error is None:
            self._expect_known()
        elif not self._whole and isinstance(error, Exception) and not isinstance(error, EmbgradError):
            raise Elsewhere from error  # it may be one that watching gives another name

    def _expect_known(self) -> None:
        way = (_recorded() - self._start, tuple([one.key for one in self._mode.watch.lookups]))
        if self._whole:
            if way[1]:  # nothing tells a pass without lookups from one that could not be watched
                self._keep(way)
        elif way not in self._ways.seen:
            raise Elsewhere

    def _before(self, module: Any, args: Any, kwargs: Any) -> None:
        if threading.get_ident() == self._thread:
            self._depth += 1
            if self._depth == 1:
                self._mode.__enter__()

    def _after(self, module: Any, returned: Any) -> None:
        if threading.get_ident() == self._thread and self._depth:
            self._depth -= 1
            if self._depth == 0:
                self._mode.__exit__(None, None, None)

    def _gave(self, module: Any, args: Any, gave: Any) -> Any:
        """A module that does nothing but look up rows has done so."""
        if threading.get_ident() != self._thread or self._depth:  # watched already
            return None
        if not args or in_segment():
            raise Elsewhere
        gone_on = self._mode.on_gave(module, args[0], gave)
        if (
            self._cut and gone_on is not gave and gave.grad_fn is not None
        ):  # a pass watched as a whole does not record it
            self._start += 1
        return gone_on

    def _leave(self) -> None:
        for hooks in self._hooks:
            hooks.__exit__(None, None, None)
        self._hooks.clear()  # they know this, and nothing is to wait for the garbage collector
        if self._depth:  # a hook of the user's came between
            self._depth = 0
            self._mode.__exit__(None, None, None)

    def _keep(self, way: tuple[int, tuple[str, ...]]) -> None:
        if self._ways.open:
            return
        self._ways.suspended = self._ways.suspended or self._mode.suspended_grad
        if len(self._ways.seen) >= MOST_WAYS:
            self._ways.seen.clear()
        self._ways.seen.add(way)

    def _learn(self) -> None:
        """Rows are being looked up: by the innermost module that runs."""
        module = _running_module()
        place = next((place for place, one in enumerate(self._modules) if one is module), None)
        if place is None or isinstance(module, torch.jit.ScriptModule) or not self._is_small(module):
            self._ways.open = True
            self._ways.seen.clear()
        else:
            self._ways.inside.add(place)
            if in_segment():
                self._ways.segments.add(place)

    def _is_small(self, module: Any) -> bool:
        """Whether watching what a module does is much less than watching the model."""
        inside = sum(1 for _ in module.modules())
        return inside == 1 < len(self._modules) or SHARE * inside <= len(self._modules)


def _is_unpatched() -> bool:
    """Whether an `nn.Embedding` does what PyTorch's does, and nobody else hears of it or of its function."""
    return (
        torch.nn.Embedding.forward is _FORWARD
        and torch.nn.functional.embedding is _FUNCTION
        and not torch._C._len_torch_function_stack()
    )


def _is_plain(module: Any) -> bool:
    """Whether its rows can be taken from what it gives: it is an `nn.Embedding`, unchanged and without hooks.

    On other devices than the processor an index outside of the table must be told before the lookup, which it would crash.
    """
    return (
        type(module) is torch.nn.Embedding
        and module.max_norm is None
        and "forward" not in vars(module)
        and not (module._forward_hooks or module._forward_pre_hooks)
        and type(module.weight) is torch.nn.Parameter
        and module.weight.is_cpu
    )


def _running_module() -> Any:
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code is torch.nn.Module._call_impl.__code__:
            return frame.f_locals["self"]
        frame = frame.f_back
    return None
