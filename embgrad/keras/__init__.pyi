"""The names of `embgrad.keras` and their types: `__init__.py` imports each when it is first used."""

from embgrad.keras.inputs import MASKS, MODES, cast_exactly, declared, filled, is_keras, keras_bases, told_apart
from embgrad.keras.layers import Node, declared_order, errors_unchanged, evaluating, further_names, value_of, with_mask

__all__ = [
    "MASKS",
    "MODES",
    "Node",
    "cast_exactly",
    "declared",
    "declared_order",
    "errors_unchanged",
    "evaluating",
    "filled",
    "further_names",
    "is_keras",
    "keras_bases",
    "told_apart",
    "value_of",
    "with_mask",
]
