"""Reads recorded graphs from what MXNet prints of them: their JSON, which says the same, leaks memory each time it is made."""

from __future__ import annotations

import json
import re
from typing import Any, Final

__all__ = ["operators", "read", "unnamed"]

#: The names that MXNet gives to what it records.
NAME: Final = re.compile(r"\b(?:node_|var|null)\d+\b")

#: An operator with its name.
OPERATOR: Final = re.compile(r"^(?:Op:(\S+), Name=|(PlaceHolder):)(\S+)$", re.MULTILINE)

#: An output of a node: of the graph's, or an input of another node's.
ENTRY: Final = re.compile(r"\t(output|arg|cdep)\[\d+\]=(.+)\((\d+)\)(?: version=\d+)?")

#: What stands alone in a line.
HEADINGS: Final = frozenset({"Symbol Outputs:", "Inputs:", "Attrs:", "Control deps:", "-" * 20, ""})


def operators(text: str) -> list[tuple[str, str]]:
    """The operators with their names, in the order in which MXNet runs them.

    Args:
        text: what `symbol.debug_str()` gave.
    """
    return [(one or placeholder, name) for one, placeholder, name in OPERATOR.findall(text)]


def unnamed(text: str) -> str:
    """The text, which is the same for graphs that differ by their names alone."""
    numbers: dict[str, str] = {}
    return NAME.sub(lambda found: numbers.setdefault(found[0], f"#{len(numbers)}"), text)


def read(symbol: Any) -> dict[str, Any]:
    """The graph as its JSON would describe it: `nodes`, each with `op`, `name`, `inputs` and `attrs`, and `heads`."""
    found = _parsed(symbol.debug_str())
    return json.loads(symbol.tojson()) if found is None else found


def _parsed(text: str) -> dict[str, Any] | None:
    """The graph; None where the text does not tell it: two nodes of one name, or lines that mean something else."""
    nodes: list[dict[str, Any]] = []
    places: dict[str, int] = {}
    heads: list[list[int]] = []
    outputs: list[tuple[str, int]] = []
    in_attributes = False
    for line in text.splitlines():
        operator = OPERATOR.match(line)
        if operator is not None or line.startswith("Variable:"):
            name = line[len("Variable:") :] if operator is None else operator[3]
            if name in places:
                return None
            places[name] = len(nodes)
            kind = "null" if operator is None else operator[1] or operator[2]
            nodes.append({"op": kind, "name": name, "inputs": [], "attrs": {}})
            in_attributes = False
        elif line in HEADINGS:
            in_attributes = line == "Attrs:"
        elif in_attributes and line.startswith("\t") and "=" in line:
            key, _, value = line[1:].partition("=")
            nodes[-1]["attrs"][key] = value
        elif (entry := ENTRY.fullmatch(line)) is not None and not in_attributes:
            if entry[1] == "output":
                outputs.append((entry[2], int(entry[3])))
            elif entry[2] not in places:
                return None
            elif entry[1] == "arg":
                nodes[-1]["inputs"].append([places[entry[2]], int(entry[3]), 0])
        else:
            return None
    if not outputs and len(nodes) == 1:  # of a graph of one node its output is not told
        outputs = [(nodes[0]["name"], 0)]
    if not outputs or any(name not in places for name, _ in outputs):
        return None
    heads = [[places[name], output, 0] for name, output in outputs]
    return {"nodes": nodes, "heads": heads}
