"""The names of `embgrad.keras` and their types: `__init__.py` imports each when it is first used."""

from embgrad.keras.inputs import (
    MASKS,
    MODES,
    cast_exactly,
    fill,
    find_declared,
    is_keras,
    keras_bases,
    make_unique,
    plan_keras_call,
)
from embgrad.keras.layers import (
    Node,
    errors_unchanged,
    evaluating,
    further_names,
    restore_declared_order,
    value_of,
    with_mask,
)

__all__ = [
    "MASKS",
    "MODES",
    "Node",
    "cast_exactly",
    "errors_unchanged",
    "evaluating",
    "fill",
    "find_declared",
    "further_names",
    "is_keras",
    "keras_bases",
    "make_unique",
    "plan_keras_call",
    "restore_declared_order",
    "value_of",
    "with_mask",
]
