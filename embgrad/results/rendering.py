"""The HTML of results in notebooks: a registry, in which the room `report` registers its renderers."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Final, TypeVar

__all__ = ["register_renderer", "rendered"]

T = TypeVar("T")

#: The module that registers the renderers when it is imported: when an object is first shown, since most never are.
RENDERERS: Final = "embgrad.report.fragments"

_renderers: Final[dict[type, Callable[[Any], str | None]]] = {}


def register_renderer(kind: type[T], render: Callable[[T], str | None]) -> None:
    """Register a function that returns the HTML of objects of a class, or None where it cannot."""
    _renderers[kind] = render


def rendered(shown: Any) -> str | None:
    """Return the HTML of an object; None where no renderer returns any, so that a notebook shows its text."""
    importlib.import_module(RENDERERS)
    render = next((_renderers[cls] for cls in type(shown).__mro__ if cls in _renderers), None)
    return None if render is None else render(shown)
