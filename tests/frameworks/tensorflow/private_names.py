"""The private names of TensorFlow and of both Keras that the backend uses, each with the reason why there is no public way."""

from __future__ import annotations

from typing import Final

__all__ = ["PRIVATE_NAMES"]

#: By name the reason, see `tests.unit.backend_files.private_names`.
PRIVATE_NAMES: Final[dict[str, str]] = {
    # The points of a pass that runs Python
    "tensorflow.python.framework.op_callbacks": "Only a callback sees every operation with its tensors, whatever calls it.",
    "tensorflow.python.pywrap_tfe": "Tells whether tapes record, and hands on other rows than an operation gave.",
    "tensorflow.python.eager.record": "Gives a graph's tensor a gradient of our own that does not live as long as the process.",
    "tensorflow.python.ops.gen_array_ops": "Runs lookups whose operands are none that the fast path takes.",
    "tensorflow.python.ops.gen_resource_variable_ops": "Runs lookups in variables, likewise.",
    "tensorflow.python.ops.handle_data_util": "Tells the shape and dtype of a variable by its resource, and copies them.",
    "_keras_mask": "Keras hangs a tensor's mask there, and a tensor that takes its place would lose it.",
    "_": "Begins the names of attributes that are no names of points.",
    # State
    "_DictWrapper": "Keras and TensorFlow put it around the user's dicts, and it has no public class.",
    "_TupleWrapper": "It is put around the user's tuples.",
    "_storage": "Holds the list inside of the wrapper of one, which cannot be restored through the wrapper.",
    "_value": "Holds TensorFlow's variable inside of one of Keras 3.",
    "_push_tape": "Is called when a tape begins to record, which the user's capture has to know.",
    "_recording": "Says whether a tape records just now.",
    "_tape": "Says whether a tape has given its gradient and can give no other.",
    "tensorflow.python.ops.stateful_random_ops": "Says whether there is a global generator; the public function makes one.",
    "tf_keras.src.backend": "Sets the mode of layers that are called without one, in Keras 2.",
    "keras.src.layers.layer.CallContext": "Sets the mode of layers that are called without one, in Keras 3.",
    "keras.src.backend.common.global_state": "Holds that mode, and the generator that all layers share.",
    "keras.src.random.seed_generator.GLOBAL_SEED_GENERATOR": "Names that generator.",
    "_SEED_GENERATOR": "Holds the generator of Python's from which Keras 2 takes the seeds of initial weights.",
    # SavedModels
    "_arg_keywords": "Names the arguments of a signature in order.",
    "_call_flat": "Is where every call of a compiled function ends, and where it can be seen into.",
    "_callable": "Holds the function of a hub.KerasLayer.",
    "_gradient_op_type": "Names an operation's gradient of its own in a saved graph.",
    "tensorflow.python.eager.polymorphic_function.concrete_function.ConcreteFunction": "Is the class of compiled functions.",
    "tensorflow.python.framework.op_def_registry": "Tells the operands and results of an operation of any type.",
    "tensorflow.python.framework.ops": "Holds the registry of gradients.",
    "tensorflow.python.grappler.tf_optimizer": "Writes the functions that a graph calls out in their place.",
    "tensorflow.python.saved_model.function_deserialization": "Makes gradients of a saved model's own.",
}
