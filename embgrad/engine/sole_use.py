"""A test of whether a model reads the ids through the lookup that is "word" alone, where that has one number for each token."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from embgrad.backend.protocol import BoundModel
from embgrad.common.tolerance import unit_roundoff
from embgrad.common.tracebacks import errors_of_model
from embgrad.errors import PointNotReachedError
from embgrad.inputs.batch import TokenBatch
from embgrad.model_points.points import Lookup

__all__ = ["expect_sole_use"]

#: By model, the keys of lookups through which alone the model has been seen to read the ids.
_sole: WeakKeyDictionary[Any, dict[Hashable, bool]] = WeakKeyDictionary()


def expect_sole_use(
    bound: BoundModel,
    batch: TokenBatch,
    word: Lookup,
    own: np.ndarray,
    compute_dtype: str,
    evaluate: Callable[[TokenBatch], np.ndarray],
) -> None:
    """Refuse "word" where its lookup has one number for each token, and the model reads the ids in another way as well.

    One number may be an embedding, or a scale or bias beside the embedding, which is then read in a way that no backend sees,
    such as by Python's numbers. A forward pass with other ids, and the lookup's values as they were, shows which.

    Args:
        evaluate: returns the objective's values of a batch of other ids, where the lookup's values are those of the batch.
    """
    known = bound.memory_of(_sole) if bound.call is None else None
    if not bound.supports("override") or (known is not None and word.key in known):
        return
    other = _with_other_tokens(batch, word.rows)
    if other is None:
        return
    try:
        values = evaluate(other)
    except errors_of_model():  # the model may take no other ids
        return
    apart, size = np.abs(values - own), max(float(np.abs(values).max()), float(np.abs(own).max()))
    if (apart > unit_roundoff(compute_dtype) ** 0.5 * size).any():
        raise PointNotReachedError(
            f"the lookup {word} may not be the model's embedding of the ids: it has one number for each token, and with "
            f"its values as they are L changes by up to {float(apart.max()):.3g} when the ids change, so that they are also used "
            "otherwise. Pass a model that looks the ids up as rows of a floating-point matrix, or name the table whose gradient "
            f"you want, as in at={word.path!r}"
        )
    if known is not None:
        known[word.key] = True


def _with_other_tokens(batch: TokenBatch, rows: int) -> TokenBatch | None:
    """Return the batch with other ids at ordinary tokens, of which a model makes no mask; None where there are none.

    Tokens that are no ordinary ones are the first and the last of a text, those that all examples hold, and the ids of padding.
    """
    special = {0, *batch.ids[~batch.real].tolist()}
    if len(batch) > 1:
        texts = zip(batch.ids, batch.real, strict=True)
        special |= set.intersection(*({*ids[real].tolist()} for ids, real in texts))
    inner = batch.real.copy()
    for example, real in enumerate(batch.real):
        places = np.flatnonzero(real)
        if len(places) > 2:
            special |= {int(batch.ids[example, place]) for place in (places[0], places[-1])}
            inner[example, places[[0, -1]]] = False
    chosen = inner & ~np.isin(batch.ids, [*special])
    distinct = np.unique(batch.ids[chosen])
    if len(distinct) == 1:
        others = [
            row for row in (*range(distinct[0] + 1, rows), *range(distinct[0])) if row not in special
        ]  # low ids are special
        distinct = np.sort(np.append(distinct, others[:1]))
    if len(distinct) < 2:
        return None
    ids = batch.ids.copy()
    ids[chosen] = np.roll(distinct, -1)[np.searchsorted(distinct, ids[chosen])]
    return batch.replace(ids=ids, tokens=None)
