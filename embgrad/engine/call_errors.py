"""Explanations of errors that a model raises for a batch that it does not accept."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np

from embgrad.backend.protocol import BoundModel, Request
from embgrad.common.arrays import to_numpy
from embgrad.engine.encoder_decoders import takes_decoder
from embgrad.errors import BatchError, EmbgradError, UnsupportedError, brief, quote
from embgrad.inputs.batch import TokenBatch
from embgrad.inputs.decoder import IDS, LABELS, MASK, NAMES

__all__ = ["explain_decoder", "explain_errors", "explain_forward", "explain_pullback"]

#: The errors by which code says that it has no backward pass; others are the model's own.
LACKING: Final = (RuntimeError, AssertionError, NotImplementedError)

#: What frameworks say where the memory does not suffice, which a pass with gradients needs more of.
OF_MEMORY: Final = re.compile(r"memory|\bOOM\b|exhausted", re.I)


@contextlib.contextmanager
def explain_errors(bound: BoundModel, batch: TokenBatch, *, size: int | None = None) -> Iterator[None]:
    """Explain an error where probes show that an example is longer than the model accepts.

    Where sub-batches are run, a model may also accept all examples at once but no sub-batch, such as one with a cache for all of
    them.

    Args:
        size: the number of examples of a sub-batch; None where the whole batch is run.
    """
    try:
        yield
    except Exception as failure:
        is_ours = isinstance(failure, EmbgradError)
        if is_ours and not _may_be_too_long(failure, batch):
            raise
        explanation = _length_message(bound, batch)
        if explanation is None and not is_ours and size is not None and size < len(batch):
            explanation = _sub_batch_message(bound, batch, batch[:size], failure)
        if explanation is None or (isinstance(failure, BatchError) and failure.message == explanation):
            raise
        raise BatchError(explanation) from failure


@contextlib.contextmanager
def explain_decoder(bound: BoundModel, batch: TokenBatch) -> Iterator[None]:
    """Explain an error of an encoder-decoder that was called without decoder ids.

    Nothing is refused before the call, since some encoder-decoders derive decoder ids from the encoder's, as BART does.
    """
    try:
        yield
    except EmbgradError:
        raise
    except Exception as failure:
        present = {"decoder_inputs_embeds", LABELS, *(ids for ids, _ in NAMES)} & set(batch.extras)
        if bound.call is not None or present or not takes_decoder(bound.model):
            raise
        raise BatchError(
            f"the model {type(bound.model).__name__} is an encoder-decoder, and raised {type(failure).__name__} without decoder "
            f"ids: expected {IDS!r} in the batch's dict, of shape (example, decoder position), with {MASK!r} if "
            "they are padded"
        ) from failure


@contextlib.contextmanager
def explain_forward(bound: BoundModel, batch: TokenBatch) -> Iterator[None]:
    """Explain an error of a forward pass on the whole batch: an example that is too long, or missing decoder ids."""
    with explain_errors(bound, batch), explain_decoder(bound, batch):
        yield


@contextlib.contextmanager
def explain_pullback(bound: BoundModel, run: Callable[[Request], Any], request: Request) -> Iterator[None]:
    """Explain an error of a pass with gradients in evaluation mode, where the same pass without them raises none.

    A model may take a faster path in evaluation mode that has no backward pass, as some recurrent and reversible models do.
    """
    try:
        yield
    except EmbgradError:
        raise
    except Exception as failure:
        is_of_framework = type(failure).__module__.partition(".")[0] == bound.backend.package
        may_lack = (type(failure) in LACKING or is_of_framework) and not OF_MEMORY.search(str(failure))
        is_open = request.pullback and may_lack and not (request.training or request.edit)
        if not (is_open and _runs_without_gradients(run, request)):
            raise
        raise UnsupportedError(
            f"{type(bound.model).__name__} runs in evaluation mode without gradients, and raised {type(failure).__name__} in the "
            f"pass with them: {brief(str(failure), 120)}. Pass training=True, with a dropout of 0, or to a function without it a "
            "call=... that puts the model into training mode"
        ) from failure


def _runs_without_gradients(run: Callable[[Request], Any], request: Request) -> bool:
    try:
        run(replace(request, pullback=False, parameters=False, tables=False, reduce=None))
    except Exception:  # then the error is not of the gradients
        return False
    return True


def _sub_batch_message(bound: BoundModel, batch: TokenBatch, sub_batch: TokenBatch, failure: Exception) -> str | None:
    """Return the message for a model that accepts the whole batch, but not a sub-batch."""
    if bound.accepts(sub_batch) or not bound.accepts(batch):
        return None
    extras = f" (of its further inputs, {quote(batch.extras)}, only arrays are sliced)" if batch.extras else ""
    return (
        f"the model takes all {len(batch)} examples at once, and raised {type(failure).__name__} for {len(sub_batch)} of "
        f"them{extras}: batch_size=... and split=... need a model that accepts any number of examples. Omit them, or slice the "
        "other inputs yourself in call=lambda model, inputs: ..."
    )


def _length_message(bound: BoundModel, batch: TokenBatch) -> str | None:
    """Return the message for an example that is longer than the model's positions."""
    most = _most_positions(bound, batch)
    return None if most is None else _too_long(batch, most)


def _may_be_too_long(failure: Exception, batch: TokenBatch) -> bool:
    """Return whether the error may be about an index that the model computed: not where the batch itself holds positions."""
    return isinstance(failure, BatchError) and not any(
        _has_positions(value, batch.shape[1]) for value in batch.extras.values()
    )


def _too_long(batch: TokenBatch, most: int) -> str:
    counts = batch.real.sum(1)
    longest = int(counts.argmax())
    if counts[longest] <= most:
        return (
            f"the batch has {batch.shape[1]} positions, padding included, and the model accepts at most {most}: pad only to the "
            f"longest example, which has {counts[longest]} tokens"
        )
    return (
        f"example {longest} has {counts[longest]} tokens, and the model takes {most} positions at most: pass "
        f"max_length={most} with the tokenizer, or shorter ids"
    )


def _most_positions(bound: BoundModel, batch: TokenBatch) -> int | None:
    """Return the most positions that the model accepts; None where it accepts the batch's, or fails with fewer as well.

    The probes run one example with the same id at all positions, so that an id outside the table does not look like a length.
    """
    longest = int(batch.real.sum(1).argmax())
    example = batch[longest : longest + 1]

    def passes(count: int) -> bool:
        return bound.accepts(_with_length(example, count))

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
    # A model may require a multiple of some number of positions, and then fails with one position less as well.
    return enough if enough == 1 or passes(enough - 1) else None


def _with_length(example: TokenBatch, count: int) -> TokenBatch:
    """Return a batch of `count` real positions, each with the id, the type and the further inputs of the first position.

    Only their number differs, so that a type or a label that the model does not accept does not look like a length.
    """

    def repeat(value: Any) -> Any:
        return np.repeat(to_numpy(value)[:, :1], count, axis=1) if _has_positions(value, example.shape[1]) else value

    return example.replace(
        ids=repeat(example.ids),
        mask=None if example.mask is None else np.ones((1, count), np.int64),
        types=repeat(example.types),
        tokens=None,
        words=None,
        extras={name: repeat(value) for name, value in example.extras.items()},
    )


def _has_positions(value: Any, positions: int) -> bool:
    """Return whether an input has an entry for each position."""
    shape = tuple(getattr(value, "shape", ()))
    return len(shape) > 1 and shape[1] == positions
