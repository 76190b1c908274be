"""Walks a model's modules: each once, by the first attribute path that leads there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["walk"]


def walk(parts: Sequence[Any]) -> list[tuple[str, Any]]:
    """The modules of a model with their paths, in the order of `named_modules`, which takes several times as long.

    With several parts, a path begins with the part's number.
    """
    numbered = len(parts) > 1
    waiting = [(str(number) if numbered else "", part) for number, part in enumerate(parts)][::-1]
    seen: dict[int, tuple[str, Any]] = {}
    while waiting:
        path, module = waiting.pop()
        if id(module) in seen:
            continue
        seen[id(module)] = (path, module)
        children = [(name, child) for name, child in module._modules.items() if child is not None]
        waiting += [(f"{path}.{name}" if path else name, child) for name, child in reversed(children)]
    return list(seen.values())
