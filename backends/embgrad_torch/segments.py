"""Gradient checkpoints that run, as Python's frames tell of them."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any, Final

import torch
from torch.utils import checkpoint

__all__ = ["in_reentrant_segment", "in_segment", "segments_ended"]

#: The code of a segment's first run, without gradients, in the older, reentrant kind of checkpointing.
REENTRANT: Final = checkpoint.CheckpointFunction.forward.__code__

#: The code of what runs a segment of either kind, and its name for what goes on around one of the newer kind.
CHECKPOINT: Final = inspect.unwrap(checkpoint.checkpoint).__code__
AROUND: Final = "gen"


def in_reentrant_segment() -> bool:
    """Whether a checkpoint of the older kind runs its segment for the first time."""
    return any(frame.f_code is REENTRANT for frame in _frames())


def in_segment() -> bool:
    """Whether a checkpoint of the newer kind saves tensors."""
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    if top is None:  # PyTorch 2.6 does not tell what saves tensors
        return any(frame.f_code is CHECKPOINT and AROUND in frame.f_locals for frame in _frames())
    hooks = top(False)
    return hooks is not None and "_checkpoint_hook" in getattr(hooks[0], "__qualname__", "")


class segments_ended:  # noqa: N801  # used as a function is
    """Let an exception end the segments that it leaves.

    PyTorch 2.6 ends them when nobody holds the exception any more. Until then tensors are saved for a segment that is over,
    and whatever is differentiated fails.
    """

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if error is not None:
            for around in reversed([*_left_by(error)]):
                around.close()


def _left_by(error: BaseException) -> Iterator[Any]:
    """What goes on around each segment through which the exception came, the outermost first."""
    trace = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        if frame.f_code is CHECKPOINT and AROUND in frame.f_locals:
            yield frame.f_locals[AROUND]
        trace = trace.tb_next


def _frames() -> Iterator[FrameType]:
    """What runs in this thread, the innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back
