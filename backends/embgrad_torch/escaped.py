"""Takes back the tensors and numbers without values that a model leaves behind when it is followed, caches included."""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable
from typing import Any, Final

import torch
from torch._subclasses.fake_tensor import FakeTensor

from embgrad.escaping import Escaping
from embgrad_torch.structure import Structure

__all__ = ["Escaped"]

#: What stands for a tensor, and for a number that follows from sizes, while a model is followed.
WITHOUT_VALUES: Final = (FakeTensor, torch.SymInt, torch.SymFloat, torch.SymBool)

#: The caches of `functools`.
Cached: Final = type(functools.lru_cache(lambda: None))


class Escaped(Escaping):
    """What a model may write tensors into while it is followed, and those that it makes.

    Args:
        known: the model.
        call: a function of the user's that calls it, or None.
    """

    def __init__(self, known: Structure, call: Callable[..., Any] | None) -> None:
        super().__init__(
            known.modules,
            () if call is None else (call,),
            torch.Tensor,
            lambda value: issubclass(type(value), WITHOUT_VALUES),
            own=[value for module in known.modules for value in vars(module).values()],
            entered=lambda value: True,
        )
        self._made: list[weakref.ref[Any]] = []

    def made(self, result: Any) -> None:
        """A function of the model's gave this."""
        if isinstance(result, FakeTensor):
            self._made.append(weakref.ref(result))
        elif isinstance(result, (list, tuple)):
            for one in result:
                self.made(one)

    def are_left(self) -> bool:
        """Whether there are some that are still held, when nothing of the following is."""
        if self._alive():
            gc.collect()  # graphs of PyTorch's hold themselves
        if alive := self._alive():
            for holder in gc.get_referrers(*alive):
                cached = [holder, *gc.get_referrers(holder)] if type(holder) is dict else [holder]
                for one in cached:
                    if type(one) is Cached:
                        one.cache_clear()
            del alive
        return bool(self._alive())

    def _alive(self) -> list[Any]:
        return [one for one in [reference() for reference in self._made] if one is not None]
