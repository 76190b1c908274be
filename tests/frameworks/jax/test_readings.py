"""How single equations of a graph and single arrays are read: lookups, slices, inner graphs, ids, and what is compared."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from embgrad_jax.graphs import _counts, inner_jaxprs, is_slice
from embgrad_jax.inputs import as_given, native

import embgrad

TABLE = np.arange(12.0).reshape(4, 3)


def equations(function: Any, *arrays: Any, name: str = "") -> list[Any]:
    """Return the equations of a function's graph, or those of one primitive in inner graphs, too."""
    graphs, found = [jax.make_jaxpr(function)(*arrays).jaxpr], []
    for graph in graphs:
        for equation in graph.eqns:
            found += [equation] if equation.primitive.name == name or not name else []
            graphs += inner_jaxprs(equation) if name else []
    return found


@pytest.mark.parametrize(
    ("table", "bounds", "expected"),
    [(TABLE, ((0, 0), (2, 3), None), True), (TABLE, ((1, 0), (4, 3), (1, 1)), True),
        (TABLE, ((0, 0), (4, 3), (2, 1)), False), (TABLE, ((0, 0), (2, 2), None), False),
        (TABLE, ((0, 0), (4, 2), None), False), (TABLE.astype(int), ((0, 0), (2, 3), None), False),
        (TABLE[:, 0], ((0,), (2,), None), False)],
)  # fmt: skip
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
