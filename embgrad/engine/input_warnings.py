"""Warnings of batches and objectives whose gradient is correct, but probably not the one that the user meant."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from embgrad.backend.protocol import BoundModel
from embgrad.common.tracebacks import errors_of_model
from embgrad.errors import EmbgradWarning, level_of_user
from embgrad.inputs.batch import TokenBatch
from embgrad.inputs.checks import IGNORED
from embgrad.model_points.points import WORD, Point
from embgrad.objectives.objectives import CrossEntropy
from embgrad.toolkit.signature import as_parts

__all__ = ["warn_of_empty_mask", "warn_of_labels", "warn_of_left_padding", "warn_of_unused"]


def warn_of_empty_mask(batch: TokenBatch) -> None:
    """Warn where no position is real, as with a mask that has 0 at real positions."""
    if batch.mask is not None and not batch.mask.any():
        warnings.warn(
            f"the mask is 0 at all {batch.mask.size} positions, so that all of them count as padding: expected 1 at real "
            "positions. Pass an additive mask, of 0 and large negative numbers, to the model with call=...",
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
    # In a text that repeats one token, the next ids equal the ids as well.
    if counted.sum() < 2 or (labels != ids)[counted].any() or not shifted.any():
        return
    warnings.warn(
        f"the labels are the ids themselves at all {int(counted.sum())} positions that count, and CrossEntropy does not shift "
        "them, so that each token is predicted from itself: for a causal model shift the labels by one "
        "(labels[:, :-1] = ids[:, 1:], and -100 in the last column), for a masked one mask the ids",
        EmbgradWarning,
        stacklevel=level_of_user() + 1,
    )


def _has_a_decoder(model: Any, batch: TokenBatch) -> bool:
    """Return whether the labels may be those of a decoder, which itself shifts them."""
    configs = [getattr(part, "config", None) for part in as_parts(model)]
    declared = any(getattr(config, "is_encoder_decoder", False) is True for config in configs)
    return declared or any(name.startswith("decoder") for name in batch.extras)


#: By model and by form of a batch, the path of a table that the model looks up by column, regardless of the padding.
_by_column: WeakKeyDictionary[Any, dict[Hashable, str | None]] = WeakKeyDictionary()


def warn_of_left_padding(bound: BoundModel, batch: TokenBatch) -> None:
    """Warn where examples are padded on the left, and the model counts the padding in their positions.

    A probe runs the example with most padding once as it is and once without padding, and compares the lookups' indices: they
    are the same in a model that counts positions by the mask, or uses distances alone.
    """
    if not batch.padded:
        return
    starts = np.where(batch.real.any(1), batch.real.argmax(1), 0)
    example = int(starts.argmax())
    start = int(starts[example])
    if not start:
        return
    table = _table_by_column(bound, batch[example : example + 1], start)
    if table is None:
        return
    warnings.warn(
        f"the batch is padded on the left, and the model counts the padding in its positions ({table!r}): example {example}, "
        f"after {start} of padding, gets another result than without padding. Pass position_ids with the ids, "
        "(mask.cumsum(1) - 1).clip(0), or pad on the right",
        EmbgradWarning,
        stacklevel=level_of_user() + 1,
    )


def warn_of_unused(unused: Sequence[str], batch: TokenBatch, masked_id: int | None = None) -> None:
    """Warn of inputs that the batch holds and the model does not accept."""
    ignored = []
    if "mask" in unused and masked_id is not None:
        differing = np.argwhere((batch.ids != masked_id) != batch.real)
        ignored.append(
            f"the mask, and makes its own, 0 where the id is {masked_id}, which differs from it at {len(differing)} "
            f"position(s), such as example {differing[0][0]}, position {differing[0][1]}"
        )
    elif "mask" in unused and batch.padded:
        ignored.append("the mask, so that it reads padding as text")
    if "types" in unused and batch.types is not None and batch.types.any():
        ignored.append("the types, so that it cannot distinguish the segments")
    ignored += [f"the input {name!r}" for name in unused if name in batch.extras]
    if ignored:
        warnings.warn(
            f"the model cannot take {' and '.join(ignored)}; if it can under another name, pass call=lambda model, inputs: ...",
            EmbgradWarning,
            stacklevel=level_of_user() + 1,
        )


def _table_by_column(bound: BoundModel, example: TokenBatch, start: int) -> str | None:
    """Return the path of a table whose rows at real positions change when the padding is removed; None where none does."""
    known = bound.memory_of(_by_column) if bound.call is None else None
    form = (example.convention, example.types is None, tuple(example.extras))
    if known is not None and form in known:
        return known[form]
    try:
        padded = {point.key: point for point in bound.points(example)}
        unpadded = bound.points(_without_start(example, start))
    except errors_of_model():  # the model may accept no other number of positions, or need more inputs than these
        return None
    table = None
    for point in unpadded:
        rows, others = _rows(point, example.shape[1] - start), _rows(padded.get(point.key), example.shape[1])
        if rows is not None and others is not None and not np.array_equal(rows, others[start:]):
            table = None if point.lookup is None else point.lookup.path
            break
    if known is not None:
        known[form] = table
    return table


def _rows(point: Point | None, positions: int) -> np.ndarray | None:
    """Return the row that a lookup reads for each position; None where they are the ids, or not one for each position."""
    if point is None or point.lookup is None or WORD in point.roles or point.lookup.indices.size != positions:
        return None
    return point.lookup.indices.ravel()


def _without_start(example: TokenBatch, start: int) -> TokenBatch:
    """Return a batch of one example without the positions before `start`."""

    def cut(value: Any) -> Any:
        shape = tuple(getattr(value, "shape", ()))
        return value[:, start:] if len(shape) > 1 and shape[1] == example.shape[1] else value

    return example.replace(
        ids=example.ids[:, start:],
        mask=None if example.mask is None else example.mask[:, start:],
        types=None if example.types is None else example.types[:, start:],
        tokens=None,
        words=None,
        extras={name: cut(value) for name, value in example.extras.items()},
    )
