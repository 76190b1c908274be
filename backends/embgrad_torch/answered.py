"""Asks the objective about what a model returned, and says in which dtype that was computed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from embgrad.answering import Answer, answer, native_answer
from embgrad.backend import NativeObjective, Request
from embgrad.batch import TokenBatch
from embgrad.structures import first
from embgrad.tolerance import coarsest
from embgrad_torch.inputs import TorchTensors, dtype_name
from embgrad_torch.tap import Taps, is_floating

__all__ = ["answered_by", "computed_in", "dtype_of", "leaves"]


def answered_by(returned: Any, batch: TokenBatch, request: Request) -> Answer:
    """The objective's answer to what the model returned."""
    if isinstance(request.respond, NativeObjective):
        value = request.respond.function(returned)
        return native_answer(value, request.respond, batch, TorchTensors(), several=request.several)
    return answer(returned, request, TorchTensors())


def dtype_of(request: Request, taps: Taps, chosen: Any, answered: Answer, returned: Any, parts: Sequence[Any]) -> str:
    """The coarsest of those of the points, of the outputs that were read and of autocast; else of an output or a parameter."""
    met = [taps.marks[chosen[name]] for name in request.points]
    met += [output for one in answered.sets for output, _ in one]
    if not met:
        met.append(next(one for one in (first(returned, is_floating), *leaves(parts)) if one is not None))
    return computed_in(met)


def computed_in(tensors: Sequence[Any]) -> str:
    """The coarsest dtype of some tensors and of autocast, if that is on where they are."""
    dtypes = {one.dtype for one in tensors}
    if torch._C._is_any_autocast_enabled():
        dtypes |= {torch.get_autocast_dtype(kind) for kind in {one.device.type for one in tensors} if _casts(kind)}
    return coarsest(dtype_name(one) for one in dtypes)


def _casts(kind: str) -> bool:
    """Whether the user has automatic casts on, for this kind of device."""
    return kind in ("cpu", "cuda") and torch.is_autocast_enabled(kind)


def leaves(parts: Sequence[Any]) -> Iterator[Any]:
    """The parameters of all parts."""
    for part in parts:
        yield from part.parameters()
