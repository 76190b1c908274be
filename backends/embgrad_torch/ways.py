"""Watches small passes where rows are looked up alone, once their way is known from a pass that was watched as a whole."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Final

import torch

from embgrad.errors import EmbgradError
from embgrad_torch.lookup import LookupMode, unheard
from embgrad_torch.modules import hooked

__all__ = ["Elsewhere", "Watched", "Ways"]

#: Weights times tokens up to which watching each function shows in the time, and the memory that it saves does not.
SMALL: Final = 10**10

#: What part of a model's modules may lie in one that is watched.
SHARE: Final = 4

#: How many ways through one model are told apart.
MOST_WAYS: Final = 16

#: Each operation that autograd records gets the next number of its thread.
_SEED: Final = torch.zeros((), requires_grad=True)


class Elsewhere(BaseException):
    """The pass went another way than those that are known. Nobody's handler is to stop it."""


@dataclass
class Ways:
    """The ways that forward passes have been seen to take through a model.

    A pass that autograd records as many operations of, with the same lookups, is taken for one that was watched as a whole.
    The operations are counted, not looked at: it costs nothing, and a lookup more, or what becomes of its rows, is one more.

    Attributes:
        weights: how many numbers the model's parameters have.
        inside: the places, among the model's modules, of those in which rows are looked up.
        seen: of each way how many operations were recorded, and the lookups by key.
        open: whether rows are looked up outside of small modules, so that the whole of each pass must be watched.
        suspended: whether a pass switched gradients off somewhere.
        settings: of the model's attributes after the last pass: what was written to since may lead another way.
    """

    weights: int
    inside: set[int] = field(default_factory=set)
    seen: set[tuple[int, tuple[str, ...]]] = field(default_factory=set)
    open: bool = False
    suspended: bool = False
    settings: Any = None

    def serve(self, tokens: int) -> bool:
        """Whether a pass on so many tokens may be watched in part, once its way is known."""
        return not self.open and self.weights * tokens <= SMALL


class Watched:
    """The watching of one small pass.

    Args:
        mode: what watches.
        modules: the model's.
        ways: those that are known.
        whole: whether to watch every function, and to learn the way.
    """

    def __init__(self, mode: LookupMode, modules: Sequence[Any], ways: Ways, *, whole: bool) -> None:
        self._mode = mode
        self._modules = modules
        self._ways = ways
        self._whole = whole
        self._thread = threading.get_ident()
        self._depth = 0
        self._start = 0
        self._hooks: list[hooked] = []

    def __enter__(self) -> None:
        self._start = _recorded()
        if self._whole:
            self._mode.on_read = self._learn
            self._mode.__enter__()
            return
        self._mode.suspended_grad = self._ways.suspended
        try:
            for place in self._ways.inside:
                self._hooks.append(hooked(self._modules[place], self._before, self._after))
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

    def _leave(self) -> None:
        for hooks in self._hooks:
            hooks.__exit__(None, None, None)
        self._hooks.clear()  # they know this, and nothing is to wait for the garbage collector
        if self._depth:  # a hook of the user's came between
            self._depth = 0
            self._mode.__exit__(None, None, None)

    def _keep(self, way: tuple[int, tuple[str, ...]]) -> None:
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
        else:
            self._ways.inside.add(place)

    def _is_small(self, module: Any) -> bool:
        """Whether watching what a module does is much less than watching the model."""
        inside = sum(1 for _ in module.modules())
        return inside == 1 < len(self._modules) or SHARE * inside <= len(self._modules)


def _recorded() -> int:
    """How many operations autograd has recorded in this thread."""
    return int(_SEED.view_as(_SEED).grad_fn._sequence_nr())


def _running_module() -> Any:
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code is torch.nn.Module._call_impl.__code__:
            return frame.f_locals["self"]
        frame = frame.f_back
    return None
