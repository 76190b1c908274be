"""The private names of TensorFlow and Keras on which the backend relies are there, and do what it relies on."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from tests.frameworks.tensorflow.helpers import KERAS
from tests.frameworks.tensorflow.private_names import PRIVATE_NAMES
from tests.unit.backend_files import private_names

VERSIONS = f"TensorFlow {tf.__version__}, tf_keras {tf_keras.__version__}, keras {KERAS['keras3'].__version__}"


def expect(holds: bool, what: str) -> None:
    """Assert that a private name does what the backend relies on."""
    assert holds, f"{what} is not as it was any more in {VERSIONS}"


def test_the_list_is_that_of_the_names_in_use() -> None:
    assert sorted(private_names("embgrad_tensorflow")) == sorted(PRIVATE_NAMES)


@pytest.mark.parametrize("name", [one for one in PRIVATE_NAMES if "." in one])
def test_modules_and_classes_are_there(name: str) -> None:
    module, _, attribute = name.rpartition(".")
    try:
        found: Any = getattr(importlib.import_module(module), attribute, None) or importlib.import_module(name)
    except ImportError:
        found = None
    expect(found is not None, name)


def test_op_callbacks_see_operations_and_replace_those_of_graphs() -> None:
    from tensorflow.python.framework import op_callbacks

    seen: list[Any] = []

    def called(op_type: Any, inputs: Any, attrs: Any, outputs: Any, op_name: Any = None, graph: Any = None) -> Any:
        seen.append((op_type, outputs[0], graph))
        return None if graph is None or op_type not in ("Tanh", b"Tanh") else [tf.zeros([2])]

    op_callbacks.add_op_callback(called)
    try:
        eager = tf.tanh(tf.ones([2]))
        traced = tf.function(lambda: tf.tanh(tf.ones([2]))).get_concrete_function()
    finally:
        op_callbacks.remove_op_callback(called)
    expect(any(output is eager for _, output, graph in seen if graph is None), "op_callbacks, in eager execution,")
    expect(not np.any(traced().numpy()), "op_callbacks, in a graph,")


def test_tapes() -> None:
    from tensorflow.python import pywrap_tfe

    tape = tf.GradientTape()
    with tape:
        one = tf.Variable(1.0) * 2
        expect(tape._recording, "GradientTape._recording")  # type: ignore[attr-defined]
        expect(not pywrap_tfe.TFE_Py_TapeSetIsStopped(), "TFE_Py_TapeSetIsStopped")
        expect(bool(pywrap_tfe.TFE_Py_TapeSetShouldRecordBackprop([one])), "TFE_Py_TapeSetShouldRecordBackprop")
    tape.gradient(one, [])
    expect(tape._tape is None, "GradientTape._tape")  # type: ignore[attr-defined]
    expect(hasattr(tf.GradientTape, "_push_tape"), "GradientTape._push_tape")
    expect(hasattr(pywrap_tfe, "TFE_Py_FastPathExecute"), "TFE_Py_FastPathExecute")


def test_lookups_by_other_ways_than_the_fast_path() -> None:
    from tensorflow.python.ops import gen_array_ops, gen_resource_variable_ops

    for name in ("gather", "gather_v2", "gather_nd"):
        expect(callable(getattr(gen_array_ops, f"{name}_eager_fallback", None)), f"{name}_eager_fallback")
    for name in ("resource_gather", "resource_gather_nd"):
        expect(callable(getattr(gen_resource_variable_ops, f"{name}_eager_fallback", None)), f"{name}_eager_fallback")


def test_variables() -> None:
    handle = tf.Variable(np.zeros((3, 2))).handle
    data = handle._handle_data.shape_and_type[0]
    expect(tf.TensorShape(data.shape) == (3, 2) and tf.as_dtype(data.dtype) == tf.float64, "_handle_data")
    layer = KERAS["keras3"].layers.Dense(2)
    layer.build((None, 2))
    expect(isinstance(layer.kernel._value, tf.Variable), "keras.Variable._value")


def test_the_wrappers_of_containers() -> None:
    module = tf.Module()
    module.entries, module.names, module.pair = [1], {"a": 1}, (1, [2])  # type: ignore[attr-defined]
    kinds = [type(one).__qualname__ for one in (module.entries, module.names, module.pair)]  # type: ignore[attr-defined]
    expect(kinds == ["ListWrapper", "_DictWrapper", "_TupleWrapper"], "the wrappers of containers")
    expect(module.entries._storage == [1], "ListWrapper._storage")  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["keras2", "keras3"])
def test_the_mode_and_the_mask_of_keras(name: str) -> None:
    from embgrad_tensorflow.state import in_mode

    layer, ones = KERAS[name].layers.Dropout(0.5), tf.ones([64])
    with in_mode(True):
        expect(bool(np.any(layer(ones).numpy() == 0)), f"the mode of layers in {name}")
    with in_mode(False):
        expect(not np.any(layer(ones).numpy() == 0), f"the mode of layers in {name}")
    rows = KERAS[name].layers.Embedding(3, 2, mask_zero=True)(tf.constant([[1, 0]]))
    expect(rows._keras_mask.numpy().tolist() == [[True, False]], f"_keras_mask in {name}")


def test_random_generators() -> None:
    from keras.src.backend.common import global_state
    from keras.src.random.seed_generator import GLOBAL_SEED_GENERATOR
    from tensorflow.python.ops import stateful_random_ops
    from tf_keras.src import backend

    tf.random.get_global_generator()
    expect(stateful_random_ops.global_generator is not None, "stateful_random_ops.global_generator")
    expect(hasattr(backend, "_SEED_GENERATOR"), "tf_keras's _SEED_GENERATOR")
    KERAS["keras3"].random.normal([1])
    generator = global_state.get_global_attribute(GLOBAL_SEED_GENERATOR)
    expect(generator is None or hasattr(generator.state, "_value"), "keras's GLOBAL_SEED_GENERATOR")


def test_saved_functions() -> None:
    from tensorflow.python.eager.polymorphic_function.concrete_function import ConcreteFunction
    from tensorflow.python.framework import op_def_registry, ops

    @tf.custom_gradient
    def doubled(value: Any) -> Any:
        return tf.identity(value), lambda gradient: 2 * gradient

    @tf.function(input_signature=[tf.TensorSpec([None], name="ids")])
    def function(ids: Any) -> Any:
        return tf.cond(tf.reduce_sum(ids) > 0, lambda: doubled(ids), lambda: ids) + doubled(ids)

    concrete = function.get_concrete_function()
    called: list[Any] = []
    original = ConcreteFunction._call_flat

    def call(self: Any, *given: Any, **named: Any) -> Any:
        called.append(self)
        return original(self, *given, **named)

    ConcreteFunction._call_flat = call
    try:
        concrete(tf.ones([2]))
    finally:
        ConcreteFunction._call_flat = original
    expect(concrete in called, "ConcreteFunction._call_flat")
    expect(list(concrete._arg_keywords or ()) == ["ids"] or concrete.function_type is not None, "_arg_keywords")
    nodes = concrete.graph.as_graph_def().node
    own = [node.attr["_gradient_op_type"].s.decode() for node in nodes if "_gradient_op_type" in node.attr]
    expect(bool(own) and callable(ops.gradient_registry.lookup(own[0])), "_gradient_op_type")
    expect(op_def_registry.get("MatMul").input_arg[0].name == "a", "op_def_registry")


def test_functions_are_written_out_in_place_of_their_calls() -> None:
    from embgrad_tensorflow.flattening import CALLS, flattened

    inner = tf.function(lambda value: 2 * value)
    outer = tf.function(lambda value: inner(value) + inner(value)).get_concrete_function(tf.TensorSpec([2]))
    expect(any(node.type in CALLS for node in outer.graph.get_operations()), "the call of a function")
    operations = [node.op for node in flattened(outer).nodes]
    expect(operations.count("Mul") == 2 and not {*CALLS} & {*operations}, "tf_optimizer.OptimizeGraph")
