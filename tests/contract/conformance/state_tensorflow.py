"""Everything in a model of Keras or TensorFlow, and in those, that a call must leave as it was."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import keras as keras3
import numpy as np
import tensorflow as tf
import tf_keras as keras2
from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import context, execute
from tensorflow.python.eager.polymorphic_function import concrete_function, polymorphic_function
from tensorflow.python.framework import ops

from embgrad.testing.snapshot import Same


def state(model: Any) -> Mapping[str, Any]:
    """Variables, attributes and losses of every layer, and TensorFlow's settings in this thread."""
    modules = dict(enumerate(_modules(model)))
    slots = getattr(getattr(model, "optimizer", None), "variables", [])
    held = [one for one in vars(model).values() if isinstance(one, tf.Variable)]  # of a saved model
    variables = [*getattr(model, "variables", held), *slots]
    return {
        "losses": [[Same(loss) for loss in getattr(module, "losses", [])] for module in modules.values()],
        "variables": [_variable_state(one) for one in variables if "seed_generator" not in one.name],
        "attributes": {number: _attributes(module) for number, module in modules.items()},
        "settings": _settings(),
    }


def _modules(model: Any) -> Iterator[Any]:
    yield model
    if hasattr(model, "_flatten_layers"):
        yield from model._flatten_layers(include_self=False)
    else:
        yield from getattr(model, "submodules", ())


def _attributes(module: Any) -> dict[str, Any]:
    local = vars(module).get("_thread_local")
    return {
        "members": {name: Same(value) for name, value in vars(module).items()},
        "held": {
            name: [Same(entry) for entry in (value.values() if isinstance(value, dict) else value)]
            for name, value in vars(module).items()
            if isinstance(value, (list, tuple, dict, set))
        },
        "thread": {name: repr(value) for name, value in vars(local).items()} if local is not None else {},
        "kind": Same(type(module)),
        "methods": {
            name: Same(getattr(type(module), name, None)) for name in ("__call__", "call", "build", "compute_mask")
        },
    }


def _variable_state(variable: Any) -> dict[str, Any]:
    return {
        "object": (Same(variable), Same(getattr(variable, "_value", variable).handle)),
        "name": variable.name,
        "bytes": np.asarray(tf.convert_to_tensor(variable)).tobytes(),
        "trainable": variable.trainable,
    }


#: What one could put another function in the place of.
_FUNCTIONS = (
    (pywrap_tfe, "TFE_Py_FastPathExecute"),
    (keras2.layers.Layer, "__call__"),
    (keras3.layers.Layer, "__call__"),
    (keras3.Operation, "__call__"),
    (tf.GradientTape, "gradient"),
    (tf.GradientTape, "_push_tape"),
    (tf.GradientTape, "_pop_tape"),
    (tf.nn, "embedding_lookup"),
    (tf, "gather"),
    (polymorphic_function.Function, "__call__"),
    (concrete_function.ConcreteFunction, "_call_flat"),
)


def _settings() -> dict[str, Any]:
    this = context.context()
    return {
        "functions run eagerly": tf.config.functions_run_eagerly(),
        "eager": tf.executing_eagerly(),
        "callbacks": len(context.context().op_callbacks),
        "execute": execute.execute,
        "tapes": pywrap_tfe.TFE_Py_TapeSetIsEmpty(),
        "functions": {f"{owner.__name__}.{name}": Same(vars(owner)[name]) for owner, name in _FUNCTIONS},
        "scope": (this.scope_name, this.device_name),
        "graph": [Same(graph) for graph in ops._default_graph_stack.stack],
        "variables made by": [Same(creator) for creator in tf.compat.v1.get_default_graph()._variable_creator_stack],
        "filtering": (tf.debugging.is_traceback_filtering_enabled(), keras3.config.is_traceback_filtering_enabled()),
        "phase set": keras2.src.backend.global_learning_phase_is_set(),
        "phase": keras2.src.backend.learning_phase(),
        "policy": (keras2.mixed_precision.global_policy().name, keras3.config.dtype_policy().name),
        "call context": keras3.src.backend.common.global_state.get_global_attribute("current_call_ctx"),
        "naming of Keras 2": {
            str(graph): dict(names) for graph, names in keras2.src.backend.PER_GRAPH_OBJECT_NAME_UIDS.items()
        },
        "naming": dict(keras3.src.backend.common.global_state.get_global_attribute("object_name_uids", {}) or {}),
    }
