"""TensorFlow, eager, compiled and saved: the forward pass, the gradient by hand, and all weights' gradients."""

from __future__ import annotations

import functools
import tempfile
from typing import Any

import numpy as np
import tensorflow as tf

import embgrad
from tests.benchmarks.cases import POSITION, Case
from tests.benchmarks.measuring import Mode

KEYS = ("input_word_ids", "input_mask", "input_type_ids")


@functools.cache
def _model(checkpoint: str) -> Any:
    return embgrad.zoo.load_bert(checkpoint, "tensorflow")


def _total(objective: str, pooled: Any, sequence: Any) -> Any:
    return tf.reduce_sum(pooled if objective == "pooled" else sequence[:, POSITION])


def eager(case: Case) -> Mode:
    model, inputs, batch = _model(case.checkpoint), _inputs(case), case.batch()
    return Mode(
        forward=lambda: model(inputs, training=False).pooler_output.numpy(),
        by_hand={"the tape watches the rows alone, inputs_embeds": lambda: _by_rows(case, model, inputs).numpy()},
        backward=lambda: _backward(case, model, inputs)[-1],
        gradients=lambda: embgrad.gradients(model, batch, case.embgrad_objective()),
    )


def compiled(case: Case) -> Mode:
    model, inputs, batch = _model(case.checkpoint), _inputs(case), case.batch()
    forward = tf.function(lambda inputs: model(inputs, training=False).pooler_output)
    by_rows = tf.function(lambda inputs: _by_rows(case, model, inputs))
    with_xla = tf.function(lambda inputs: _by_rows(case, model, inputs), jit_compile=True)
    in_two = tf.function(lambda inputs: _by_rows_in_two(case, model, inputs))
    backward = tf.function(lambda inputs: _backward(case, model, inputs))
    return Mode(
        forward=lambda: forward(inputs).numpy(),
        by_hand={
            "one tf.function of forward pass and tape, inputs_embeds": lambda: by_rows(inputs).numpy(),
            "the same with jit_compile=True": lambda: with_xla(inputs).numpy(),
            "the model alone with jit_compile=True, the objective in NumPy": lambda: in_two(inputs).numpy(),
        },
        backward=lambda: backward(inputs)[-1],
        gradients=lambda: embgrad.gradients(model, batch, case.embgrad_objective(), compile=True),
    )


def restored(case: Case) -> Mode:
    model = _saved(case.checkpoint)
    batch = case.batch("tfhub")
    inputs = {name: tf.constant(value) for name, value in batch.to_tfhub().items()}
    config = case.config()
    shape = (config["vocab_size"], config["hidden_size"])
    table = next(weight for weight in model.weights_ if tuple(weight.shape) == shape)
    in_one = tf.function(lambda inputs: _by_slices(case, model, table, inputs))
    whole = tf.function(lambda inputs: _backward_saved(case, model, inputs))
    return Mode(
        forward=lambda: model(inputs)["pooled_output"].numpy(),
        by_hand={
            "the tape watches the table alone": lambda: _by_slices(case, model, table, inputs).numpy(),
            "the same inside one tf.function, which prunes what is not needed": lambda: in_one(inputs).numpy(),
        },
        backward=lambda: whole(inputs)[-1],
        gradients=lambda: embgrad.gradients(model, batch, case.embgrad_objective()),
    )


MODES = {"TensorFlow, eager": eager, "TensorFlow, compile=True": compiled, "TensorFlow, SavedModel": restored}


def _inputs(case: Case) -> dict[str, Any]:
    return {name: tf.constant(value) for name, value in case.batch().to_huggingface().items()}


def _by_rows(case: Case, model: Any, inputs: dict[str, Any]) -> Any:
    rows = tf.gather(model.bert.embeddings.weight, inputs["input_ids"])
    others = {name: value for name, value in inputs.items() if name != "input_ids"}
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(rows)
        outputs = model(input_ids=None, inputs_embeds=rows, training=False, **others)
        objective = _total(case.objective, outputs.pooler_output, outputs.last_hidden_state)
    return tape.gradient(objective, rows)


def _by_rows_in_two(case: Case, model: Any, inputs: dict[str, Any]) -> Any:
    """Compute as `_by_rows`, with an objective outside TensorFlow, so that XLA compiles both passes separately."""

    @tf.function(jit_compile=True)
    def read(rows: Any) -> Any:
        others = {name: value for name, value in inputs.items() if name != "input_ids"}
        outputs = model(input_ids=None, inputs_embeds=rows, training=False, **others)
        return outputs.pooler_output if case.objective == "pooled" else outputs.last_hidden_state[:, POSITION]

    rows = tf.gather(model.bert.embeddings.weight, inputs["input_ids"])
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(rows)
        output = read(rows)
    cotangent = tf.ensure_shape(tf.numpy_function(np.ones_like, [output], output.dtype), output.shape)
    return tape.gradient(output, rows, cotangent)


def _by_slices(case: Case, model: Any, table: Any, inputs: dict[str, Any]) -> Any:
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(table)
        outputs = model(inputs)
        objective = _total(case.objective, outputs["pooled_output"], outputs["sequence_output"])
    slices = tape.gradient(objective, table)
    return tf.reshape(slices.values, (case.examples, case.positions, -1))


def _backward(case: Case, model: Any, inputs: dict[str, Any]) -> Any:
    with tf.GradientTape() as tape:
        outputs = model(inputs, training=False)
        objective = _total(case.objective, outputs.pooler_output, outputs.last_hidden_state)
    return _all_of(tape, objective, model.trainable_variables)


def _backward_saved(case: Case, model: Any, inputs: dict[str, Any]) -> Any:
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(list(model.weights_))
        outputs = model(inputs)
        objective = _total(case.objective, outputs["pooled_output"], outputs["sequence_output"])
    return _all_of(tape, objective, list(model.weights_))


def _all_of(tape: Any, objective: Any, variables: Any) -> Any:
    """Return the existing gradients; that of a table stays a list of rows."""
    gradients = [gradient for gradient in tape.gradient(objective, variables) if gradient is not None]
    return [gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient for gradient in gradients]


@functools.cache
def _saved(checkpoint: str) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(_encoder(_model(checkpoint)), folder)
        return tf.saved_model.load(folder)


def _encoder(model: Any) -> Any:
    """Return the model as a module with TF Hub's names of inputs and outputs."""

    def call(inputs: dict[str, Any]) -> dict[str, Any]:
        named = dict(zip(("input_ids", "attention_mask", "token_type_ids"), (inputs[key] for key in KEYS), strict=True))
        outputs = model(named, training=False)
        return {"pooled_output": outputs.pooler_output, "sequence_output": outputs.last_hidden_state}

    encoder = tf.Module()
    encoder.bert, encoder.weights_ = model, model.trainable_variables
    signature = {key: tf.TensorSpec((None, None), tf.int32, name=key) for key in KEYS}
    encoder.__call__ = tf.function(call, input_signature=[signature])
    return encoder
