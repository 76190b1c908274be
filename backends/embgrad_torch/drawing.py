"""Random numbers: those that a pass of embgrad's own draws are as if they had not been, but for those of the user's functions."""

from __future__ import annotations

import contextlib
import random
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final

import numpy as np
import torch

from embgrad.generators import generators_kept
from embgrad.redrawing import SharedGenerator

__all__ = ["DrawnAgain", "of_the_user", "random_as_found"]

_generator: Final = SharedGenerator(torch.default_generator.get_state, torch.default_generator.set_state)

of_the_user: Final = _generator.of_the_user


def random_as_found(device: Any, *, training: bool) -> AbstractContextManager[Any]:
    """Outside training mode, random numbers that a pass draws even so are as if they had not been drawn."""
    if training:
        return contextlib.nullcontext()
    return torch.random.fork_rng([device]) if device.type == "cuda" else _generator.as_found()


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
