"""Tells the layers inside a compiled function's program by the name scopes that they left: what enters and what leaves each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from embgrad_tensorflow.program import Program, Step, tensor_name

__all__ = ["Scope", "scopes"]

#: Operations that look at a tensor's shape and not at what it holds.
SHAPES: Final = ("Shape", "ShapeN", "Size", "Rank")


@dataclass(frozen=True)
class Scope:
    """A name scope, such as a layer's, with the tensors that cross its border.

    Attributes:
        path: the scope's name, such as `encoder/layer_0`.
        kind: the path with `#` for each number, which layers of one stack share.
        enters: the name of the first floating-point tensor that comes from outside; None where none does.
        leaves: the name of the last floating-point tensor that is used outside, or returned.
        is_operation: whether it is one operation's, with no scope inside, such as `MatMul` with the read of its weights.
    """

    path: str
    kind: str
    enters: str | None
    leaves: str
    is_operation: bool


def scopes(program: Program) -> list[Scope]:
    """The scopes that a floating-point tensor leaves, in the order in which they are entered.

    Weights do not count among what enters a scope. A tensor goes by the name of the operation that computed it, wherever
    that lies, so that what leaves one layer is what enters the next.
    """
    makers = {slot: (step, number) for step in program.steps for number, slot in enumerate(step.outputs)}
    enters: dict[str, str] = {}
    leaves: dict[str, Step] = {}
    names: dict[str, str] = {}
    order = {step.name: number for number, step in enumerate(program.steps)}
    inner = {path for step in program.steps for path in list(_paths(step.name))[:-1]}
    for user, slot in _uses(program):
        if slot not in makers:
            continue
        maker, number = makers[slot]
        if not maker.floating[number] or maker.op == "ReadVariableOp":
            continue
        theirs = set(_paths(user.name)) if user is not None else set()
        ours = set(_paths(maker.name))
        for path in theirs - ours:
            enters.setdefault(path, tensor_name(maker, number))
        for path in ours - theirs:
            if path not in leaves or order[maker.name] >= order[leaves[path].name]:
                leaves[path] = maker
                names[path] = tensor_name(maker, number)
    found = [path for step in program.steps for path in _paths(step.name) if path in leaves and path in inner]
    holding = {path.rpartition("/")[0] for path in inner}
    return [
        Scope(path, re.sub(r"\d+", "#", path), enters.get(path), names[path], path in order and path not in holding)
        for path in dict.fromkeys(found)
    ]


def _uses(program: Program) -> Iterator[tuple[Step | None, int]]:
    """Each use of a slot, in order, with the step that uses it; None is the function's return."""
    for step in program.steps:
        for slot in step.inputs if step.op not in SHAPES else ():
            yield step, slot
    for slot in program.outputs:
        yield None, slot


def _paths(name: str) -> Iterator[str]:
    """The scopes that an operation lies in, the outermost first, and its own name, which can be a scope's too."""
    parts = name.split("/")
    for count in range(1, len(parts) + 1):
        yield "/".join(parts[:count])
