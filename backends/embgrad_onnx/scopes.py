"""The scopes of a graph's steps: the paths of the modules that they were in, as exporters write them."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise, takewhile
from typing import Any, Final

from embgrad_onnx.graphs import Graph

__all__ = ["scopes_of"]

#: The paths of the modules that a step is in, the outermost first.
Scope = tuple[str, ...]

#: The metadata in which PyTorch's newer exporter writes the paths of the modules that a node is in.
NAME_SCOPES: Final = "pkg.torch.onnx.name_scopes"

#: The number that PyTorch's older exporter adds to the name of a module that is called again.
AGAIN: Final = re.compile(r"_\d+$")


def scopes_of(graph: Graph) -> list[Scope]:
    """Return by step the paths of the modules that it is in, which PyTorch wrote down, or of which its name is.

    Where an exporter left out those of a step, they are those that the steps before and behind it are in. Where the name of a
    product with a weight does not have the modules that it leads to, it is not known what these take: they are left out.
    """
    written = [_written_scope(node.proto) for node in graph.nodes]
    is_spelled = all(scope is None for scope in written)
    if is_spelled:
        names = [node.proto.name for node in graph.nodes]
        written = [_spelled_scope(name) for name in _without_numbers(names)]
    unknown: set[str] = set()
    behind, scopes = list(written), list(written)
    for node in reversed(graph.nodes):
        if written[node.number] is None:
            users = [user for name in node.outputs for user in graph.users.get(name, ())]
            returned = [()] * (not set(graph.outputs).isdisjoint(node.outputs))
            behind[node.number] = _common([*returned, *(behind[user.number] or () for user in users)])
    for node in graph.nodes:
        if written[node.number] is None:
            makers = [graph.makers[name] for name in node.inputs if name in graph.makers and name not in graph.fixed]
            before = [scopes[maker.number] or () for maker in makers]
            given = [()] * (not set(graph.inputs).isdisjoint(node.inputs))
            scopes[node.number] = _common([*given, *before, behind[node.number] or ()])
            matrices = [name for name in graph.weights_of(node) if len(graph.shape_of(name)) > 1]
            if is_spelled and matrices and scopes[node.number]:
                unknown.update(scopes[node.number] or (), behind[node.number] or ())
    found = [tuple(path for path in scope or () if path not in unknown) for scope in scopes]
    return _rename_calls(graph, found) if graph.proto.producer_name == "pytorch" else found


def _rename_calls(graph: Graph, scopes: Sequence[Scope]) -> list[Scope]:
    """Return the scopes with the path of a module's first call at its others, to which PyTorch adds a number.

    A path that ends in a number is another module's where it reads other weights.
    """
    read: dict[str, set[str]] = defaultdict(set)
    for node in graph.nodes:
        for path in scopes[node.number]:
            read[path].update(graph.weights_of(node))
    names = {"": ""}
    for outer, path in sorted(
        {pair for scope in scopes for pair in pairwise(("", *scope))}, key=lambda pair: len(pair[1])
    ):
        own = path.removeprefix(f"{outer}.")
        known, first = (".".join(filter(None, (names[outer], name))) for name in (own, AGAIN.sub("", own)))
        names[path] = first if first != known and first in read and read[path] <= read[first] else known
    return [tuple(names[path] for path in scope) for scope in scopes]


def _common(scopes: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the modules that all scopes begin with."""
    same = takewhile(lambda paths: len(set(paths)) == 1, zip(*scopes, strict=False))
    return tuple(paths[0] for paths in same)


def _written_scope(node: Any) -> tuple[str, ...] | None:
    for entry in getattr(node, "metadata_props", ()):
        if entry.key == NAME_SCOPES:
            return tuple(dict.fromkeys(filter(None, ast.literal_eval(entry.value)[:-1])))
    return None


def _without_numbers(names: Sequence[str]) -> Sequence[str]:
    """Return the nodes' names without the number that Keras adds to each layer's name where a model is called again.

    It stands at the outermost one, too. Otherwise a number at the end of a name is that of a layer among others.
    """
    roots = {name.partition("/")[0] for name in names if "/" in name}
    again = AGAIN.search("".join(roots)) if len(roots) == 1 else None
    if again is None:
        return names
    scopes = {name.rpartition("/")[0] for name in names}
    plain = {scope: "/".join(part.removesuffix(again[0]) for part in scope.split("/")) for scope in scopes}
    if len(set(plain.values())) < len(plain):
        return names
    return [f"{plain[name.rpartition('/')[0]]}/{name.rpartition('/')[2]}".lstrip("/") for name in names]


def _spelled_scope(name: str) -> tuple[str, ...] | None:
    if "/" not in name:
        return None
    parts = name.strip("/").split("/")[:-1]
    return tuple(".".join(parts[:length]) for length in range(1, len(parts) + 1))
