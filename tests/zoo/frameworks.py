"""The frameworks of the zoo: where their models and their gradients by hand are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final

__all__ = ["FRAMEWORKS", "Framework"]


@dataclass(frozen=True)
class Framework:
    """A framework with its packages.

    Attributes:
        title: as the page names it.
        models: the module with the models.
        by_hand: the module and the class with gradients by hand.
        packages: the packages whose versions the page names.
        environment: variables that a process needs.
    """

    title: str
    models: str
    by_hand: tuple[str, str]
    packages: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)

    def hand(self) -> Any:
        """Return the `Hand` of the framework."""
        module, name = self.by_hand
        return getattr(import_module(module), name)()


def _keras(title: str, backend: str, package: str) -> Framework:
    return Framework(
        f"keras-hub on {title}",
        "tests.zoo.keras_hub_models",
        ("tests.zoo.hand_keras", "KerasHand"),
        (package, "keras", "keras-hub"),
        {"KERAS_BACKEND": backend},
    )


FRAMEWORKS: Final[Mapping[str, Framework]] = {
    "torch": Framework(
        "transformers in PyTorch",
        "tests.zoo.transformers_models",
        ("tests.zoo.hand_torch", "TorchHand"),
        ("torch", "transformers"),
    ),
    "keras-torch": _keras("PyTorch", "torch", "torch"),
    "keras-tensorflow": _keras("TensorFlow", "tensorflow", "tensorflow-cpu"),
    "keras-jax": _keras("JAX", "jax", "jax"),
}
