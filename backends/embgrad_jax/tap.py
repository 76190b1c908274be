"""The computation of a graph with changes at points: values are replaced and added to, and gradients received and cut."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from embgrad.backend import PointChanges, Request
from embgrad_jax.graphs import Graph, Walker, evaluate
from embgrad_jax.inputs import to_numpy
from embgrad_jax.lookup import Survey
from embgrad_jax.modules import Mark

__all__ = ["Computation", "StoppedError", "changes_of", "compute"]

#: Takes a point's key and the value there; returns the value that replaces it and the value to add, each None for no change.
Changes = Callable[[str, Any], tuple[Any, Any]]


class StoppedError(Exception):
    """The end of a computation at a point, which need not go further."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


class Computation(Walker[Any]):
    """The computation of a graph's values.

    Args:
        survey: the points.
        leaves: the values of the model's arrays that functions of the user hold as constants, by the arrays' ids.
        sinks: for each point whose gradient is asked for an array of zeros; its gradient is the point's.
        changes: the changes of values.
        cut: the keys of points whose gradients are edited, so that none flows on.
        detached: whether no gradient flows from the rows of a requested lookup to its table.
        stop: the key of a point after which nothing is computed.

    Attributes:
        values: the values with which the pass went on at the points, by key.
        upstream: the values at the points of `cut` before they were cut, by key.
    """

    def __init__(
        self,
        survey: Survey,
        leaves: Mapping[int, Any],
        sinks: Mapping[str, Any],
        changes: Changes,
        looked_into: Callable[[str], bool],
        *,
        cut: frozenset[str] = frozenset(),
        detached: bool = True,
        stop: str | None = None,
    ) -> None:
        super().__init__(looked_into)
        self.values: dict[str, Any] = {}
        self.upstream: dict[str, Any] = {}
        self._survey = survey
        self._leaves = leaves
        self._sinks = sinks
        self._changes = changes
        self._cut = cut
        self._detached = detached
        self._stop = stop

    def constant(self, value: Any) -> Any:
        """Return a constant, or the present value of an array of the model."""
        return self._leaves.get(id(value), value)

    def apply(self, equation: Any, values: Sequence[Any]) -> Sequence[Any]:
        """Compute an equation."""
        return evaluate(equation, values)

    def mark(self, number: int, mark: Mark, value: Any) -> Any:
        """Return the value with which the pass goes on at the begin or the end of a module's call."""
        key = self._survey.keys.get(number)
        return value if key is None else self._point(key, value)

    def slice_rows(self, number: int, equation: Any, values: Sequence[Any]) -> Any:
        """Return the rows with which the pass goes on after a slice of a table."""
        return self.gather(number, equation, values)

    def gather(self, number: int, equation: Any, values: Sequence[Any]) -> Any:
        """Return the rows with which the pass goes on after a lookup."""
        (rows,) = evaluate(equation, values)
        key = self._survey.keys.get(number)
        return rows if key is None else self._point(key, lax.stop_gradient(rows) if self._detached else rows)

    def multiply(self, number: int, equation: Any, values: Sequence[Any]) -> Any:
        """Return the product; for one-hot rows the rows with which the pass goes on."""
        if number in self._survey.weighted:
            return self._weigh(number, equation, values)
        (product,) = evaluate(equation, values)
        key = self._survey.keys.get(number)
        if key is None:
            return product
        product = lax.stop_gradient(product) if self._detached else product
        if not self._survey.products[number]:
            return self._point(key, product)
        return jnp.moveaxis(self._point(key, jnp.moveaxis(product, 0, -1)), -1, 0)

    def _weigh(self, number: int, equation: Any, values: Sequence[Any]) -> Any:
        """Return a product with a weight, with the points at what is multiplied and at the product."""
        given, result = (self._survey.keys.get(at) for at in (-number, number))
        left = self._survey.weighted[number]
        if given is not None:
            changed = self._point(given, values[1 if left else 0])
            values = [values[0], changed] if left else [changed, values[1]]
        (product,) = evaluate(equation, values)
        if result is None or not left:
            return product if result is None else self._point(result, product)
        (contracted, _), _ = equation.params["dimension_numbers"]
        turned = values[0].ndim - len(contracted)
        axes = [*range(turned, product.ndim), *range(turned)]
        return jnp.transpose(
            self._point(result, jnp.transpose(product, axes)), [axes.index(at) for at in range(product.ndim)]
        )

    def branch(self, number: int, value: Any, count: int) -> int | None:
        """Return the branch that the survey took."""
        return self._survey.branches.get(number)

    def opens(self, number: int, values: Sequence[Any], axes: int) -> bool:
        """Return whether the survey looked into a loop."""
        return number in self._survey.opened

    def step(self, value: Any, index: int) -> Any:
        """Return an entry."""
        return value[index]

    def stack(self, values: Sequence[Any], shape: tuple[int, ...], dtype: Any) -> Any:
        """Return the array of all steps."""
        return jnp.stack(values) if values else jnp.zeros(shape, dtype)

    def _point(self, key: str, value: Any) -> Any:
        override, addition = self._changes(key, value)
        value = value if override is None else lax.stop_gradient(override)
        value = value if addition is None else value + lax.stop_gradient(addition)
        if key == self._stop:
            raise StoppedError(value)
        self.values[key] = value
        if key in self._cut:
            self.upstream[key], value = value, lax.stop_gradient(value)
        return _tap(value, self._sinks[key]) if key in self._sinks else value


def changes_of(request: Request) -> PointChanges[Any]:
    """Return the changes of a request for JAX's arrays."""
    return PointChanges(request, to_numpy, lambda array, like: jnp.asarray(array, like.dtype))


@jax.custom_vjp  # type: ignore[untyped-decorator]
def _tap(value: Any, sink: Any) -> Any:
    """Return the value itself, bit for bit, in such a way that the sink gets the value's gradient."""
    return value


def _forth(value: Any, sink: Any) -> tuple[Any, None]:
    return value, None


def _back(_: None, gradient: Any) -> tuple[Any, Any]:
    return gradient, gradient


_tap.defvjp(_forth, _back)


def compute(
    graph: Graph, arrays: Sequence[Any], inputs: Sequence[Any], make: Callable[..., Computation]
) -> tuple[list[Any], Computation]:
    """Return the results of a graph on these arrays, and the computation with the values at its points.

    Args:
        graph: the graph.
        arrays: the present values of the model's arrays.
        inputs: the inputs' arrays.
        make: takes the present values of arrays by the ids of those of the trace; returns a new computation.
    """
    held = dict(zip(graph.ids, arrays, strict=True))
    computation = make(held)
    return computation.walk(graph.jaxpr, [*arrays, *inputs]), computation
