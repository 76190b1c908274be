"""The result of `embgrad.gradients`: an embedding gradient with everything needed to interpret it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from embgrad.common.arrays import as_asked
from embgrad.common.metrics import length, lengths
from embgrad.common.text import visible
from embgrad.errors import EmbgradError, PointError, did_you_mean
from embgrad.model_points.points import split_name
from embgrad.results.certificate import Certificate
from embgrad.results.row_sparse import RowSparse, scatter, scatter_each
from embgrad.results.tabular import Columns, TabularGradients
from embgrad.results.words import Word, expect_vectors, words_of_examples

__all__ = ["EmbeddingGradients", "Word"]


@dataclass(frozen=True, eq=False)
class EmbeddingGradients(TabularGradients):
    """The gradient of an objective at a point of the forward pass: the output of a table lookup, or a hidden state.

    Attributes:
        values: ∂ΣL/∂e, C-contiguous, shape (example, position, dim); float32, or float64 where the model computes in
            it. The gradient is of the sum of the examples' objectives, never a mean. A point named by its path keeps its own
            axes, examples first where they can be identified. Where the gradient was edited, this is the edited gradient.
        activations: the value e at the point, same shape and dtype.
        objective: L of each example, float64, shape (example,); () where the user's function reduced it; None where the loss
            was the user's own, see `capture`.
        ids: the rows looked up, int64, (example, position); at a hidden state the batch's ids.
        mask: 1 at real positions, int64, (example, position); None where none was given.
        types: segment numbers, likewise.
        tokens: the tokens' texts, one tuple for each example; None where they are not known.
        words_of: for each position the number of its word, -1 for none; None where the tokenizer returned none.
        vocab: the number of rows in the table; None where there is no table: at a hidden state, or where the value was
            overridden.
        pad_leak: the largest magnitude that the model computed at a masked position; with `split=True` in any pullback.
        provenance: library, backend and framework versions, model class, point, objective, dtype and more, as
            JSON-compatible values.
        tables: with `split=True` the table gradient of each example's own pullback; else None.
        before: the gradient before it was edited, same shape as `values`; None where it was not edited.
        certificate: with `check=True` the measurements of the tests that the result has passed; else None.
    """

    values: np.ndarray
    activations: np.ndarray
    objective: Any
    ids: np.ndarray
    mask: np.ndarray | None
    types: np.ndarray | None
    tokens: tuple[tuple[str, ...], ...] | None
    words_of: np.ndarray | None
    vocab: int | None
    pad_leak: float
    provenance: Mapping[str, Any]
    tables: tuple[RowSparse, ...] | None = None
    before: np.ndarray | None = None
    certificate: Certificate | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The values' shape: (examples, positions, dim), except for points that keep their own axes."""
        return tuple(self.values.shape)

    @property
    def real(self) -> np.ndarray:
        """A bool array, shape (example, position), of the ids' shape: true at real positions, everywhere without a mask."""
        return np.ones(self.ids.shape, bool) if self.mask is None else self.mask.astype(bool)

    def __repr__(self) -> str:
        source = self.provenance
        padding = "no mask" if self.mask is None else f"{int((self.mask == 0).sum())} padded, leak {self.pad_leak:.2g}"
        objective = source.get("objective", {}).get("class", "?")
        if self.objective is not None:
            objective += f" = {_figures(self.objective)}"
        return visible(
            f"EmbeddingGradients({' × '.join(map(str, self.shape))} {self.values.dtype}, at {source.get('point')!r} = "
            f"{source.get('path')!r} of {source.get('model')} ({source.get('backend')}), {objective}, "
            f"norm {length(self.values):.4g}, {padding})"
        )

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Return the values, for `np.asarray` and all NumPy functions: the array itself, unless a copy is requested."""
        return as_asked(self.values, dtype, copy)

    def _repr_html_(self) -> str:
        """Return the HTML that notebooks show: the first examples, by the kinds of saliency."""
        from embgrad.results.gradient_display import gradient_cell  # few results are shown

        return gradient_cell(self)

    def table(self) -> RowSparse:
        """Return the gradient with respect to the table through this lookup, (vocab, dim): the sum over examples and positions.

        Raises:
            PointError: the point is not a lookup, or its value was overridden and so does not come from a table.
        """
        vocab = self._table_rows()
        if self.tables is None:
            return scatter(self.ids, self.values, vocab)
        rows = np.concatenate([table.rows for table in self.tables])
        return scatter(rows, np.concatenate([table.values for table in self.tables]), vocab)

    def per_example(self) -> list[RowSparse]:
        """Return the gradient of each example's L with respect to the table, row-sparse, (vocab, dim) each.

        It is computed from one backward pass: an example's L reaches the table only through the example's own positions. Where
        examples depend on one another (batch norm in training mode, in-batch negatives), compute the gradients with `split=True`.

        Raises:
            PointError: the point is not a lookup, or its value was overridden, or its indices have no example axis.
        """
        vocab = self._table_rows()
        if self.tables is not None:
            return list(self.tables)
        shared = self.objective is not None and self.objective.ndim == 1 and len(self.values) != len(self.objective)
        if self.values.ndim != 3 or shared:
            raise PointError(
                f"the point {self.provenance.get('point')!r} has the shape {self.values.shape}: expected (example, position, "
                "dim); name it by its role, such as at='position', to get a gradient for each example"
            )
        return scatter_each(self.ids, self.values, vocab)

    def _table_rows(self) -> int:
        if self.vocab is None:
            name = self.provenance.get("point")
            overridden = self.provenance.get("override") and split_name(str(self.provenance.get("path"))).side is None
            why = "was overridden" if overridden else "is no lookup"
            raise PointError(
                f"the point {name!r} {why}, so that there is no table whose gradient this is: expected a lookup, such as "
                "at='word'"
            )
        return self.vocab

    def saliency(self, kind: str = "norm") -> np.ndarray:
        """Return one number for each position, (example, position), in the values' dtype.

        Args:
            kind: "norm" for the gradient's length, or "dot" for its inner product with the activation (gradient × input,
                as in Shrikumar, Greenside and Kundaje, "Learning important features through propagating activation
                differences", 2017).

        Raises:
            EmbgradError: `kind` is neither.
        """
        if not isinstance(kind, str) or kind not in ("norm", "dot"):
            raise EmbgradError(f"kind is {kind!r}: expected 'norm' or 'dot'.{did_you_mean(str(kind), ('norm', 'dot'))}")
        wide = self.values.astype(np.float64)
        if kind == "norm":
            return np.asarray(lengths(wide).astype(self.values.dtype))
        return np.asarray((wide * self.activations).sum(-1).astype(self.values.dtype))

    def words(self, kind: str = "norm") -> list[list[Word]]:
        """Return the words of each example with their saliency; sub-word tokens are merged, padding is skipped.

        A word's "norm" is the length of its tokens' gradients taken together (the root of the sum of squares), its "dot"
        the sum of theirs. Each special token is a word. Tokens are grouped by the tokenizer's word numbers where the batch has
        them, else by the marks of WordPiece ("##") and byte-pair or sentence pieces ("Ġ", "▁").

        Args:
            kind: see `saliency`.

        Raises:
            EmbgradError: the tokens are not known, the point's shape is not (example, position, dim), or `kind` is neither.
        """
        expect_vectors(self, self.values.shape[:-1])
        if self.tokens is None:
            raise EmbgradError(
                "the tokens of this result are not known: build the batch with embgrad.encode(texts, tokenizer), or pass "
                "tokens=... to embgrad.TokenBatch"
            )
        scores = self.saliency(kind).astype(np.float64)
        merge = length if kind == "norm" else np.sum
        return words_of_examples(self.tokens, self.words_of, self.real, scores, merge)

    def _columns(self, by: str, special: bool, kind: str = "norm") -> Columns:
        from embgrad.results.table_rows import saliency_columns  # few results become tables

        expect_vectors(self, self.values.shape[:-1])
        return saliency_columns(self, self.saliency(kind), kind, by, special)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the result to a safetensors file, which `embgrad.load` reads back bit for bit.

        The file appears whole or not at all. `embgrad.save` writes several results into one file.

        Raises:
            EmbgradError: the result holds values that the format does not support, such as float16.
            OSError: the file cannot be written.
        """
        from embgrad.results.file_format import write_results  # few results are written

        write_results({"": self}, path, single=True)


def _figures(objective: np.ndarray) -> str:
    flat = [f"{value:.4g}" for value in np.ravel(objective)[:3]]
    return ", ".join(flat) + (", …" if objective.size > 3 else "")
