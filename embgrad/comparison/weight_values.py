"""Compare the values of weights, as matrices in each way in which their axes may be outputs or inputs, and row by row."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

__all__ = [
    "ALIKE",
    "bits_of",
    "distance_of",
    "is_distinct",
    "keys_of_rows",
    "layouts",
    "matrices_of",
    "nearest_of",
    "order_of_rows",
    "oriented",
    "quantised",
    "rounded",
    "roundings",
]

#: The relative L2 up to which two weights are versions of one: rounded to half precision, or quantised to eight bits.
ALIKE: Final = 0.05

#: The number of entries that are compared before all are.
SAMPLED: Final = 2048

#: The length of rows from which chance makes no two equal.
LEAST_ROW: Final = 4


@dataclass(frozen=True, eq=False)
class Part:
    """Rows of one weight that are rows of another, both seen as matrices.

    Attributes:
        name: the other weight's name.
        rows: the indices of the rows of the first weight.
        others: the indices of these rows of the other weight.
        relation: how the values relate, see `Match.relation`.
        distance: the relative L2 of the other weight's rows.
    """

    name: str
    rows: np.ndarray
    others: np.ndarray
    relation: str = "equal"
    distance: float = 0.0


def layouts(values: np.ndarray, theirs: np.ndarray) -> Iterator[tuple[bool, np.ndarray, np.ndarray]]:
    """Yield both weights as matrices of equal shape, in each way in which one may be the other's layout."""
    if values.size == theirs.size and 1 in (_axes(values), _axes(theirs)):  # such as biases by head
        yield False, values.reshape(1, -1), theirs.reshape(1, -1)
        return
    firsts = list(matrices_of(values))
    for mine, its in itertools.product(firsts[:1] if values.ndim == theirs.ndim else firsts, matrices_of(theirs)):
        for transposed in (False, True):
            turned = its.T if transposed else its
            if turned.shape == mine.shape and not (transposed and 1 in mine.shape):
                yield transposed, mine, turned


def _axes(values: np.ndarray) -> int:
    """Return the number of axes along which a weight has several entries, at least 1."""
    return max(len([size for size in values.shape if size > 1]), 1)


def matrices_of(values: np.ndarray, *, in_order: bool = False) -> Iterator[np.ndarray]:
    """Yield a weight as a matrix, in each way in which its axes may be outputs or inputs, or in their own order alone."""
    squeezed = values.reshape([size for size in values.shape if size != 1] or [1])
    if squeezed.ndim == 1:
        yield squeezed.reshape(1, -1)
        return
    own = tuple(range(squeezed.ndim))
    orders = itertools.permutations(own) if squeezed.ndim == 3 and not in_order else [own]
    for order in orders:
        turned = squeezed.transpose(order)
        for cut in range(1, squeezed.ndim):
            yield turned.reshape(int(np.prod(turned.shape[:cut])), -1)
    for axis in own[:-1] if squeezed.ndim > 3 else ():  # the inputs, such as that of keys and values by head
        yield np.moveaxis(squeezed, axis, -1).reshape(-1, squeezed.shape[axis])


def order_of_rows(mine: np.ndarray, its: np.ndarray) -> np.ndarray | None:
    """Return the rows of the second matrix in the order of the first's, or None where they are not the same rows."""
    if mine.shape[1] < LEAST_ROW or mine.shape[0] < 2:
        return None
    keys = [keys_of_rows(matrix) for matrix in (mine, its)]
    ranked = [np.argsort(key, kind="stable") for key in keys]
    if not np.allclose(keys[0][ranked[0]], keys[1][ranked[1]], rtol=1e-4, atol=1e-12):
        return None
    order = np.empty(len(mine), np.int64)
    order[ranked[0]] = ranked[1]
    return order if distance_of(mine, its[order]) <= ALIKE else None


