"""A model's forward pass as a graph: traced once by JAX, and walked equation by equation.

JAX calls such a graph a jaxpr. It contains every operation of the pass, also those inside of `jit`, `vmap` and `scan`, and the
marks of module calls (see `modules`). How to walk one is described in JAX's documentation of custom interpreters.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import jax
from jax.experimental.xla_metadata import set_xla_metadata

from embgrad.backend import Call, TokenBatch
from embgrad.errors import UnsupportedError
from embgrad.toolkit import every, map_nest
from embgrad_jax.inputs import plan
from embgrad_jax.modules import ALL, Wanted, is_array, mark_of, marking
from embgrad_jax.walk import Structure

__all__ = ["SLICES", "Graph", "Lazily", "Output", "Walker", "evaluate", "trace_model"]

Value = TypeVar("Value")

#: Primitives that run a graph of their own, by the parameter that holds it. Their graphs are walked in place of them.
CALLS: Final[Mapping[str, str]] = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
}

#: Primitives that slice an array.
SLICES: Final = ("slice", "dynamic_slice")

#: Primitives that mark a graph whose values are computed again in the backward pass.
REMATERIALISED: Final = ("checkpoint", "remat", "remat2")


@dataclass(frozen=True)
class Output:
    """The place of an array in a model's return value."""

    index: int
    shape: tuple[int, ...]
    dtype: Any


@dataclass(frozen=True, eq=False)
class Graph:
    """The graph of a forward pass.

    Attributes:
        jaxpr: takes the model's arrays and then the inputs' arrays, and returns the arrays of the return value and then, in
            training, the states of random generators.
        returned: the model's return value, with an `Output` in the place of each array.
        outputs: the number of arrays in it.
        unused: the parts of the batch that the model cannot take.
        ids: the `id` of each of the model's arrays when the graph was made, by which it is known as a constant of the graph.
            Where it is none, it may be gone, and another array may have the `id`.
    """

    jaxpr: Any
    returned: Any
    outputs: int
    unused: tuple[str, ...]
    ids: tuple[int, ...]

    @functools.cached_property
    def products(self) -> set[str]:
        """The names of the dtypes of the products of matrices, in inner graphs too."""
        dtypes, graphs = set[str](), [self.jaxpr.jaxpr]
        for graph in graphs:
            for equation in graph.eqns:
                if equation.primitive.name in ("dot_general", "conv_general_dilated"):
                    dtypes.add(str(equation.outvars[0].aval.dtype))
                graphs += inner_jaxprs(equation)
        return dtypes

    def fill(self, arrays: Sequence[Any]) -> Any:
        """Return the model's return value with these arrays in it."""
        return map_nest(self.returned, lambda value: isinstance(value, Output), lambda output: arrays[output.index])


def trace_model(
    structure: Structure,
    model: Any,
    batch: TokenBatch,
    call: Call | None,
    *,
    training: bool,
    marked: Wanted = ALL,
) -> tuple[Graph, Sequence[Any]]:
    """Return the graph of a forward pass on a batch, and the arrays of the inputs. It runs the model's Python.

    Args:
        structure: the model's structure.
        model: the model; so are `batch` and `call` as in `run`.
        training: whether the pass is one of training.
        marked: the modules whose calls are marked in the graph.

    Raises:
        UnsupportedError: the model's Python needs the values of arrays, which have none while JAX traces.
    """
    planned = plan(model, batch, call, training=training)
    found: dict[str, Any] = {}

    def forward(arrays: Sequence[Any], inputs: Sequence[Any]) -> Any:
        with marking(marked), structure.open_parts(arrays, training=training) as (copied, random_states):
            returned = planned.called(copied, inputs)
            tensors = every(returned, is_array)
            numbers = iter(range(len(tensors)))
            found["returned"] = map_nest(
                returned, is_array, lambda tensor: Output(next(numbers), tensor.shape, tensor.dtype)
            )
            return tensors, random_states() if training else []

    inputs = planned.arrays
    try:
        # JAX traces a function that the user has compiled anew for other metadata, so that the calls in it are marked.
        with set_xla_metadata(embgrad=str(marked)):
            jaxpr = jax.make_jaxpr(forward)(structure.arrays, inputs)
    except (jax.errors.ConcretizationTypeError, jax.errors.NonConcreteBooleanIndexError) as error:
        raise UnsupportedError(
            "the model's Python reads the values of arrays, which jax.jit does not allow either "
            f"({str(error).splitlines()[0]}). Write it with jax.numpy, so that jax.jit takes it"
        ) from error
    except Exception as error:
        if type(error).__name__ != "TraceContextError":
            raise
        raise UnsupportedError(
            f"Flax refused the call: {str(error).splitlines()[0]}. call=... is given a copy of the model: let it call that, "
            "not the model itself"
        ) from error
    outputs = len(every(found["returned"], lambda value: isinstance(value, Output)))
    return Graph(jaxpr, found["returned"], outputs, planned.unused, tuple(map(id, structure.arrays))), inputs


