"""Makes results of what a backend returned: arranged, checked, owned, and joined from micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from embgrad.arrays import owned
from embgrad.backend import PointValues
from embgrad.batch import TokenBatch
from embgrad.errors import NoGradientError, UnsupportedError
from embgrad.result import EmbeddingGradients
from embgrad.rowsparse import RowSparse, scatter

__all__ = ["assembled", "joined"]


def assembled(
    name: str,
    values: PointValues,
    batch: TokenBatch,
    objective: np.ndarray,
    provenance: Mapping[str, Any],
    pads: str,
) -> EmbeddingGradients:
    """The result at one point. Several pullbacks are one an example, in order.

    Raises:
        NoGradientError: the objective does not depend on the point, or the gradient is not finite.
        UnsupportedError: the lookup has no index for each example and position.
    """
    arrange, ids, is_batch = _arrangement(name, values, batch)
    pullbacks = [owned(arrange(_present(name, values, gradient))) for gradient in values.gradients]
    mask = batch.mask if is_batch else None
    leak = max(_leak(pullback, mask) for pullback in pullbacks)
    for pullback in pullbacks:
        _expect_finite(name, values, pullback)
        if pads == "zero" and mask is not None:
            pullback[mask == 0] = 0
    split = bool(provenance["split"])
    return EmbeddingGradients(
        values=np.stack([pullback[i] for i, pullback in enumerate(pullbacks)]) if split else pullbacks[0],
        activations=owned(arrange(values.activation)),
        objective=np.array(objective, np.float64),
        ids=ids.copy(),
        mask=None if mask is None else mask.copy(),
        types=_copied(batch.types if is_batch else None),
        tokens=batch.tokens if is_batch else None,
        words_of=_copied(batch.words if is_batch else None),
        vocab=values.lookup.rows,
        pad_leak=leak,
        provenance=provenance,
        tables=tuple(scatter(ids, one, values.lookup.rows) for one in pullbacks) if split else None,
    )


def _arrangement(
    name: str, values: PointValues, batch: TokenBatch
) -> tuple[Callable[[np.ndarray], np.ndarray], np.ndarray, bool]:
    """How the point's arrays become (example, position, dim), its ids, and whether these are the batch's."""
    lookup = values.lookup
    if lookup.layout is not None:
        return lookup.layout.vectors, batch.ids, True
    if lookup.indices.ndim == 2 and len(lookup.indices) == len(batch):
        return lambda array: array, lookup.indices, False
    raise UnsupportedError(
        f"the point {name!r} is {lookup}: expected indices of shape (example, position) with {len(batch)} examples; a lookup "
        "that all examples share, or whose examples and positions are one axis, does not say which gradient is whose"
    )


def _present(name: str, values: PointValues, gradient: np.ndarray | None) -> np.ndarray:
    if gradient is None:
        raise NoGradientError(
            f"the objective does not depend on the point {name!r} ({values.lookup}): the graph has no way from it to the "
            "lookup; does the model detach it, turn it into integers, or use another output than the objective reads?"
        )
    return gradient


def _expect_finite(name: str, values: PointValues, gradient: np.ndarray) -> None:
    wrong = np.argwhere(~np.isfinite(gradient))
    if wrong.size:
        example, position, dim = (int(i) for i in wrong[0])
        raise NoGradientError(
            f"the gradient at {name!r} ({values.lookup.path}) is {gradient[example, position, dim]} at example {example}, "
            f"position {position}, and in {len(wrong)} of {gradient.size} entries: expected finite numbers; the model's "
            "backward pass overflows or divides by zero there, look at its inputs, its mask and its dtype"
        )


def _leak(gradient: np.ndarray, mask: np.ndarray | None) -> float:
    if mask is None or mask.all():
        return 0.0
    return float(np.abs(gradient[mask == 0]).max())


def _copied(array: np.ndarray | None) -> np.ndarray | None:
    return None if array is None else array.copy()


def joined(pieces: Sequence[EmbeddingGradients]) -> EmbeddingGradients:
    """One result from those of the micro-batches, in order."""
    first = pieces[0]
    if len(pieces) == 1:
        return first

    def together(name: str) -> Any:
        parts = [getattr(piece, name) for piece in pieces]
        return None if parts[0] is None else np.concatenate(parts)

    tables: tuple[RowSparse, ...] = tuple(table for piece in pieces for table in piece.tables or ())
    truncated = [count for piece in pieces for count in piece.provenance["truncated"]]
    return replace(
        first,
        **{name: together(name) for name in ("values", "activations", "objective", "ids", "mask", "types", "words_of")},
        tokens=None if first.tokens is None else tuple(row for piece in pieces for row in piece.tokens or ()),
        pad_leak=max(piece.pad_leak for piece in pieces),
        provenance={**first.provenance, "truncated": truncated, "batch_size": len(first.ids)},
        tables=tables or None,
    )
