"""Mark the calls of a model's modules while it is traced, so that they can be found in the trace.

A mark is `jax.ad_checkpoint.checkpoint_name`, an identity that carries a text. It stays where it was made in every transformation
that a model applies to a part of itself, such as `jit`, `scan`, `vmap` and `checkpoint`.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name

from embgrad.toolkit import first, with_first

__all__ = ["ALL", "Mark", "Wanted", "dress", "is_array", "is_floating", "is_marked", "mark", "mark_of", "marking"]

#: The beginning of a mark's text, and what separates its fields.
_PREFIX: Final = "embgrad"
_SEPARATOR: Final = "\x1f"

_local: Final = threading.local()


class Mark(NamedTuple):
    """The begin or the end of a module's call in a trace.

    Attributes:
        has_tensor: whether the marked value is the call's first floating argument or result; it is a dummy where there is none.
    """

    side: str
    has_tensor: bool
    path: str
    kind: str
    also: tuple[str, ...] = ()


def mark_of(text: str) -> Mark | None:
    """Return the mark that the name of a `checkpoint_name` contains; None for a name of the user's."""
    prefix, *fields = text.split(_SEPARATOR)
    if prefix != _PREFIX:
        return None
    side, tensor, path, kind, *also = fields
    return Mark(side, tensor == "1", path, kind, tuple(also))


def is_array(value: object) -> bool:
    """Return whether a value is a JAX array, or stands for one in a trace."""
    return isinstance(value, jax.Array)


def is_floating(value: object) -> bool:
    """Return whether a value is a JAX array of floating point, or stands for one in a trace."""
    return isinstance(value, jax.Array) and bool(jnp.issubdtype(value.dtype, jnp.floating))


@dataclass(frozen=True)
class Wanted:
    """The modules whose calls are marked.

    Attributes:
        paths: their paths; None for all modules.
    """

    paths: frozenset[str] | None = None

    def __contains__(self, path: str) -> bool:
        return self.paths is None or path in self.paths

    def __str__(self) -> str:
        return "all modules" if self.paths is None else " ".join(["the modules", *sorted(self.paths)])


#: All modules.
ALL: Final = Wanted()


@contextlib.contextmanager
def marking(wanted: Wanted) -> Iterator[None]:
    """Mark the calls of the wanted modules in this thread while the context is open."""
    before = getattr(_local, "wanted", None)
    _local.wanted = wanted
    try:
        with _linen_intercepted():
            yield
    finally:
        _local.wanted = before


def is_marked(path: str) -> bool:
    """Return whether this thread marks the calls of a module now."""
    wanted = getattr(_local, "wanted", None)
    return wanted is not None and path in wanted


def mark(call: Callable[..., Any], path: str, kind: str, args: Any, kwargs: Any, also: Sequence[str] = ()) -> Any:
    """Call a module, with marks where the call begins and ends if this thread marks its calls.

    Args:
        call: calls the module.
        path: the module's attribute path.
        kind: the name of its class.
        args: the positional arguments.
        kwargs: the keyword arguments.
        also: further names of the module.
    """
    if not is_marked(path):
        return call(*args, **kwargs)
    args, kwargs = _with_mark((args, kwargs), "enter", path, kind, also)
    return _with_mark(call(*args, **kwargs), "leave", path, kind, also)


def _with_mark(value: Any, side: str, path: str, kind: str, also: Sequence[str]) -> Any:
    tensor = first(value, is_floating)
    text = _SEPARATOR.join([_PREFIX, side, "01"[tensor is not None], path, kind, *also])
    if tensor is None:
        checkpoint_name(np.float32(0), text)
        return value
    return with_first(value, is_floating, checkpoint_name(tensor, text))


@functools.lru_cache(maxsize=4096)
def dress(plain: type, path: str) -> type:
    """Return a subclass of a module's class whose calls are marked with a path.

    The path is a part of the class, and not of the instance, so that it is kept wherever JAX, Flax or Equinox take modules apart
    and put them together.
    """

    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        return mark(super(marked_class, self).__call__, path, plain.__name__, args, kwargs)

    namespace = {"__module__": plain.__module__, "__qualname__": plain.__qualname__, "__call__": called}
    if "__doc__" in vars(plain):
        namespace["__doc__"] = plain.__doc__
    marked_class: Any = type(plain)(plain.__name__, (plain,), namespace)
    return marked_class  # type: ignore[no-any-return]


@contextlib.contextmanager
def _linen_intercepted() -> Iterator[None]:
    """Mark the calls of Flax Linen modules, which know their paths themselves."""
    linen = sys.modules.get("flax.linen")
    if linen is None:
        yield
        return

    def intercept(call: Callable[..., Any], args: Any, kwargs: Any, context: Any) -> Any:
        if context.method_name != "__call__":
            return call(*args, **kwargs)
        path = ".".join(map(str, context.module.path))
        return mark(call, path, type(context.module).__name__, args, kwargs)

    with linen.intercept_methods(intercept):
        yield
