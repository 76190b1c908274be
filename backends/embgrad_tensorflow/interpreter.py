"""Runs a compiled function's program eagerly, one operation after the other, so that each can be seen and recorded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context, execute

from embgrad_tensorflow.program import Program, Step

__all__ = ["Observer", "run_program"]


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


def run_program(program: Program, inputs: Sequence[Any], observer: Observer | None = None) -> list[Any]:
    """What the program gives for these arguments.

    Args:
        program: what is to be run.
        inputs: eager tensors, those that the function captured last.
        observer: sees it run, the branches and bodies that it runs included.
    """
    watcher = observer or Observer()
    values: dict[int, Any] = {**program.constants, **dict(zip(program.inputs, inputs, strict=True))}
    for step in program.steps:
        results = _run_step(step, values, watcher)
        kept = [
            watcher.gave(step, number, one) if floating else one
            for number, (one, floating) in enumerate(zip(results, step.floating, strict=True))
        ]
        values.update(zip(step.outputs, kept, strict=True))
        for slot in step.done:
            del values[slot]
    return [watcher.taken(None, slot, values[slot]) for slot in program.outputs]


def _run_step(step: Step, values: dict[int, Any], observer: Observer) -> Sequence[Any]:
    operands = [observer.taken(step.name, slot, values[slot]) for slot in step.inputs]
    if step.branches:
        return _run_control(step, operands, observer)
    results = _execute(step, operands)
    if step.gradient is not None:
        captured = [observer.taken(step.name, slot, values[slot]) for slot in step.gradient.captured]
        step.gradient.record(step.op, operands, results, captured)
    elif execute.must_record_gradient():
        execute.record_gradient(step.op, operands, step.attrs, results)
    return results


def _execute(step: Step, operands: Sequence[Any]) -> list[Any]:
    # What tf.raw_ops ends in: it takes the operations of other libraries too, and records nothing by itself. Op callbacks
    # replace it while they are on, so it has to be looked up in its module.
    return list(execute.execute(step.op, len(step.outputs), list(operands), step.attrs, context.context()) or ())


def _run_control(step: Step, operands: Sequence[Any], observer: Observer) -> Sequence[Any]:
    if step.op.endswith("While"):
        condition, body = step.branches
        return _repeat(condition, body, operands, observer)
    if step.op.endswith("If"):
        chosen = step.branches[0 if _is_true(operands[0]) else 1]
    else:
        index = int(operands[0])
        last = len(step.branches) - 1
        chosen = step.branches[index if 0 <= index <= last else last]
    return run_program(chosen, operands[1:], observer)


def _repeat(condition: Program, body: Program, operands: Sequence[Any], observer: Observer) -> Sequence[Any]:
    state = list(operands)
    while _is_true(run_program(condition, state, observer)[0]):
        state = run_program(body, state, observer)
    return state


def _is_true(value: Any) -> bool:
    """As TensorFlow's `If` takes it: a scalar that is not zero or empty, or an array that has entries."""
    if value.shape.rank == 0:
        return bool(value.numpy())
    return bool(tf.size(value) > 0)
