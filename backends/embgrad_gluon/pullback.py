"""Pull cotangents back through a recorded forward pass, and find in MXNet's recorded graph which arrays a gradient reaches."""

from __future__ import annotations

import contextlib
import functools
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from embgrad.backend import Cotangents, PointChanges, Pullback
from embgrad.errors import UnsupportedError
from embgrad_gluon.cures import WRONG
from embgrad_gluon.importing import import_mxnet
from embgrad_gluon.inputs import native_like, widen
from embgrad_gluon.tap import KeptPoint
from embgrad_gluon.walk import recorded_symbol

__all__ = [
    *("BackwardPass", "GraphSection", "differentiable_inputs", "drew_in_graph_order"),
    *("is_regrouped", "section_between"),
]


class BackwardPass:
    """The backward pass through one forward pass.

    The graph is cut at each point whose gradient is edited. The cotangents are pulled back to the cuts, in the reverse
    order of the forward pass; the gradient there is edited in NumPy, and is the cotangent of what lies below the cut. MXNet's
    own custom functions would do it in one pass, but swallow exceptions, and lose gradients on leaves.

    Args:
        kept: the points, by key, in the order of the forward pass.
        others: further arrays whose gradient is wanted, by name.
        extra_variables: arrays whose gradient must be requested along with the others, see `Cures`.
    """

    def __init__(
        self,
        kept: Mapping[str, KeptPoint],
        wanted: Sequence[str],
        others: Mapping[str, Any],
        extra_variables: Sequence[Any],
        changes: PointChanges[Any],
        *,
        training: bool,
    ) -> None:
        self._kept = kept
        self._wanted = tuple(wanted)
        self._edited = [key for key in kept if changes.edits(key)]  # in the order of the forward pass
        self._changes = changes
        self._training = training
        keys = list(dict.fromkeys((*wanted, *self._edited)))
        self._index = {key: index for index, key in enumerate(keys)}
        self._others = tuple(others)
        self._variables = [*(kept[key].mark for key in keys), *others.values(), *extra_variables]
        self._requested = len(keys) + len(others)
        self._sections: dict[int, tuple[Any, Sequence[bool]]] = {}

    def __call__(self, cotangents: Cotangents) -> Pullback:
        """Return the gradients for one set of cotangents."""
        gradients: list[Any] = [None] * self._requested
        self._forget_other_outputs([output for output, _ in cotangents])
        self._pull([(output, native_like(cotangent, output)) for output, cotangent in cotangents], gradients)
        before = {key: self._edit(key, gradients) for key in reversed(self._edited)}
        with _explain_errors():
            values = [None if array is None else widen(array.asnumpy()) for array in gradients]
        others = dict(zip(self._others, values[len(self._index) :], strict=True))
        return Pullback({key: values[self._index[key]] for key in self._wanted}, before, others)

    def _edit(self, key: str, gradients: list[Any]) -> np.ndarray | None:
        """Return the gradient at the point; the edited one replaces it and is pulled back to what lies below."""
        index, kept = self._index[key], self._kept[key]
        gradient = gradients[index]
        if gradient is None:
            return None
        with _explain_errors():
            gradient.wait_to_read()
        gradients[index] = self._changes.gradient(key, gradient, kept.forwarded)
        if kept.below is not None:
            self._pull([(kept.below, gradients[index])], gradients)
        return self._changes.before[key]

    def _pull(self, heads: Sequence[tuple[Any, Any]], gradients: list[Any]) -> None:
        """Add the gradients that come from outputs with cotangents, the heads, to those of the arrays."""
        heads = [head for head in heads if any(self._find_reached(head[0])[: self._requested])]
        if not heads:
            return
        reached = [self._find_reached(output) for output, _ in heads]
        indices = [index for index in range(len(self._variables)) if any(by_head[index] for by_head in reached)]
        with _explain_errors():
            pulled = import_mxnet().autograd.grad(
                [output for output, _ in heads],
                [self._variables[index] for index in indices],
                head_grads=[cotangent for _, cotangent in heads],
                retain_graph=True,  # other sets follow, and part of it may be the user's
                train_mode=self._training,
            )
        for index, gradient in zip(indices, pulled, strict=True):
            if index < self._requested:
                gradients[index] = gradient if gradients[index] is None else gradients[index] + gradient

    def _forget_other_outputs(self, outputs: Sequence[Any]) -> None:
        """Release the outputs of the objectives before, which hold on to their part of the graph."""
        known = {id(output) for output in (*outputs, *(self._kept[key].below for key in self._edited))}
        self._sections = {key: section for key, section in self._sections.items() if key in known}

    def _find_reached(self, output: Any) -> Sequence[bool]:
        """Return for each variable whether a gradient reaches it from the output."""
        if id(output) not in self._sections:
            section = section_between(output, self._variables)
            _expect_right(section)
            self._sections[id(output)] = (output, section.reached)
        return self._sections[id(output)][1]


