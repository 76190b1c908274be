"""Errors of the user's own functions, which must reach the user unchanged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.fuzz.drawing import Draw


class OwnError(Exception):
    """An error class of the user."""


def drawn_error(draw: Draw) -> tuple[tuple[type[BaseException], ...], Callable[..., Any]]:
    error = draw.choice(
        [OwnError("the user's function broke"), OwnError("the user's function broke"), KeyboardInterrupt("interrupted"),
            StopIteration("nothing is left"), ZeroDivisionError("division by zero"), MemoryError("too large"),
            AssertionError("not so"), LookupError("nothing there")],
    )  # fmt: skip

    def raises(*_: Any, **__: Any) -> Any:
        raise error

    return (type(error),), raises
