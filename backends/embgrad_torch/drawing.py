"""Random numbers of objectives that kept traces call twice, until they are made anew."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from embgrad.generators import generators_kept
from embgrad_torch.state import random_as_found

__all__ = ["DrawnAgain", "random_as_found"]


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
