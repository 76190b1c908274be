"""One forward pass and its pullbacks: values and gradients at points and parameters, as NumPy."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from embgrad.backend import (
    Call,
    PassRecorder,
    Point,
    PointChanges,
    Request,
    Run,
    TokenBatch,
    as_parts,
    compute_dtype,
    model_lock,
    values_at,
)
from embgrad_jax.graphs import Graph, traced
from embgrad_jax.inputs import to_numpy
from embgrad_jax.lookup import Survey, looked_into, surveyed
from embgrad_jax.modules import is_floating
from embgrad_jax.parameters import differentiated, parameter_values, rests
from embgrad_jax.pullback import Forward, answer_of, pulled_back
from embgrad_jax.state import expect_arrays, preserved
from embgrad_jax.tap import Computation, computed
from embgrad_jax.walk import Structure

__all__ = ["HINT", "changes_of", "finished", "points", "run", "survey_of"]

#: Ends the message where a point was not found.
HINT: Final = (
    "Modules are seen in a copy of the model alone, which call=... is given: let it call that, not the model itself; and "
    "points inside of functions with derivatives of their own are not seen"
)


def points(model: Any, batch: TokenBatch, call: Call | None) -> Sequence[Point]:
    """Return the points that a forward pass on the batch reaches."""
    watch = PassRecorder(batch, None)
    with _prepared(model) as structure:
        graph, inputs = traced(structure, model, batch, call, training=False)
        surveyed(graph, structure.leaves, inputs, watch)
    return watch.points()


def run(model: Any, batch: TokenBatch, request: Request) -> Run:
    """Run one forward pass, and a pullback for each set of cotangents."""
    with _prepared(model) as structure:
        if request.compiled and not (request.parameters or request.tables):
            from embgrad_jax.compile import run_kept

            return run_kept(structure, model, batch, request, lambda changed: _run(structure, model, batch, changed))
        return _run(structure, model, batch, request)


@contextlib.contextmanager
def _prepared(model: Any) -> Iterator[Structure]:
    """Yield the structure of a model, which no other thread runs meanwhile and which is left as it is."""
    with model_lock(as_parts(model)):
        structure = Structure(model)
        expect_arrays(structure.arrays)
        with preserved(structure):
            yield structure


def _run(structure: Structure, model: Any, batch: TokenBatch, request: Request) -> Run:
    """Run the model's Python."""
    graph, inputs = traced(structure, model, batch, request.call, training=request.training)
    watch = PassRecorder(batch, request.reached, request.times)
    survey = survey_of(graph, structure, inputs, watch, request)
    changes = changes_of(request)
    forward = _forward(graph, structure, inputs, survey, watch, request, changes)
    return finished(structure, batch, request, watch, forward, changes)


def survey_of(
    graph: Graph, structure: Structure, inputs: Sequence[Any], watch: PassRecorder, request: Request
) -> Survey:
    """Return the points of a graph that a request reaches."""
    return surveyed(
        graph,
        structure.leaves,
        inputs,
        watch,
        overridden=frozenset(request.override),
        detached=not request.parameters,
        hint=HINT,
    )


def changes_of(request: Request) -> PointChanges[Any]:
    """Return the changes of a request for JAX's arrays."""
    return PointChanges(request, to_numpy, lambda array, like: jnp.asarray(array, like.dtype))


def _forward(
    graph: Graph,
    structure: Structure,
    inputs: Sequence[Any],
    survey: Survey,
    watch: PassRecorder,
    request: Request,
    changes: PointChanges[Any],
) -> Forward:
    """Compute a forward pass, operation by operation."""
    names = differentiated(structure.leaves, survey, parameters=request.parameters, tables=request.tables)
    numbers = {leaf.name: number for number, leaf in enumerate(structure.leaves)}
    cut = frozenset(request.edit) & survey.shapes.keys()

    def function(sinks: Mapping[str, Any], own: Mapping[str, Any]) -> Any:
        arrays = structure.arrays
        for name, array in own.items():
            arrays[numbers[name]] = array

        def make(held: Mapping[int, Any]) -> Computation:
            return Computation(
                survey, held, sinks, changes.parts, looked_into(watch), cut=cut, detached=not request.parameters
            )

        results, computation = computed(graph, arrays, inputs, make)
        floating = [result for result in results[: graph.outputs] if is_floating(result)]
        return (floating, computation.upstream), (computation.values, results)

    sinks = {key: jnp.zeros(*survey.shapes[key]) for key in survey.shapes} if request.pullback else {}
    own = {name: structure.leaves[numbers[name]].array for name in names}
    if request.pullback:
        (_, upstream), pulling, (values, results) = jax.vjp(function, sinks, own, has_aux=True)
    else:
        (_, upstream), (values, results) = function(sinks, own)
        pulling = None

    def pull(cotangents: Sequence[Any], of_upstream: Mapping[str, Any]) -> Any:
        return pulling((list(cotangents), dict(of_upstream)))

    outputs = [jax.lax.stop_gradient(result) for result in results[: graph.outputs]]
    return Forward(graph, survey, outputs, results[graph.outputs :], values, upstream, pull)


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
    keys = {name: survey.names[name] for name in request.points}
    activations = {key: to_numpy(forward.values[key]) for key in keys.values()}
    pulled: list[tuple[Mapping[str, np.ndarray | None], Mapping[str, np.ndarray]]] = []
    below: dict[str, np.ndarray | None] = dict.fromkeys(names)
    for cotangents in answer.sets if request.pullback else ():
        gradients = pulled_back(forward, cotangents, changes, names)
        if not pulled:
            below = dict(gradients.arrays)
        reduced = request.reduced({key: gradients.points[key] for key in keys.values()}, activations)
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
    dtype = compute_dtype(read, (str(leaf.array.dtype) for leaf in structure.leaves if leaf.floating))
    parameters = parameter_values(structure.leaves, below) if request.parameters else None
    return Run(found, dtype, forward.graph.unused, answer.objective, parameters, further=answer.further)
