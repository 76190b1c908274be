"""The points that a name will probably mean, judged by the paths of a model's modules and tables before any pass."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from embgrad.model_points.layers import NUMBERED
from embgrad.model_points.names import LAYER_ROLE
from embgrad.model_points.points import INPUT, OUTPUT, WORD, split_name
from embgrad.model_points.roles import EMBEDDINGS, POSITION, SPELLED, TYPE

__all__ = ["SEPARATOR", "expected_keys"]

#: The most points that are expected for a name: each costs a copy of its tensor.
MOST: Final = 16

#: The separators in paths.
SEPARATOR: Final = re.compile(r"[./]")


def expected_keys(name: str, paths: Collection[str]) -> list[str]:
    """Return the keys of the points that a name may mean; empty where the paths do not show it.

    Args:
        name: a role, a native name, or the key of a point.
        paths: the paths of the model's modules and tables, in order.
    """
    path, side, occurrence = split_name(name)
    if path == WORD and side is None:
        return [WORD]
    if path in paths:
        number = occurrence or 0
        return [f"{path}:{side}#{number}"] if side is not None else _both(path, number)
    if side is not None or occurrence:
        return []
    if path in (POSITION, TYPE):
        return [f"{table}#0" for table in paths if SPELLED[path].search(table.lower())][:MOST]
    layer = LAYER_ROLE.fullmatch(path)
    if layer is not None:
        number = int(layer[1])
        inside = [blocks for blocks in _lists(paths) if -len(blocks) <= number < len(blocks)]
        return [f"{blocks[number]}:{OUTPUT}#0" for blocks in inside][:MOST]
    return [key for blocks in _lists(paths) for key in _before(blocks, paths)][:MOST] if path == EMBEDDINGS else []


def _both(path: str, number: int = 0) -> list[str]:
    """Return the keys of a lookup in a table and of a module's output, of which only a pass shows which there is."""
    return [f"{path}#{number}", f"{path}:{OUTPUT}#{number}"]


def _lists(paths: Iterable[str]) -> list[list[str]]:
    """Return the paths of the longest lists of modules that are in no other list, of those that hold modules if there are any.

    An encoder's lists go before a decoder's.
    """
    every = list(paths)
    holding = {path[: match.start()] for path in every for match in SEPARATOR.finditer(path)}
    numbered = [path for path in every if NUMBERED.search(path)]
    lists: dict[str, list[str]] = defaultdict(list)
    for path in [path for path in numbered if path in holding] or numbered:
        lists[NUMBERED.sub("", path)].append(path)
    outer = [
        blocks
        for start, blocks in lists.items()
        if not any(_is_inside(start, lists[other]) for other in lists if other != start)
    ]
    encoders = [blocks for blocks in outer if "encoder" in blocks[0].lower().replace("decoder", "")]
    longest = max(map(len, encoders or outer), default=0)
    return [blocks for blocks in encoders or outer if len(blocks) == longest]


def _is_inside(path: str, blocks: Sequence[str]) -> bool:
    return any(path == block or path.startswith((f"{block}.", f"{block}/")) for block in blocks)


def _before(blocks: Sequence[str], paths: Iterable[str]) -> list[str]:
    """Return the keys of the points whose tensor the first block may take: its input, and what stands beside its list."""
    first = blocks[0]
    around = {first[: match.start()] for match in SEPARATOR.finditer(first)} | {""}
    beside = [
        path
        for path in paths
        if path not in around and path not in blocks and SEPARATOR.split(path)[:-1] in [*map(_split, around)]
    ]
    return [f"{first}:{INPUT}#0", *(key for path in beside for key in _both(path))]


def _split(path: str) -> list[str]:
    return SEPARATOR.split(path) if path else []