def _expect_right(section: GraphSection) -> None:
    for operator in sorted(section.operators & WRONG.keys()):
        raise UnsupportedError(
            f"between the lookup and the objective is the operator {operator!r}, which {WRONG[operator]}. Use an operator with "
            "the gradient of its value, such as softmax in place of SoftmaxOutput"
        )


@contextlib.contextmanager
def _explain_errors() -> Iterator[None]:
    """Raise MXNet's errors while gradients are computed and read as UnsupportedErrors."""
    try:
        yield
    except import_mxnet().MXNetError as error:
        operator = re.search(r"Operator (\S+) is non-differentiable", str(error))
        if operator is not None:
            raise UnsupportedError(
                f"between the lookup and the objective is the operator {operator[1]!r}, for which MXNet has no gradient. "
                "Express it by operators that have one"
            ) from error
        reason = str(error).strip().splitlines()[-1].strip()
        raise UnsupportedError(
            f"MXNet fails to compute the gradient of an operator between the lookup and the objective ({reason}). Express it by "
            "other operators"
        ) from error


# Reachability in the recorded graph. A gradient of zeros and no gradient are different answers, and MXNet gives zeros for
# both, or an error where no gradient reaches any array. So the recorded graph shows which variables a gradient reaches.


@dataclass(frozen=True)
class GraphSection:
    """The part of a recorded graph between an output and some variables.

    Attributes:
        nodes: the whole graph, as MXNet's JSON describes it.
    """

    reached: list[bool]
    operators: frozenset[str]
    nodes: Sequence[dict[str, Any]]


def section_between(output: Any, variables: Sequence[Any]) -> GraphSection:
    """Return the section of the recorded graph between an output and marked variables."""
    symbol = recorded_symbol(output)
    if symbol is None:
        return GraphSection([False] * len(variables), frozenset(), [])
    graph, names = _read_graph(symbol), [recorded_symbol(variable).name for variable in variables]
    nodes, heads = graph["nodes"], [head[0] for head in graph["heads"]]
    below = _variables_below(nodes, set(names))
    reached = [any(name in below[head] for head in heads) for name in names]
    return GraphSection(reached, frozenset(_operators_between(nodes, heads, below)), nodes)


def _variables_below(nodes: Sequence[dict[str, Any]], names: set[str]) -> list[set[str]]:
    """Return for each node those of the variables that a gradient reaches from it. A node comes after its inputs."""
    below: list[set[str]] = []
    for node in nodes:
        variable = names & {node["name"]} if node["op"] == "null" else set()
        below.append(variable.union(*(below[source] for source in differentiable_inputs(node))))
    return below


def _operators_between(
    nodes: Sequence[dict[str, Any]], heads: Sequence[int], below: Sequence[set[str]]
) -> Iterator[str]:
    """Yield the operators between the heads and the variables."""
    waiting = [head for head in heads if below[head]]
    visited = set(waiting)
    while waiting:
        node = nodes[waiting.pop()]
        yield node["op"]
        sources = {source for source in differentiable_inputs(node) if below[source]} - visited
        visited |= sources
        waiting.extend(sources)


def is_regrouped(section: GraphSection, mark: Any) -> bool:
    """Return whether a mark that is added to an array makes MXNet add up the array's gradient in another order than without.

    MXNet sums all gradients that reach an array at once. Those through the sum with the mark, and those that reach the array
    directly, are summed separately; with two terms the order does not matter.
    """
    name = recorded_symbol(mark).name
    marks = {number for number, node in enumerate(section.nodes) if node["op"] == "null" and node["name"] == name}
    uses: Counter[tuple[int, int]] = Counter((entry[0], entry[1]) for node in section.nodes for entry in node["inputs"])
    for number, node in enumerate(section.nodes):
        entries = [(entry[0], entry[1]) for entry in node["inputs"]]
        if any(source in marks for source, _ in entries):
            other_uses = sum(uses[entry] - 1 for entry in entries if entry[0] not in marks)
            return other_uses > 0 and other_uses + uses[number, 0] > 2
    return False


def drew_in_graph_order(outputs: Sequence[Any], drawn: Sequence[Any]) -> bool:
    """Return whether operators ran in the order in which MXNet would run their graph."""
    symbols = [recorded_symbol(array) for array in drawn]
    if any(symbol is None for symbol in symbols):
        return False
    drawn_names = [symbol.name for symbol in symbols]
    graphs = [_read_graph(symbol)["nodes"] for symbol in map(recorded_symbol, outputs) if symbol is not None]
    in_graphs = [node["name"] for graph in graphs for node in graph if node["name"] in set(drawn_names)]
    return list(dict.fromkeys(in_graphs)) == drawn_names


# The inputs of an operator that a gradient reaches

#: Operators for which MXNet has no gradient and returns zeros, by their names without affixes.
NO_GRADIENT: Final = frozenset(
    (
        *("BlockGrad", "all", "all_finite", "allclose", "any", "arange_like", "argmax", "argmax_channel", "argmin"),
        *("argsort", "around", "bincount", "box_iou", "box_nms", "ceil", "equal", "fix", "floor", "getnnz", "greater"),
        *("greater_equal", "histogram", "isfinite", "isinf", "isnan", "isneginf", "isposinf", "less", "less_equal"),
        *("lesser", "lesser_equal", "logical_and", "logical_not", "logical_or", "logical_xor", "nonzero", "not_equal"),
        *("one_hot", "ones_like", "rint", "round", "sample_multinomial", "shape_array", "sign", "size_array", "trunc"),
        *("full_like", "unique", "zeros_like"),
    )
)

