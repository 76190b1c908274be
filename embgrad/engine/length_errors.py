"""Errors of batches that are longer than a model's positions."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from embgrad.common.arrays import to_numpy
from embgrad.engine.bound_model import BoundModel
from embgrad.engine.decoder import expecting_decoder
from embgrad.errors import BatchError, EmbgradError
from embgrad.inputs.batch import TokenBatch

__all__ = ["expecting_inputs", "expecting_length"]


@contextlib.contextmanager
def expecting_length(bound: BoundModel, batch: TokenBatch) -> Iterator[None]:
    """Explain an error of an example that is longer than the model takes, where shorter examples pass.

    Args:
        bound: the model.
        batch: the whole batch.

    Raises:
        BatchError: an example is too long; the message names it and the number of positions.
    """
    try:
        yield
    except Exception as failure:
        if isinstance(failure, EmbgradError) and not _may_be_of_length(failure, batch):
            raise
        most = _most_positions(bound, batch)
        if most is None:
            raise
        raise BatchError(_too_long(batch, most)) from failure


@contextlib.contextmanager
def expecting_inputs(bound: BoundModel, batch: TokenBatch) -> Iterator[None]:
    """Explain an error of a forward pass whose example is too long, or whose encoder-decoder has no decoder ids.

    Raises:
        BatchError: either is so.
    """
    with expecting_length(bound, batch), expecting_decoder(bound, batch):
        yield


def _may_be_of_length(failure: EmbgradError, batch: TokenBatch) -> bool:
    """Return whether the error may be about an index that the model made: not where the batch holds positions beside the ids."""
    return isinstance(failure, BatchError) and not any(
        _is_cut(value, batch.shape[1]) for value in batch.extras.values()
    )


def _too_long(batch: TokenBatch, most: int) -> str:
    counts = batch.real.sum(1)
    longest = int(counts.argmax())
    if counts[longest] <= most:
        return (
            f"the batch has {batch.shape[1]} positions, padding included, and the model takes {most} at most: expected padding "
            f"to the longest example alone, which has {counts[longest]} tokens"
        )
    return (
        f"example {longest} has {counts[longest]} tokens, and the model takes {most} positions at most: expected "
        f"max_length={most} beside the tokenizer, which cuts texts, or ids that are cut"
    )


def _most_positions(bound: BoundModel, batch: TokenBatch) -> int | None:
    """Return the most positions that the model takes; None where it takes the batch's, or fewer do not pass either.

    The probe runs one example that holds one id throughout, so that an id outside of the table does not count as a length.
    """
    longest = int(batch.real.sum(1).argmax())
    example = batch[longest : longest + 1]

    def passes(count: int) -> bool:
        return bound.accepts(_of_length(example, count))

    too_many = batch.shape[1]
    if too_many < 2 or passes(too_many):
        return None
    enough = too_many // 2
    while enough and not passes(enough):
        too_many, enough = enough, enough // 2
    if not enough:
        return None
    while too_many - enough > 1:
        middle = (too_many + enough) // 2
        enough, too_many = (middle, too_many) if passes(middle) else (enough, middle)
    # A model may require a multiple of some number of positions: then fewer do not pass either.
    return enough if enough == 1 or passes(enough - 1) else None


def _of_length(example: TokenBatch, count: int) -> TokenBatch:
    """Return a batch of `count` real positions, each with the id, the type and the further inputs of the first position.

    Only the number of positions differs, so that a type or a label that the model does not take does not count as a length.
    """
    extras = {name: _repeated(value, example.shape[1], count) for name, value in example.extras.items()}
    return example.replace(
        ids=np.full((1, count), example.ids[0, 0]),
        mask=None if example.mask is None else np.ones((1, count), np.int64),
        types=None if example.types is None else np.full((1, count), example.types[0, 0]),
        tokens=None,
        words=None,
        extras=extras,
    )


def _repeated(value: Any, positions: int, count: int) -> Any:
    return np.repeat(to_numpy(value)[:, :1], count, axis=1) if _is_cut(value, positions) else value


def _is_cut(value: Any, positions: int) -> bool:
    """Return whether an input has an entry for each position."""
    shape = tuple(getattr(value, "shape", ()))
    return len(shape) > 1 and shape[1] == positions
