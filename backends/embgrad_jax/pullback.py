"""Pulls cotangents back from a model's outputs to the points, and answers objectives of JAX's own arrays."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from embgrad.backend import (
    NativeObjective,
    PassRecorder,
    PointChanges,
    Request,
    Run,
    TokenBatch,
    compute_dtype,
    values_at,
)
from embgrad.backend.cotangents import Answer, answered, answered_in_turn, native_answer
from embgrad.backend.own_mask import GradientSizes, unused_inputs
from embgrad_jax.graphs import Graph
from embgrad_jax.inputs import JaxTensors, Rows, to_numpy
from embgrad_jax.lookup import Survey
from embgrad_jax.modules import is_floating
from embgrad_jax.parameters import differentiated, parameter_values, rests
from embgrad_jax.walk import Structure

__all__ = ["Forward", "Pulled", "answer_of", "finished", "pulled_back"]

#: Takes cotangents of the floating outputs and of the values upstream of edited points, by key; returns the gradients at the
#: points by key, and those of arrays of the model by name.
Pull = Callable[[Sequence[Any], Mapping[str, Any]], tuple[Mapping[str, Any], Mapping[str, Any]]]


@dataclass(frozen=True, eq=False)
class Forward:
    """A forward pass that has been computed.

    Attributes:
        graph: its graph.
        survey: its points.
        outputs: the arrays of the return value.
        random: the states of random generators after it.
        values: the values at the points by key.
        upstream: the values at edited points, by key.
        pull: pulls back.
    """

    graph: Graph
    survey: Survey
    outputs: Sequence[Any]
    random: Sequence[Any]
    values: Mapping[str, Any]
    upstream: Mapping[str, Any]
    pull: Pull


@dataclass(frozen=True)
class Pulled:
    """The gradients of one set of cotangents; None where no path of the graph leads to a point or an array.

    Attributes:
        points: those at the points, by key.
        before: those that edits have replaced, by key.
        arrays: those of arrays of the model, by name.
    """

    points: Mapping[str, np.ndarray | None]
    before: Mapping[str, np.ndarray]
    arrays: Mapping[str, np.ndarray | None]


def answer_of(forward: Forward, batch: TokenBatch, request: Request) -> Answer:
    """Return the answer to a request, whose cotangents are those of outputs of the pass, or of rows of them."""
    returned = forward.graph.filled(forward.outputs)

    def answer(part: Request) -> Answer:
        if isinstance(part.respond, NativeObjective):
            return _native_answer(forward, batch, part, part.respond)
        return answered(returned, batch, part, JaxTensors())

    return answered_in_turn(request, answer)


def _native_answer(forward: Forward, batch: TokenBatch, request: Request, objective: NativeObjective) -> Answer:
    """Return the answer of a function of native outputs, which JAX differentiates by itself."""
    if not request.pullback:
        value = objective.function(forward.graph.filled(forward.outputs))
        return native_answer(value, objective, batch, JaxTensors(), several=request.several)
    numbers = [number for number, output in enumerate(forward.outputs) if is_floating(output)]
    read: set[int] = set()
    kept: list[Any] = []

    def function(tensors: Sequence[Any]) -> Any:
        outputs = list(forward.outputs)
        for number, tensor in zip(numbers, tensors, strict=True):
            outputs[number] = _noticed(tensor, functools.partial(read.add, number))
        value = objective.function(forward.graph.filled(outputs))
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


def _noticed(value: Any, notice: Callable[[], None]) -> Any:
    """Return the value itself in such a way that `notice` is called when a gradient arrives at it."""

    @jax.custom_vjp  # type: ignore[untyped-decorator]
    def identity(value: Any) -> Any:
        return value

    def back(_: None, gradient: Any) -> tuple[Any]:
        notice()
        return (gradient,)

    identity.defvjp(lambda value: (value, None), back)
    return identity(value)


def pulled_back(
    forward: Forward, pairs: Iterable[tuple[Any, Any]], changes: PointChanges[Any], arrays: Sequence[str]
) -> Pulled:
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
        cotangents[place] = _added(cotangents[place], tensor, cotangent)
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
    return Pulled(
        {key: to_numpy(gradient) if key in reached else None for key, gradient in at_points.items()},
        before,
        {name: to_numpy(of_arrays[name]) if f"leaf {name}" in reached else None for name in arrays},
    )


def _added(total: Any, tensor: Any, cotangent: Any) -> Any:
    """Return the cotangent of an output with that of the output, or of rows of it, added."""
    cotangent = jnp.asarray(cotangent, total.dtype)
    if isinstance(tensor, Rows):
        return total.at[tensor.examples, tensor.positions].add(cotangent)
    return total + cotangent


def finished(
    structure: Structure,
    batch: TokenBatch,
    request: Request,
    watch: PassRecorder,
    forward: Forward,
    changes: PointChanges[Any],
) -> Run:
    """Answer the objectives of a pass, pull back, and return the values and gradients at the points."""
    survey = forward.survey
    if request.training:
        random = [leaf for leaf in structure.leaves if leaf.random]
        for leaf, value in zip(random, forward.random, strict=True):
            leaf.put(value)
    names = differentiated(structure.leaves, survey, parameters=request.parameters, tables=request.tables)
    answer = answer_of(forward, batch, request)
    keys = request.keys_to_read(survey.names)
    activations = {key: to_numpy(forward.values[key]) for key in keys.values()}
    pulled: list[tuple[Mapping[str, np.ndarray | None], Mapping[str, np.ndarray]]] = []
    below: dict[str, np.ndarray | None] = dict.fromkeys(names)
    sizes = GradientSizes(request, forward.graph.unused)
    for cotangents in answer.sets if request.pullback else ():
        gradients = pulled_back(forward, cotangents, changes, names)
        if not pulled:
            below = dict(gradients.arrays)
        reduced = sizes.request.reduced({key: gradients.points[key] for key in keys.values()}, activations)
        pulled.append((reduced, gradients.before))
    found = values_at(
        keys,
        watch,
        activations,
        [gradients for gradients, _ in pulled],
        [before for _, before in pulled],
        rests(structure.leaves, survey, below) if request.tables else None,
    )
    read = [str(forward.values[key].dtype) for key in keys.values()]
    read += [str(output.dtype) for output in answer.outputs]
    floating = (str(leaf.array.dtype) for leaf in structure.leaves if leaf.floating)
    dtype = compute_dtype(read, floating, forward.graph.products())
    parameters = parameter_values(structure.leaves, below) if request.parameters else None
    rows = [lookup.padding for lookup in watch.lookups if lookup.layout is not None]
    unused, masked_id = unused_inputs(forward.graph.unused, batch, rows, sizes.of(found, survey.names))
    return Run(
        found,
        dtype,
        unused,
        answer.objective,
        parameters,
        masked_id=masked_id,
        further=answer.further,
        lookups=watch.looked_up(),
    )
