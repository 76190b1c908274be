"""Traces a block with symbols: its lookups cut out, and its operators kept from giving a wrong gradient without a word."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from embgrad.interception import Interception
from embgrad_gluon.cures import SELU_ALPHA, SELU_SCALE, WRONG
from embgrad_gluon.graph import DRAWING
from embgrad_gluon.importing import import_mxnet
from embgrad_gluon.modules import at_calls
from embgrad_gluon.operators import address, at_scopes
from embgrad_gluon.symbolic import VARIABLE, graph_of, input_names, literal

__all__ = [
    "NO_ARGUMENT",
    "OWN",
    "LookedUp",
    "Traced",
    "UntraceableError",
    "blocks_below",
    "leaves",
    "parameters_below",
    "traced",
]

# Every generated function of mx.sym, and every operator between symbols, ends in this global of `mxnet.symbol.register`.
_create = Interception(lambda: import_mxnet().symbol.register, "_symbol_creator")

#: What a variable's name begins with that stands for none of the block's parameters.
OWN: Final = "embgrad "

#: How Gluon describes an argument that is None.
NO_ARGUMENT: Final = -1

LOOKUPS: Final = ("Embedding", "_contrib_SparseEmbedding", "take", "gather_nd")
NORMS: Final = ("BatchNorm", "_contrib_SyncBatchNorm")

#: What runs operator by operator: it draws, computes by Python, holds a graph of its own, is cured by values alone, or gives
#: a gradient of its own even where none comes to it, as in a graph none comes to an output that nobody reads. And hard_sigmoid,
#: through which a graph passes a gradient unchanged where that goes elsewhere, too.
NOT_IN_GRAPHS: Final = frozenset(
    (
        *WRONG,
        *(name for name in DRAWING if name not in ("Dropout", "RNN")),
        *("Custom", "_cond", "_contrib_BatchNormWithReLU", "_foreach", "_while_loop", "hard_sigmoid"),
    )
)


class UntraceableError(Exception):
    """Why a block runs operator by operator, as a part of a sentence."""


@dataclass(frozen=True)
class LookedUp:
    """A lookup that was cut out of a graph.

    Attributes:
        name: the operator's.
        attributes: with which it is called.
        table: the name of the parameter.
        indices: what computes them.
        rows: the name of the variable that stands for what it gives.
    """

    name: str
    attributes: Mapping[str, str]
    table: str
    indices: Any
    rows: str


@dataclass
class Traced:
    """A block as a graph of symbols.

    Attributes:
        outputs: what it returns, flat.
        out_format: how Gluon puts that together.
        lookups: in the order in which they are made.
        zeros: the names of variables that stand for a zero whose gradient must be asked for, with its number of axes.
        pooled: it pools, which must run as in training; nothing else in it goes by the mode.
    """

    outputs: list[Any] = field(default_factory=list)
    out_format: Any = None
    lookups: list[LookedUp] = field(default_factory=list)
    zeros: dict[str, int] = field(default_factory=dict)
    pooled: bool = False


def blocks_below(block: Any) -> Iterator[Any]:
    """The block and those inside it, once for each way to them."""
    yield block
    for child in block._children.values():
        yield from blocks_below(child)


def parameters_below(block: Any) -> dict[str, Any]:
    """By the name of its variable each parameter that the block's graph may use."""
    found = dict(block.collect_params().items())
    for one in blocks_below(block):
        # Another backend of MXNet's may have added some of its own to a SymbolBlock's graph.
        if isinstance(one, import_mxnet().gluon.SymbolBlock):
            found |= {entry.name: entry for is_input, entry in one._cached_op_args if not is_input}
    return found


def traced(block: Any, names: Sequence[str | None], in_format: Any) -> Traced:
    """The graph of a block.

    Args:
        block: a HybridBlock, or a SymbolBlock.
        names: the names of the variables that stand for its arguments, flat; None for an argument that is None.
        in_format: how Gluon puts them together.

    Raises:
        UntraceableError: it has none that gives what its operators give one by one.
    """
    trace = _Trace(block)
    _expect_own(block)
    # The graph that a hybridised block runs knows of no scopes either.
    scopes = contextlib.nullcontext() if _has_graph(block) else at_scopes(_refuse_scope)
    with trace.creating(), scopes:
        returned = _called(block, names, in_format, trace.replayed)
    flat, trace.traced.out_format = import_mxnet().gluon.block._flatten(returned, "output")
    trace.traced.outputs = [_as_node(output) for output in flat]
    _expect_cured(trace.traced)
    return trace.traced