class Walker(Generic[Value]):
    """A walk through a graph in the order of its computation, in which each equation's results are computed in some way.

    Equations that may be points are numbered as they are met: marks, products, lookups, branches and loops. Two walks of one
    graph that look into the same graphs meet the same numbers.

    Args:
        looked_into: takes the path of a module; returns whether its calls are looked for inside of loops, whose steps are
            walked one by one where one of them has such a call, and of what is rematerialised.
    """

    def __init__(self, looked_into: Callable[[str], bool]) -> None:
        self._looked_into = looked_into
        self._has_points: dict[int, tuple[Any, bool]] = {}
        self._number = 0

    # How values are computed

    def constant(self, value: Any) -> Value:
        """Return the value of a constant."""
        raise NotImplementedError

    def apply(self, equation: Any, values: Sequence[Value]) -> Sequence[Value]:
        """Return the results of an equation that is none of those below."""
        raise NotImplementedError

    def mark(self, number: int, mark: Any, value: Value) -> Value:
        """Return the value with which the pass goes on at a mark."""
        raise NotImplementedError

    def gather(self, number: int, equation: Any, values: Sequence[Value]) -> Value:
        """Return the rows of a lookup, or the result of another gather."""
        raise NotImplementedError

    def multiply(self, number: int, equation: Any, values: Sequence[Value]) -> Value:
        """Return the result of a product, which may be a lookup by one-hot rows."""
        raise NotImplementedError

    def slice_rows(self, number: int, equation: Any, values: Sequence[Value]) -> Value:
        """Return a slice of a matrix, which may be a lookup of consecutive rows."""
        raise NotImplementedError

    def branch(self, number: int, value: Value, count: int) -> int | None:
        """Return which of several branches is taken; None where that is not known."""
        raise NotImplementedError

    def opens(self, number: int, values: Sequence[Value], axes: int) -> bool:
        """Return whether a loop, or what is rematerialised, is looked into for the sake of weights with so many axes."""
        raise NotImplementedError

    def step(self, value: Value, index: int) -> Value:
        """Return the entry of an array with this index along its first axis."""
        raise NotImplementedError

    def stack(self, values: Sequence[Value], shape: tuple[int, ...], dtype: Any) -> Value:
        """Return the array of the values of all steps, of this shape and dtype."""
        raise NotImplementedError

    # The walk

    def walk(self, closed: Any, values: Sequence[Value]) -> list[Value]:
        """Return the results of a graph with constants."""
        return self._open(closed.jaxpr, [self.constant(value) for value in closed.consts], values)

    def _open(self, jaxpr: Any, constants: Sequence[Value], values: Sequence[Value]) -> list[Value]:
        known: dict[Any, Value] = dict(zip(jaxpr.constvars, constants, strict=True))
        known.update(zip(jaxpr.invars, values, strict=True))

        def read(atom: Any) -> Value:
            return self.constant(atom.val) if hasattr(atom, "val") else known[atom]

        last = _last_uses(jaxpr)
        for index, equation in enumerate(jaxpr.eqns):
            results = self._equation(equation, [read(atom) for atom in equation.invars])
            known.update(zip(equation.outvars, results, strict=True))
            for variable in last[index]:  # values that nothing reads any more must not occupy memory
                known.pop(variable, None)
        return [read(atom) for atom in jaxpr.outvars]

    def _equation(self, equation: Any, values: Sequence[Value]) -> Sequence[Value]:
        name = equation.primitive.name
        if name in CALLS:
            return self.walk(equation.params[CALLS[name]], values)
        if name == "name" and (mark := mark_of(equation.params["name"])) is not None:
            return [self.mark(self._next(), mark, values[0])]
        if name == "gather":
            return [self.gather(self._next(), equation, values)]
        if name in SLICES and is_slice(equation):
            return [self.slice_rows(self._next(), equation, values)]
        if name == "dot_general":
            return [self.multiply(self._next(), equation, values)]
        if name in REMATERIALISED and (
            self.has_points(equation.params["jaxpr"]) or self.opens(self._next(), values, 2)
        ):
            return self._open(equation.params["jaxpr"], [], values)
        if name == "cond" and any(self.has_points(branch.jaxpr) for branch in equation.params["branches"]):
            branches = equation.params["branches"]
            taken = self.branch(self._next(), values[0], len(branches))
            return self.apply(equation, values) if taken is None else self.walk(branches[taken], values[1:])
        if name == "scan" and (self.has_points(equation.params["jaxpr"].jaxpr) or self.opens(self._next(), values, 3)):
            return self._scan(equation, values)
        return self.apply(equation, values)

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _scan(self, equation: Any, values: Sequence[Value]) -> list[Value]:
        """Walk the steps of a loop one by one."""
        params = equation.params
        fixed, moving = _counts(params)
        length, constants = params["length"], values[:fixed]
        carried, sequences = list(values[fixed : fixed + moving]), values[fixed + moving :]
        steps: list[Any] = [None] * length
        for index in reversed(range(length)) if params["reverse"] else range(length):
            entries = [self.step(value, index) for value in sequences]
            results = self.walk(params["jaxpr"], [*constants, *carried, *entries])
            carried, steps[index] = results[:moving], results[moving:]
        avals = [variable.aval for variable in equation.outvars[moving:]]
        return carried + [
            self.stack([step[number] for step in steps], aval.shape, aval.dtype) for number, aval in enumerate(avals)
        ]

    def has_points(self, jaxpr: Any) -> bool:
        """Return whether a graph may contain points: lookups in a table, and calls of modules that are looked for."""
        known = self._has_points.get(id(jaxpr))
        if known is None:
            known = self._has_points[id(jaxpr)] = (jaxpr, any(map(self._may_be_point, jaxpr.eqns)))
        return known[1]

    def _may_be_point(self, equation: Any) -> bool:
        name = equation.primitive.name
        if name == "name":
            mark = mark_of(equation.params["name"])
            return mark is not None and self._looked_into(mark.path)
        if name == "gather":
            return is_lookup(equation)
        return any(self.has_points(inner) for inner in inner_jaxprs(equation))


