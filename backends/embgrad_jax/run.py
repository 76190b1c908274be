"""One forward pass and its pullbacks: values and gradients at points and parameters, as NumPy."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from embgrad.backend import (
    Call,
    PassRecorder,
    Point,
    PointChanges,
    Request,
    Run,
    TokenBatch,
    as_parts,
    model_lock,
)
from embgrad_jax.graphs import Graph, traced
from embgrad_jax.lookup import Survey, looked_into, survey_of, surveyed
from embgrad_jax.modules import is_floating
from embgrad_jax.parameters import differentiated
from embgrad_jax.pullback import Forward, finished
from embgrad_jax.state import expect_arrays, preserved
from embgrad_jax.tap import Computation, changes_of, computed
from embgrad_jax.walk import Structure

__all__ = ["points", "run"]


def points(model: Any, batch: TokenBatch, call: Call | None) -> Sequence[Point]:
    """Return the points that a forward pass on the batch reaches."""
    with _prepared(model) as structure:
        graph, inputs = traced(structure, model, batch, call, training=False)
        return _reached(graph, structure, inputs, batch)


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
    watch = request.recorder(batch)
    reached = _reached(graph, structure, inputs, batch) if request.record else None
    survey = survey_of(graph, structure, inputs, watch, request)
    changes = changes_of(request)
    forward = _forward(graph, structure, inputs, survey, watch, request, changes)
    return replace(finished(structure, batch, request, watch, forward, changes), reached=reached)


def _reached(graph: Graph, structure: Structure, inputs: Sequence[Any], batch: TokenBatch) -> Sequence[Point]:
    """Return the points that a graph reaches on a batch."""
    watch = PassRecorder(batch, None)
    surveyed(graph, structure.leaves, inputs, watch)
    return watch.points()


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
