"""The rooms of `embgrad`: a room imports only rooms to its left, no file leads back to itself, chains of imports are short."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import embgrad
from tests.unit.backend_files import circles

ROOT = Path(embgrad.__file__).parent

#: The rooms from left to right; those of one line do not import each other.
ROOMS = (
    {"common", "errors", "version"},
    {"inputs", "display"},
    {"model_points", "objectives"},
    {"results", "toolkit"},
    {"backend"},
    {"keras"},
    {"checkpoints"},
    {"loading"},
    {"engine"},
    {"attribution", "comparison"},
    {"streaming"},
    {"token_search"},
    {"methods", "metrics", "tables", "zoo"},
    {"doctor", "ray", "report"},
    {"cli", "testing"},
)
#: The files of the package itself, which bring the rooms together.
ENTRIES = {"__init__", "__main__"}

#: The most files that may import one another in a chain, from a command down to `embgrad.common.text`: the longest leads from
#: the page of several results over the comparison of two and the check of their models to the hypotheses about a site.
LONGEST = 33


def modules() -> dict[str, Path]:
    """Return the files of the package by the names of their modules inside of it."""
    by_name = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        by_name[".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)] = path
    return by_name


def imports() -> dict[str, set[str]]:
    """Return what each module imports of the package, at its top or in a function."""
    known = modules()
    graph: dict[str, set[str]] = {}
    for name, path in known.items():
        graph[name] = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            else:
                continue
            for full in names:
                parts = full.split(".")[1:] if full.split(".")[0] == "embgrad" else None
                if parts is not None:
                    prefixes = [
                        ".".join(parts[:end]) for end in range(len(parts), 0, -1) if ".".join(parts[:end]) in known
                    ]
                    graph[name].add(prefixes[0] if prefixes else "__init__")
        graph[name].discard(name)
    return graph


GRAPH = imports()
RANKS = {room: rank for rank, rooms in enumerate(ROOMS) for room in rooms}


def room(module: str) -> str:
    """Return the room of a module."""
    return module.partition(".")[0]


@pytest.mark.parametrize("name", sorted({room(module) for module in GRAPH} - ENTRIES))
def test_a_room_imports_only_rooms_to_its_left(name: str) -> None:
    assert name in RANKS, f"{name} is no room: move its files to a room, or add it to ROOMS and CONTRIBUTING.md"
    whole = name in ("cli", "testing")  # which use the package as its users do
    wrong = [
        f"{module} imports {other}"
        for module, others in GRAPH.items()
        for other in others
        if room(module) == name != room(other)
        and not (whole and other == "__init__")
        and not (RANKS.get(room(other), len(ROOMS)) < RANKS[name] or (RANKS[name] == 0 == RANKS.get(room(other))))
    ]
    assert wrong == []


def test_no_file_leads_back_to_itself() -> None:
    assert circles(GRAPH) == []


def test_chains_of_imports_are_short() -> None:
    lengths: dict[str, int] = {}

    def longest(module: str) -> int:
        if module not in lengths:
            lengths[module] = 1 + max(map(longest, GRAPH[module]), default=0)
        return lengths[module]

    assert max(map(longest, GRAPH)) <= LONGEST


def test_backends_import_the_facades_alone() -> None:
    folder = ROOT.parent / "backends"
    facades = {f"embgrad.{name}" for name in ("backend", "toolkit", "keras", "checkpoints", "errors")}
    inner = {
        f"{path.relative_to(folder)} imports {node.module}"
        for path in sorted(folder.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").startswith("embgrad.")
        and node.module not in facades
    }
    assert inner == set()
