"""Random numbers that passes of embgrad's own draw from generators that models share are as if they had not been drawn."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from tensorflow.python.ops import stateful_random_ops
from tensorflow.python.ops.gen_resource_variable_ops import assign_variable_op, read_variable_op

from embgrad.generators import Beside

__all__ = ["of_the_user", "random_as_found", "shared"]

_local = threading.local()


def shared() -> list[Any]:
    """The variables of the generators that no model holds, if there are any: TensorFlow's, and Keras 3's of this thread."""
    found = []
    if stateful_random_ops.global_generator is not None:
        found.append(stateful_random_ops.global_generator.state)
    if "keras" in sys.modules:
        from keras.src.backend.common import global_state
        from keras.src.random.seed_generator import GLOBAL_SEED_GENERATOR

        generator = global_state.get_global_attribute(GLOBAL_SEED_GENERATOR)
        state = getattr(
            getattr(generator, "state", None), "_value", None
        )  # a variable of TensorFlow's where that is its backend
        found += [] if state is None else [state]
    return found


def random_as_found(*, training: bool) -> AbstractContextManager[Any]:
    """Outside training mode, random numbers that a pass draws even so are as if they had not been drawn."""
    return contextlib.nullcontext() if training else _Kept()


class _Kept:
    """Meanwhile random numbers are drawn that will be drawn again.

    Unless another thread runs code of the user's meanwhile, such as a stream's source: what that draws would be drawn again, too.

    Attributes:
        variables: of the generators.
        states: their values, as they will be afterwards.
    """

    def __enter__(self) -> None:
        self._beside = Beside()
        self.variables = shared()
        self.states = _read(self.variables)
        self._outer, _local.kept = getattr(_local, "kept", None), self

    def __exit__(self, *told: object) -> None:
        _local.kept = self._outer
        if not self._beside.ran:
            _write(self.variables, self.states)


@contextlib.contextmanager
def of_the_user() -> Iterator[None]:
    """A function of the user's runs inside the pass: what it draws is drawn, or each call would draw the same noise."""
    kept = getattr(_local, "kept", None)
    if kept is None:
        yield
        return
    inside = _read(kept.variables)
    _write(kept.variables, kept.states)
    try:
        yield
    finally:
        kept.states = _read(kept.variables)
        _write(kept.variables, inside)


def _read(variables: Sequence[Any]) -> list[Any]:
    return [read_variable_op(one.handle, one.dtype) for one in variables]


def _write(variables: Sequence[Any], values: Sequence[Any]) -> None:
    for variable, value in zip(variables, values, strict=True):
        assign_variable_op(variable.handle, value)
