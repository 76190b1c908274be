"""Whether MXNet's recorded graph has a way from an output to an array."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from embgrad.bounded import Bounded
from embgrad.errors import UnsupportedError
from embgrad_gluon import recorded
from embgrad_gluon.cures import WRONG
from embgrad_gluon.importing import import_mxnet

__all__ = [
    "DRAWING",
    "Way",
    "in_order",
    "is_recorded",
    "next_number",
    "reached",
    "recorded_before",
    "regrouped",
    "sources",
    "tape_name",
    "way_to",
]

#: Whose random numbers MXNet draws by `mx.nd.random`.
DISTRIBUTIONS: Final = (
    "exponential",
    "gamma",
    "generalized_negative_binomial",
    "negative_binomial",
    "normal",
    "poisson",
    "uniform",
)

#: Operators for which MXNet has no gradient and puts zeros, by their names without the affixes of their kinds.
NO_GRADIENT: Final = frozenset(
    (
        *("BlockGrad", "all", "all_finite", "allclose", "any", "arange_like", "argmax", "argmax_channel", "argmin"),
        *("argsort", "around", "bincount", "box_iou", "box_nms", "ceil", "equal", "fix", "floor", "getnnz", "greater"),
        *("greater_equal", "histogram", "isfinite", "isinf", "isnan", "isneginf", "isposinf", "less", "less_equal"),
        *("lesser", "lesser_equal", "logical_and", "logical_not", "logical_or", "logical_xor", "nonzero", "not_equal"),
        *("one_hot", "ones_like", "rint", "round", "sample_multinomial", "shape_array", "sign", "size_array", "trunc"),
        *("full_like", "unique", "zeros_like"),
        # Random numbers: MXNet has no gradient with respect to their distribution's parameters.
        *(f"sample_{name}" for name in DISTRIBUTIONS),
        *(f"random_{name}_like" for name in DISTRIBUTIONS),
    )
)

#: Operators that draw random numbers, in training mode at least.
DRAWING: Final = (
    *("Dropout", "RNN", "_npi_choice", "_npi_shuffle", "_random_randint", "_sample_multinomial", "_shuffle"),
    *("_sample_unique_zipfian", "_random_generalized_negative_binomial_like", "_random_negative_binomial_like"),
    *(f"_npi_{name}" for name in ("bernoulli", "exponential", "gamma", "gumbel", "logistic", "multinomial", "normal")),
    *(f"_npi_{name}" for name in ("normal_n", "pareto", "powerd", "rayleigh", "uniform", "uniform_n", "weibull")),
    *(f"_random_{name}{like}" for name in DISTRIBUTIONS for like in ("", "_like")),
    *(f"_sample_{name}" for name in DISTRIBUTIONS),
)

#: The same operator for scalars, with broadcasting and for mx.np: `_greater_scalar`, `broadcast_greater`, `_npi_greater`.
AFFIXES: Final = re.compile(r"^_?(npi_|npx_|np_|contrib_|broadcast_)?|_scalar$")

#: The inputs through which a gradient goes, where not all of them: indices, conditions and lengths get none.
DIFFERENTIABLE: Final = {
    "Embedding": (1,),
    "_contrib_SparseEmbedding": (1,),
    "_contrib_boolean_mask": (0,),
    "_contrib_index_copy": (0, 2),
    "broadcast_like": (0,),
    "gather_nd": (0,),
    "SequenceLast": (0,),
    "SequenceMask": (0,),
    "SequenceReverse": (0,),
    "batch_take": (0,),
    "pick": (0,),
    "reshape_like": (0,),
    "slice_like": (0,),
    "take": (0,),
    "where": (1, 2),
    "_npi_where": (1, 2),
}


#: The name of an operator that was recorded, before that of its output.
RECORDED: Final = re.compile(r"node_\d+(?=_)")

#: How many graphs are remembered.
MOST_KNOWN: Final = 32

#: By a graph's description without its names and the places of some variables among its inputs: to which of these a gradient
#: comes.
_known: Final[Bounded[Sequence[bool]]] = Bounded(MOST_KNOWN)


@dataclass(frozen=True)
class Way:
    """What lies between an output and some variables.

    Attributes:
        reached: for each variable whether a gradient can come to it.
        operators: those on the way.
        nodes: the whole graph, as MXNet's JSON describes it.
    """

    reached: list[bool]
    operators: frozenset[str]
    nodes: Sequence[dict[str, Any]]


def reached(output: Any, variables: Sequence[Any]) -> Sequence[bool]:
    """For each marked variable whether a gradient can come to it from the output.

    The same graph, told by its description, is looked into once.

    Args:
        output: the output.
        variables: marked.

    Raises:
        UnsupportedError: it would come through an operator whose gradient is wrong.
    """
    symbol = _symbol(output)
    if symbol is None:
        return [False] * len(variables)
    described, names = symbol.debug_str(), [_symbol(variable).name for variable in variables]
    inputs = {name: place for place, name in enumerate(symbol.list_inputs())}
    key = (recorded.unnamed(described), tuple(inputs.get(name) for name in names))
    return _known.made(key, lambda: _right_way(_way(recorded.read(symbol), names)))


def _right_way(way: Way) -> Sequence[bool]:
    for operator in sorted(way.operators & WRONG.keys()):
        raise UnsupportedError(
            f"between the lookup and the objective is the operator {operator!r}, which {WRONG[operator]}: expected an "
            "operator with the gradient of its value, such as softmax in place of SoftmaxOutput"
        )
    return way.reached


def recorded_before(output: Any, first: int) -> bool:
    """Whether any operator that led to the output was recorded before the one with this number, by whomever."""
    numbers = [_number(name) for _, name in recorded.operators(_symbol(output).debug_str())]
    return any(number is None or number < first for number in numbers)


def next_number(variable: Any) -> int:
    """The number that MXNet gives the operator that it records next, in any thread; a later one's is larger.

    Args:
        variable: marked; it is recorded as something that is forgotten at once.
    """
    with import_mxnet().autograd.record(train_mode=False):
        name = tape_name(variable + 0)
    number = None if name is None else _number(name)
    assert number is not None, "what is recorded has a number"
    return number + 1


def _number(name: str) -> int | None:
    found = re.fullmatch(r"node_(\d+)", name)
    return int(found[1]) if found else None


def way_to(output: Any, variables: Sequence[Any]) -> Way:
    """The way from an output to marked variables, see `reached`."""
    symbol = _symbol(output)
    if symbol is None:
        return Way([False] * len(variables), frozenset(), [])
    return _way(recorded.read(symbol), [_symbol(variable).name for variable in variables])


def _way(graph: Mapping[str, Any], names: Sequence[str]) -> Way:
    below = _below(graph["nodes"], set(names))
    heads = [head[0] for head in graph["heads"]]
    operators = frozenset(_operators(graph["nodes"], heads, below))
    return Way([any(name in below[head] for head in heads) for name in names], operators, graph["nodes"])


def regrouped(way: Way, mark: Any) -> bool:
    """Whether a mark that is added to an array makes MXNet add up the array's gradient in another order than without.

    It adds up all that come to an array at once. What comes through the sum with the mark, and what comes to the array past
    it, are added up apart; of two numbers the order does not matter.
    """
    name = _symbol(mark).name
    places = {number for number, node in enumerate(way.nodes) if node["op"] == "null" and node["name"] == name}
    uses: Counter[tuple[int, int]] = Counter((one[0], one[1]) for node in way.nodes for one in node["inputs"])
    for number, node in enumerate(way.nodes):
        entries = [(one[0], one[1]) for one in node["inputs"]]
        if any(source in places for source, _ in entries):
            past = sum(uses[entry] - 1 for entry in entries if entry[0] not in places)
            return past > 0 and past + uses[number, 0] > 2
    return False


def in_order(outputs: Sequence[Any], drawn: Sequence[Any]) -> bool:
    """Whether operators ran in the order in which MXNet runs a graph of theirs.

    Args:
        outputs: of the graph.
        drawn: what the operators gave, in the order in which they ran.
    """
    ran = [
        None if symbol is None else symbol.list_outputs()[0].rpartition("_output")[0] for symbol in map(_symbol, drawn)
    ]
    graphs = [recorded.operators(symbol.debug_str()) for symbol in map(_symbol, outputs) if symbol is not None]
    listed = dict.fromkeys(name for graph in graphs for _, name in graph if name in set(ran))
    return None not in ran and list(listed) == ran


def is_recorded(array: Any) -> bool:
    """Whether the array is a variable of a graph, or was computed from one while it was recorded."""
    return _symbol(array) is not None


def _symbol(array: Any) -> Any:
    """The array's recorded history, or None."""
    mx = import_mxnet()
    try:
        return mx.autograd.get_symbol(array)
    except mx.MXNetError as error:
        if "not part of a computation graph" in str(error):
            return None
        raise


