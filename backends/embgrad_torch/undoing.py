"""What is to be undone at the end: `contextlib.ExitStack` where nothing but that is asked of it, in less time."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Undoing"]


class Undoing:
    """Calls what it was told to, the last first, and all of it, whatever raises."""

    def __init__(self) -> None:
        self._steps: list[Callable[[], object]] = []

    def callback(self, step: Callable[[], object]) -> None:
        """Call it at the end."""
        self._steps.append(step)

    def __enter__(self) -> Undoing:
        return self

    def __exit__(self, *told: object) -> None:
        steps = self._steps
        try:
            while steps:
                steps.pop()()
        finally:
            if steps:
                self.__exit__()
