"""Random numbers that passes of embgrad's own draw from generators that models share are as if they had not been drawn."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

from tensorflow.python.ops import stateful_random_ops
from tensorflow.python.ops.gen_resource_variable_ops import assign_variable_op, read_variable_op

from embgrad.redrawing import SharedGenerator

__all__ = ["of_the_user", "random_as_found", "shared"]


def shared() -> list[Any]:
    """The variables of the generators that no model holds, if there are any: TensorFlow's, and Keras 3's of this thread."""
    found = []
    if stateful_random_ops.global_generator is not None:
        found.append(stateful_random_ops.global_generator.state)
    if "keras" in sys.modules:
        from keras.src.backend.common import global_state
        from keras.src.random.seed_generator import GLOBAL_SEED_GENERATOR

        generator = global_state.get_global_attribute(GLOBAL_SEED_GENERATOR)
        # A variable of TensorFlow's where that is Keras's backend.
        state = getattr(getattr(generator, "state", None), "_value", None)
        found += [] if state is None else [state]
    return found


def _read() -> list[tuple[Any, Any]]:
    return [(one, read_variable_op(one.handle, one.dtype)) for one in shared()]


def _write(states: Sequence[tuple[Any, Any]]) -> None:
    for variable, state in states:
        assign_variable_op(variable.handle, state)


_generators: Final = SharedGenerator(_read, _write)

of_the_user: Final = _generators.of_the_user


def random_as_found(*, training: bool) -> AbstractContextManager[Any]:
    """Outside training mode, random numbers that a pass draws even so are as if they had not been drawn."""
    return contextlib.nullcontext() if training else _generators.as_found()
