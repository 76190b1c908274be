"""Says of an error that the batch is longer than the model's positions, which shorter batches show."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from embgrad.backend.protocol import Backend, Call
from embgrad.common.arrays import to_numpy
from embgrad.engine.decoder import expecting_decoder
from embgrad.errors import BatchError, EmbgradError
from embgrad.inputs.batch import TokenBatch

__all__ = ["expecting_inputs", "expecting_length"]


@contextlib.contextmanager
def expecting_length(backend: Backend, model: Any, batch: TokenBatch, call: Call | None) -> Iterator[None]:
    """Say of an error that an example is longer than the model takes, where shorter ones pass.

    Args:
        backend: the model's.
        model: the model.
        batch: the whole.
        call: calls the model.

    Raises:
        BatchError: it is; the message names the example and the number of positions.
    """
    try:
        yield
    except Exception as failure:
        if isinstance(failure, EmbgradError) and not _may_be_of_length(failure, batch):
            raise
        most = _most_positions(backend, model, batch, call)
        if most is None:
            raise
        raise BatchError(_too_long(batch, most)) from failure


@contextlib.contextmanager
def expecting_inputs(backend: Backend, model: Any, batch: TokenBatch, call: Call | None) -> Iterator[None]:
    """Say of an error of a forward pass that an example is too long, or that an encoder-decoder has no decoder ids.

    Args:
        backend: as in `expecting_length`; so are `model`, `batch` and `call`.

    Raises:
        BatchError: either is so.
    """
    with expecting_length(backend, model, batch, call), expecting_decoder(model, batch, call):
        yield


def _may_be_of_length(failure: EmbgradError, batch: TokenBatch) -> bool:
    """Return whether the error may be of an index that the model made: not where the batch gives positions beside the ids."""
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


def _most_positions(backend: Backend, model: Any, batch: TokenBatch, call: Call | None) -> int | None:
    """The most positions that the model takes; None where it takes the batch's, or fewer do not pass either.

    One example is run, which holds one id throughout: that another id lies outside of its table is no matter of length.
    """
    longest = int(batch.real.sum(1).argmax())
    one = batch[longest : longest + 1]

    def passes(count: int) -> bool:
        try:
            backend.points(model, _of_length(one, count), call)
        except Exception:  # whatever the framework says of shapes that do not go together
            return False
        return True

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
    # A model may ask for a multiple of some number of positions: then fewer do not pass either.
    return enough if enough == 1 or passes(enough - 1) else None


def _of_length(one: TokenBatch, count: int) -> TokenBatch:
    """Return a batch of so many positions, all real, and all with what the first one has: its id, its type and further inputs.

    Nothing but the number of positions differs, so that a type or a label that the model does not take is no matter of length.
    """
    extras = {name: _repeated(value, one.shape[1], count) for name, value in one.extras.items()}
    return one.replace(
        ids=np.full((1, count), one.ids[0, 0]),
        mask=None if one.mask is None else np.ones((1, count), np.int64),
        types=None if one.types is None else np.full((1, count), one.types[0, 0]),
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
