"""Keep a model's graph compiled, for each shape of a batch: one function for the forward pass, and one for its pullback.

The forward pass returns its pullback, which JAX can pass from one compiled function to another with the values that it needs.
The objective is computed between the two, in NumPy or by the user's function, so that nothing calls back from compiled code.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Final

import jax
import jax.numpy as jnp

from embgrad.backend import (
    ModelPass,
    PassRecorder,
    PointChanges,
    Request,
    Run,
    TokenBatch,
    TraceCache,
    UnfitError,
    UntraceableError,
)
from embgrad.toolkit import as_parts
from embgrad_jax.fingerprint import Fingerprint
from embgrad_jax.graphs import Graph, trace_model
from embgrad_jax.inputs import plan
from embgrad_jax.lookup import Survey, look_into, survey_of
from embgrad_jax.modules import is_floating
from embgrad_jax.pullback import Forward
from embgrad_jax.tap import Computation, StoppedError, compute
from embgrad_jax.walk import Structure

__all__ = ["run_kept"]


def run_kept(
    structure: Structure, model: Any, batch: TokenBatch, request: Request, pass_of: Callable[..., ModelPass]
) -> Run:
    """Run a compiled graph of the model, if there is one or can be one; else the model.

    Args:
        structure: the model's structure.
        model: the model, as in `run`; so are `batch` and `request`.
        pass_of: returns a pass of a request, which runs the model, or computes its forward pass by a function of a trace.
    """
    inputs = plan(model, batch, request.call, training=request.training).arrays
    question = (
        request.points,
        request.training,
        request.pullback,
        *(tuple(sorted(getattr(request, option))) for option in ("override", "add", "edit")),
        tuple(str(array.dtype) for array in inputs),
        tuple(repr(getattr(jax.config, name)) for name in ("jax_enable_x64", "jax_default_matmul_precision")),
    )
    lengths = tuple(tuple(array.shape) for array in inputs)
    owners = [part for part in as_parts(model) if _takes_references(part)] or [_code(request.call)]
    return _kept.run(
        owners,
        question,
        Fingerprint(structure, as_parts(model), request.call),
        lengths,
        request,
        _Maker(structure, model, batch, inputs, pass_of),
    )


def _takes_references(part: Any) -> bool:
    try:
        weakref.ref(part)
    except TypeError:
        return False
    return not isinstance(part, (dict, types.FunctionType))


def _code(call: Any) -> Any:
    """Return the code of a function that calls models which take no weak references, such as dicts of arrays.

    Their traces belong to it: the function itself may be a new one, with the same code, at each call.
    """
    while isinstance(call, functools.partial):
        call = call.func
    call = inspect.unwrap(call)
    return getattr(call, "__code__", None) or type(call)


class _Maker:
    """One call of a model, see `embgrad.backend.trace_cache.TraceMaker`."""

    def __init__(
        self,
        structure: Structure,
        model: Any,
        batch: TokenBatch,
        inputs: Sequence[Any],
        pass_of: Callable[..., ModelPass],
    ) -> None:
        self._structure = structure
        self._model = model
        self._batch = batch
        self._inputs = inputs
        self._pass_of = pass_of

    def plain(self, request: Request) -> Run:
        """Run the model without a trace."""
        return self._pass_of(request).run()

    def make(self, request: Request, *, exact: bool) -> _Trace:
        """Return a new trace, for this batch's lengths."""
        if not exact:
            raise UntraceableError("JAX compiles for each shape")
        graph, _ = trace_model(self._structure, self._model, self._batch, request.call, training=request.training)
        return _Trace(graph)

    def again(self) -> AbstractContextManager[None]:
        """Return an empty context: the arrays of a call, random states included, are those of its begin."""
        return contextlib.nullcontext()

    def run(self, trace: _Trace, request: Request) -> Run:
        """Run a trace."""

        def computed(watch: PassRecorder, changes: PointChanges[Any]) -> Forward:
            return trace.compute(self._structure, self._inputs, request, watch, changes)

        return self._pass_of(replace(request, order=None, record=False), computed).run()

    def dtypes(self, trace: _Trace) -> Sequence[str]:
        """Return the names of the dtypes in which a trace computes."""
        return trace.dtypes


