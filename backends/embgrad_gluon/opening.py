"""Runs hybridised blocks operator by operator, where their Python gives what their graphs give."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

import numpy as np

from embgrad.errors import UnsupportedError
from embgrad.generators import generators_kept
from embgrad.structures import PLAIN
from embgrad_gluon.attributes import Attributes
from embgrad_gluon.graph import DRAWING
from embgrad_gluon.importing import import_mxnet
from embgrad_gluon.modules import unheard
from embgrad_gluon.operators import OnSymbolBlock, at_cached_graphs, at_scopes, run_open, unwatched
from embgrad_gluon.walk import all_blocks

__all__ = ["expect_agreement", "imperatively", "opened"]

#: How far a graph may be from its Python, relative to its largest number: rounding, in another order of operations.
APART: Final = {"float16": 5e-2, "float32": 1e-3, "float64": 1e-8}

#: What holds state, or draws, so that two runs of it need not give the same.
UNTOLD: Final = frozenset({*DRAWING, "Custom"} - {"Dropout"})

_told: WeakKeyDictionary[Any, tuple[Any, Hashable]] = WeakKeyDictionary()
_depth = threading.local()


@contextlib.contextmanager
def imperatively(on_symbol_block: OnSymbolBlock = lambda _block, _args: contextlib.nullcontext()) -> Iterator[None]:
    """Hybridised blocks and SymbolBlocks run operator by operator in this thread; their cached graphs stay as they are.

    Args:
        on_symbol_block: is open while a SymbolBlock runs.
    """
    with at_cached_graphs(lambda _original, block, *args: opened(block, args, on_symbol_block)):
        yield


def opened(block: Any, args: Sequence[Any], on_symbol_block: OnSymbolBlock) -> Any:
    """What a hybridised block or a SymbolBlock gives, run operator by operator.

    Raises:
        UnsupportedError: the block's Python no longer gives what the graph gives that the block runs.
    """
    if not getattr(_depth, "inside", 0):
        expect_agreement(block, args)
    _depth.inside = getattr(_depth, "inside", 0) + 1
    try:
        return run_open(block, args, on_symbol_block)
    finally:
        _depth.inside -= 1


def expect_agreement(block: Any, args: Sequence[Any]) -> None:
    """Compare what a block's Python gives and what its graph gives: once for each graph and setting of the blocks' attributes.

    Raises:
        UnsupportedError: they differ.
    """
    if isinstance(block, import_mxnet().gluon.SymbolBlock) or block._cached_op is None:
        return
    blocks = all_blocks([block])
    now = (block._cached_op, tuple(_settings(one) for one in blocks))
    before = _told.get(block)
    if before is not None and before[0] is now[0] and before[1] == now[1]:
        return
    graph = block._cached_graph[1]
    # A graph that was made for other arguments, such as for lengths beside the ids, tells nothing of a call without them.
    _, structure_of_args = import_mxnet().gluon.block._flatten(list(args), "input")
    if structure_of_args != block._in_format:
        return
    if not _may_differ(graph):
        attributes = Attributes(blocks)
        try:
            with generators_kept(), import_mxnet().autograd.pause(train_mode=False), unwatched(), unheard():
                _compare(block, _by_graph(block, graph, args), _by_python(block, args))
        finally:
            attributes.put_back()
    _told[block] = now


def _compare(block: Any, graph: Sequence[Any], python: Sequence[Any]) -> None:
    if not _same(graph, python):
        raise UnsupportedError(
            f"{type(block).__name__} {block.name!r} is hybridised, and its graph does not give what its Python gives, by "
            "which embgrad reads points, parameters and training passes: something that the Python goes by has "
            "changed since the graph was made, or it goes another way for F=mx.nd. Expected both to compute the same: call "
            "hybridize() again, which makes the graph anew"
        )


def _same(graph: Sequence[Any], python: Sequence[Any]) -> bool:
    return len(graph) == len(python) and all(map(_same_array, graph, python))


def _same_array(graph: Any, python: Any) -> bool:
    a, b = (one.astype(np.result_type(one, np.float32), copy=False) for one in (python.asnumpy(), graph.asnumpy()))
    largest = float(np.abs(b[np.isfinite(b)]).max(initial=0.0))
    allowed = APART.get(np.dtype(graph.dtype).name, 0.0) * largest
    return a.shape == b.shape and np.allclose(a, b, rtol=0, atol=allowed, equal_nan=True)


def _by_graph(block: Any, graph: Any, args: Sequence[Any]) -> list[Any]:
    """What the graph gives, run beside the block's own, whose memory may be in use."""
    mx = import_mxnet()
    given = [one for one in mx.gluon.block._flatten(list(args), "input")[0] if one is not None]
    inputs = [given[one] if is_input else one.data() for is_input, one in block._cached_op_args]
    found = mx.nd.CachedOp(graph, [])(*inputs)
    return list(found) if isinstance(found, (list, tuple)) else [found]


def _by_python(block: Any, args: Sequence[Any]) -> list[Any]:
    symbolic = import_mxnet().gluon.SymbolBlock

    def inner(original: Callable[..., Any], one: Any, *given: Any) -> Any:
        return original(one, *given) if isinstance(one, symbolic) else run_open(one, given)

    def refuse(*_: Any) -> Any:
        raise UnsupportedError(
            f"{type(block).__name__} {block.name!r} is hybridised, and its Python, by which embgrad reads points, parameters and "
            "training passes, enters autograd.pause() or another scope of mxnet.autograd, of which its graph knows nothing: "
            "expected F.stop_gradient in its place, and hybridize() again, which makes the graph anew"
        )

    with at_cached_graphs(inner), at_scopes(refuse):
        returned = run_open(block, args)
    return list(import_mxnet().gluon.block._flatten(returned, "output")[0])


def _may_differ(graph: Any) -> bool:
    """Whether two runs of a graph may give different numbers."""
    nodes = json.loads(graph.tojson())["nodes"]
    return any(
        node["op"] in UNTOLD or (node["op"] == "Dropout" and (node.get("attrs") or {}).get("mode") == "always")
        for node in nodes
    )


def _settings(block: Any) -> Hashable:
    """What a block is, its parameters, and its plain attributes, by which its Python may go."""
    held = (id(block), *map(id, block._reg_params.values()))
    return held + tuple(
        (name, value if isinstance(value, PLAIN) else repr(value))
        for name, value in vars(block).items()
        if _is_plain(value)
    )


def _is_plain(value: Any) -> bool:
    if isinstance(value, PLAIN):
        return True
    held = value.values() if type(value) is dict else value if type(value) in (list, tuple) else None
    return held is not None and all(isinstance(one, PLAIN) for one in held)
