"""What a batch may give along that a model makes longer."""

from __future__ import annotations


class Cache:
    """A cache of the user's own, of numbers."""

    def __init__(self) -> None:
        self.steps: list[float] = []

    def grow(self) -> int:
        """How many steps there are with a further one."""
        self.steps.append(1.0)
        return len(self.steps)
