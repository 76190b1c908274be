"""Random numbers: those that a pass of embgrad's own draws are as if they had not been, but for those of the user's functions."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch

from embgrad.generators import Beside

__all__ = ["of_the_user", "random_as_found"]

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
