"""JAX for embgrad: Flax, Hugging Face's Flax models, Equinox, Keras 3, functions of pytrees. Importing this imports no framework.

PYTEST_DONT_REWRITE: pytest would warn of this package where it is imported before pytest's plugins are looked for.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from typing import Any, Final

from embgrad.backend import defer
from embgrad.checkpoints import WeightTarget
from embgrad.errors import BackendError

__all__ = ["JaxBackend"]


class JaxBackend:
    """The backend for JAX."""

    name: Final = "jax"
    package: Final = "jax"
    extra: Final = "jax"
    supports: Final = frozenset(
        {"word", "training", "split", "native", "float64"}
        | {"modules", "override", "add", "edit", "parameters", "tables", "weights", "compile", "load_bert"}
    )
    #: What to do in place of an ability that the backend lacks.
    instead: Final = {
        "capture": "JAX keeps no record of a backward pass that was made outside of embgrad: call embgrad.gradients with the "
        "loss as its objective, training=True where it applies",
        "perturb": "add the array in the function that jax.grad differentiates, or call embgrad.gradients with add=...",
    }

    def owns(self, part: object) -> bool:
        """Return whether an object is a model of JAX, or a pytree of parameters, without importing JAX or Flax."""
        if "jax" not in sys.modules:
            return False
        from embgrad_jax.walk import is_companion, is_model

        return is_model(part) and not is_companion(part)

    def owns_part(self, part: object) -> bool:
        """Return whether an object is such a model, or holds no arrays and goes with one that does: a function, say."""
        if "jax" not in sys.modules:
            return False
        from embgrad_jax.walk import is_model

        return is_model(part)

    def versions(self) -> Mapping[str, str]:
        """Return the versions of JAX, and of Flax, Equinox and Keras where they are in use."""
        names = ("jax", "flax", "equinox", "keras")
        return {name: str(sys.modules[name].__version__) for name in names if name in sys.modules}

    generates = defer("embgrad_jax.walk", "is_huggingface")
    points = defer("embgrad_jax.run", "points")
    run = defer("embgrad_jax.run", "run")
    weights = defer("embgrad_jax.parameters", "weights")
    alone = defer("embgrad_jax.parameters", "alone")

    def paths(self, model: Any) -> Collection[str]:
        """Return the paths of the modules and tables."""
        from embgrad_jax.walk import Structure

        return Structure(model).paths()

    def bert(self, config: Mapping[str, Any]) -> tuple[Any, list[WeightTarget]]:
        """Return an `embgrad_jax.bert.Bert` of this configuration, and where each of its weights goes."""
        try:
            from embgrad_jax.bert import bert
        except ImportError as error:
            raise BackendError(
                f"load_bert builds a BERT in Flax NNX, and flax cannot be imported ({error}). Install it: pip install "
                "'embgrad[jax]'"
            ) from error
        built: tuple[Any, list[WeightTarget]] = bert(config)
        return built

    def bert_targets(self, model: Any) -> list[WeightTarget] | None:
        """Return where each weight of a checkpoint goes in a BERT as `bert` makes it, or in keras-hub's; None for another."""
        from embgrad.checkpoints import keras_bert_targets

        own = sys.modules.get("embgrad_jax.bert")
        targets: list[WeightTarget] | None = None if own is None else own.bert_targets(model)
        return keras_bert_targets(model) if targets is None else targets
