"""Lookups of the ids that are not read as lookups in a jaxpr, beside one that is: errors instead of wrong numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import sparse

import embgrad

IDS = np.array([[3, 5, 8, 1], [2, 2, 7, 1]])
VOCAB, DIM = 10, 4


def parameters() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    shapes = {
        "table": (VOCAB, DIM),
        "words": (VOCAB, DIM),
        "columns": (DIM, VOCAB),
        "blocks": (VOCAB, 2, 2),
        "scale": (VOCAB, 1),
        "classes": (VOCAB,),
        "head": (DIM, 2),
    }
    whole = {
        "whole": rng.integers(-9, 9, (VOCAB, DIM)).astype(np.int8),
        "characters": rng.integers(0, VOCAB, (VOCAB, 3)),
    }
    arrays = {name: rng.normal(size=shape) for name, shape in shapes.items()} | whole
    return {name: jnp.asarray(array) for name, array in arrays.items()}


@jax.custom_vjp
def own_lookup(table: Any, ids: Any) -> Any:
    return table[ids]


def _own_forth(table: Any, ids: Any) -> Any:
    return table[ids], (table, ids)


def _own_back(saved: Any, gradient: Any) -> Any:
    return jnp.zeros_like(saved[0]).at[saved[1]].add(gradient), None


own_lookup.defvjp(_own_forth, _own_back)


def by_steps(table: Any, ids: Any) -> Any:
    _, rows = jax.lax.scan(lambda carry, column: (carry, jax.nn.one_hot(column, VOCAB) @ table), 0, ids.T)
    return rows.swapaxes(0, 1)


def sparse_product(table: Any, ids: Any) -> Any:
    places = jnp.stack([jnp.arange(ids.size), ids.ravel()], 1)
    return (sparse.BCOO((jnp.ones(ids.size), places), shape=(ids.size, VOCAB)) @ table).reshape(*ids.shape, DIM)


UNREAD: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "columns": (
        lambda p, ids: jnp.take(p["columns"], ids, axis=1).transpose(1, 2, 0),
        r"entries along axis 1 of 'columns', of shape .* float64, where embgrad expects rows, along axis 0 \(gather\)",
    ),
    "three axes": (lambda p, ids: p["blocks"][ids].reshape(2, 4, DIM), "entries of 'blocks', .* rows of a matrix"),
    "whole numbers": (lambda p, ids: p["whole"][ids] * 0.1, "rows of 'whole', of shape .* int8, which is not floating"),
    "rows along an axis": (
        lambda p, ids: jnp.take_along_axis(p["table"], jnp.repeat(ids.reshape(-1, 1), DIM, 1), 0).reshape(2, 4, DIM),
        "entries of 'table'",
    ),
    "a product with a transposed table": (
        lambda p, ids: jnp.einsum("bsv,dv->bsd", jax.nn.one_hot(ids, VOCAB), p["columns"]),
        r"one-hot rows of a product \(dot_general\) with 'columns'",
    ),
    "a product with a computed table": (lambda p, ids: jax.nn.one_hot(ids, VOCAB) @ (p["table"] * 2), "with 'lookup'"),
    "a sparse product": (lambda p, ids: sparse_product(p["table"], ids), "used inside bcoo_dot_general with 'table'"),
    "a function with a derivative of its own": (
        lambda p, ids: own_lookup(p["table"], ids),
        "used inside custom_vjp_call.* with 'table', of shape .* where embgrad sees no lookup",
    ),
    "a loop": (lambda p, ids: by_steps(p["table"], ids), "used inside scan with 'table'"),
    "distinct ids": (
        lambda p, ids: p["table"][jnp.unique(ids, size=6)][jnp.searchsorted(jnp.unique(ids, size=6), ids)],
        "the rows of the ids in 'table', .* in another order or number",
    ),
}

#: Other uses of ids in ordinary models.
ORDINARY: dict[str, Callable[[Any, Any], Any]] = {
    "a mask": lambda p, ids: p["words"][ids] * (ids != 0)[..., None],
    "characters": lambda p, ids: p["words"][ids] + p["words"][p["characters"][ids]].mean(-2),
    "a number for each token": lambda p, ids: p["words"][ids] * p["classes"][ids][..., None],
    "a number by position and token": lambda p, ids: p["words"][ids] + p["columns"][jnp.arange(4), ids][..., None],
    "log-probabilities of the ids": lambda p, ids: (
        lambda rows: rows + jnp.take_along_axis(jax.nn.log_softmax(rows @ p["columns"]), ids[..., None], -1)
    )(p["words"][ids]),
    "smoothed labels": lambda p, ids: (
        lambda rows: rows + ((rows @ p["columns"]) * jax.nn.one_hot(ids, VOCAB)).sum(-1, keepdims=True)
    )(p["words"][ids]),
    "class weights": lambda p, ids: p["words"][ids] + jax.nn.one_hot(ids, VOCAB) @ p["classes"][:, None] * 1.0,
    "a function with a derivative of its own": lambda p, ids: jax.nn.relu(p["words"][ids]),
    "other rows of a computed table": lambda p, ids: (
        p["words"][ids] + jax.nn.one_hot((ids + 1) % VOCAB, VOCAB) @ (p["table"] * 2)
    ),
    "rows of a smaller table": lambda p, ids: p["words"][ids] + p["head"].T[jnp.ones(IDS.shape, int)],
}


def network(rows: Callable[[Any, Any], Any], *, bias: bool = True) -> Callable[[Any, Any], Any]:
    def call(p: Any, ids: Any) -> Any:
        logits = jnp.tanh(rows(p, ids).mean(1)) @ p["head"]
        return logits + p["scale"][ids].sum(1) if bias else logits

    return call


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("way", UNREAD)
def test_another_lookup_is_not_word(way: str, compiled: bool) -> None:
    rows, message = UNREAD[way]
    with pytest.raises(
        embgrad.errors.PointNotReachedError,
        match=rf"lookup scale#0 .* may not be the model's embedding of the ids, .*{message}",
    ):
        embgrad.gradients(parameters(), IDS, embgrad.Logit(1), call=network(rows), compile=compiled)
    points = embgrad.points(parameters(), IDS, call=network(rows))
    assert not any("word" in point.roles for point in points)


@pytest.mark.parametrize("way", ORDINARY)
def test_ordinary_uses_of_ids_are_no_lookups(way: str) -> None:
    call, p = network(ORDINARY[way], bias=False), parameters()
    found = embgrad.gradients(p, IDS, embgrad.Logit(1), call=call)
    assert (found.provenance["path"], found.values.shape) == ("words#0", (2, 4, DIM))


def test_the_other_table_can_be_named() -> None:
    call = network(UNREAD["columns"][0])
    found = embgrad.gradients(parameters(), IDS, embgrad.Logit(1), call=call, at="scale")
    np.testing.assert_array_equal(found.values, np.ones((2, 4, 1)))


#: Ways of making one-hot rows of the ids, and of multiplying them with a table.
PRODUCTS: dict[str, Callable[[Any, Any], Any]] = {
    "a product": lambda table, ids: jax.nn.one_hot(ids, VOCAB) @ table,
    "the table first": lambda table, ids: jax.lax.dot_general(
        table, jax.nn.one_hot(ids, VOCAB), (((0,), (2,)), ((), ()))
    ).transpose(1, 2, 0),
    "numbers that get one axis after another": lambda table, ids: (
        (ids[..., None] == jnp.arange(VOCAB)[None][None]).astype(table.dtype) @ table
    ),
    "numbers first": lambda table, ids: (jnp.arange(VOCAB) == ids[..., None]).astype(table.dtype) @ table,
    "rows of the identity": lambda table, ids: jnp.eye(VOCAB)[ids] @ table,
}


@pytest.mark.parametrize("way", PRODUCTS)
def test_a_product_with_one_hot_rows_is_word(way: str) -> None:
    call, p = network(lambda p, ids: PRODUCTS[way](p["table"], ids), bias=False), parameters()
    found = embgrad.gradients(p, IDS, embgrad.Logit(1), call=call)
    rows, head = np.asarray(p["table"])[IDS], np.asarray(p["head"])[:, 1]
    by_hand = (1 - np.tanh(rows.mean(1)) ** 2) * head / IDS.shape[1]
    assert found.provenance["path"] == "table#0"
    np.testing.assert_allclose(found.activations, rows, rtol=1e-6)
    np.testing.assert_allclose(found.values, np.repeat(by_hand[:, None], IDS.shape[1], 1), rtol=1e-6)
    moved = embgrad.gradients(p, IDS, embgrad.Logit(1), call=call, override={"word": rows[::-1]})
    np.testing.assert_allclose(moved.objective, found.objective[::-1], rtol=1e-6)


@pytest.mark.parametrize("way", PRODUCTS)
def test_a_table_of_one_hot_products_that_is_the_head_too_has_both_gradients(way: str) -> None:
    def tied(p: Any, ids: Any) -> Any:
        return jnp.tanh(PRODUCTS[way](p["table"], ids).mean(1)) @ p["table"].T

    p = {"table": parameters()["table"]}
    found = embgrad.tables.table_gradients(p, IDS, embgrad.Logit(1), call=tied)
    table = np.asarray(p["table"])
    hidden, head, lookup = np.tanh(table[IDS].mean(1)), np.zeros_like(table), np.zeros_like(table)
    head[1] = hidden.sum(0)
    np.add.at(lookup, IDS, ((1 - hidden**2) * table[1] / IDS.shape[1])[:, None])
    np.testing.assert_allclose(found.lookup, lookup, rtol=1e-6)
    np.testing.assert_allclose(found.head, head, rtol=1e-6)
    np.testing.assert_allclose(found.own, lookup + head, rtol=1e-6)
