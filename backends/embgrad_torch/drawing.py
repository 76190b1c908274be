"""Random numbers: those that a pass of embgrad's own draws are as if they had not been, but for those of the user's functions."""

from __future__ import annotations

import contextlib
import random
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch

from embgrad.generators import Beside, generators_kept

__all__ = ["DrawnAgain", "of_the_user", "random_as_found"]

_local = threading.local()


def random_as_found(device: Any, *, training: bool) -> AbstractContextManager[Any]:
    """Outside training mode, random numbers that a pass draws even so are as if they had not been drawn."""
    if training:
        return contextlib.nullcontext()
    return torch.random.fork_rng([device]) if device.type == "cuda" else _Kept()


class _Kept:
    """Meanwhile random numbers are drawn that will be drawn again: `fork_rng` where there is no other device.

    Unless another thread runs code of the user's meanwhile, such as a stream's source: what that draws would be drawn again, too.

    Attributes:
        state: of the generator, as it will be afterwards.
    """

    def __enter__(self) -> None:
        self._beside = Beside()
        self.state = torch.default_generator.get_state()
        self._outer, _local.kept = getattr(_local, "kept", None), self

    def __exit__(self, *told: object) -> None:
        _local.kept = self._outer
        if not self._beside.ran:
            torch.default_generator.set_state(self.state)


@contextlib.contextmanager
def of_the_user() -> Iterator[None]:
    """A function of the user's runs inside the pass: what it draws is drawn, or each call would draw the same noise."""
    kept = getattr(_local, "kept", None)
    if kept is None:
        yield
        return
    generator = torch.default_generator
    inside = generator.get_state()
    generator.set_state(kept.state)
    try:
        yield
    finally:
        kept.state = generator.get_state()
        generator.set_state(inside)


class DrawnAgain:
    """Has a function that is called in two runs draw in the second what it drew in the first, as if there had been one run."""

    def __init__(self) -> None:
        self._before: deque[tuple[Any, ...]] = deque()

    def first(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """The function for the first run."""

        def called(given: Any) -> Any:
            on_devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
            self._before.append((random.getstate(), np.random.get_state(), torch.get_rng_state(), on_devices))
            return function(given)

        return called

    def again(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """The function for the second."""

        def called(given: Any) -> Any:
            if not self._before:
                return function(given)
            of_python, of_numpy, of_torch, on_devices = self._before.popleft()
            with generators_kept(), torch.random.fork_rng(range(len(on_devices))):
                random.setstate(of_python)
                np.random.set_state(of_numpy)
                torch.set_rng_state(of_torch)
                if on_devices:
                    torch.cuda.set_rng_state_all(on_devices)
                return function(given)

        return called
