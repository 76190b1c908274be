"""`embgrad.embedding_table`: the rows of the table behind a lookup."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from embgrad.backend.protocol import BoundModel, Call, PointValues, Request
from embgrad.backend.registry import bind
from embgrad.common.arrays import owned
from embgrad.common.keywords import explained
from embgrad.engine.call_errors import explained_errors
from embgrad.engine.locate import locate
from embgrad.engine.options import expect_one_name
from embgrad.engine.weights import weights_of
from embgrad.errors import PointError, UnsupportedError
from embgrad.forward.points import WORD, Lookup
from embgrad.inputs.batch import TokenBatch
from embgrad.inputs.conventions import batch_of

__all__ = ["embedding_table", "table_of"]

#: How many positions one pass runs that reads rows of a table.
POSITIONS: Final = 4096


@explained
def embedding_table(
    model: Any,
    batch: Any,
    *,
    at: str = WORD,
    tokenizer: Any = None,
    max_length: int | None = None,
    call: Call | None = None,
) -> np.ndarray:
    """Return a copy of the table behind a lookup: row `i` is the output of the lookup at index `i`, before any scaling.

    The weight is the one whose rows equal the lookup's outputs on the batch, bit for bit. Where there is none, as for a table
    that the model computes, the rows of `word` are read by forward passes over all ids.

    Args:
        model: as in `gradients`; so are `batch`, `tokenizer`, `max_length` and `call`.
        at: the lookup, see `gradients`.

    Returns:
        float32, or float64 where the model computes in it, shape (vocab, dim), C-contiguous.

    Raises:
        BackendError: no backend takes the model.
        BatchError: the batch is malformed, or an id lies outside the table.
        PointError: there is no such point, the name fits several, or the point is not a lookup.
        UnsupportedError: no weight holds the rows of a lookup whose indices are not the batch's ids.
    """
    expect_one_name(at, "make a call for each table")
    tokens = batch_of(batch, tokenizer, max_length, model)
    bound = bind(model, call)
    with explained_errors(bound, tokens):
        return table_of(bound, tokens, at)


def table_of(bound: BoundModel, tokens: TokenBatch, at: str) -> np.ndarray:
    """Return the table behind the lookup at a point, (vocab, dim), see `embedding_table`.

    Raises:
        PointError: the point is not a lookup.
        UnsupportedError: no weight holds the rows of a lookup whose indices are not the batch's ids.
    """
    point = locate(bound, (at,), tokens)[at]
    values = _read(bound, tokens, point.key)
    if values.lookup is None:
        raise PointError(f"the point {at!r} is {point.key!r}, a module's value: expected a lookup, such as at='word'")
    table = _weight(bound, values.lookup, values.activation)
    if table is not None:
        return table
    if point.lookup is None or point.lookup.layout is None:
        raise UnsupportedError(
            f"no weight of the model holds the {values.lookup.rows} rows of the lookup {values.lookup.path!r}: expected a "
            "table that is a parameter or a buffer; only the rows of 'word' can be read by forward passes instead"
        )
    repeated = tokens.take(np.arange(max(1, POSITIONS // tokens.shape[1])) % len(tokens))
    batch_of_rows = repeated if bound.accepts(repeated) else tokens
    return np.concatenate(list(_rows(bound, batch_of_rows, values.lookup.rows, point.key)))


def _read(bound: BoundModel, batch: TokenBatch, key: str) -> PointValues:
    """Return the values at a point from one forward pass, without a pullback."""
    return bound.run(batch, Request((key,), lambda outputs: (), call=bound.call, pullback=False)).points[key]


def _weight(bound: BoundModel, lookup: Lookup, output: np.ndarray) -> np.ndarray | None:
    """Return the weight whose rows the lookup returned, or None; weights of the lookup's own module are tried first."""
    if not bound.supports("weights"):
        return None
    shape = (lookup.rows, lookup.dim)
    candidates = [weight for weight in weights_of(bound.model) if tuple(weight.shape) == shape]
    for weight in sorted(candidates, key=lambda weight: weight.module != lookup.path):
        table = owned(weight.get())
        if np.array_equal(table[lookup.indices].reshape(output.shape), owned(output), equal_nan=True):
            return table
    return None


def _rows(bound: BoundModel, batch: TokenBatch, rows: int, key: str) -> Iterator[np.ndarray]:
    """Yield the outputs of the lookup of the ids for all ids in order, from passes on batches of the same shape."""
    for start in range(0, rows, batch.ids.size):
        ids = np.minimum(np.arange(start, start + batch.ids.size), rows - 1).reshape(batch.shape)
        values = _read(bound, batch.replace(ids=ids, tokens=None), key)
        assert values.lookup is not None
        order = np.argsort(values.lookup.indices.ravel(), kind="stable")
        yield owned(values.activation.reshape(-1, values.lookup.dim)[order][: rows - start])
