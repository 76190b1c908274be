"""Observes the lookups and module calls of a copy of a model, changes values there, and receives their gradients."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from embgrad.backend import ModuleCalls, PassRecorder, PointChanges, Request
from embgrad.errors import UnsupportedError
from embgrad_jax.graph import is_floating, modules_of, to_numpy

__all__ = ["Observer", "dress"]


class Observer:
    """The observer of one forward pass under `jax.vjp`.

    Args:
        watch: records the pass.
        request: says what is changed, and where.
        seed: the argument that JAX differentiates by. Its own gradient is of no interest: JAX keeps track of what it touches.

    Attributes:
        watch: as given.
        activations: the values at the points that are asked for, by key.
        dtypes: their dtypes by key.
        gradients: the gradients in the current pullback by key; a key that it does not reach is missing.
    """

    def __init__(self, watch: PassRecorder, request: Request, seed: jax.Array) -> None:
        self.watch = watch
        self.activations: dict[str, np.ndarray] = {}
        self.dtypes: dict[str, str] = {}
        self.gradients: dict[str, np.ndarray] = {}
        self._request = request
        self._seed = seed
        self._changes = PointChanges(request, to_numpy, lambda array, like: jnp.asarray(array, like.dtype))
        self._calls = ModuleCalls(watch, is_floating, self._tap)

    def start_pullback(self) -> None:
        """Forget the gradients of the pullback before."""
        self.gradients, self._changes.before = {}, {}

    @property
    def before(self) -> dict[str, np.ndarray]:
        """The gradients that an edit replaced, by key."""
        return self._changes.before

    def at_lookup(self, path: str, table: nnx.Embed, indices: Any, compute: Callable[[], jax.Array]) -> jax.Array:
        """Return the rows that go on, cut off the table where they are asked for, so that nothing below is differentiated."""
        _expect_values(indices, f"the lookup in {path!r}")
        key = self.watch.see(path, np.asarray(indices), table.num_embeddings, table.features)
        rows = compute()
        self.watch.record_output(rows)
        if key is None:
            return rows
        return self._tap(key, rows if self._request.parameters else jax.lax.stop_gradient(rows))

    def at_module(self, path: str, module: nnx.Module, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call a module, and return what goes on in place of its output."""
        return self._calls.around(call, path, type(module).__name__, args, kwargs)

    def _tap(self, key: str, value: jax.Array) -> jax.Array:
        """Return what goes on in place of the value: overridden, added to, with its gradient read and edited."""
        _expect_values(jax.lax.stop_gradient(value), f"the point {key!r}")
        value = self._changes.value(key, value)
        self.activations[key], self.dtypes[key] = to_numpy(value), str(value.dtype)
        return self.heard(key, value)

    def heard(self, key: str, value: jax.Array) -> jax.Array:
        """Return the value itself, bit for bit, so that the observer receives its gradient in the backward pass.

        JAX calls `back` with the whole gradient in each pullback in which there is one, and not at all where none reaches the
        value. A gradient with respect to an added zero would be zero in both cases.
        """

        @jax.custom_vjp
        def identity(value: jax.Array, seed: jax.Array) -> jax.Array:
            return value

        def forth(value: jax.Array, seed: jax.Array) -> tuple[jax.Array, None]:
            return value, None

        def back(_: None, gradient: jax.Array) -> tuple[jax.Array, jax.Array]:
            gradient = self._changes.gradient(key, gradient)
            self.gradients[key] = to_numpy(gradient)
            return gradient, jnp.zeros_like(self._seed)

        identity.defvjp(forth, back)
        return identity(value, self._seed)


def dress(model: Any, observer: Observer) -> None:
    """Let the observer see every call in a copy of a model: each module gets a subclass of its class.

    The classes go with the modules wherever Flax takes these apart and puts them together, as in `nnx.jit` and `nnx.scan`.
    """
    for path, module in modules_of(model).items():
        if callable(module):
            plain: Any = type(module)
            object.__setattr__(module, "__class__", _dressed(plain))
            object.__setattr__(module, "_embgrad", (observer, path))


class _Lookup(nnx.Embed):
    """The class between a subclass of `nnx.Embed` and that itself, which sees the raw rows before the subclass changes them."""

    _embgrad: tuple[Observer, str]

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        observer, path = self._embgrad
        return observer.at_lookup(path, self, inputs, lambda: super(_Lookup, self).__call__(inputs, *args, **kwargs))


@functools.cache
def _dressed(plain: type) -> Any:
    """Return a subclass of a module's class whose calls are observed."""

    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        observer, path = self._embgrad
        return observer.at_module(path, self, super(dressed, self).__call__, args, kwargs)

    bases: tuple[type, ...] = (plain,)
    if issubclass(plain, nnx.Embed):
        bases = (_Lookup,) if plain is nnx.Embed else (plain, _Lookup)
    names = {"__module__": plain.__module__, "__qualname__": plain.__qualname__, "__call__": called}
    dressed: Any = type(plain.__name__, bases, names)
    return dressed


def _expect_values(value: Any, what: str) -> None:
    if isinstance(value, jax.core.Tracer):
        raise UnsupportedError(
            f"{what} lies inside jax.vmap, jax.checkpoint (nnx.remat) or another transformation in which a value has no numbers: "
            "expected a model that can be run operation by operation; leave the transformation out, in the model or by call=..."
        )
