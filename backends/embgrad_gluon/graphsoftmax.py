"""Softmax over lengths inside of a graph as one over masked scores: MXNet's own takes ten times as long on a CPU."""

from __future__ import annotations

import functools
import json
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from embgrad.bounded import Bounded
from embgrad_gluon.importing import import_mxnet

__all__ = ["Masked"]

#: Of fewer scores in all there is nothing to gain.
FEWEST: Final = 1 << 19

#: How many operators may lead to lengths, which are computed twice.
MOST_BEFORE: Final = 32

#: For how many shapes of the inputs the scores' are remembered.
MOST_KNOWN: Final = 64

#: As MXNet's JSON describes a node, and a value: its node's number and which of the node's outputs it is.
_Node = dict[str, Any]
_Entry = Sequence[int]


@dataclass(frozen=True)
class _Lengths:
    """What some of a graph's softmaxes have in common.

    Attributes:
        entry: the lengths.
        number: of the mask.
        users: the softmaxes' nodes.
    """

    entry: _Entry
    number: int
    users: list[int]


class Masked:
    """A graph in which softmaxes of so many scores of each row run over all of them, the others being minus infinity.

    What it gives is the same but for rounding: MXNet hands a softmax with lengths to a plain loop, and one without to oneDNN.

    Args:
        symbol: the graph as it is.
        prefix: what the names of variables begin with that are none of its parameters.
    """

    def __init__(self, symbol: Any, prefix: str) -> None:
        graph = json.loads(symbol.tojson())
        self._prefix = prefix
        self._groups = list(_groups(graph["nodes"]))
        self._graph = graph if self._groups else {}  # it is large, and of no use where there are none
        self._known: Bounded[list[tuple[int, ...]] | None] = Bounded(MOST_KNOWN)

    def symbol(self, names: Collection[str]) -> Any:
        """The other graph.

        Args:
            names: of the masks that it takes, as `masks` gives them; where there are none nothing is masked.
        """
        nodes: list[_Node] = [{"op": "null", "name": name, "inputs": []} for name in names]
        at = {name: [place, 0, 0] for place, name in enumerate(names)}
        groups = {user: group for group in self._groups for user in group.users}
        made: list[int] = []
        for number, node in enumerate(self._graph["nodes"]):
            inputs = [[made[place], *rest] for place, *rest in node["inputs"]]
            if number in groups:
                kept = {key: value for key, value in node["attrs"].items() if key != "use_length"}
                node, inputs = {**node, "attrs": kept}, inputs[:1]
                mask, nothing = self._names(groups[number])
                if mask in at:
                    inputs = [at[mask], *inputs, at[nothing]]
                    nodes.append({"op": "where", "name": f"{node['name']}_masked", "inputs": inputs})
                    inputs = [[len(nodes) - 1, 0, 0]]
            made.append(len(nodes))
            nodes.append({**node, "inputs": inputs})
        return self._loaded(nodes, [[made[place], *rest] for place, *rest in self._graph["heads"]])

    def masks(self, values: Mapping[str, Any]) -> dict[str, Any] | None:
        """By name what the other graph takes beside what this one does; None where this one must run, or is as quick.

        Args:
            values: by name all that the graph takes.
        """
        shapes = self._shapes(values) if self._groups else None
        if shapes is None:
            return None
        operator, names = self._lengths
        mx = import_mxnet()
        with mx.autograd.pause():
            made = operator(*[values[name] for name in names])
            context = values[names[0]].context
            lengths = [one.asnumpy() for one in (made if isinstance(made, list) else [made])]
            counts = [shape[-1] for shape in shapes]
            if any(one.min() < 1 or one.max() > count for one, count in zip(lengths, counts, strict=True)):
                return None  # of no scores it gives zeros
            if all(one.min() == count for one, count in zip(lengths, counts, strict=True)):
                return {}
            found = {}
            for group, shape, one in zip(self._groups, shapes, lengths, strict=True):
                mask, nothing = self._names(group)
                masked = (np.arange(shape[-1], dtype=one.dtype) < one[..., None]).view(np.int8)
                found[mask] = mx.nd.array(masked, ctx=context, dtype="int8")
                found[nothing] = mx.nd.full(shape, -np.inf, ctx=context, dtype="float32")
        return found

    def _names(self, group: _Lengths) -> tuple[str, str]:
        """Those of the variables that stand for the mask, and for what the scores are where it is zero."""
        return f"{self._prefix}mask{group.number}", f"{self._prefix}nothing{group.number}"

    def _shapes(self, values: Mapping[str, Any]) -> list[tuple[int, ...]] | None:
        """Those of the scores that each mask is for; None where masks are of no use."""
        given = [array for name, array in values.items() if name.startswith(self._prefix)]
        if given[0].context.device_type != "cpu":
            return None
        key = tuple((array.shape, array.dtype) for array in given)
        return self._known.made(key, lambda: self._inferred(values))

    def _inferred(self, values: Mapping[str, Any]) -> list[tuple[int, ...]] | None:
        nodes = self._graph["nodes"]
        scores = self._loaded(nodes, [nodes[user]["inputs"][0] for group in self._groups for user in group.users])
        taken = {name: values[name] for name in scores.list_inputs()}
        shapes = scores.infer_shape(**{name: array.shape for name, array in taken.items()})[1]
        dtypes = scores.infer_type(**{name: np.dtype(array.dtype) for name, array in taken.items()})[1]
        if shapes is None or {np.dtype(one) for one in dtypes or ()} != {np.dtype(np.float32)}:
            return None
        given = iter(shapes)
        of_groups = [{next(given) for _ in group.users} for group in self._groups]
        # The same lengths may be those of scores of several shapes.
        is_shared = all(len(one) == 1 for one in of_groups)
        return [min(one) for one in of_groups] if is_shared and sum(map(np.prod, shapes)) >= FEWEST else None

    @functools.cached_property
    def _lengths(self) -> tuple[Any, list[str]]:
        """The operator that computes the lengths, and the names of what it takes."""
        symbol = self._loaded(self._graph["nodes"], [group.entry for group in self._groups])
        return import_mxnet().nd.CachedOp(symbol), symbol.list_inputs()

    def _loaded(self, nodes: Sequence[_Node], heads: Sequence[_Entry]) -> Any:
        variables = [place for place, node in enumerate(nodes) if node["op"] == "null"]
        rows = list(range(len(nodes) + 1))
        graph = {**self._graph, "nodes": nodes, "arg_nodes": variables, "node_row_ptr": rows, "heads": heads}
        return import_mxnet().sym.load_json(json.dumps(graph))


