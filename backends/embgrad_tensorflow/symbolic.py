"""Writes a compiled function's program into the graph that is being traced, operation by operation, so that each can be seen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops

from embgrad.backend.traces import UntraceableError
from embgrad_tensorflow.interpreter import Interpreter, Observer
from embgrad_tensorflow.program import Program, Step

__all__ = ["GraphInterpreter", "Heard", "UntraceableError"]

#: Told of an operation that was made just now: its type, operands, attributes and results.
Heard = Callable[[str, Sequence[Any], Sequence[Any], Sequence[Any]], None]


class GraphInterpreter(Interpreter):
    """Runs programs on tensors that have no values yet.

    Args:
        observer: sees them run.
        heard: is told of each operation.
    """

    def __init__(self, observer: Observer, heard: Heard) -> None:
        super().__init__(observer)
        self._heard = heard

    def constants(self, program: Program) -> Mapping[int, Any]:
        """Single whole numbers are the graph's own: TensorFlow concludes from an eager axis that all is eager."""
        return {
            slot: tf.constant(one.numpy(), one.dtype) if one.dtype.is_integer and one.shape.rank == 0 else one
            for slot, one in program.constants.items()
        }

    def execute(self, step: Step, operands: Sequence[Any]) -> Sequence[Any]:
        """Adds the operation to the graph."""
        graph = ops.get_default_graph()
        made = graph._create_op_internal(step.op, [*operands], attrs=dict(step.protos))
        self._heard(step.op, list(made.inputs), step.attrs, made.outputs)
        return list(made.outputs)

    def choose(self, step: Step, operands: Sequence[Any]) -> Sequence[Any]:
        """Takes the branch at once where it is known; else the graph does."""
        known = tf.get_static_value(operands[0])
        if known is not None:
            return super().choose(step, [tf.constant(known), *operands[1:]])
        branches = [self._branch(one, operands[1:]) for one in step.branches]
        if not step.op.endswith("If"):
            return list(tf.switch_case(operands[0], branches))
        if operands[0].shape.rank != 0 or operands[0].dtype == tf.string:
            raise UntraceableError(f"the model's graph chooses in {step.name!r} by what is no single number")
        return list(tf.cond(tf.cast(operands[0], tf.bool), *branches))

    def repeat(self, step: Step, operands: Sequence[Any]) -> Sequence[Any]:
        """Adds a loop to the graph."""
        condition, body = step.branches
        shapes = [tf.TensorShape(one) for one in step.protos["output_shapes"].list.shape]
        return list(
            tf.while_loop(
                lambda *state: tf.reshape(tf.cast(self.run(condition, state)[0], tf.bool), []),
                lambda *state: self.run(body, state),
                [tf.convert_to_tensor(one) for one in operands],
                shape_invariants=shapes or None,
                parallel_iterations=1,
            )
        )

    def _branch(self, program: Program, operands: Sequence[Any]) -> Callable[[], Sequence[Any]]:
        return lambda: self.run(program, operands)
