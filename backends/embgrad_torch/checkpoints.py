"""Gradient checkpoints: the segments that run, and which lookup or call of the forward pass a segment repeats."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch.utils import checkpoint

from embgrad.backend.patching import Interception
from embgrad.errors import UnsupportedError

__all__ = ["Recorded", "in_reentrant_segment", "in_segment", "repeated_key", "segments_closed", "segments_counted"]

#: The function that first runs a reentrant segment (use_reentrant=True).
_reentrant: Final = Interception(lambda: checkpoint.CheckpointFunction, "apply")

#: The generator around a segment with use_reentrant=False. The function `checkpoint` is often imported by its name.
_non_reentrant: Final = Interception(lambda: checkpoint, "_checkpoint_without_reentrant_generator")

#: The number of segments of either kind that this thread is in.
_running: Final = threading.local()


def in_reentrant_segment() -> bool:
    """Return whether a reentrant checkpoint runs its segment for the first time, see `segments_counted`."""
    return getattr(_running, "reentrant", 0) > 0


def in_segment() -> bool:
    """Return whether a checkpoint with use_reentrant=False saves tensors, see `segments_counted`."""
    return getattr(_running, "non_reentrant", 0) > 0


@contextlib.contextmanager
def segments_counted() -> Iterator[None]:
    """Count the segments that this thread is in while the context is open."""
    with _reentrant.by(_run_reentrant), _non_reentrant.by(_around_non_reentrant):
        yield


@contextlib.contextmanager
def _counted(kind: str) -> Iterator[None]:
    setattr(_running, kind, getattr(_running, kind, 0) + 1)
    try:
        yield
    finally:
        setattr(_running, kind, getattr(_running, kind) - 1)


def _run_reentrant(original: Callable[..., Any], *args: Any) -> Any:
    with _counted("reentrant"):
        return original(*args)


def _around_non_reentrant(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Iterator[Any]:
    with _counted("non_reentrant") if torch.is_grad_enabled() else contextlib.nullcontext():
        yield from original(*args, **kwargs)


@contextlib.contextmanager
def segments_closed() -> Iterator[None]:
    """Close the segments that an exception leaves.

    PyTorch 2.6 closes them when the exception is freed. Until then tensors are saved for a segment that is over, and
    every backward pass fails.
    """
    begun: list[Any] = []

    def begin(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        begun.append(original(*args, **kwargs))
        return begun[-1]

    with _non_reentrant.by(begin):
        try:
            yield
        except BaseException:
            for segment in reversed(begun):
                segment.close()
            raise


class Recorded(NamedTuple):
    """A lookup, or a side of a module's call, that the forward pass made.

    Attributes:
        key: the point's key; None where the point is not requested.
        traced: whether gradients were on. They are off in a reentrant segment, whose gradients come from its second run;
            elsewhere the second run only recomputes values.
    """

    key: str | None
    traced: bool


def repeated_key(what: str, same_inputs: Sequence[Recorded], changed: Collection[str], *, total: int) -> str | None:
    """Return the key of the point that a segment repeats; None for one that is not requested.

    Args:
        what: what the segment repeats, for the message.
        same_inputs: the records of the forward pass with the same inputs.
        changed: the keys of points whose values are changed.
        total: the number of records of the forward pass with any inputs.

    Raises:
        UnsupportedError: several records match and it matters which; or none does, though the forward pass has some.
    """
    if total and not same_inputs:
        raise UnsupportedError(
            f"a checkpointed segment makes a {what} in the backward pass with other inputs than in the forward pass. "
            "Run the model without gradient checkpointing, or let the segment do the same each time"
        )
    requested = [record for record in same_inputs if record.key is not None]
    if not requested:
        return None
    unchanged = all(record.traced for record in same_inputs) and not any(record.key in changed for record in requested)
    if len(same_inputs) == 1 or unchanged:
        return requested[0].key
    raise UnsupportedError(
        f"a checkpointed segment repeats a {what} in the backward pass, and the forward pass made {len(same_inputs)} with the "
        f"same inputs, so that {requested[0].key!r} cannot be distinguished. Run the model without gradient checkpointing "
        "(model.gradient_checkpointing_disable() in transformers)"
    )
