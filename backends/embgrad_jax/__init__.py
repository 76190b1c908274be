"""JAX for embgrad: any `flax.nnx.Module`, or a sequence of them. Importing this imports neither JAX nor Flax.

PYTEST_DONT_REWRITE: pytest would warn of this package where it is imported before pytest's plugins are looked for.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

from embgrad.backend import Call, Point, Request, Run, TokenBatch, Weight, as_parts, model_lock

__all__ = ["JaxBackend"]


class JaxBackend:
    """The backend for Flax NNX.

    Of `embgrad.backend.ABILITIES` it lacks "capture" and "perturb" (JAX keeps no tape of the user's own
    passes), "compile" and "load_bert".
    """

    name: Final = "jax"
    package: Final = "flax"
    extra: Final = None
    supports: Final = frozenset(
        {"word", "training", "split", "native", "float64"}
        | {"modules", "override", "add", "edit", "parameters", "tables", "weights"}
    )

    def owns(self, part: object) -> bool:
        """Return whether an object is a `flax.nnx.Module`, by its type, without importing Flax."""
        return any(
            base.__module__ == "flax.nnx.module" and base.__qualname__ == "Module" for base in type(part).__mro__
        )

    def versions(self) -> Mapping[str, str]:
        """Return the versions of JAX and Flax, where they are imported."""
        return {name: str(sys.modules[name].__version__) for name in ("jax", "flax") if name in sys.modules}

    def points(self, model: Any, batch: TokenBatch, call: Call | None = None) -> Sequence[Point]:
        """Return the points that a forward pass on the batch reaches: lookups and modules, in order."""
        from embgrad_jax.running import points

        return points(model, batch, call)

    def run(self, model: Any, batch: TokenBatch, request: Request) -> Run:
        """Run one forward pass, and a pullback for each set of cotangents, all on a copy of the model."""
        from embgrad_jax.running import run

        return run(model, batch, request)

    def paths(self, model: Any) -> Collection[str]:
        """Return the attribute paths of the modules. A table goes by its `nnx.Embed`."""
        from embgrad_jax.graph import modules_of

        return list(modules_of(model))

    def weights(self, model: Any) -> Sequence[Weight]:
        """Return the variables of floating point, trainable or not."""
        from embgrad_jax.graph import weights_of

        return weights_of(model)

    def alone(self, model: Any) -> AbstractContextManager[None]:
        """Keep other threads from copying the model while it is open."""
        return model_lock(as_parts(model))
