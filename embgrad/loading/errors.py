"""The error for wrong usage of a command."""

from __future__ import annotations

from embgrad.errors import EmbgradError

__all__ = ["UsageError"]


class UsageError(EmbgradError, ValueError):
    """Wrong options of a command, or options that name something unusable; the message is complete by itself."""

    def __str__(self) -> str:
        return self.message
