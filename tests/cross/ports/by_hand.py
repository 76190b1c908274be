"""A reference's weights, as ports written by hand take them: arrays by their names in transformers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

__all__ = ["KINDS", "PARTS", "TABLES", "State", "bare"]

State = Mapping[str, np.ndarray]

#: In names of weights, the ends of those of a projection or a norm, BERT's tables, and what its attention projects to.
KINDS: Final = ("weight", "bias")
TABLES: Final = ("word", "position", "token_type")
PARTS: Final = ("query", "key", "value")


def bare(state: State) -> dict[str, np.ndarray]:
    """Return weights by BERT's own names."""
    return {name.removeprefix("bert."): value for name, value in state.items()}
