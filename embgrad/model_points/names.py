"""Find the point that a name means, and compose the error messages for names that mean none or several."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np

from embgrad.errors import (
    AmbiguousPointError,
    PointError,
    PointNotReachedError,
    UnknownPointError,
    did_you_mean,
    quote,
)
from embgrad.inputs.batch import TokenBatch
from embgrad.model_points.layers import NUMBERED
from embgrad.model_points.points import INPUT, OUTPUT, WORD, Point, split_name
from embgrad.model_points.recorder import not_looked_up, several_words, with_rival
from embgrad.model_points.roles import EMBEDDINGS, LAYER, POSITION, TYPE

__all__ = ["LAYER_ROLE", "needs_added", "needs_layers", "point_of"]

#: The role of a layer, counted from the first or, if negative, from the last.
LAYER_ROLE: Final = re.compile(rf"{LAYER}\.(-?\d+)")

#: For each role, the words of the error message for a model that has no such point.
LACKING: Final = {
    POSITION: "makes no lookup by position: it may compute its positions, rotate by them, or have none",
    TYPE: "makes no lookup by type",
    EMBEDDINGS: "has no recognisable embedding block: no single module makes all lookups, and no layers follow",
}


def point_of(name: str, points: Sequence[Point], words: Sequence[Point], batch: TokenBatch) -> tuple[Point, bool]:
    """Return the point that a name means, and whether the name is a role.

    Args:
        name: a role, a native name, or the key of a point.
        words: those of the points that are `word`.

    Raises:
        PointNotReachedError: the name is `word`, and no lookup is.
        UnknownPointError: there is no such point.
        AmbiguousPointError: the name fits several points.
        PointError: `word` has fewer occurrences than the name's number requires.
    """
    path, side, occurrence = split_name(name)
    if path == WORD and side is None and (words or not _native(path, side, points)):
        return _word(name, occurrence, points, words, batch), True
    role = _with_role(path, points) if side is None and not occurrence else None
    if role is not None:
        return role, True
    fitting = _native(path, side, points)
    if not fitting:
        raise _unknown(name, path, points, batch)
    if occurrence is not None:
        if occurrence >= len(fitting):
            raise UnknownPointError(
                f"there is no point {name!r}: {path!r} was reached {len(fitting)} time(s) in the forward pass; expected a "
                f"number from 0 to {len(fitting) - 1}"
            )
        return fitting[occurrence], False
    fitting = [point for point in fitting if point.lookup is not None and point.lookup.layout is not None] or fitting
    if len(fitting) > 1:
        raise AmbiguousPointError(
            f"{name!r} fits {len(fitting)} points: {', '.join(map(str, fitting))}; name one of them, or give a list of names "
            "to get each",
            [point.lookup for point in fitting if point.lookup is not None],
        )
    return fitting[0], False


def needs_layers(name: str) -> bool:
    """Return whether it depends on a model's layers which point a name means, as for a layer or the embedding block's output."""
    return needs_added(name) or LAYER_ROLE.fullmatch(split_name(name).path) is not None


def needs_added(name: str) -> bool:
    """Return whether it depends on the lookups by position and by type which point a name means."""
    path, side, _ = split_name(name)
    return side is None and path in (EMBEDDINGS, POSITION, TYPE)


def _word(
    name: str, occurrence: int | None, points: Sequence[Point], words: Sequence[Point], batch: TokenBatch
) -> Point:
    if not words:
        lookups = [point.lookup for point in points if point.lookup is not None]
        refused = next((lookup for lookup in lookups if lookup.rival is not None), None)
        raise PointNotReachedError(not_looked_up(batch, lookups) if refused is None else with_rival(refused))
    word_lookups = [point.lookup for point in words if point.lookup is not None]
    if occurrence is None and len(words) > 1:
        raise AmbiguousPointError(several_words(word_lookups), word_lookups)
    if (occurrence or 0) >= len(words):
        several = ", ".join(f"{WORD}#{number} = {lookup}" for number, lookup in enumerate(word_lookups))
        raise PointError(f"there is no point {name!r}: the ids are looked up {len(words)} time(s): {several}")
    return words[occurrence or 0]


def _with_role(name: str, points: Sequence[Point]) -> Point | None:
    layer = LAYER_ROLE.fullmatch(name)
    if layer and int(layer[1]) < 0:
        number = _layers(points) + int(layer[1])
        name = f"{LAYER}.{number}" if number >= 0 else ""
    return next((point for point in points if name in point.roles and name != WORD), None)


def _layers(points: Sequence[Point]) -> int:
    """Return the number of layers."""
    return sum(
        1 for point in points for role in point.roles if (match := LAYER_ROLE.fullmatch(role)) and int(match[1]) >= 0
    )


def _native(path: str, side: str | None, points: Sequence[Point]) -> list[Point]:
    """Return the points with that path: lookups first, then modules' outputs, then modules with that further name."""
    if side is None:
        lookups = [point for point in points if point.side is None]
        named = [point for point in lookups if point.path == path] or [point for point in lookups if path in point.also]
        if named:
            return named
    wanted_side = OUTPUT if side is None else side
    sides = [point for point in points if point.side == wanted_side]
    exact = [point for point in sides if point.path == path]
    return exact or [point for point in sides if path in point.also]