#: The same operator for scalars, with broadcasting and for mx.np: `_greater_scalar`, `broadcast_greater`, `_npi_greater`.
AFFIXES: Final = re.compile(r"^_?(npi_|npx_|np_|contrib_|broadcast_)?|_scalar$")

#: Random numbers: MXNet has no gradient with respect to their distribution's parameters.
RANDOM: Final = re.compile(r"_?(sample_\w+|random_\w+_like)")

#: The inputs that a gradient reaches, where not all do, by the same names: indices, conditions and lengths have none.
DIFFERENTIABLE: Final = {
    **dict.fromkeys(
        ("SequenceLast", "SequenceMask", "SequenceReverse", "boolean_mask", "broadcast_like", "pick"), (0,)
    ),
    **dict.fromkeys(
        ("batch_take", "gather_nd", "like", "reshape_like", "slice_like", "take"), (0,)
    ),  # "like": broadcast_like
    **dict.fromkeys(("Embedding", "SparseEmbedding"), (1,)),
    "index_copy": (0, 2),
    "where": (1, 2),
}


def differentiable_inputs(node: Mapping[str, Any]) -> list[int]:
    """Return the nodes of the inputs that a gradient reaches, for a node as MXNet's JSON describes it."""
    name = _plain_name(node["op"])
    if name in NO_GRADIENT or RANDOM.fullmatch(name) or _is_integer_valued(name, node.get("attrs", {})):
        return []
    differentiable = DIFFERENTIABLE.get(name)
    return [entry[0] for index, entry in enumerate(node["inputs"]) if differentiable is None or index in differentiable]


@functools.cache
def _plain_name(operator: str) -> str:
    return AFFIXES.sub("", operator)


def _is_integer_valued(name: str, attributes: Mapping[str, Any]) -> bool:
    """Return whether an operator is a topk of indices or a mask, or a cast to whole numbers."""
    if name == "topk":
        return attributes.get("ret_typ", "indices") in ("indices", "mask")
    return name in ("Cast", "cast") and "int" in str(attributes.get("dtype"))


# Recorded graphs are read from the text that MXNet prints of them. Their JSON says the same, but MXNet never frees the memory
# in which it makes it: some kilobytes at each call, which add up in a long stream.

#: An operator with its name.
OPERATOR: Final = re.compile(r"^Op:(\S+), Name=(\S+)$")

#: An output of a node: of the graph's, or an input of another node's.
ENTRY: Final = re.compile(r"\t(output|arg|cdep)\[\d+\]=(.+)\((\d+)\)(?: version=\d+)?")

#: Lines that hold nothing else.
HEADINGS: Final = frozenset({"Symbol Outputs:", "Inputs:", "Attrs:", "Control deps:", "-" * 20, ""})


def _read_graph(symbol: Any) -> dict[str, Any]:
    """Return the graph as its JSON would describe it: `nodes`, each with `op`, `name`, `inputs` and `attrs`, and `heads`."""
    parsed = _parse(symbol.debug_str())
    return json.loads(symbol.tojson()) if parsed is None else parsed


def _parse(text: str) -> dict[str, Any] | None:
    """Return the graph; None where the text is ambiguous: two nodes of one name, or unknown lines."""
    nodes: list[dict[str, Any]] = []
    numbers: dict[str, int] = {}
    outputs: list[tuple[str, int]] = []
    in_attributes = False
    for line in text.splitlines():
        operator = OPERATOR.match(line)
        if operator is not None or line.startswith("Variable:"):
            name = line[len("Variable:") :] if operator is None else operator[2]
            if name in numbers:
                return None
            numbers[name] = len(nodes)
            op = "null" if operator is None else operator[1]
            nodes.append({"op": op, "name": name, "inputs": [], "attrs": {}})
            in_attributes = False
        elif line in HEADINGS:
            in_attributes = line == "Attrs:"
        elif in_attributes and line.startswith("\t") and "=" in line:
            key, _, value = line[1:].partition("=")
            nodes[-1]["attrs"][key] = value
        elif (entry := ENTRY.fullmatch(line)) is not None and not in_attributes:
            if entry[1] == "output":
                outputs.append((entry[2], int(entry[3])))
            elif entry[2] not in numbers:
                return None
            elif entry[1] == "arg":
                nodes[-1]["inputs"].append([numbers[entry[2]], int(entry[3]), 0])
        else:
            return None
    if not outputs and len(nodes) == 1:  # the text of a graph of one node omits its output
        outputs = [(nodes[0]["name"], 0)]
    if not outputs or any(name not in numbers for name, _ in outputs):
        return None
    return {"nodes": nodes, "heads": [[numbers[name], output, 0] for name, output in outputs]}