def _called(block: Any, names: Sequence[str | None], in_format: Any, replayed: Callable[..., Any]) -> Any:
    """What the block gives for symbols."""
    mx = import_mxnet()
    flat = [None if name is None else mx.sym.var(name) for name in names]
    args = mx.gluon.block._regroup(flat, in_format)
    args = args if isinstance(args, list) else [args]
    known = [(parameter, parameter._var) for parameter in block.collect_params().values()]

    def call(original: Any, inner: Any, *given: Any) -> Any:
        return replayed(inner, given) if isinstance(inner, mx.gluon.SymbolBlock) else original(inner, *given)

    try:
        with mx.name.NameManager(), at_calls(call):  # the user's own names go on where they were
            if isinstance(block, mx.gluon.SymbolBlock):
                return replayed(block, args)
            own = {name: parameter.var() for name, parameter in block._reg_params.items()}
            with block.name_scope():
                return block.hybrid_forward(mx.symbol, *args, **own)
    finally:
        for parameter, variable in known:
            parameter._var = variable


def _expect_own(block: Any) -> None:
    """Refuse a net that was hybridised and whose Python no longer makes the graph that it runs."""
    mx = import_mxnet()
    if isinstance(block, mx.gluon.SymbolBlock) or not _has_graph(block):
        return
    inputs, own = block._cached_graph
    names = iter([symbol.name for symbol in inputs])
    flat = [None if leaf == NO_ARGUMENT else next(names) for leaf in leaves(block._in_format)]
    made = _called(block, flat, block._in_format, lambda inner, given: inner.forward(*given))
    if _form(mx.sym.Group(mx.gluon.block._flatten(made, "output")[0])) != _form(own):
        raise UntraceableError(
            "its Python no longer makes the graph that it was hybridised to, or that was optimised since"
        )


def _has_graph(block: Any) -> bool:
    """Whether it runs as a graph of its own."""
    return isinstance(block, import_mxnet().gluon.SymbolBlock) or block._cached_op is not None


def _refuse_scope(*_: Any) -> Any:
    raise UntraceableError(
        "its Python enters autograd.pause() or another scope of mxnet.autograd, which a graph does not"
    )


def leaves(in_format: Any) -> Iterator[int]:
    """Gluon's description of arguments, flat."""
    for one in in_format if isinstance(in_format, (list, tuple)) else (in_format,):
        yield from leaves(one) if isinstance(one, (list, tuple)) else (one,)


def _form(symbol: Any) -> Any:
    """What two symbols that compute the same have in common; operators' names do not count."""
    graph = json.loads(symbol.tojson())
    nodes = [
        (
            node["op"],
            node["name"] if node["op"] == VARIABLE else "",
            {} if node["op"] == VARIABLE else node.get("attrs"),
            [entry[:2] for entry in node["inputs"]],  # the third counts how often a state was used before
        )
        for node in graph["nodes"]
    ]
    return nodes, graph["heads"]


