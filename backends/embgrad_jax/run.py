"""One forward pass and its pullbacks: values and gradients at points and parameters, as NumPy."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from embgrad.backend import (
    Answer,
    Call,
    Cotangents,
    ModelPass,
    NativeObjective,
    ParameterValues,
    PassRecorder,
    Point,
    PointChanges,
    Pullback,
    Request,
    Respond,
    Run,
    TableRest,
    TokenBatch,
    compute_dtype,
)
from embgrad.toolkit import as_parts, model_lock
from embgrad_jax.graphs import Graph, trace_model
from embgrad_jax.inputs import JaxTensors, to_numpy
from embgrad_jax.lookup import look_into, modules_to_mark, survey, survey_of
from embgrad_jax.modules import is_floating
from embgrad_jax.parameters import find_differentiated, parameter_values, rests
from embgrad_jax.pullback import Forward, answer_natively, pull_back
from embgrad_jax.state import expect_arrays, preserve
from embgrad_jax.tap import Computation, changes_of, compute
from embgrad_jax.walk import Structure

__all__ = ["JaxPass", "points", "run"]

#: Computes a pass from its record and the changes at points.
Kept = Callable[[PassRecorder, PointChanges[Any]], Forward]


def points(model: Any, batch: TokenBatch, call: Call | None = None) -> Sequence[Point]:
    """Return the points that a forward pass on the batch reaches."""
    with _prepare(model) as structure:
        graph, inputs = trace_model(structure, model, batch, call, training=False)
        return _find_reached(graph, structure, inputs, batch)


def run(model: Any, batch: TokenBatch, request: Request) -> Run:
    """Run one forward pass, and a pullback for each set of cotangents."""
    with _prepare(model) as structure:
        if request.compiled and not (request.parameters or request.tables):
            from embgrad_jax.compile import run_kept

            return run_kept(structure, model, batch, request, functools.partial(JaxPass, model, batch, structure))
        return JaxPass(model, batch, structure, request).run()


@contextlib.contextmanager
def _prepare(model: Any) -> Iterator[Structure]:
    """Yield the structure of a model, which no other thread runs meanwhile and which is left as it is."""
    with model_lock(as_parts(model)):
        structure = Structure(model)
        expect_arrays(structure.arrays)
        with preserve(structure):
            yield structure


def _find_reached(graph: Graph, structure: Structure, inputs: Sequence[Any], batch: TokenBatch) -> Sequence[Point]:
    """Return the points that a graph reaches on a batch."""
    watch = PassRecorder(batch, None)
    survey(graph, structure.leaves, inputs, watch)
    return watch.points()


class JaxPass(ModelPass):
    """A forward pass of a model of JAX, see `ModelPass`: the graph of its Python, computed operation by operation.

    Args:
        kept: computes the pass by a compiled graph, from its record and the changes at points; None to run the model's Python.
    """

    tensors = JaxTensors()

    def __init__(
        self, model: Any, batch: TokenBatch, structure: Structure, request: Request, kept: Kept | None = None
    ) -> None:
        super().__init__(model, batch, request)
        self.structure = structure
        self.changes = changes_of(request)
        self._kept = kept

    def prepare(self) -> contextlib.AbstractContextManager[None]:
        """Return an empty context: `run` holds the locks, and a graph changes nothing."""
        return contextlib.nullcontext()

    def call(self) -> Any:
        """Compute the forward pass, and return the model's return value."""
        kept = self._kept
        self.forward = forward = self._compute() if kept is None else kept(self.recorder, self.changes)
        if self.request.training:
            random = [leaf for leaf in self.structure.leaves if leaf.random]
            for leaf, value in zip(random, forward.random, strict=True):
                leaf.put(value)
        self.unused = forward.graph.unused
        self._names = find_differentiated(
            self.structure.leaves, forward.survey, parameters=self.request.parameters, tables=self.request.tables
        )
        return forward.graph.fill(forward.outputs)

    def lookups(self) -> Mapping[str, str]:
        """Return the keys of the points that the request names, which the survey of the graph has found."""
        return self.forward.survey.names

    def objective(self, returned: Any, objective: Respond | NativeObjective) -> Answer:
        """Return the answer of one objective."""
        if isinstance(objective, NativeObjective):
            return answer_natively(self.forward, self.batch, self.request, objective)
        return super().objective(returned, objective)

    def activations(self, keys: Sequence[str]) -> dict[str, np.ndarray]:
        """Return the values at points."""
        return {key: to_numpy(self.forward.values[key]) for key in keys}

    def pull_back(self, cotangents: Cotangents, keys: Sequence[str]) -> Pullback:
        """Pull one set of cotangents back to the points, and to the arrays that the request needs."""
        return pull_back(self.forward, cotangents, self.changes, self._names)

    def compute_dtype(self, keys: Sequence[str], outputs: Sequence[Any], returned: Any) -> str:
        """Return the coarsest dtype of the points, the outputs that were read and products in half precision."""
        read = [str(self.forward.values[key].dtype) for key in keys]
        read += [str(output.dtype) for output in outputs]
        floating = (str(leaf.array.dtype) for leaf in self.structure.leaves if leaf.floating)
        return compute_dtype(read, floating, self.forward.graph.products)

    def parameters(self, gradients: Mapping[str, np.ndarray | None]) -> Mapping[str, ParameterValues] | None:
        """Return the gradients of the parameters."""
        return parameter_values(self.structure.leaves, gradients) if self.request.parameters else None

    def rests(self, keys: Sequence[str], gradients: Mapping[str, np.ndarray | None]) -> Mapping[str, TableRest] | None:
        """Return the gradients that reach the tables of lookups in other ways."""
        below = {name: gradients.get(name) for name in self._names}
        return rests(self.structure.leaves, self.forward.survey, below) if self.request.tables else None

    def _compute(self) -> Forward:
        """Compute the graph of the model's Python, operation by operation."""
        structure, request = self.structure, self.request
        marked = modules_to_mark(self.recorder)
        graph, inputs = trace_model(
            structure, self.model, self.batch, request.call, training=request.training, marked=marked
        )
        self.reached = _find_reached(graph, structure, inputs, self.batch) if request.record else None
        survey = survey_of(graph, structure, inputs, self.recorder, request)
        names = find_differentiated(structure.leaves, survey, parameters=request.parameters, tables=request.tables)
        numbers = {leaf.name: number for number, leaf in enumerate(structure.leaves)}
        cut = frozenset(request.edit) & survey.shapes.keys()
        looked = look_into(self.recorder)

        def function(sinks: Mapping[str, Any], own: Mapping[str, Any]) -> Any:
            arrays = structure.arrays
            for name, array in own.items():
                arrays[numbers[name]] = array

            def make(held: Mapping[int, Any]) -> Computation:
                return Computation(
                    survey, held, sinks, self.changes.parts, looked, cut=cut, detached=not request.parameters
                )

            results, computation = compute(graph, arrays, inputs, make)
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
