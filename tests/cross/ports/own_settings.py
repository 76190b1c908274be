"""The settings of a port written by hand, of which a fault changes some, in every layer or in a few."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import SimpleNamespace
from typing import Any

__all__ = ["Settings"]


class Settings:
    """Settings by layer.

    Args:
        usual: those of the right port.
        changed: those of the fault.
        layers: the numbers of the layers that have these; None for all, and for what is in no layer.
    """

    def __init__(
        self, usual: Mapping[str, Any], changed: Mapping[str, Any] | None = None, layers: Collection[int] | None = None
    ) -> None:
        unknown = set(changed or {}) - set(usual)
        assert not unknown, unknown
        self._usual, self._changed, self._layers = usual, changed or {}, layers

    def at(self, layer: int | None = None, **own: Any) -> SimpleNamespace:
        """Return the settings in a layer, or outside of layers, with some of its own."""
        changed = self._changed if self._layers is None or layer in self._layers else {}
        return SimpleNamespace(**{**self._usual, **changed, **own})