def keys_of_rows(matrix: np.ndarray, start: float = 1.0) -> np.ndarray:
    """Return a number for each row that hardly any two rows share; with another start another one."""
    wide = matrix.astype(np.float64)
    return np.asarray(wide @ np.cos(start + np.arange(matrix.shape[1])))


def nearest_of(keys: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return the indices of the nearest of keys, which are sorted."""
    near = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.asarray(near - (np.abs(keys[near - 1] - wanted) < np.abs(keys[near] - wanted)))


def oriented(values: np.ndarray) -> Iterator[np.ndarray]:
    """Yield a weight's matrices, and their transposes, whose rows can be recognised: not those of zeros or ones alone."""
    for matrix in matrices_of(values, in_order=True) if is_distinct(values) else ():
        for turned in (matrix, matrix.T):
            if turned.shape[1] >= LEAST_ROW and turned.shape[0] > 1:
                yield turned


def distance_of(mine: np.ndarray, its: np.ndarray) -> float:
    """Return the relative L2 of the second array against the first; an estimate from a sample where they are far apart."""
    if np.array_equal(mine, its):
        return 0.0
    x, y = mine.reshape(-1), its.reshape(-1)
    if x.size > SAMPLED:
        step = x.size // SAMPLED
        sample = exact_distance(x[::step], y[::step])
        if sample > 2 * ALIKE:
            return sample
    return exact_distance(x, y)


def exact_distance(x: np.ndarray, y: np.ndarray) -> float:
    first, second = x.astype(np.float64), y.astype(np.float64)
    length = float(np.linalg.norm(first))
    difference = float(np.linalg.norm(second - first))
    return difference / length if length else float(difference > 0)


def is_distinct(values: np.ndarray) -> bool:
    """Return whether a weight's entries differ from one another, so that a likeness means something."""
    return bool(np.ptp(values) > 1e-3 * np.abs(values).max(initial=0.0))


def rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    """Return the values rounded to half precision, as float32."""
    single = values.astype(np.float32)
    if dtype == "float16":
        with np.errstate(over="ignore"):
            return single.astype(np.float16).astype(np.float32)
    bits = np.ascontiguousarray(single).view(np.uint32)
    rounded: np.ndarray = ((bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)).view(np.float32)
    return rounded


#: The numbers of bits to which weights are quantised, the lengths of the blocks that have a step of their own, and the largest
#: multiples of the step in a block whose values lie on both sides of zero.
BITS: Final = (2, 3, 4, 8)
BLOCKS: Final = (32, 64, 128)
MULTIPLES: Final = (127, 128)

#: The distance from a multiple of the step that rounding to half precision causes.
OFF_STEP: Final = 0.07


def bits_of(matrix: np.ndarray) -> int | None:
    """Return the number of bits to which the entries of a matrix are quantised; None where they have more values, or one alone.

    The entries of each row, each column, the whole matrix or each block of a row have few values: at most two to the number of
    bits, or, in blocks too short to show that, multiples of a step.
    """
    if matrix.size < BLOCKS[0] or (matrix == matrix.flat[0]).all():
        return None
    blocks = [matrix.reshape(-1, size) for size in BLOCKS if matrix.shape[1] % size == 0]
    groupings = [
        groups for groups in (matrix, matrix.T, matrix.reshape(1, -1), *blocks) if groups.shape[1] >= BLOCKS[0]
    ]
    for bits in BITS:
        for groups in groupings:
            if groups.shape[1] > 2**bits and all(_has_few(group, 2**bits) for group in groups):
                return bits
    is_stepped = (_are_multiples(groups[:1]) and _are_multiples(groups) for groups in groupings)
    return 8 if any(is_stepped) else None


def quantised(values: np.ndarray, size: int) -> np.ndarray:
    """Return values rounded to 8 bits, the largest of each block of so many features being 127 steps."""
    blocks = values.reshape(*values.shape[:-1], -1, size)
    steps = np.maximum(np.abs(blocks).max(-1, keepdims=True), 1e-30) / MULTIPLES[0]
    return np.asarray((np.rint(blocks / steps) * steps).reshape(values.shape))


def quantised_in_one(values: np.ndarray) -> np.ndarray:
    """Return values rounded to 8 bits, with 255 steps from the least to the largest of all of them and of zero."""
    least, most = min(float(values.min()), 0.0), max(float(values.max()), 0.0)
    step = np.float32((most - least) / 255 or 1.0)
    zero = np.rint(-least / step)
    return np.asarray((np.clip(np.rint(values / step) + zero, 0, 255) - zero) * step)


def roundings(width: int) -> Iterator[tuple[str, Callable[[np.ndarray], np.ndarray]]]:
    """Yield the ways in which inputs of products are rounded to 8 bits, each by a text of what it is rounded to."""
    for size in BLOCKS:
        if width % size == 0 and size < width:
            yield f"8 bits in blocks of {size}", partial(quantised, size=size)
    yield "8 bits", partial(quantised, size=width)
    yield "8 bits with one step for all", quantised_in_one


def _has_few(group: np.ndarray, most: int) -> bool:
    return len(np.unique(group[: 4 * most])) <= most and len(np.unique(group)) <= most


def _are_multiples(groups: np.ndarray) -> bool:
    """Return whether the entries of each group are multiples of a step, of which the largest is one of `MULTIPLES` steps."""
    wide = groups.astype(np.float64)
    largest = np.abs(wide).max(axis=1, keepdims=True)
    shares = wide / np.where(largest > 0, largest, 1)
    return any(bool((np.abs(shares * most - np.rint(shares * most)) <= OFF_STEP).all()) for most in MULTIPLES)


#: The start of second keys, without which some rows of a model of a hundred thousand would be taken for equal by chance.
SECOND: Final = 2.5

#: For rows of one length: their keys in order, their second keys, the names of their weights, and their indices there.
Rows = Mapping[int, tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]


def index_of_rows(weights: Iterable[tuple[str, np.ndarray]]) -> Rows:
    """Return the rows of weights, which are passed with their names."""
    collected: dict[int, list[tuple[np.ndarray, np.ndarray, str]]] = defaultdict(list)
    for name, values in weights:
        for matrix in oriented(values):
            collected[matrix.shape[1]].append((keys_of_rows(matrix), keys_of_rows(matrix, SECOND), name))
    index = {}
    for length, entries in collected.items():
        keys, second = (np.concatenate(both) for both in list(zip(*entries, strict=True))[:2])
        names = np.concatenate([np.full(len(key), number) for number, (key, _, _) in enumerate(entries)])
        at = np.concatenate([np.arange(len(key)) for key, _, _ in entries])
        ranked = np.argsort(keys, kind="stable")
        held = np.array([name for _, _, name in entries])
        index[length] = (keys[ranked], second[ranked], held[names[ranked]], at[ranked])
    return index


def parts_of(values: np.ndarray, rows: Rows) -> list[Part]:
    """Return the parts of a weight in others, where all of its rows, or those of a partner, are found."""
    for matrix in oriented(values):
        if matrix.shape[1] not in rows:
            continue
        keys, second, names, at = rows[matrix.shape[1]]
        wanted = keys_of_rows(matrix)
        nearest = nearest_of(keys, wanted)
        most = 1e-5 * np.linalg.norm(matrix.astype(np.float64), axis=1) + 1e-35
        equal = np.abs(keys[nearest] - wanted) <= most
        equal &= np.abs(second[nearest] - keys_of_rows(matrix, SECOND)) <= most
        if equal.mean() < 0.2 or equal.sum() < 2:
            continue
        return [
            Part(
                str(name),
                np.flatnonzero(equal & (names[nearest] == name)),
                at[nearest][equal & (names[nearest] == name)],
            )
            for name in dict.fromkeys(names[nearest][equal].tolist())
        ]
    return []
