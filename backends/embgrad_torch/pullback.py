"""Pull cotangents back to what is asked for alone: points, whose hooks receive the gradients, and parameters."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from embgrad.backend.cotangents import Cotangents
from embgrad_torch.inputs import like, to_numpy
from embgrad_torch.lookup import LookupMode
from embgrad_torch.tap import Taps

__all__ = ["Pulled", "counted", "pull_back"]


@dataclass(frozen=True)
class Pulled:
    """The gradients of one set of cotangents.

    Attributes:
        points: by key the gradients as they went on up; None where the graph has no way.
        before: by key those that were edited, as they came.
        parameters: the gradients of the parameters asked for.
    """

    points: Mapping[str, np.ndarray | None]
    before: Mapping[str, np.ndarray | None]
    parameters: Sequence[np.ndarray | None]


def pull_back(
    sets: Sequence[Cotangents],
    taps: Taps,
    parameters: Sequence[Any],
    mode: LookupMode,
    leaves: Callable[[], Iterable[Any]],
    since: int = 0,
) -> list[Pulled]:
    """For each set of cotangents the gradient at each point and parameter.

    Args:
        sets: the sets of cotangents.
        taps: the points, which receive their gradients.
        parameters: the parameters whose gradients are wanted.
        mode: what watched the forward pass; checkpointed segments run again under it.
        leaves: gives every parameter of the model.
        since: a number lower than those of the graph's nodes that the pass made: what is older is the user's, and stays usable.
    """
    marks = list(taps.marks.values())
    walked = mode.suspended_grad or parameters
    graph = _Graph(output for one in sets for output, _ in one) if walked else _Graph(())
    reentering = graph.checkpointed or (graph.own_backward and bool(parameters))
    behind = graph.leaves if reentering else None
    kept = bool(parameters) and graph.oldest < since
    if behind is not None or taps.ending:
        taps.hear()
    pulled = []
    mode.pulling = True
    for number, one in enumerate(sets):
        reaching = [(output, like(cotangent, output)) for output, cotangent in one if output.requires_grad]
        more = kept or number + 1 < len(sets)
        taps.start()
        try:
            if not reaching or not (marks or parameters):
                gradients: Sequence[Any] = [None] * len(parameters)
            elif behind is None:
                with mode:
                    found = _run_engine(reaching, more, (*marks, *parameters), accumulate=False)
                taps.came(found[: len(marks)])
                gradients = found[len(marks) :]
            else:
                with mode:
                    gradients = _accumulate(reaching, marks, parameters, more, [*behind, *leaves()])
        finally:
            taps.stop()
        points = {key: taps.gradients.get(key) for key in taps.marks}
        pulled.append(Pulled(points, taps.before, [None if one is None else to_numpy(one) for one in gradients]))
    return pulled


def _accumulate(
    pairs: Sequence[tuple[Any, Any]], marks: Sequence[Any], parameters: Sequence[Any], more: bool, others: Sequence[Any]
) -> Sequence[Any]:
    """Pull back by way of `grad`, as reentrant checkpointing needs; other leaves' gradients stay as they are."""
    own = {id(leaf) for leaf in (*marks, *parameters)}
    with _aside(parameters, trainable=True), _aside([leaf for leaf in others if id(leaf) not in own], trainable=False):
        _run_engine(pairs, more, (), accumulate=True)
        return [parameter.grad for parameter in parameters]


def _run_engine(pairs: Sequence[tuple[Any, Any]], more: bool, inputs: Any, *, accumulate: bool) -> Any:
    # torch.autograd.grad and backward are functions that the mode is asked about, and they run with the mode off.
    outputs, cotangents = zip(*pairs, strict=True)
    run = torch.autograd.Variable._execution_engine.run_backward
    return run(outputs, cotangents, more, False, inputs, allow_unreachable=True, accumulate_grad=accumulate)


@contextlib.contextmanager
def _aside(leaves: Sequence[Any], *, trainable: bool) -> Iterator[None]:
    """Leaves whose `grad`, and what the user does when it has been accumulated, are out of reach meanwhile.

    Those that are not `trainable` meanwhile accumulate nothing either.
    """
    unique = {id(leaf): leaf for leaf in leaves}.values()
    found = [(leaf, leaf.requires_grad, leaf.grad) for leaf in unique]
    hooks = [(leaf._post_accumulate_grad_hooks, dict(leaf._post_accumulate_grad_hooks or {})) for leaf in unique]
    try:
        for own, kept in hooks:
            if kept:
                own.clear()
        for leaf, before, _ in found:
            leaf.grad = None
            if before and not trainable:
                leaf.requires_grad_(False)
        yield
    finally:
        for leaf, before, gradient in found:
            leaf.requires_grad_(before)
            leaf.grad = gradient
        for own, kept in hooks:
            if kept:
                own.update(kept)


class _Graph:
    """The nodes of a graph that decide how it is pulled back.

    Args:
        outputs: where it begins.

    Attributes:
        leaves: its leaves.
        checkpointed: whether a reentrant checkpoint is part of it.
        own_backward: whether a function with a backward pass of its own is, which gives weights their gradients by way of `grad`
            where it goes backward through what it has computed again.
        oldest: the lowest number of its nodes, which are counted as they are made.
    """

    def __init__(self, outputs: Iterable[Any]) -> None:
        waiting = [output.grad_fn for output in outputs if output.grad_fn is not None]
        seen = set(waiting)
        self.leaves: list[Any] = []
        self.checkpointed = self.own_backward = False
        while waiting:
            node = waiting.pop()
            self.checkpointed = self.checkpointed or type(node).__name__ == "CheckpointFunctionBackward"
            self.own_backward = self.own_backward or isinstance(node, torch.autograd.function.BackwardCFunction)
            if hasattr(node, "variable"):
                self.leaves.append(node.variable)
            for below, _ in node.next_functions:
                if below is not None and below not in seen:
                    seen.add(below)
                    waiting.append(below)
        self.oldest = min((node._sequence_nr() for node in seen), default=0)


def counted() -> int:
    """The number of a node that is made now."""
    number: int = torch.zeros((), device="cpu", requires_grad=True).clone().grad_fn._sequence_nr()
    return number
