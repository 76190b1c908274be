"""Match the rows of fused and split weights whose values differ, by what they are near or by where other layers have theirs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from embgrad.comparison.weight_matches import EQUAL, Match, NamedArray, Summary, described, kind_of
from embgrad.comparison.weight_values import Part, exact_distance, oriented

__all__ = ["unequal_parts"]

#: The relative L2 up to which rows are versions of one, as rows that are quantised to a few bits.
NEAR: Final = 0.2

#: The number of rows by which two weights are compared first.
FEW: Final = 8

#: The most entries of the products of rows that are computed at once.
MOST_PRODUCTS: Final = 2**26


def unequal_parts(
    left: Sequence[Summary],
    parts: Mapping[str, tuple[Part, ...]],
    a: Sequence[NamedArray],
    b: Sequence[NamedArray],
    layers: Mapping[int, int],
) -> dict[str, tuple[Part, ...]]:
    """Return the parts of weights of a without a partner in fused weights of b, whose rows differ, with how they relate.

    They are rows of the same layer that are rounded, or those where b has the parts of the weight of the same name in others.

    Args:
        left: the weights of a without a partner.
        parts: those of a that are fused or split in b, by their rows.
        a: all weights of a.
        b: all weights of b.
        layers: the layers of b that have the weights of the layers of a.
    """
    found: dict[str, tuple[Part, ...]] = {}
    for summary in left:
        weight = summary.weight
        mine = weight.get()
        fused = [it for it in b if it.layer == _partner(weight, layers) and int(np.prod(it.shape)) > summary.size]
        part = next((part for it in fused for part in _near(mine, it.name, it.get())), None)
        part = part or next(_beside(weight, mine, parts, a, fused), None)
        if part is not None:
            found[weight.name] = (part,)
    return found


def _partner(weight: NamedArray, layers: Mapping[int, int]) -> int | None:
    return None if weight.layer is None else layers.get(weight.layer, weight.layer)


def _near(mine: np.ndarray, name: str, theirs: np.ndarray) -> Iterator[Part]:
    """Yield the rows of a fused weight that a weight's are, but for rounding."""
    for matrix in oriented(mine):
        for fused in oriented(theirs):
            if fused.shape[1] != matrix.shape[1]:
                continue
            few = np.linspace(0, len(matrix) - 1, FEW).astype(int)
            for rows in (few, np.arange(len(matrix))):
                others = _nearest(matrix[rows], fused)
                off = np.linalg.norm((fused[others] - matrix[rows]).astype(np.float64), axis=1)
                if (off > NEAR * np.linalg.norm(matrix[rows], axis=1)).any():
                    break
            else:
                yield _part(name, matrix, fused, others)


def _nearest(rows: np.ndarray, fused: np.ndarray) -> np.ndarray:
    """Return for each row the index of the row in nearly its direction."""
    directions = fused / np.maximum(np.linalg.norm(fused, axis=1, keepdims=True), 1e-30)
    count = max(MOST_PRODUCTS // len(fused), 1)
    return np.concatenate([(rows[n : n + count] @ directions.T).argmax(1) for n in range(0, len(rows), count)])


def _beside(
    weight: NamedArray,
    mine: np.ndarray,
    parts: Mapping[str, tuple[Part, ...]],
    a: Sequence[NamedArray],
    fused: Sequence[NamedArray],
) -> Iterator[Part]:
    """Yield the rows at which b has the weight of the same name of another layer, in the weight of the same name there."""
    siblings = [it for it in a if kind_of(it.name) == kind_of(weight.name) and it.shape == weight.shape]
    places = [parts[it.name][0] for it in siblings if it.name in parts]
    held = ((place, it) for place in places for it in fused if kind_of(it.name) == kind_of(place.name))
    for (place, it), matrix in itertools.product(held, [*oriented(mine)]):
        for rows in oriented(it.get()):
            if (len(place.rows), rows.shape[1]) == matrix.shape and len(rows) > place.others.max():
                part = _part(it.name, matrix, rows, place.others)
                other = next((it.name for it in siblings if _is_equal(it, rows[part.others])), None)
                yield part if other is None else replace(part, relation=f"equal to {other}")


def _is_equal(weight: NamedArray, rows: np.ndarray) -> bool:
    matrices = (it for it in oriented(weight.get()) if it.shape == rows.shape)
    return any(exact_distance(it, rows) <= EQUAL for it in matrices)


def _part(name: str, matrix: np.ndarray, fused: np.ndarray, others: np.ndarray) -> Part:
    theirs = fused[others]
    match = described(Match("", name, exact_distance(matrix, theirs)), matrix, theirs)
    return Part(name, np.arange(len(matrix)), others, match.relation, match.distance)
