"""`embgrad.tables.embedding_table`: the rows of the table behind a lookup."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from embgrad.backend.protocol import BoundModel, Call, PointValues, Request, Weight
from embgrad.backend.registry import bind
from embgrad.common.arrays import copy_owned
from embgrad.common.keywords import explain_arguments
from embgrad.engine.call_errors import explain_errors
from embgrad.engine.locate import locate
from embgrad.engine.options import expect_one_name
from embgrad.engine.weights import weights_of
from embgrad.errors import AmbiguousPointError, PointError, UnsupportedError
from embgrad.inputs.batch import TokenBatch
from embgrad.inputs.conventions import batch_of
from embgrad.model_points.points import WORD, Lookup

__all__ = ["TableReader", "embedding_table", "table_of", "table_reader", "word_table_reader"]

#: How many positions one pass runs that reads rows of a table.
POSITIONS: Final = 4096

#: How many rows are read at a time where the whole table is copied.
ROWS: Final = 16384


@explain_arguments
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
    with explain_errors(bound, tokens):
        return table_of(bound, tokens, at)


def table_of(bound: BoundModel, tokens: TokenBatch, at: str) -> np.ndarray:
    """Return the table behind the lookup at a point, (vocab, dim), see `embedding_table`."""
    return table_reader(bound, tokens, at).whole()


@dataclass(frozen=True)
class TableReader:
    """A table whose rows are read as they are needed.

    Attributes:
        rows: takes indices, whole numbers of shape (n,) with n of at least 1, and returns a copy of those rows, shape (n, dim),
            float32, or float64 where the model computes in it.
    """

    count: int
    dim: int
    rows: Callable[[np.ndarray], np.ndarray]

    def whole(self) -> np.ndarray:
        """Return a copy of all rows, (count, dim), in order."""
        first = self.rows(np.arange(min(ROWS, self.count)))
        table = np.empty((self.count, self.dim), first.dtype)
        table[: len(first)] = first
        for start in range(len(first), self.count, ROWS):
            block = np.arange(start, min(start + ROWS, self.count))
            table[start : start + len(block)] = self.rows(block)
        return table


def table_reader(bound: BoundModel, tokens: TokenBatch, at: str = WORD) -> TableReader:
    """Return a reader of the table behind the lookup at a point, see `embedding_table`. It takes one forward pass on the batch.

    Where a weight holds the table, only the rows that are asked for leave the framework; else each reading takes forward passes.
    """
    point = locate(bound, (at,), tokens)[at]
    values = _read(bound, tokens, point.key)
    lookup = values.lookup
    if lookup is None:
        raise PointError(f"at={at!r} names {point.key!r}, the value of a module: expected a lookup, such as at='word'")
    weight = _weight(bound, lookup, values.activation)
    if weight is not None:
        return TableReader(lookup.rows, lookup.dim, weight.rows)
    if point.lookup is None or point.lookup.layout is None:
        raise UnsupportedError(
            f"no weight of the model holds the {lookup.rows} rows of the lookup {lookup.path!r}: expected a "
            "table that is a parameter or a buffer; only the rows of 'word' can be read by forward passes instead"
        )
    repeated = tokens.take(np.arange(max(1, POSITIONS // tokens.shape[1])) % len(tokens))
    batch = repeated if bound.accepts(repeated) else tokens
    return TableReader(
        lookup.rows, lookup.dim, lambda indices: _pass_rows(bound, batch, np.asarray(indices), point.key)
    )


def word_table_reader(bound: BoundModel, tokens: TokenBatch, function: str) -> TableReader:
    """Return a reader of the table of the only lookup of the ids, for a function that takes no `at`, see `table_reader`."""
    try:
        return table_reader(bound, tokens, WORD)
    except AmbiguousPointError as error:
        several = ", ".join(map(str, error.lookups))
        raise AmbiguousPointError(
            f"{function} scores tokens by the rows of the one table in which the ids are looked up, and the model looks them up "
            f"several times: {several}. Score other tokens by embgrad.evaluate on a batch that holds them; embgrad.gradients has "
            "the gradient at each lookup, with at=['word#0', 'word#1']",
            error.lookups,
        ) from None


def _read(bound: BoundModel, batch: TokenBatch, key: str) -> PointValues:
    """Return the values at a point from one forward pass, without a pullback."""
    return bound.run(batch, Request((key,), call=bound.call, pullback=False)).points[key]


def _weight(bound: BoundModel, lookup: Lookup, output: np.ndarray) -> Weight | None:
    """Return the weight whose rows the lookup returned, or None; weights of the lookup's own module are tried first."""
    if not bound.supports("weights"):
        return None
    shape = (lookup.rows, lookup.dim)
    candidates = [weight for weight in weights_of(bound.model) if tuple(weight.shape) == shape]
    expected = copy_owned(output).reshape(-1, lookup.dim)
    for weight in sorted(candidates, key=lambda weight: weight.module != lookup.path):
        if np.array_equal(weight.rows(lookup.indices.ravel()), expected, equal_nan=True):
            return weight
    return None


def _pass_rows(bound: BoundModel, batch: TokenBatch, indices: np.ndarray, key: str) -> np.ndarray:
    """Return the outputs of the lookup of the ids for these ids, from passes on batches of the same shape."""
    pieces = []
    for start in range(0, len(indices), batch.ids.size):
        wanted = indices[start : start + batch.ids.size]
        values = _read(bound, batch.replace(ids=np.resize(wanted, batch.shape), tokens=None), key)
        assert values.lookup is not None
        read = values.lookup.indices.ravel()
        order = np.argsort(read, kind="stable")
        places = order[np.searchsorted(read, wanted, sorter=order)]
        pieces.append(copy_owned(values.activation.reshape(-1, values.lookup.dim)[places]))
    return np.concatenate(pieces)
