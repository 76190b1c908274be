"""Whether MXNet's recorded graph has a way from an output to an array."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final

from embgrad.errors import UnsupportedError
from embgrad_gluon.cures import WRONG
from embgrad_gluon.importing import import_mxnet

__all__ = ["reached"]

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


def reached(output: Any, variables: Sequence[Any]) -> list[bool]:
    """For each marked variable whether a gradient can come to it from the output.

    Raises:
        UnsupportedError: it would come through an operator whose gradient is wrong.
    """
    symbol = _symbol(output)
    if symbol is None:
        return [False] * len(variables)
    graph = json.loads(symbol.tojson())
    names = [_symbol(variable).name for variable in variables]
    below = _below(graph["nodes"], set(names))
    heads = [head[0] for head in graph["heads"]]
    _expect_right(graph["nodes"], heads, below)
    return [any(name in below[head] for head in heads) for name in names]


def _symbol(array: Any) -> Any:
    """The array's recorded history, or None."""
    mx = import_mxnet()
    try:
        return mx.autograd.get_symbol(array)
    except mx.MXNetError as error:
        if "not part of a computation graph" in str(error):
            return None
        raise


def _below(nodes: Sequence[dict[str, Any]], names: set[str]) -> list[set[str]]:
    """For each node, of these variables, those to which it has a way. A node comes after its inputs."""
    below: list[set[str]] = []
    for node in nodes:
        own = names & {node["name"]} if node["op"] == "null" else set()
        below.append(own.union(*(below[source] for source in _sources(node))))
    return below


def _expect_right(nodes: Sequence[dict[str, Any]], heads: Sequence[int], below: Sequence[set[str]]) -> None:
    waiting = [head for head in heads if below[head]]
    seen = set(waiting)
    while waiting:
        node = nodes[waiting.pop()]
        if node["op"] in WRONG:
            raise UnsupportedError(
                f"between the lookup and the objective is the operator {node['op']!r}, which {WRONG[node['op']]}: expected an "
                "operator with the gradient of its value, such as softmax in place of SoftmaxOutput"
            )
        above = {source for source in _sources(node) if below[source]} - seen
        seen |= above
        waiting.extend(above)


def _sources(node: dict[str, Any]) -> list[int]:
    """The inputs to which a gradient goes."""
    if AFFIXES.sub("", node["op"]) in NO_GRADIENT or _gives_indices(node):
        return []
    through = DIFFERENTIABLE.get(node["op"])
    return [entry[0] for place, entry in enumerate(node["inputs"]) if through is None or place in through]


def _gives_indices(node: dict[str, Any]) -> bool:
    """Whether it is a topk of indices or a mask, or a cast to whole numbers."""
    attributes = node.get("attrs", {})
    if node["op"] == "topk":
        return attributes.get("ret_typ", "indices") in ("indices", "mask")
    return node["op"] in ("Cast", "_npi_cast") and "int" in str(attributes.get("dtype"))