def _unknown(name: str, path: str, points: Sequence[Point], batch: TokenBatch) -> UnknownPointError:
    roles = list(dict.fromkeys(role for point in points for role in point.roles))
    layers = _layers(points)
    role = _with_role(path, points)
    if role is not None:
        return UnknownPointError(
            f"there is no point {name!r}: {path!r} is a role and means a single tensor, here {role.name!r}. Use {path!r} "
            f"alone, or a native path, which may end in ':input', ':output' or '#1': {role.path!r}"
        )
    layer = LAYER_ROLE.fullmatch(path)
    if layer:
        problem = (
            f"has {layers} layers: expected layer.0 to layer.{layers - 1}, or layer.-1 for the last"
            if layers
            else f"{_no_layers(points, batch)}: {_instead_of_layers(points, batch)}"
        )
        return UnknownPointError(f"there is no point {name!r}: the model {problem}")
    without_role = list(dict.fromkeys(point.path for point in points if point.lookup is not None and not point.roles))
    if path in (POSITION, TYPE) and batch.shape[1] == 1 and without_role:
        return UnknownPointError(
            f"there is no point {name!r}: in a batch with one position, only a table's name can identify the {path} "
            f"lookup, and no table has such a name. Use more positions, or the native path of a lookup, of {quote(without_role)}"
        )
    if path in LACKING:
        away = "" if layers or path == TYPE else _blocks_away(points, batch)
        lacking = f"{away}, so no point is {path!r} for each of the batch's positions" if away else LACKING[path]
        return UnknownPointError(
            f"there is no point {name!r}: the model {lacking}; expected one of {quote(roles)}, or a native path"
        )
    paths = list(dict.fromkeys(point.path for point in points if point.listed))
    known = [*roles, WORD, *paths, *(other for point in points for other in point.also)]
    side = next(
        (f" (its {mark} is not a floating tensor)" for mark in (INPUT, OUTPUT) if name.endswith(f":{mark}")), ""
    )
    return UnknownPointError(
        f"there is no point {name!r}{side}: expected a role, of {quote(roles)}, or a path, of {quote(paths)}; "
        f"embgrad.points(model, batch) lists all.{did_you_mean(path, known)}"
    )


def _no_layers(points: Sequence[Point], batch: TokenBatch) -> str:
    """Return the message's clause for a model without layers: which blocks it has, and why they are not layers."""
    away = _blocks_away(points, batch)
    if away:
        return f"{away}, so their outputs have no entry for each example and position"
    missing = (
        "has no repeated block that maps hidden states to hidden states, is a whole layer, and runs at all positions"
    )
    holding = {path[:end] for point in points for path in [point.path] for end in _ends(path)}
    lists = _lists(point for point in points if point.path in holding and point.shape[:2] == batch.shape)
    if not lists:
        return missing
    candidates = ", ".join(_span(paths) for paths in lists[:3])
    return (
        f"{missing} (found {candidates}, but these do not follow one another, differ in kind, are parts of layers or do not take "
        "the ids)"
    )


def _instead_of_layers(points: Sequence[Point], batch: TokenBatch) -> str:
    """Return what to do about a model without layers; some models pad the ids before they look them up."""
    examples, positions = batch.shape
    lookups = [point.lookup for point in points if point.lookup is not None and WORD in point.roles]
    padded = [
        lookup.indices.shape[1]
        for lookup in lookups
        if lookup.indices.ndim == 2 and len(lookup.indices) == examples and lookup.indices.shape[1] > positions
        if np.array_equal(lookup.indices[:, :positions], batch.ids)
    ]
    if not padded:
        return "name a module by its path instead"
    return f"pad the batch to {padded[0]} positions, with mask=0 there, or name a module by its path"


def _blocks_away(points: Sequence[Point], batch: TokenBatch) -> str:
    """Return the message's clause on blocks that run at other positions than the batch's; empty where there are none."""
    examples, positions = batch.shape
    shapes = {point.path: point.shape for point in points if point.side == OUTPUT}
    dims = {point.lookup.dim for point in points if point.lookup is not None}
    away = [
        point
        for point in points
        if point.side == OUTPUT and len(point.shape) == 3 and point.shape[0] == examples
        if point.shape[1] not in (1, positions) and not (point.shape[1] in dims and point.shape[2] == positions)
    ]
    lists = sorted(_lists(away), key=lambda paths: ("decoder" in paths[0].lower(), len(list(_ends(paths[0])))))
    if not lists:
        return ""
    return (
        f"has blocks, {_span(lists[0])}, at {shapes[lists[0][0]][1]} positions, where the batch has {positions} (they are "
        "padded or pooled inside)"
    )


def _lists(points: Iterable[Point]) -> list[list[str]]:
    """Return the paths of numbered modules, grouped by the list that they are in."""
    lists: dict[str, dict[str, None]] = {}
    for point in points:
        number = NUMBERED.search(point.path)
        if point.side == OUTPUT and number:
            lists.setdefault(point.path[: number.start()], {})[point.path] = None
    return [list(paths) for paths in lists.values()]


def _ends(path: str) -> Iterator[int]:
    """Yield the lengths of the path's prefixes that are paths of enclosing modules."""
    return (number for number, mark in enumerate(path) if mark in "./")


def _span(paths: Sequence[str]) -> str:
    return " to ".join(dict.fromkeys((repr(paths[0]), repr(paths[-1]))))
