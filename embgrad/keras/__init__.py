"""Keras models on any framework, for the backends that run them: inputs, layers and variables. Import from here."""

from embgrad.common.lazy import attach as _attach

__getattr__, __dir__, __all__ = _attach(
    __name__,
    {
        "keras.inputs": [
            "MASKS",
            "MODES",
            "cast_exactly",
            "find_declared",
            "fill",
            "is_keras",
            "keras_bases",
            "make_unique",
            "plan_keras_call",
        ],
        "keras.layers": [
            "Node",
            "restore_declared_order",
            "errors_unchanged",
            "evaluating",
            "further_names",
            "value_of",
            "with_mask",
        ],
    },
)