def _groups(nodes: Sequence[_Node]) -> Iterator[_Lengths]:
    """The lengths of softmaxes, together where they are the same computation of the same."""
    found: dict[Hashable, _Lengths] = {}
    forms = _forms(nodes)
    for number, node in enumerate(nodes):
        if _has_lengths(node):
            place, output, *_ = entry = node["inputs"][1]
            before = [nodes[one]["op"] != "null" for one in _before(nodes, place)]
            if sum(before) <= MOST_BEFORE and not all(before):  # what depends on no input would not be computed
                group = found.setdefault((forms[place], output), _Lengths(entry, len(found), []))
                group.users.append(number)
    yield from found.values()


def _has_lengths(node: _Node) -> bool:
    attributes = node.get("attrs") or {}
    return (
        node["op"] == "softmax"
        and attributes.get("use_length") in ("True", "1")
        and attributes.get("axis", "-1") == "-1"
        and attributes.get("temperature", "None") in ("None", "1.0")
        and attributes.get("dtype", "None") == "None"
    )


def _forms(nodes: Sequence[_Node]) -> list[int]:
    """For each node a number, the same where it computes the same."""
    numbers: dict[Hashable, int] = {}
    forms: list[int] = []
    for node in nodes:
        attributes = tuple(sorted((node.get("attrs") or {}).items()))
        inputs = tuple((forms[place], output) for place, output, *_ in node["inputs"])
        form = (node["op"], node["name"] if node["op"] == "null" else "", attributes, inputs)
        forms.append(numbers.setdefault(form, len(numbers)))
    return forms


def _before(nodes: Sequence[_Node], place: int) -> set[int]:
    """The operators and variables that lead to a node, itself included."""
    found: set[int] = set()
    waiting = [place]
    while waiting:
        number = waiting.pop()
        if number not in found:
            found.add(number)
            waiting += [entry[0] for entry in nodes[number]["inputs"]]
    return found