def tape_name(array: Any) -> str | None:
    """The name under which MXNet records the graph that gave the array; None where it is not recorded."""
    symbol = _symbol(array)
    found = None if symbol is None else RECORDED.match(symbol.list_outputs()[0])
    return found[0] if found else None


def _below(nodes: Sequence[dict[str, Any]], names: set[str]) -> list[set[str]]:
    """Return for each node, of these variables, those that a gradient reaches from it. A node comes after its inputs."""
    below: list[set[str]] = []
    for node in nodes:
        own = names & {node["name"]} if node["op"] == "null" else set()
        below.append(own.union(*(below[source] for source in sources(node))))
    return below


def _operators(nodes: Sequence[dict[str, Any]], heads: Sequence[int], below: Sequence[set[str]]) -> Iterator[str]:
    """The operators between the heads and the variables."""
    waiting = [head for head in heads if below[head]]
    seen = set(waiting)
    while waiting:
        node = nodes[waiting.pop()]
        yield node["op"]
        above = {source for source in sources(node) if below[source]} - seen
        seen |= above
        waiting.extend(above)


def sources(node: Mapping[str, Any]) -> list[int]:
    """The nodes of the inputs to which a gradient goes, of a node as MXNet's JSON describes it."""
    if _has_no_gradient(node["op"]) or _gives_indices(node):
        return []
    through = DIFFERENTIABLE.get(node["op"])
    return [entry[0] for place, entry in enumerate(node["inputs"]) if through is None or place in through]


@functools.cache
def _has_no_gradient(operator: str) -> bool:
    return AFFIXES.sub("", operator) in NO_GRADIENT


def _gives_indices(node: Mapping[str, Any]) -> bool:
    """Whether it is a topk of indices or a mask, or a cast to whole numbers."""
    attributes = node.get("attrs", {})
    if node["op"] == "topk":
        return attributes.get("ret_typ", "indices") in ("indices", "mask")
    return node["op"] in ("Cast", "_npi_cast") and "int" in str(attributes.get("dtype"))