def _counts(params: Mapping[str, Any]) -> tuple[int, int]:
    """Return how many of a scan's values are the same in all steps, and how many are carried from step to step."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    fixed, carried, _ = params["ft_in"].unpack()  # since JAX 0.12
    return len(fixed), len(carried)


def is_lookup(equation: Any) -> bool:
    """Return whether a gather takes whole rows of a floating matrix."""
    operand = equation.invars[0].aval
    numbers = equation.params["dimension_numbers"]
    return (
        operand.ndim == 2
        and jax.numpy.issubdtype(operand.dtype, jax.numpy.floating)
        and tuple(numbers.start_index_map) in ((0,), (0, 1))  # a column is clipped to 0, as the slices are whole rows
        and tuple(equation.params["slice_sizes"]) == (1, operand.shape[1])
        and not numbers.operand_batching_dims
        and equation.outvars[0].aval.ndim - 1 in numbers.offset_dims
    )


def is_slice(equation: Any) -> bool:
    """Return whether a slice takes whole consecutive rows of a floating matrix."""
    operand, result = equation.invars[0].aval, equation.outvars[0].aval
    strides = equation.params.get("strides")
    return (
        operand.ndim == 2
        and jax.numpy.issubdtype(operand.dtype, jax.numpy.floating)
        and operand.shape[1] == result.shape[1]
        and operand.shape[0] > result.shape[0]
        and (strides is None or set(strides) == {1})
    )


def inner_jaxprs(equation: Any) -> list[Any]:
    """Return the graphs that an equation runs."""
    entries = [
        entry for value in equation.params.values() for entry in (value if isinstance(value, tuple) else (value,))
    ]
    return [getattr(entry, "jaxpr", entry) for entry in entries if hasattr(entry, "jaxpr") or hasattr(entry, "eqns")]


def _last_uses(jaxpr: Any) -> list[list[Any]]:
    """Return for each equation of a graph the variables that no later one reads and that are not returned."""
    seen = {atom for atom in jaxpr.outvars if not hasattr(atom, "val")}
    last: list[list[Any]] = []
    for equation in reversed(jaxpr.eqns):
        variables = {atom for atom in equation.invars if not hasattr(atom, "val")} | set(equation.outvars)
        last.append([variable for variable in variables if variable not in seen])
        seen |= variables
    return last[::-1]


class Lazily:
    """The results of an equation, computed when the first is needed."""

    def __init__(self, equation: Any, values: Sequence[Any]) -> None:
        self._equation = equation
        self._values = values
        self._results: list[Any] | None = None

    def result(self, number: int) -> Callable[[], Any]:
        """Return a function that computes a result."""

        def compute() -> Any:
            if self._results is None:
                self._results = evaluate(self._equation, [value.value for value in self._values])
                self._values = ()
            return self._results[number]

        return compute


def evaluate(equation: Any, values: Sequence[Any]) -> list[Any]:
    """Return the results of an equation on values, as JAX's own evaluation of a graph computes them."""
    params = equation.primitive.get_bind_params(equation.params)
    functions, params = params if isinstance(params, tuple) else ((), params)  # they are apart in JAX 0.6
    results = equation.primitive.bind(*functions, *values, **params)
    return list(results) if equation.primitive.multiple_results else [results]
