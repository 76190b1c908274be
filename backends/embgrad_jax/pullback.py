"""Pull cotangents back from a model's outputs to the points, and answer objectives of JAX's own arrays."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from embgrad.backend import Answer, NativeObjective, PointChanges, Pullback, Request, TokenBatch, native_answer
from embgrad_jax.graphs import Graph
from embgrad_jax.inputs import JaxTensors, Rows, to_numpy
from embgrad_jax.lookup import Survey
from embgrad_jax.modules import is_floating

__all__ = ["Forward", "answer_natively", "pull_back"]

#: Takes cotangents of the floating outputs and of the values upstream of edited points, by key; returns the gradients at the
#: points by key, and those of arrays of the model by name.
Pull = Callable[[Sequence[Any], Mapping[str, Any]], tuple[Mapping[str, Any], Mapping[str, Any]]]


@dataclass(frozen=True, eq=False)
class Forward:
    """A forward pass that has been computed.

    Attributes:
        random: the states of random generators after it.
        upstream: the values at edited points, by key.
    """

    graph: Graph
    survey: Survey
    outputs: Sequence[Any]
    random: Sequence[Any]
    values: Mapping[str, Any]
    upstream: Mapping[str, Any]
    pull: Pull


def answer_natively(forward: Forward, batch: TokenBatch, request: Request, objective: NativeObjective) -> Answer:
    """Return the answer of a function of native outputs, which JAX differentiates by itself."""
    if not request.pullback:
        value = objective.function(forward.graph.fill(forward.outputs))
        return native_answer(value, objective, batch, JaxTensors(), several=request.several)
    numbers = [number for number, output in enumerate(forward.outputs) if is_floating(output)]
    read: set[int] = set()
    kept: list[Any] = []

    def function(tensors: Sequence[Any]) -> Any:
        outputs = list(forward.outputs)
        for number, tensor in zip(numbers, tensors, strict=True):
            outputs[number] = _notice(tensor, functools.partial(read.add, number))
        value = objective.function(forward.graph.fill(outputs))
        kept.append(value)
        return value if is_floating(value) else jnp.zeros(())

    value, pull = jax.vjp(function, [forward.outputs[number] for number in numbers])
    value = value if is_floating(kept[-1]) else kept[-1]
    answer = native_answer(value, objective, batch, JaxTensors(), several=request.several)

    def sets() -> Iterator[Sequence[tuple[Any, Any]]]:
        for ((_, cotangent),) in answer.sets:
            (pulled,) = pull(jnp.asarray(cotangent, value.dtype))
            by_number = dict(zip(numbers, pulled, strict=True))
            yield [(forward.outputs[number], by_number[number]) for number in sorted(read)]

    return replace(answer, sets=sets())


def _notice(value: Any, notice: Callable[[], None]) -> Any:
    """Return the value itself in such a way that `notice` is called when a gradient arrives at it."""

    @jax.custom_vjp  # type: ignore[untyped-decorator]
    def identity(value: Any) -> Any:
        return value

    def back(_: None, gradient: Any) -> tuple[Any]:
        notice()
        return (gradient,)

    identity.defvjp(lambda value: (value, None), back)
    return identity(value)


def pull_back(
    forward: Forward, pairs: Iterable[tuple[Any, Any]], changes: PointChanges[Any], arrays: Sequence[str]
) -> Pullback:
    """Return the gradients of one set of cotangents.

    The gradient that arrives at an edited point is cut off there, and what the edit makes of it is pulled back by itself, from
    the point; the sum of both is the gradient at every point before it.

    Args:
        forward: the pass.
        pairs: outputs, or rows of them, with their cotangents.
        changes: the edits.
        arrays: the names of the arrays whose gradients are returned.
    """
    numbers = {id(output): number for number, output in enumerate(forward.outputs)}
    cotangents = [jnp.zeros(output.shape, output.dtype) for output in forward.outputs if is_floating(output)]
    places = [number for number, output in enumerate(forward.outputs) if is_floating(output)]
    reached: set[str] = set()
    for tensor, cotangent in pairs:
        output = tensor.output if isinstance(tensor, Rows) else tensor
        number = numbers[id(output)]
        reached |= forward.survey.depends[number]
        place = places.index(number)
        cotangents[place] = _add(cotangents[place], tensor, cotangent)
    nothing = {key: jnp.zeros(value.shape, value.dtype) for key, value in forward.upstream.items()}
    at_points, of_arrays = forward.pull(cotangents, nothing)
    at_points, of_arrays = dict(at_points), dict(of_arrays)
    before: dict[str, np.ndarray] = {}
    changes.before = before
    zeros = [jnp.zeros(cotangent.shape, cotangent.dtype) for cotangent in cotangents]
    for key in reversed(forward.survey.shapes):
        if key not in forward.upstream or key not in reached:
            continue
        edited = changes.gradient(key, at_points[key])
        more_at_points, more_of_arrays = forward.pull(zeros, {**nothing, key: edited})
        at_points = {name: gradient + more_at_points[name] for name, gradient in at_points.items()}
        of_arrays = {name: gradient + more_of_arrays[name] for name, gradient in of_arrays.items()}
        at_points[key] = edited
    return Pullback(
        {key: to_numpy(gradient) if key in reached else None for key, gradient in at_points.items()},
        before,
        {name: to_numpy(of_arrays[name]) if f"leaf {name}" in reached else None for name in arrays},
    )


def _add(total: Any, tensor: Any, cotangent: Any) -> Any:
    """Return the cotangent of an output with that of the output, or of rows of it, added."""
    cotangent = jnp.asarray(cotangent, total.dtype)
    if isinstance(tensor, Rows):
        return total.at[tensor.examples, tensor.positions].add(cotangent)
    return total + cotangent
