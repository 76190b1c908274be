"""Points in MXNet Gluon by hand: hooks that mark the blocks' outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from embgrad_gluon import import_mxnet

import embgrad
from tests.benchmarks.points import POOLED, Gradients, Priced, code_of, loaded_bert, texts

mx = import_mxnet()


def bert(layers: int, dim: int) -> Priced:
    net = loaded_bert("gluon", layers, dim)
    cells = net.encoder.transformer_cells
    blocks = {"word": net.word_embed[0], "embeddings": net.encoder.layer_norm}
    blocks |= {"layer.0": cells[0], "layer.-1": cells[len(cells) - 1]}

    def by_hand(batch: embgrad.TokenBatch, points: Sequence[str]) -> Gradients:
        return lambda: _by_mark(net, {point: blocks[point] for point in points}, batch)

    return Priced(net, texts, POOLED, by_hand, code_of(type(net).forward))


MODES = {"Gluon": bert}


def _by_mark(net: Any, blocks: Mapping[str, Any], batch: embgrad.TokenBatch) -> dict[str, np.ndarray]:
    """Return the gradients at blocks' outputs by point, which are in the order in which they are reached.

    A mark cuts the graph: before each further mark the output is kept, from which its gradient is pulled back to the mark before.
    """
    inputs = [mx.nd.array(value, dtype=value.dtype) for value in batch.to_gluonnlp()]
    reached: dict[str, tuple[Any, Any]] = {}

    def hook(point: str) -> Callable[..., None]:
        def at_output(block: Any, arguments: Any, output: Any) -> None:
            array = output[0] if isinstance(output, (list, tuple)) else output
            kept = mx.nd.identity(array) if reached else None
            array.attach_grad()
            reached[point] = array, kept

        return at_output

    handles = [block.register_forward_hook(hook(point)) for point, block in blocks.items()]
    try:
        with mx.autograd.record(train_mode=False):
            head = net(*inputs)[1].sum()
    finally:
        for handle in handles:
            handle.detach()
    pulled, gradient = {}, None
    for point in reversed(blocks):
        marked, kept = reached[point]
        going_on = kept is not None  # what lies on both sides of a mark, as lengths do, is freed with either
        gradient = mx.autograd.grad(head, [marked], head_grads=gradient, retain_graph=going_on, train_mode=False)[0]
        pulled[point], head = gradient, kept
    return {
        point: gradient.asnumpy()
        if point == "word"
        else gradient.asnumpy().swapaxes(0, 1)  # the encoder's positions first
        for point, gradient in pulled.items()
    }
