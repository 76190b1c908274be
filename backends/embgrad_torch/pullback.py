"""Pull cotangents back to the requested points and parameters, and to nothing else."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from embgrad.backend import Cotangents, Pullback
from embgrad_torch.inputs import like, to_numpy
from embgrad_torch.lookup import LookupMode
from embgrad_torch.tap import Taps

__all__ = ["next_sequence_number", "pull_back"]


def pull_back(
    cotangents: Cotangents,
    taps: Taps,
    parameters: Mapping[str, Any],
    mode: LookupMode,
    leaves: Callable[[], Iterable[Any]],
    *,
    repeats: bool,
    since: int = 0,
) -> Pullback:
    """Return the gradient of one set of cotangents at each point and parameter.

    Args:
        cotangents: the set of cotangents.
        taps: the points, which receive their gradients.
        parameters: the parameters whose gradients are requested, by name.
        mode: the mode of the forward pass; what functions of the model run again runs under it.
        leaves: returns every parameter of the model.
        repeats: whether there may be another pullback through the same graph.
        since: a sequence number: older nodes of the graph are the user's, and stay usable.
    """
    marks, weights = list(taps.marks.values()), list(parameters.values())
    graph = _Graph([output for output, _ in cotangents] if mode.suspended_grad or weights else ())
    accumulates = graph.recomputed or (graph.custom_backward and bool(weights))
    pairs = [(output, like(cotangent, output)) for output, cotangent in cotangents if output.requires_grad]
    retain = repeats or (bool(weights) and graph.oldest < since)
    gradients: Sequence[Any] = [None] * len(weights)
    mode.pulling = True
    taps.start()
    try:
        if pairs and (marks or weights):
            with mode:
                if accumulates:
                    gradients = _accumulate(pairs, marks, weights, retain, [*graph.leaves, *leaves()])
                else:
                    returned = _run_engine(pairs, retain, (*marks, *weights), accumulate=False)
                    gradients = returned[len(marks) :]
    finally:
        taps.stop()
    arrays = {
        name: None if gradient is None else to_numpy(gradient)
        for name, gradient in zip(parameters, gradients, strict=True)
    }
    return Pullback({key: taps.gradients.get(key) for key in taps.marks}, taps.before, arrays)


def _accumulate(
    pairs: Sequence[tuple[Any, Any]],
    marks: Sequence[Any],
    parameters: Sequence[Any],
    retain: bool,
    others: Sequence[Any],
) -> Sequence[Any]:
    """Pull back by accumulating in `grad`; the gradients of other leaves do not change."""
    requested = {id(leaf) for leaf in (*marks, *parameters)}
    rest = [leaf for leaf in others if id(leaf) not in requested]
    with _set_aside(parameters, trainable=True), _set_aside(rest, trainable=False):
        _run_engine(pairs, retain, (), accumulate=True)
        return [parameter.grad for parameter in parameters]


def _run_engine(pairs: Sequence[tuple[Any, Any]], retain: bool, inputs: Any, *, accumulate: bool) -> Any:
    # torch.autograd.grad and backward are torch functions, during which the mode would be switched off.
    outputs, cotangents = zip(*pairs, strict=True)
    run = torch.autograd.Variable._execution_engine.run_backward
    return run(outputs, cotangents, retain, False, inputs, allow_unreachable=True, accumulate_grad=accumulate)


@contextlib.contextmanager
def _set_aside(leaves: Sequence[Any], *, trainable: bool) -> Iterator[None]:
    """Remove the leaves' `grad` and post-accumulate hooks while the context is open; freeze leaves unless `trainable`."""
    unique = {id(leaf): leaf for leaf in leaves}.values()
    states = [(leaf, leaf.requires_grad, leaf.grad) for leaf in unique]
    hooks = [(leaf._post_accumulate_grad_hooks, dict(leaf._post_accumulate_grad_hooks or {})) for leaf in unique]
    try:
        for registered, before in hooks:
            if before:
                registered.clear()
        for leaf, required, _ in states:
            leaf.grad = None
            if required and not trainable:
                leaf.requires_grad_(False)
        yield
    finally:
        for leaf, required, gradient in states:
            leaf.requires_grad_(required)
            leaf.grad = gradient
        for registered, before in hooks:
            if before:
                registered.update(before)


class _Graph:
    """The properties of a graph that decide how it is pulled back.

    Attributes:
        recomputed: whether it contains a function that runs a part of the model again and pulls back through it by itself,
            such as the gradient checkpoints of other libraries, which allow only plain backward passes.
        custom_backward: whether it contains a custom autograd function, whose backward pass may accumulate gradients of
            weights in `grad` by a backward pass of its own.
        oldest: the lowest sequence number of its nodes.
    """

    def __init__(self, outputs: Iterable[Any]) -> None:
        waiting = [output.grad_fn for output in outputs if output.grad_fn is not None]
        reached = set(waiting)
        self.leaves: list[Any] = []
        self.recomputed = self.custom_backward = False
        while waiting:
            node = waiting.pop()
            named = type(node).__name__ == "CheckpointFunctionBackward"  # as PyTorch's own, and its attribute
            self.recomputed = self.recomputed or named or hasattr(node, "run_function")
            self.custom_backward = self.custom_backward or isinstance(node, torch.autograd.function.BackwardCFunction)
            if hasattr(node, "variable"):
                self.leaves.append(node.variable)
            for below, _ in node.next_functions:
                if below is not None and below not in reached:
                    reached.add(below)
                    waiting.append(below)
        self.oldest = min((node._sequence_nr() for node in reached), default=0)


def next_sequence_number() -> int:
    """Return the sequence number of a node that is made now."""
    number: int = torch.zeros((), device="cpu", requires_grad=True).clone().grad_fn._sequence_nr()
    return number
