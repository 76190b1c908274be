"""The backend of Keras 3 that a process uses, read without importing Keras, and embgrad's backend that owns its models."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from embgrad.backend.protocol import Backend
from embgrad.backend.registry import backend_named, is_installed
from embgrad.backend.unowned import KERAS_FRAMEWORKS
from embgrad.errors import BackendError

__all__ = ["KERAS", "KerasChoice", "framework_named", "keras_choice"]

#: The name that stands beside the names of backends: Keras 3 on whichever backend it uses.
KERAS: Final = "keras"

#: Keras's own default.
DEFAULT: Final = "tensorflow"


@dataclass(frozen=True)
class KerasChoice:
    """Keras's choice of a backend.

    Attributes:
        source: what determined it, as the end of a sentence.
    """

    name: str
    source: str


def framework_named(name: str) -> Backend:
    """Return the backend with this name; for "keras" the backend that owns models of Keras 3 in this process."""
    if name != KERAS:
        return backend_named(name, also=(KERAS,))
    if not is_installed(KERAS):
        raise BackendError(
            "the framework 'keras' needs the package 'keras', which is not installed: pip install 'embgrad[keras]'"
        )
    choice = keras_choice()
    if choice.name not in KERAS_FRAMEWORKS:
        raise BackendError(
            f"Keras uses its backend {choice.name!r}, {choice.source}, which embgrad does not support. Set KERAS_BACKEND to "
            f"{_or(KERAS_FRAMEWORKS)} before keras is imported"
        )
    try:
        return backend_named(choice.name)
    except BackendError as error:
        usable = [other for other in KERAS_FRAMEWORKS if other != choice.name and _is_usable(other)]
        instead = f"; or set KERAS_BACKEND to {_or(usable)} before keras is imported" if usable else ""
        raise BackendError(
            f"Keras uses its backend {choice.name!r}, {choice.source}. But {error.message}{instead}"
        ) from error


def keras_choice() -> KerasChoice:
    """Return the backend that Keras uses if it is imported, otherwise the one that it will use. Imports no framework.

    Keras reads the environment variable KERAS_BACKEND, then the file keras.json in KERAS_HOME or else in ~/.keras.
    """
    keras = sys.modules.get(KERAS)
    if keras is not None and hasattr(keras, "config"):
        return KerasChoice(str(keras.config.backend()), "with which it was imported")
    if os.environ.get("KERAS_BACKEND"):
        return KerasChoice(os.environ["KERAS_BACKEND"], "as the environment variable KERAS_BACKEND says")
    path = Path(os.environ.get("KERAS_HOME") or os.path.expanduser("~/.keras")) / "keras.json"
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # Keras ignores a broken file, too
        settings = None
    if isinstance(settings, dict) and isinstance(settings.get("backend"), str):
        return KerasChoice(settings["backend"], f"as {path} says")
    return KerasChoice(DEFAULT, f"its default, as neither KERAS_BACKEND nor {path} says otherwise")


def _is_usable(name: str) -> bool:
    try:
        backend_named(name)
    except BackendError:
        return False
    return True


def _or(names: list[str] | tuple[str, ...]) -> str:
    *first, last = [repr(name) for name in names]
    return f"{', '.join(first)} or {last}" if first else last
