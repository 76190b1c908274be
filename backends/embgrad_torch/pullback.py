"""Pull cotangents back to the lookups alone, and to no weight with them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from embgrad.answering import Cotangents
from embgrad_torch.inputs import to_numpy
from embgrad_torch.lookup import LookupMode

__all__ = ["pull_back"]


def pull_back(
    sets: Sequence[Cotangents], marks: Sequence[Any], mode: LookupMode, parts: Sequence[Any]
) -> list[list[np.ndarray | None]]:
    """For each set of cotangents the gradient at each mark; None where the graph has no way to it.

    Args:
        sets: the sets of cotangents.
        marks: the tensors with respect to which gradients are taken.
        mode: what watched the forward pass; checkpointed segments run again under it.
        parts: the model's modules.
    """
    leaves = _leaves_behind_checkpoints(output for one in sets for output, _ in one) if mode.suspended_grad else None
    pulled: list[list[np.ndarray | None]] = []
    mode.pulling = True
    with mode:
        for number, one in enumerate(sets):
            reaching = [(output, _like(output, cotangent)) for output, cotangent in one if output.requires_grad]
            more = number + 1 < len(sets)
            if not reaching:
                gradients: Sequence[Any] = [None] * len(marks)
            elif leaves is None:
                gradients = _differentiate(reaching, marks, more)
            else:
                parameters = [parameter for part in parts for parameter in part.parameters()]
                gradients = _accumulate(reaching, marks, more, [*leaves, *parameters])
            pulled.append([None if gradient is None else to_numpy(gradient) for gradient in gradients])
    return pulled


def _like(output: Any, cotangent: np.ndarray) -> Any:
    return torch.tensor(cotangent, dtype=output.dtype, device=output.device)


def _differentiate(pairs: Sequence[tuple[Any, Any]], marks: Sequence[Any], more: bool) -> Sequence[Any]:
    outputs, cotangents = zip(*pairs, strict=True)
    return tuple(_run_engine(outputs, cotangents, more, tuple(marks), accumulate=False))


def _accumulate(
    pairs: Sequence[tuple[Any, Any]], marks: Sequence[Any], more: bool, others: Sequence[Any]
) -> Sequence[Any]:
    """The same by way of `grad`, which reentrant checkpointing insists on; the other leaves neither get nor lose theirs."""
    outputs, cotangents = zip(*pairs, strict=True)
    for mark in marks:
        mark.grad = None
        mark.retain_grad()
    own = {id(mark) for mark in marks}
    with _aside([leaf for leaf in others if id(leaf) not in own]):
        _run_engine(outputs, cotangents, more, (), accumulate=True)
    return [mark.grad for mark in marks]


def _run_engine(outputs: Any, cotangents: Any, more: bool, marks: Any, *, accumulate: bool) -> Any:
    # torch.autograd.grad and backward are functions that the mode is asked about, and they run with the mode off.
    run = torch.autograd.Variable._execution_engine.run_backward
    return run(outputs, cotangents, more, False, marks, allow_unreachable=True, accumulate_grad=accumulate)


@contextlib.contextmanager
def _aside(leaves: Sequence[Any]) -> Iterator[None]:
    """Leaves that accumulate nothing meanwhile, and whose `grad` is out of reach."""
    found = [(leaf, leaf.requires_grad, leaf.grad) for leaf in {id(leaf): leaf for leaf in leaves}.values()]
    try:
        for leaf, trainable, _ in found:
            leaf.grad = None
            if trainable:
                leaf.requires_grad_(False)
        yield
    finally:
        for leaf, trainable, gradient in found:
            leaf.requires_grad_(trainable)
            leaf.grad = gradient


def _leaves_behind_checkpoints(outputs: Iterable[Any]) -> list[Any] | None:
    """The graph's leaves, where a reentrant checkpoint is part of it; else None."""
    waiting = [output.grad_fn for output in outputs if output.grad_fn is not None]
    seen = set(waiting)
    leaves, checkpointed = [], False
    while waiting:
        node = waiting.pop()
        checkpointed = checkpointed or type(node).__name__ == "CheckpointFunctionBackward"
        if hasattr(node, "variable"):
            leaves.append(node.variable)
        for below, _ in node.next_functions:
            if below is not None and below not in seen:
                seen.add(below)
                waiting.append(below)
    return leaves if checkpointed else None
