"""Values of configurations that introspection cannot know, by model type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

__all__ = ["BACKBONES", "SETTINGS"]

SETTINGS: Final[Mapping[str, Mapping[str, Any]]] = {}

#: Arguments of keras-hub's backbones that a name's usual size does not fit, by family.
BACKBONES: Final[Mapping[str, Mapping[str, Any]]] = {}