class _Trace:
    """One trace that is being made."""

    def __init__(self, block: Any) -> None:
        self.traced = Traced()
        self._parameters = parameters_below(block)
        for name, parameter in self._parameters.items():
            if parameter._stype != "default":
                raise UntraceableError(f"its parameter {name!r} is sparse")
        handlers: dict[str, Callable[..., Any]] = {
            **dict.fromkeys(NOT_IN_GRAPHS, self._refuse),
            **dict.fromkeys(LOOKUPS, self._look_up),
            **dict.fromkeys(NORMS, self._normalise),
            "Dropout": self._drop_out,
            "LeakyReLU": self._leaky,
            "Pooling": self._pool,
            "RNN": self._recur,
            "max": self._extreme,
            "min": self._extreme,
        }
        self._handlers = {address(name): (name, handler) for name, handler in handlers.items()}

    @contextlib.contextmanager
    def creating(self) -> Iterator[None]:
        """This thread's symbols are created by way of the trace."""

        def handle(
            original: Any, handle: int, args: Any, kwargs: Any, keys: Any, values: Any, name: Any, *kind: Any
        ) -> Any:
            known = self._handlers.get(handle)
            attributes = dict(zip(keys, map(str, values), strict=True))

            def make(inputs: Sequence[Any] | None = None, **changed: str) -> Any:
                now = {**attributes, **changed}
                given = (args, kwargs) if inputs is None else (list(inputs), {})
                return original(handle, *given, list(now), list(now.values()), name, *kind)

            return make() if known is None else known[1](known[0], attributes, make)

        with _create.by(handle):
            yield

    def replayed(self, block: Any, args: Sequence[Any]) -> Any:
        """What a SymbolBlock gives for symbols: its graph's operators are created anew, one by one."""
        mx = import_mxnet()
        graph = graph_of(block)
        if graph.as_numpy:
            raise UntraceableError("its arrays are those of mx.np")
        flat, structure = mx.gluon.block._flatten(list(args), "input")
        if structure != block._in_format:
            raise UntraceableError("it was called with other arguments than it has inputs")
        given = dict(zip(input_names(block), flat, strict=True))
        values: list[Any] = []
        for node in graph.nodes:
            if node.op == VARIABLE:
                values.append(given[node.name] if node.name in given else mx.sym.var(node.name))
                continue
            inputs = [values[source][place] for source, place in node.inputs]
            keys, texts = list(node.attributes), list(map(str, node.attributes.values()))
            made = mx.symbol.register._symbol_creator(
                address(node.op), inputs, {}, keys, texts, node.name, mx.base._is_np_op(node.op), False
            )
            values.append(made)
        return mx.gluon.block._regroup([values[node][place] for node, place in graph.heads], block._out_format)

    def _refuse(self, name: str, attributes: Mapping[str, str], make: Callable[..., Any]) -> Any:
        raise UntraceableError(f"it has the operator {name!r}, which runs by itself")

    def _look_up(self, name: str, attributes: Mapping[str, str], make: Callable[..., Any]) -> Any:
        """A lookup is left out: it is made before the graph runs, so that its indices are seen and its rows may be replaced."""
        if name == "take" and int(attributes.get("axis", "0")) not in (0, -2):
            return make()
        node = make()
        inputs = _inputs(node)
        table, indices = reversed(inputs) if "Embedding" in name else inputs
        variable = _variable(table)
        if variable not in self._parameters:
            raise UntraceableError(
                f"it has the operator {name!r} on what it computed, whose indices tell whether it is a lookup"
            )
        if self.traced.zeros.keys() & set(indices.list_inputs()):
            raise UntraceableError("what it looks up depends on what a recurrent layer gave")
        rows = f"{OWN}rows{len(self.traced.lookups)}"
        self.traced.lookups.append(LookedUp(name, dict(attributes), variable, indices, rows))
        return import_mxnet().sym.var(rows)

    def _normalise(self, name: str, attributes: Mapping[str, str], make: Callable[..., Any]) -> Any:
        """Batch norm goes by the mode of the pullback, too: its averages are asked for by name."""
        return make(use_global_stats="True")

    def _drop_out(self, name: str, attributes: Mapping[str, str], make: Callable[..., Any]) -> Any:
        if attributes.get("mode", "training") != "training":
            raise UntraceableError("it drops out in evaluation mode, too")
        return _inputs(make())[0]

    def _leaky(self, name: str, attributes: Mapping[str, str], make: Callable[..., Any]) -> Any:
        """As in `Cures`: SELU by ELU, randomised leaky ReLU by its mean."""
        kind = attributes.get("act_type", "leaky")
        if kind == "selu":
            return make(act_type="elu", slope=repr(SELU_ALPHA)) * SELU_SCALE
        if kind != "rrelu":
            return make()
        low, high = (float(attributes.get(f"{side}_bound", default)) for side, default in BOUNDS.items())
        return make(act_type="leaky", slope=repr((low + high) / 2))

    def _pool(self, name: str, attributes: Mapping[str, str], make: Callable[..., Any]) -> Any:
        """Max pooling that was recorded in evaluation mode has no record of where the maxima were."""
        self.traced.pooled = True
        return make()

    def _extreme(self, name: str, attributes: Mapping[str, str], make: Callable[..., Any]) -> Any:
        """As in `rewriting`, along one axis: of several numbers that are equal and largest, the first gets the gradient."""
        mx, axis = import_mxnet(), literal(attributes.get("axis", "None"))
        axis = axis[0] if isinstance(axis, (tuple, list)) and len(axis) == 1 else axis
        if not isinstance(axis, int) or attributes.get("exclude", "False") in ("True", "1"):
            raise UntraceableError(f"it has the operator {name!r} over several axes, which runs by itself")
        value, (array,) = mx.sym.BlockGrad(make()), _inputs(make())
        places = mx.sym.argmax(array, axis=axis) if name == "max" else mx.sym.argmin(array, axis=axis)
        picked = mx.sym.pick(array, places, axis=axis, keepdims=attributes.get("keepdims", "False") in ("True", "1"))
        return mx.sym.where(picked == value, picked, value)

    def _recur(self, name: str, attributes: Mapping[str, str], make: Callable[..., Any]) -> Any:
        """As in `Cures`: no dropout, and zeros whose gradients are asked for along with the others."""
        data, parameters, *states = _inputs(make())
        data = self._with_zero(data, 3)
        if attributes.get("mode") != "lstm":
            parameters = self._with_zero(parameters, 1)
        return make([data, parameters, *states], p="0.0")

    def _with_zero(self, symbol: Any, axes: int) -> Any:
        name = f"{OWN}zero{len(self.traced.zeros)}"
        self.traced.zeros[name] = axes
        return import_mxnet().sym.broadcast_add(symbol, import_mxnet().sym.var(name))


