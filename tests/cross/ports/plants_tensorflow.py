"""What goes wrong in models of Keras, of transformers in TensorFlow and of keras-hub, by their layers' attributes and classes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from tests.cross.ports.fault import Plant


def layers(model: Any, pattern: str) -> list[Any]:
    """Return the layers whose paths, with dots, end in the pattern."""
    found = [layer for path, layer in _paths(model, "") if re.search(rf"(^|\.)(?:{pattern})$", path)]
    assert found, (pattern, [path for path, _ in _paths(model, "")])
    return list({id(layer): layer for layer in found}.values())


def _paths(layer: Any, prefix: str) -> list[tuple[str, Any]]:
    paths = []
    for child in layer._flatten_layers(recursive=False, include_self=False):
        path = f"{prefix}.{child.name}".replace("_._", ".").lstrip(".")
        paths += [(path, child), *_paths(child, path)]
    return paths


def setting(pattern: str, **attributes: Any) -> Plant:
    """Return what sets attributes that the layers have."""

    def plant(model: Any) -> None:
        for layer in layers(model, pattern):
            for name, value in attributes.items():
                assert hasattr(layer, name), (layer.name, name)
                setattr(layer, name, value)

    return plant


def subclassed(pattern: str, **methods: Callable[..., Any]) -> Plant:
    """Return what gives layers other methods; each is a function of the method that it replaces, and of its arguments."""

    def plant(model: Any) -> None:
        for layer in layers(model, pattern):
            bound = {name: after(getattr(type(layer), name), method) for name, method in methods.items()}
            layer.__class__ = type(type(layer).__name__, (type(layer),), bound)

    return plant


def after(inner: Callable[..., Any], method: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method for a class, as a function of the method that it replaces, and of its arguments."""
    return lambda self, *given, **named: method(self, lambda *a, **k: inner(self, *a, **k), *given, **named)
