"""PyTorch's gradient checkpoints, which run a segment of the model again in the backward pass."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Final

import torch
from torch.utils import checkpoint

from embgrad.toolkit import Interception
from embgrad_torch.walk import spell

__all__ = [
    *("blocks_with_checkpoints", "checkpointing", "in_reentrant_segment", "in_segment", "segments_recorded"),
    *("without_checkpoints", "without_reentrance"),
]

#: The function that runs a reentrant segment (use_reentrant=True).
_reentrant: Final = Interception(lambda: checkpoint.CheckpointFunction, "apply")

#: The context in which a segment with use_reentrant=False runs, if gradients are enabled.
_non_reentrant: Final = Interception(lambda: checkpoint, "_checkpoint_hook")

#: For each segment that this thread is in, whether it is reentrant, see `segments_recorded`.
_running: Final = threading.local()


@contextlib.contextmanager
def without_checkpoints() -> Iterator[None]:
    """Run this thread's segments as plain code while the context is open: once, with all that the backward pass needs kept."""
    with _reentrant.by(_run_plainly), _non_reentrant.by(_keep_tensors):
        yield


def _run_plainly(original: Callable[..., Any], function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
    return function(*args) if _is_reentrant(original) else original(function, preserve, *args)


def _keep_tensors(original: Callable[..., Any], *args: Any) -> AbstractContextManager[None]:
    saves: AbstractContextManager[None] = (
        original(*args) if getattr(_running, "saves", False) else contextlib.nullcontext()
    )
    return saves


def blocks_with_checkpoints(walked: Iterable[tuple[Any, Any]]) -> dict[str, Any]:
    """Return by path the blocks of transformers for which the user has enabled gradient checkpointing."""
    return {
        spell(path): module
        for path, module in walked
        if getattr(module, "gradient_checkpointing", False)
        and _segment_functions(module)
        and any(cls.__name__ == "GradientCheckpointingLayer" for cls in type(module).__mro__)
    }


@contextlib.contextmanager
def checkpointing(blocks: Iterable[Any]) -> Iterator[None]:
    """Run blocks in evaluation mode as segments in spite of `without_checkpoints`; transformers has them in training alone.

    A block takes the mode of training until it calls the function that makes a segment; inside it evaluates.
    """
    before = [(block, block.training, name, value) for block in blocks for name, value in _segment_functions(block)]
    try:
        for block, _, name, _ in before:
            block.training = True
            setattr(block, name, functools.partial(_run_saving, block))
        yield
    finally:
        for block, training, name, function in before:
            block.training = training
            setattr(block, name, function)


def _segment_functions(block: Any) -> list[tuple[str, Any]]:
    """Return the name and the value of a block's function that runs it as a segment; nothing where none has been set."""
    return [(name, value) for name, value in vars(block).items() if name.endswith("gradient_checkpointing_func")]


def _run_saving(block: Any, function: Any, *args: Any) -> Any:
    """Run a block's function as a segment, without a cache of keys and values, to which a second run would add once more."""
    keywords = {name: _no_cache(name, value) for name, value in function.keywords.items()}

    def evaluate(*args: Any) -> Any:
        block.training = False
        try:
            return function.func(*function.args, *args, **keywords)
        finally:
            block.training = True

    saved, _running.saves = getattr(_running, "saves", False), True
    try:
        arguments = [_no_cache("", value) for value in args]
        return checkpoint.checkpoint(evaluate, *arguments, use_reentrant=False)
    finally:
        _running.saves = saved


def _no_cache(name: str, value: Any) -> Any:
    if name == "use_cache":
        return False
    return None if any(cls.__name__ == "Cache" for cls in type(value).__mro__) else value


def _is_reentrant(apply: Any) -> bool:
    """Return whether it is the function of PyTorch's own class, not of a subclass with other methods."""
    return apply.__self__ is checkpoint.CheckpointFunction


def in_segment() -> bool:
    """Return whether this thread is in a segment that will run again in the backward pass, see `segments_recorded`."""
    return bool(getattr(_running, "segments", ()))


def in_reentrant_segment() -> bool:
    """Return whether the innermost segment is a reentrant one."""
    return in_segment() and _running.segments[-1]


@contextlib.contextmanager
def segments_recorded() -> Iterator[None]:
    """Record which segments this thread is in while the context is open."""
    with _reentrant.by(_run_recorded), _non_reentrant.by(_record_in):
        yield


@contextlib.contextmanager
def _record(*, reentrant: bool) -> Iterator[None]:
    segments = _running.__dict__.setdefault("segments", [])
    segments.append(reentrant)
    try:
        yield
    finally:
        segments.pop()


def _run_recorded(original: Callable[..., Any], *args: Any) -> Any:
    with _record(reentrant=True) if torch.is_grad_enabled() else contextlib.nullcontext():
        return original(*args)


@contextlib.contextmanager
def _record_in(original: Callable[..., Any], *args: Any) -> Iterator[None]:
    with original(*args), _record(reentrant=False):
        yield


def without_reentrance() -> AbstractContextManager[None]:
    """Run reentrant segments as if with use_reentrant=False: the graph inside then exists from the forward pass on."""
    return _reentrant.by(_run_non_reentrant)


def _run_non_reentrant(original: Callable[..., Any], function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
    differentiable = any(isinstance(value, torch.Tensor) and value.requires_grad for value in args)
    if not (_is_reentrant(original) and torch.is_grad_enabled() and differentiable):  # it does not run again
        return original(function, preserve, *args)
    return checkpoint.checkpoint(function, *args, use_reentrant=False, preserve_rng_state=preserve)
