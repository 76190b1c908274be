"""Runs hybridised blocks, SymbolBlocks and those to be compiled by kept graphs of embgrad's own, their lookups made before."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from embgrad.drawing import DRAWS, Drawing
from embgrad.escaping import Escaping
from embgrad.generators import generators_kept
from embgrad.structures import first
from embgrad.traces import Traces
from embgrad.watching import PointWatch
from embgrad_gluon.attributes import Attributes, arrays_kept
from embgrad_gluon.cures import Cures
from embgrad_gluon.graph import Body
from embgrad_gluon.importing import import_mxnet
from embgrad_gluon.keptgraph import Kept
from embgrad_gluon.modules import unheard
from embgrad_gluon.opening import opened, same_outputs
from embgrad_gluon.operators import (
    OnSymbolBlock,
    at_cached_graphs,
    at_forward,
    run_open,
    watching,
)
from embgrad_gluon.structure import Structure, structure
from embgrad_gluon.tracing import (
    NO_ARGUMENT,
    OWN,
    UntraceableError,
    leaves,
    traced,
)
from embgrad_gluon.walk import block_names

__all__ = ["Graphs"]

#: What is said of a model of which no part can be a graph.
NO_HYBRID_BLOCK: Final = (
    "the forward pass came by no HybridBlock, and the Python of a plain Block works on arrays alone"
)

#: What is said of a block that is given more than a graph can be.
OTHER_ARGUMENTS: Final = "its arguments are not arrays, or lists of them"


class Graphs:
    """The graphs that run in one forward pass.

    A graph gives what the block's operators give one by one: the lookups are made before it, by the same operators, so that
    they are seen, checked and replaced likewise. What has a block inside that is a point runs its Python, and the blocks in it
    are graphs each: points lie at the borders of blocks.

    Args:
        parts: the model's parts.
        watch: names the blocks that are points.
        compiled: HybridBlocks that are not hybridised run as graphs, too.

    Attributes:
        bodies: by the names of MXNet's recorded graph, what of it is a graph of ours.
        also: arrays whose gradient must be asked for along with those of the points.
        why: why a block that was to be a graph ran operator by operator; None where none did.
        began: whether any graph ran, to the end or not.
        unpulled: the graphs among them whose gradients were never compared with those of their blocks' Python.
    """

    def __init__(self, parts: Sequence[Any], watch: PointWatch, *, compiled: bool) -> None:
        self.bodies: dict[str, Body] = {}
        self.also: list[Any] = []
        self.why: str | None = None
        self.began = False
        self.unpulled: list[Kept] = []
        self._compiled = compiled
        self._open = 0
        self._around: set[int] = set()
        if watch.hears_modules:
            named = {block: path for block, (path, _) in block_names(parts).items()}
            points = {block for block, path in named.items() if path in watch.modules | watch.counted}
            self._around = {id(block) for block in structure(parts).blocks if _has_below(block, points)}
            unknown = (watch.modules | watch.counted) - {named[block] for block in points}
            if unknown:
                self._open = 1
                self.why = (
                    f"the point {min(unknown)!r} is no block of the model's, but inside of a SymbolBlock, or in a list"
                )

    @property
    def uncompiled(self) -> str | None:
        """Why the forward pass was not made by kept graphs; None where it was."""
        return self.why if self.why is not None or self.began else NO_HYBRID_BLOCK

    @contextlib.contextmanager
    def running(self, on_symbol_block: OnSymbolBlock) -> Iterator[None]:
        """While it is open, this thread's blocks run as graphs where they can, and operator by operator elsewhere."""

        def run(_: Any, block: Any, *args: Any) -> Any:
            return self._run(block, args, lambda: opened(block, args, on_symbol_block))

        def forward(original: Callable[..., Any], block: Any, *args: Any) -> Any:
            if block._active or first(args, _is_array) is None:
                return original(block, *args)
            return self._run(block, args, lambda: original(block, *args))

        with at_cached_graphs(run), at_forward(forward) if self._compiled else contextlib.nullcontext():
            yield

    def _run(self, block: Any, args: Sequence[Any], proceed: Callable[[], Any]) -> Any:
        if self._open or id(block) in self._around or not (self._compiled or _is_graph(block)):
            return proceed()
        try:
            returned = self._by_graph(block, args)
        except UntraceableError as reason:
            self.why = self.why or f"{type(block).__name__} {block.name!r} cannot be traced: {reason}"
        else:
            return returned
        self._open += 1
        try:
            return proceed()
        finally:
            self._open -= 1

    def _by_graph(self, block: Any, args: Sequence[Any]) -> Any:
        """What the block gives.

        Raises:
            UntraceableError: it has no graph that gives the same.
        """
        mx = import_mxnet()
        try:
            flat, in_format = mx.gluon.block._flatten(list(args), "input")
        except ValueError:  # a number, a string or a dict, which the Python of a block may take
            raise UntraceableError(OTHER_ARGUMENTS) from None
        inside = structure([block])
        _expect_plain(inside.blocks, flat)
        key = _key(block, inside, in_format)
        kept = _traces.get([block], key, lambda: _made(block, in_format, len(flat)))
        if isinstance(kept, str):
            raise UntraceableError(kept)
        try:
            with next(array.context for array in flat if array is not None):
                if not _is_graph(block):
                    self._expect_agreement(kept, block, args, flat)
                    self.unpulled += [] if kept.pulled else [kept]
                outputs = kept(flat, self)
        except mx.gluon.parameter.DeferredInitializationError:
            raise UntraceableError("its parameters have no values yet") from None
        return mx.gluon.block._regroup(outputs, kept.out_format)

    def _expect_agreement(self, kept: Kept, block: Any, args: Sequence[Any], flat: Sequence[Any]) -> None:
        """Compare what a graph of ours gives and what the block's Python gives.

        To Python a symbol has the length 1 and the one item 0, as an array may have, and no sizes: once for each of the
        arguments' shapes.

        Raises:
            DeferredInitializationError: a parameter has no value yet.
            UntraceableError: they differ, or MXNet fails at one of them, or the Python keeps arrays for whoever reads them.
        """
        shapes = tuple(None if array is None else array.shape for array in flat)
        if kept.apart is None and not kept.compared.get(shapes, False):
            mx = import_mxnet()
            try:
                outputs = kept.outputs(flat)
                kept.apart = self._apart(block, args, outputs, kept.out_format)
            except mx.gluon.parameter.DeferredInitializationError:
                raise
            except mx.MXNetError as error:
                raise UntraceableError(f"its graph failed ({str(error).partition(chr(10))[0]})") from None
            kept.compared.put(shapes, True)
        if kept.apart is not None:
            raise UntraceableError(kept.apart)

    def _apart(self, block: Any, args: Sequence[Any], outputs: Sequence[Any], out_format: Any) -> str | None:
        """What a block's Python does otherwise than its graph; None where nothing is seen of it."""
        blocks = structure([block]).blocks
        attributes, before = Attributes(blocks), arrays_kept(blocks)
        try:
            returned = self._by_python(block, args)
            new = [name for one, (name, _) in arrays_kept(blocks).items() if one not in before]
        finally:
            attributes.put_back()
        if not same_outputs((outputs, out_format), returned):
            return "its Python gives something else on arrays than on symbols"
        return f"its Python keeps an array in the attribute {min(new)!r}, which a graph does not" if new else None

    def _by_python(self, block: Any, args: Sequence[Any]) -> Any:
        """What the block's Python gives, in which blocks that are hybridised run as graphs; nobody watches it."""
        uncompiled = copy.copy(self)
        uncompiled.bodies, uncompiled.also, uncompiled._compiled = {}, [], False
        nobody = uncompiled.running(lambda _block, _args: contextlib.nullcontext())
        self._open += 1
        try:
            with generators_kept(), nobody, watching(Cures(False).handlers()), unheard():
                return run_open(block, args)
        finally:
            self._open -= 1


