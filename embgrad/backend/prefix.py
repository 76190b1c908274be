"""The cache of a text in a causal language model, after which texts that begin alike run only from where they differ."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

__all__ = ["Prefix"]


class Prefix(Protocol):
    """The keys and values that a causal language model has of each position of a text."""

    @property
    def length(self) -> int:
        """The number of positions that are kept; 0 before `fill`, and after it for a model that keeps none."""
        ...

    def fill(self, model: Any, inputs: Any, last: int) -> Any:
        """Run a text, keep what the model has of its positions, and return what the model returns.

        Args:
            model: the model.
            inputs: a batch of one text, see `embgrad.backend.Call`.
            last: the number of positions at its end of which outputs are read; the model need not return others.
        """
        ...

    def after(self, length: int, last: int) -> Callable[[Any, Any], Any]:
        """Return a call that runs texts from a position on, each after the first `length` positions of the text that is kept.

        Args:
            length: the number of positions before those of the inputs.
            last: see `fill`.
        """
        ...
