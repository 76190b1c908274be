"""The error of a command that was not asked rightly."""

from __future__ import annotations

from embgrad.errors import EmbgradError

__all__ = ["UsageError"]


class UsageError(EmbgradError, ValueError):
    """The options, or what they name, are not what the command expects; its message says so in full."""

    def __str__(self) -> str:
        return self.message