#: By block its graphs, or why there is none.
_traces: Traces[Kept | str] = Traces()


def _made(block: Any, in_format: Any, count: int) -> Kept | str:
    """The block's graph, or why there is none."""
    places = list(leaves(in_format))
    names = [None if leaf == NO_ARGUMENT else f"{OWN}input{place}" for place, leaf in enumerate(places)]
    if len(names) != count:
        return OTHER_ARGUMENTS
    blocks, symbol = structure([block]).blocks, import_mxnet().sym.Symbol
    attributes = Attributes(blocks)
    escaping = Escaping(blocks, (), (import_mxnet().nd.NDArray, symbol), lambda value: issubclass(type(value), symbol))
    try:
        with Drawing([*attributes.generators, *escaping.generators]) as drawing:
            made = traced(block, names, in_format)
        return DRAWS if drawing.seen and not _is_graph(block) else Kept(block, made, names)
    except UntraceableError as reason:
        return str(reason)
    except Exception as error:  # its Python is run on symbols, of which it may expect anything
        said = str(error).strip().partition("\n")[0]
        return f"its Python does not run on symbols ({type(error).__name__}: {said})"
    finally:
        attributes.put_back()
        escaping.put_back()


def _key(block: Any, inside: Structure, in_format: Any) -> Hashable:
    """Everything that a block's graph depends on, beside the shapes and values that it takes."""
    graph = block._cached_graph[1] if _is_graph(block) else None
    recording = import_mxnet().autograd.is_recording()
    held, dtypes = inside.identity()  # `cast` tells the blocks, whose Python may go by it
    return _Same(held), dtypes, repr(in_format), _Same(graph), recording


@dataclass(frozen=True, eq=False)
class _Same:
    """Stands for an object, and is equal where that is the same."""

    held: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.held is self.held

    def __hash__(self) -> int:
        return id(self.held)


def _is_graph(block: Any) -> bool:
    """Whether it runs as a graph of its own: a SymbolBlock, or one that was hybridised and has run since."""
    return isinstance(block, import_mxnet().gluon.SymbolBlock) or (block._active and block._cached_op is not None)


def _expect_plain(inside: Sequence[Any], flat: Sequence[Any]) -> None:
    """Refuse a call that a graph would not make as the block's Python does."""
    mx = import_mxnet()
    if any(one._forward_hooks or one._forward_pre_hooks for one in inside[1:]):
        raise UntraceableError("a block inside of it has a hook, which a graph does not call")
    if any(getattr(one, "_callback", None) is not None for one in inside):
        raise UntraceableError("it has a hook on its operators")
    if mx.autograd.is_training():
        raise UntraceableError("it runs under autograd.train_mode()")
    arrays = [array for array in flat if array is not None]
    if any(isinstance(array, mx.np.ndarray) for array in arrays):
        raise UntraceableError("its arrays are those of mx.np")
    if any(array.stype != "default" for array in arrays) or len({array.context for array in arrays}) != 1:
        raise UntraceableError("its arguments are sparse, or not all in one place")


def _has_below(block: Any, points: set[int]) -> bool:
    return any(id(child) in points or _has_below(child, points) for child in block._children.values())


def _is_array(value: object) -> bool:
    return isinstance(value, import_mxnet().nd.NDArray)