class _Trace:
    """A compiled graph, which refers neither to the model nor to what may differ from call to call.

    Attributes:
        dtypes: the names of the dtypes in which it computes; empty before the first run.
    """

    def __init__(self, graph: Graph) -> None:
        self.dtypes: Sequence[str] = ()
        self._graph = graph
        self._points: tuple[Any, ...] = ()
        self._survey = Survey()
        self._functions: dict[str, Any] = {}

    def compute(
        self,
        structure: Structure,
        inputs: Sequence[Any],
        request: Request,
        watch: PassRecorder,
        changes: PointChanges[Any],
    ) -> Forward:
        """Return a forward pass of the compiled graph."""
        graph = self._graph
        survey = survey_of(graph, structure, inputs, watch, request)
        points = (survey.keys, survey.names, survey.branches, survey.products)
        if not self._functions:
            self._survey, self._points = replace(survey, leaves={}), points
            self._functions = {"pull": jax.jit(lambda pull, cotangents, upstream: pull((cotangents, upstream)))}
            self.dtypes = sorted(
                {str(variable.aval.dtype) for equation in graph.jaxpr.eqns for variable in equation.outvars}
            )
        elif points != self._points:
            raise UnfitError("the pass reaches other points than the one that was compiled")
        values: dict[str, tuple[Any, Any]] = {}
        for key in survey.shapes:
            if key in request.override or key in request.add:
                value = self._function(f"value {key}", watch, request, stop=key)(structure.arrays, inputs, values)
                values[key] = changes.parts(key, value)
        compiled = self._function("forward", watch, request)
        upstream, at_points, results, pulling = compiled(structure.arrays, inputs, values)
        outputs = list(results[: graph.outputs])

        def pull(cotangents: Sequence[Any], of_upstream: Mapping[str, Any]) -> Any:
            (sinks,) = self._functions["pull"](pulling, list(cotangents), dict(of_upstream))
            return sinks, {}

        return Forward(graph, survey, outputs, results[graph.outputs :], at_points, upstream, pull)

    def _function(self, name: str, watch: PassRecorder, request: Request, stop: str | None = None) -> Any:
        """Return a compiled function of the arrays, the inputs and the changes at points, made at its first use."""
        if name not in self._functions:
            cut = frozenset(request.edit) & self._survey.shapes.keys()
            self._functions[name] = _compile(
                self._graph, self._survey, look_into(watch), cut, stop, pullback=request.pullback
            )
        return self._functions[name]


def _compile(
    graph: Any,
    survey: Survey,
    looked: Callable[[str], bool],
    cut: frozenset[str],
    stop: str | None,
    *,
    pullback: bool,
) -> Any:
    def computation(arrays: Any, inputs: Any, values: Mapping[str, tuple[Any, Any]], sinks: Mapping[str, Any]) -> Any:
        def changed(key: str, value: Any) -> tuple[Any, Any]:
            return values.get(key, (None, None))

        return compute(
            graph, arrays, inputs, lambda held: Computation(survey, held, sinks, changed, looked, cut=cut, stop=stop)
        )

    def value(arrays: Any, inputs: Any, values: Any) -> Any:
        try:
            computation(arrays, inputs, values, {})
        except StoppedError as end:
            return end.value
        raise UnfitError("a point is not reached")

    def forward(arrays: Any, inputs: Any, values: Any) -> Any:
        def function(sinks: Mapping[str, Any]) -> Any:
            results, passed = computation(arrays, inputs, values, sinks)
            floating = [result for result in results[: graph.outputs] if is_floating(result)]
            return (floating, passed.upstream), (passed.values, results)

        if not pullback:
            (_, upstream), (at_points, results) = function({})
            return upstream, at_points, results, None
        sinks = {key: jnp.zeros(*survey.shapes[key]) for key in survey.shapes}
        (_, upstream), pull, (at_points, results) = jax.vjp(function, sinks, has_aux=True)
        return upstream, at_points, results, pull

    return jax.jit(forward if stop is None else value)


_kept: Final[TraceCache[_Trace]] = TraceCache()
