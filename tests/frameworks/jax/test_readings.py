"""How single equations of a graph and single arrays are read: lookups, slices, inner graphs, ids, and what is compared."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from embgrad_jax.graphs import _counts, _last_uses, inner_jaxprs, is_lookup, is_slice
from embgrad_jax.inputs import as_given, native

import embgrad

TABLE = np.arange(12.0).reshape(4, 3)
IDS = np.asarray([[3, 1], [0, 2]])


def equations(function: Any, *arrays: Any, name: str = "") -> list[Any]:
    """Return the equations of a function's graph, or those of one primitive in inner graphs, too."""
    graphs, found = [jax.make_jaxpr(function)(*arrays).jaxpr], []
    for graph in graphs:
        for equation in graph.eqns:
            found += [equation] if equation.primitive.name == name or not name else []
            graphs += inner_jaxprs(equation) if name else []
    return found


@pytest.mark.parametrize(
    ("table", "read", "expected"),
    [
        (TABLE, lambda table: table[IDS], True),
        (TABLE, lambda table: jnp.take(table, IDS, axis=0), True),
        (TABLE, lambda table: table[IDS[0, 0]], None),
        (TABLE, lambda table: jnp.take(table, IDS, axis=1), False),
        (TABLE, lambda table: table[IDS, IDS], False),
        (TABLE, lambda table: table[IDS, :2], False),
        (TABLE.astype(int), lambda table: table[IDS], False),
        (TABLE.reshape(4, 3, 1), lambda table: table[IDS], False),
        (TABLE[:, 0], lambda table: table[IDS], False),
        (TABLE, lambda table: jnp.take_along_axis(table, jnp.zeros((4, 1), int), 1), False),
    ],
)
def test_a_gather_of_whole_rows_of_a_matrix_is_a_lookup(table: Any, read: Any, expected: bool | None) -> None:
    found = [is_lookup(equation) for equation in equations(read, table, name="gather")]
    assert found == ([] if expected is None else [expected])


@pytest.mark.parametrize(
    ("table", "bounds", "expected"),
    [
        (TABLE, ((0, 0), (2, 3), None), True),
        (TABLE, ((1, 0), (4, 3), (1, 1)), True),
        (TABLE, ((0, 0), (4, 3), (2, 1)), False),
        (TABLE, ((0, 0), (2, 2), None), False),
        (TABLE, ((0, 0), (4, 2), None), False),
        (TABLE.astype(int), ((0, 0), (2, 3), None), False),
        (TABLE[:, 0], ((0,), (2,), None), False),
    ],
)
def test_a_slice_of_consecutive_rows_of_a_matrix(table: Any, bounds: Any, expected: bool) -> None:
    (equation,) = equations(lambda table: jax.lax.slice(table, *bounds), table)
    assert is_slice(equation) is expected


def test_inner_graphs_are_those_of_calls_branches_and_loops() -> None:
    def counted(function: Any) -> list[int]:
        return [len(inner_jaxprs(equation)) for equation in equations(function, TABLE)]

    assert counted(jnp.sin) == [0]
    assert counted(jax.jit(lambda table: table + 1)) == [1]
    assert counted(lambda table: jax.lax.cond(True, jnp.sin, jnp.cos, table))[-1] == 2
    (loop,) = equations(
        lambda table: jax.lax.scan(lambda a, row: (a + table.sum() + row, row), 0.0, table[0]), TABLE, name="scan"
    )
    assert len(inner_jaxprs(loop)) == 1
    assert _counts(loop.params) == (1, 1)


def test_a_value_is_dropped_after_its_last_use() -> None:
    def function(table: Any) -> Any:
        first = jnp.sin(table)
        second = jnp.cos(first)
        return second * first, second

    jaxpr = jax.make_jaxpr(function)(TABLE).jaxpr
    first, second, product = (equation.outvars[0] for equation in jaxpr.eqns)
    assert [set(variables) for variables in _last_uses(jaxpr)] == [{jaxpr.invars[0]}, set(), {first}]
    assert list(jaxpr.outvars) == [product, second]


@pytest.mark.parametrize(
    ("ids", "indices", "rows", "expected"),
    [
        ([[1, 2], [3, 0]], [[1, 2], [3, 0]], 4, None),
        ([[1, 9], [3, 0]], [[1, 3], [3, 0]], 4, [[1, 9], [3, 0]]),
        ([[1, 4], [3, 0]], [[1, 3], [3, 0]], 4, [[1, 4], [3, 0]]),
        ([[1, -1], [3, 0]], [[1, 3], [3, 0]], 4, [[1, -1], [3, 0]]),
        ([[1, -9], [3, 0]], [[1, 0], [3, 0]], 4, [[1, -9], [3, 0]]),
        ([[1, 9], [2, 0]], [[1, 2], [3, 0]], 4, [[1, 2], [9, 0]]),
        ([[1, 9], [2, 0]], [1, 3, 2, 0], 4, [1, 9, 2, 0]),
        ([[1, 9], [3, 0]], [[0, 1], [0, 1]], 4, None),
        ([[1, 2], [3, 0]], [[1, 2], [4, 0]], 4, None),  # the ids are rows, and the index that is none stays
        (np.zeros((2, 0), int), np.zeros((2, 0), int), 4, None),
    ],
)
def test_indices_that_jax_made_of_the_ids_are_the_ids(ids: Any, indices: Any, rows: int, expected: Any) -> None:
    found = as_given(np.array(indices), np.array(ids), rows)
    np.testing.assert_array_equal(found, indices if expected is None else expected)


def test_whole_numbers_that_jax_would_wrap_round_are_refused() -> None:
    largest = np.iinfo(np.int64).max
    assert native(np.array([largest])).tolist() == [largest]
    assert native(np.zeros(0, np.uint64)).shape == (0,)
    assert native(np.array([1.5e300])).tolist() == [1.5e300]
    with jax.enable_x64(False) if hasattr(jax, "enable_x64") else jax.experimental.disable_x64():
        assert native(np.array([2**31 - 1])).tolist() == [2**31 - 1]
        with pytest.raises(embgrad.errors.BatchError, match=r"the batch holds 2147483648, .* at most 2147483647"):
            native(np.array([0, 2**31]))


def test_counts_of_a_loop_since_jax_0_12() -> None:
    parts: Any = SimpleNamespace(unpack=lambda: ([1, 2], [3], []))
    assert _counts({"ft_in": parts}) == (2, 1)
