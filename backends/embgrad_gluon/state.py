"""Puts a model and the thread back as they were."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from embgrad.locks import model_lock
from embgrad_gluon.attributes import Attributes
from embgrad_gluon.importing import import_mxnet
from embgrad_gluon.walk import all_blocks, all_parameters

__all__ = ["as_found"]

#: In evaluation mode larger arrays, in numbers, are not copied: they are frozen weights. Averages and counters are smaller.
LARGEST_COPIED = 1 << 12


@contextlib.contextmanager
def as_found(parts: Sequence[Any], *, training: bool) -> Iterator[None]:
    """The parts in the mode asked for, out of any graph that the user is recording; what a run changes comes back after it."""
    autograd, blocks = import_mxnet().autograd, all_blocks(parts)
    with model_lock(blocks), autograd.pause(train_mode=training):  # a block may belong to several models
        # A net that was never called traces itself to learn its shapes, and would keep that trace's number of inputs.
        graphs = [(block, block._cached_graph) for block in blocks if hasattr(block, "_cached_graph")]
        attributes, buffers = Attributes(blocks), _buffers(parts, training)
        try:
            yield
        finally:
            attributes.put_back()
            with autograd.pause():
                for array, value in buffers:
                    value.copyto(array)
            for block, graph in graphs:
                if block._cached_op is None and block._cached_graph is not graph:
                    block._cached_graph = graph


def _buffers(parts: Sequence[Any], training: bool) -> list[tuple[Any, Any]]:
    """The arrays that a model may change itself, those without a gradient, with copies."""
    frozen = [p for p in all_parameters(parts) if p.grad_req == "null"]
    arrays = [array for p in frozen for array in p._data or () if array.stype == "default"]
    return [(array, array.copy()) for array in arrays if training or array.size <= LARGEST_COPIED]