#: The bounds of randomised leaky ReLU's slope.
BOUNDS: Final = {"lower": "0.125", "upper": "0.334"}


def _inputs(made: Any) -> list[Any]:
    """What an operator takes, in order."""
    children = made.get_children()
    return [] if children is None else [children[place] for place in range(len(children))]


def _variable(symbol: Any) -> str | None:
    """The name of a variable; None for what is computed."""
    return symbol.list_outputs()[0] if symbol.get_children() is None else None


def _as_node(output: Any) -> Any:
    """A graph's output is computed in it, also where it is what the graph was given."""
    if output is None:
        raise UntraceableError("it returns None among its arrays, which a graph does not")
    if type(output) is not import_mxnet().sym.Symbol:
        raise UntraceableError("its arrays are those of mx.np")
    if output.get_children() is not None:
        return output
    with (
        import_mxnet().name.NameManager()
    ):  # the names of the user's own symbols and blocks are counted on as without it
        return import_mxnet().sym.identity(output)


def _expect_cured(made: Traced) -> None:
    """Refuse what came into the graph by another way than by an operator's function, such as from a symbol's JSON."""
    graph = json.loads(import_mxnet().sym.Group(made.outputs).tojson())
    nodes = graph["nodes"]
    users = [(node["op"], entry[0]) for node in nodes for entry in node["inputs"]]
    going_on = {number for user, number in users if user != "BlockGrad"} | {head[0] for head in graph["heads"]}
    for number, node in enumerate(nodes):
        attributes = node.get("attrs") or {}
        escaped = {
            **dict.fromkeys((*NOT_IN_GRAPHS, "Dropout", "Embedding", "_contrib_SparseEmbedding", "gather_nd"), True),
            **dict.fromkeys(NORMS, attributes.get("use_global_stats") not in ("True", "1")),
            "LeakyReLU": attributes.get("act_type") in ("selu", "rrelu"),
            "Pooling": not made.pooled,
            "RNN": float(attributes.get("p", 0)) != 0 or not made.zeros,
            **dict.fromkeys(("max", "min"), number in going_on),
            "take": int(attributes.get("axis", 0)) in (0, -2) if node["op"] == "take" else False,
        }
        if escaped.get(node["op"], False) or node.get("subgraphs"):
            raise UntraceableError(f"it has the operator {node['op']!r} in a way that embgrad does not see")
