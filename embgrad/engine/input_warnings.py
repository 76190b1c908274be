"""Warns of batches and objectives whose gradient is right, and probably not the one that was meant."""

from __future__ import annotations

import warnings
from collections.abc import Hashable
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from embgrad.backend.protocol import Backend, Call
from embgrad.backend.signature import as_parts
from embgrad.errors import EmbgradWarning, level_of_user
from embgrad.forward.points import WORD, Point
from embgrad.inputs.batch import TokenBatch
from embgrad.inputs.checks import IGNORED
from embgrad.objectives.objectives import CrossEntropy

__all__ = ["warn_of_empty_mask", "warn_of_labels", "warn_of_left_padding"]


def warn_of_empty_mask(batch: TokenBatch) -> None:
    """Warn where no position counts, as where 0 stands for the real ones."""
    if batch.mask is not None and not batch.mask.any():
        warnings.warn(
            f"the mask is 0 at all {batch.mask.size} positions, so that all of them count as padding: expected 1 at real "
            "positions; an additive mask, of 0 and large negative numbers, goes to the model by call=...",
            EmbgradWarning,
            stacklevel=level_of_user() + 1,
        )


def warn_of_labels(objective: Any, model: Any, batch: TokenBatch) -> None:
    """Warn where the labels of a cross-entropy are the ids themselves, and not the next ones."""
    if not isinstance(objective, CrossEntropy) or objective.labels.shape != batch.shape or _has_a_decoder(model, batch):
        return
    labels, ids = objective.labels, batch.ids
    counted = batch.real & (labels != IGNORED)
    shifted = counted[:, :-1] & (labels[:, :-1] != ids[:, 1:])
    # Of a text that repeats one token, the next ids are the ids, too.
    if counted.sum() < 2 or (labels != ids)[counted].any() or not shifted.any():
        return
    warnings.warn(
        f"the labels are the ids themselves at all {int(counted.sum())} positions that count, and CrossEntropy does not shift "
        "them, so that the model is asked for the token that it is given: for a causal model shift the labels by one "
        "(labels[:, :-1] = ids[:, 1:], and -100 in the last column), for a masked one mask the ids",
        EmbgradWarning,
        stacklevel=level_of_user() + 1,
    )


def _has_a_decoder(model: Any, batch: TokenBatch) -> bool:
    """Return whether the labels may be a decoder's, which gets the ids before them."""
    configs = [getattr(part, "config", None) for part in as_parts(model)]
    told = any(getattr(config, "is_encoder_decoder", False) is True for config in configs)
    return told or any(name.startswith("decoder") for name in batch.extras)


#: By a model, and by what of a batch decides how it is called, which table it looks up by column whatever the padding.
_by_column: WeakKeyDictionary[Any, dict[Hashable, str | None]] = WeakKeyDictionary()


def warn_of_left_padding(backend: Backend, model: Any, batch: TokenBatch, call: Call | None) -> None:
    """Warn where examples are padded on the left, and the model counts the padding in their positions.

    The longest padded example is run once as it is and once without its padding, and the lookups' indices are compared: a
    model that counts by the mask, or by distances alone, makes the same ones.
    """
    if not batch.padded:
        return
    starts = np.where(batch.real.any(1), batch.real.argmax(1), 0)
    example = int(starts.argmax())
    start = int(starts[example])
    if not start:
        return
    table = _table_by_column(backend, model, batch[example : example + 1], start, call)
    if table is None:
        return
    warnings.warn(
        f"the batch is padded on the left, and the model counts the padding in its positions ({table!r}): example {example}, "
        f"behind {start} of padding, gets another result than without it. Pass position_ids beside the ids, "
        "(mask.cumsum(1) - 1).clip(0), or pad on the right",
        EmbgradWarning,
        stacklevel=level_of_user() + 1,
    )


def _table_by_column(backend: Backend, model: Any, one: TokenBatch, start: int, call: Call | None) -> str | None:
    """The path of a table whose rows at real positions change when the padding is taken away; None for none."""
    known = _known(model) if call is None else None
    form = (one.convention, one.types is None, tuple(one.extras))
    if known is not None and form in known:
        return known[form]
    try:
        padded = {point.key: point for point in backend.points(model, one, call)}
        bare = backend.points(model, _without(one, start), call)
    except Exception:  # of a model that takes no other number of positions, or no fewer inputs beside them
        return None
    found = None
    for point in bare:
        rows, others = _rows(point, one.shape[1] - start), _rows(padded.get(point.key), one.shape[1])
        if rows is not None and others is not None and not np.array_equal(rows, others[start:]):
            found = None if point.lookup is None else point.lookup.path
            break
    if known is not None:
        known[form] = found
    return found


def _known(model: Any) -> dict[Hashable, str | None] | None:
    """Return the tables remembered for a model; None for a model that has no weak references."""
    first, *others = as_parts(model)
    try:
        return None if others else _by_column.setdefault(first, {})
    except TypeError:
        return None


def _rows(point: Point | None, positions: int) -> np.ndarray | None:
    """The rows that a lookup takes of its table, one a position; None where they are the ids, or not one a position."""
    if point is None or point.lookup is None or WORD in point.roles or point.lookup.indices.size != positions:
        return None
    return point.lookup.indices.ravel()


def _without(one: TokenBatch, start: int) -> TokenBatch:
    """A batch of one example without the positions before `start`."""

    def cut(value: Any) -> Any:
        shape = tuple(getattr(value, "shape", ()))
        return value[:, start:] if len(shape) > 1 and shape[1] == one.shape[1] else value

    return one.replace(
        ids=one.ids[:, start:],
        mask=None if one.mask is None else one.mask[:, start:],
        types=None if one.types is None else one.types[:, start:],
        tokens=None,
        words=None,
        extras={name: cut(value) for name, value in one.extras.items()},
    )
