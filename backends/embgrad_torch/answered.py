"""Asks the objective about what a model returned, and says in which dtype that was computed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from embgrad.answering import Answer, answer, native_answer
from embgrad.backend import NativeObjective, Request
from embgrad.batch import TokenBatch
from embgrad.structures import first
from embgrad_torch.inputs import TorchTensors
from embgrad_torch.tap import Taps, is_floating

__all__ = ["answered_by", "dtype_of", "leaves"]


def answered_by(returned: Any, batch: TokenBatch, request: Request) -> Answer:
    """The objective's answer to what the model returned."""
    if isinstance(request.respond, NativeObjective):
        value = request.respond.function(returned)
        return native_answer(value, request.respond, batch, TorchTensors(), several=request.several)
    return answer(returned, request, TorchTensors())


def dtype_of(request: Request, taps: Taps, chosen: Any, answered: Answer, returned: Any, parts: Sequence[Any]) -> str:
    """The dtype of the first point, or else of the first output that was read, or else of the first parameter."""

    def tensors() -> Iterator[Any]:
        yield from (taps.marks[chosen[name]] for name in request.points)
        yield from (output for one in answered.sets for output, _ in one)
        yield first(returned, is_floating)
        yield from leaves(parts)

    return str(next(one for one in tensors() if one is not None).dtype).removeprefix("torch.")


def leaves(parts: Sequence[Any]) -> Iterator[Any]:
    """The parameters of all parts."""
    for part in parts:
        yield from part.parameters()
