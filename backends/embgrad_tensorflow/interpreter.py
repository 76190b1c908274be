"""Runs a compiled function's program eagerly, one operation after the other, so that each can be seen and recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context, execute

from embgrad_tensorflow.program import Program, Step

__all__ = ["Interpreter", "Observer", "run_program"]


class Observer:
    """Sees what a program computes, and may put other tensors in its place; as it stands, it does neither."""

    def gave(self, step: Step, number: int, tensor: Any) -> Any:
        """An operation gave a floating-point result just now; what is to be kept in its place."""
        return tensor

    def taken(self, user: str | None, slot: int, tensor: Any) -> Any:
        """An operation of that name takes a tensor, or the function returns it (None); what it is given."""
        return tensor

    def ended(self) -> None:
        """The program has run to its end."""


class Interpreter:
    """Runs programs eagerly.

    Args:
        observer: sees them run, the branches and bodies that they run included.
    """

    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    def run(self, program: Program, inputs: Sequence[Any]) -> list[Any]:
        """What a program gives for these arguments, those that the function captured last."""
        values: dict[int, Any] = {**self.constants(program), **dict(zip(program.inputs, inputs, strict=True))}
        for step in program.steps:
            results = self._run_step(step, values)
            kept = [
                self._observer.gave(step, number, one) if floating else one
                for number, (one, floating) in enumerate(zip(results, step.floating, strict=True))
            ]
            values.update(zip(step.outputs, kept, strict=True))
            for slot in step.done:
                del values[slot]
        return [self._observer.taken(None, slot, values[slot]) for slot in program.outputs]

    def constants(self, program: Program) -> Mapping[int, Any]:
        """The tensors whose values are known, by their slots."""
        return program.constants

    def execute(self, step: Step, operands: Sequence[Any]) -> Sequence[Any]:
        """What one operation gives. Nothing is recorded yet."""
        # What tf.raw_ops ends in: it takes the operations of other libraries too, and records nothing by itself. Op
        # callbacks replace it while they are on, so it has to be looked up in its module.
        return list(execute.execute(step.op, len(step.outputs), list(operands), step.attrs, context.context()) or ())

    def choose(self, step: Step, operands: Sequence[Any]) -> Sequence[Any]:
        """What the branch gives that the first operand chooses."""
        if step.op.endswith("If"):
            chosen = step.branches[0 if _is_true(operands[0]) else 1]
        else:
            index = int(operands[0])
            last = len(step.branches) - 1
            chosen = step.branches[index if 0 <= index <= last else last]
        return self.run(chosen, operands[1:])

    def repeat(self, step: Step, operands: Sequence[Any]) -> Sequence[Any]:
        """What the body gives in the end, run for as long as the condition holds."""
        condition, body = step.branches
        state = list(operands)
        while _is_true(self.run(condition, state)[0]):
            state = self.run(body, state)
        return state

    def _run_step(self, step: Step, values: dict[int, Any]) -> Sequence[Any]:
        operands = [self._observer.taken(step.name, slot, values[slot]) for slot in step.inputs]
        if step.branches:
            return self.repeat(step, operands) if step.op.endswith("While") else self.choose(step, operands)
        results = self.execute(step, operands)
        if step.gradient is not None:
            captured = [self._observer.taken(step.name, slot, values[slot]) for slot in step.gradient.captured]
            step.gradient.record(step.op, operands, results, captured)
        elif execute.must_record_gradient():
            execute.record_gradient(step.op, operands, step.attrs, results)
        return results


def _is_true(value: Any) -> bool:
    """As TensorFlow's `If` takes it: a scalar that is not zero or empty, or an array that has entries."""
    if value.shape.rank == 0:
        return bool(value.numpy())
    return bool(tf.size(value) > 0)


def run_program(program: Program, inputs: Sequence[Any], observer: Observer | None = None) -> list[Any]:
    """What a program gives for these eager tensors, those that the function captured last."""
    return Interpreter(observer or Observer()).run(program, inputs)
