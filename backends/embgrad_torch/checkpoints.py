"""Gradient checkpoints: the segments that run, and which lookup or call of the forward pass a segment makes again."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch.utils import checkpoint

from embgrad.backend.patching import Interception
from embgrad.errors import UnsupportedError

__all__ = ["Made", "in_reentrant_segment", "in_segment", "made_again", "segments_ended", "segments_watched"]

#: What runs the first pass of a segment, of the older, reentrant kind.
_reentrant: Final = Interception(lambda: checkpoint.CheckpointFunction, "apply")

#: What goes on around one of the newer kind. The function `checkpoint` itself is often imported by its name.
_newer: Final = Interception(lambda: checkpoint, "_checkpoint_without_reentrant_generator")

#: How many segments of either kind this thread is in.
_running: Final = threading.local()


def in_reentrant_segment() -> bool:
    """Return whether a checkpoint of the older kind runs its segment for the first time, see `segments_watched`."""
    return getattr(_running, "reentrant", 0) > 0


def in_segment() -> bool:
    """Return whether a checkpoint of the newer kind saves tensors, see `segments_watched`."""
    return getattr(_running, "newer", 0) > 0


@contextlib.contextmanager
def segments_watched() -> Iterator[None]:
    """Count the segments that this thread is in."""
    with _reentrant.by(_run_reentrant), _newer.by(_around_newer):
        yield


@contextlib.contextmanager
def _counted(kind: str) -> Iterator[None]:
    setattr(_running, kind, getattr(_running, kind, 0) + 1)
    try:
        yield
    finally:
        setattr(_running, kind, getattr(_running, kind) - 1)


def _run_reentrant(original: Callable[..., Any], *given: Any) -> Any:
    with _counted("reentrant"):
        return original(*given)


def _around_newer(original: Callable[..., Any], *given: Any, **named: Any) -> Iterator[Any]:
    with _counted("newer") if torch.is_grad_enabled() else contextlib.nullcontext():
        yield from original(*given, **named)


@contextlib.contextmanager
def segments_ended() -> Iterator[None]:
    """Let an exception end the segments that it leaves.

    PyTorch 2.6 ends them when nobody holds the exception any more. Until then tensors are saved for a segment that is over,
    and whatever is differentiated fails.
    """
    begun: list[Any] = []

    def begin(original: Callable[..., Any], *given: Any, **named: Any) -> Any:
        begun.append(original(*given, **named))
        return begun[-1]

    with _newer.by(begin):
        try:
            yield
        except BaseException:
            for around in reversed(begun):
                around.close()
            raise


class Made(NamedTuple):
    """A lookup, or a side of a module's call, as the forward pass came by it.

    Attributes:
        key: of the point, where it is asked for.
        traced: whether gradients were on. They are off in a segment of the older, reentrant kind of checkpointing, whose
            gradients come from the second time; else the second time gives the backward pass its values alone.
    """

    key: str | None
    traced: bool


def made_again(what: str, made: Sequence[Made], changed: Collection[str], *, seen: int) -> str | None:
    """The key of the one that is made again; None where it is not asked for.

    Args:
        what: what is made again, for the message.
        made: those of the forward pass that had the same inputs.
        changed: the keys of points whose values are changed.
        seen: how many the forward pass made in all, whatever their inputs were.

    Raises:
        UnsupportedError: it may be several, and it matters which; or the segment does something else than the first time.
    """
    if seen and not made:
        raise UnsupportedError(
            f"a checkpointed segment makes a {what} in the backward pass with other inputs than the forward pass did: expected a "
            "segment that does the same each time; run the model without gradient checkpointing"
        )
    asked = [one for one in made if one.key is not None]
    if not asked:
        return None
    if len(made) == 1 or (all(one.traced for one in made) and not any(one.key in changed for one in asked)):
        return asked[0].key
    raise UnsupportedError(
        f"a checkpointed segment makes a {what} again in the backward pass, and the forward pass made {len(made)} such with "
        f"the same inputs, so that {asked[0].key!r} cannot be told among them: expected different inputs; run the model without "
        "gradient checkpointing (model.gradient_checkpointing_disable() in transformers)"
    )
