"""How notebooks show results: as HTML that the report makes, which registers itself here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

__all__ = ["register_renderer", "rendered"]

T = TypeVar("T")

_renderers: Final[dict[type, Callable[[Any], str | None]]] = {}


def register_renderer(kind: type[T], render: Callable[[T], str | None]) -> None:
    """Let a function make the HTML of all objects of a class; it returns None where it cannot make any."""
    _renderers[kind] = render


def rendered(shown: Any) -> str | None:
    """Return the HTML of an object; None, so that a notebook shows its text, where nothing makes any."""
    render = next((_renderers[kind] for kind in type(shown).__mro__ if kind in _renderers), None)
    return None if render is None else render(shown)
