"""Queries, keys and values among the tensors before a site, recognised by their values."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from embgrad.comparison.hypotheses.site import Site
from embgrad.comparison.hypotheses.sources import Source

__all__ = [
    *("SIZES", "Projections", "divisors", "is_causal", "is_one_value", "least_window", "projections", "spans_values"),
    "splits",
]

#: The sizes of heads that models have, the frequent ones first.
SIZES: Final = (64, 128, 32, 96, 80, 256, 48, 16, 8, 4, 2)

#: How far, as a share of the largest value, a sum of values may be outside of their range.
OUTSIDE: Final = 1e-4

#: By how much queries with keys and values of another text are less likely than those with their own.
CROSSING: Final = 4

#: The share of a row that is left where it is not a sum of two rows of values for each head.
LEFT: Final = 1e-2


@dataclass(frozen=True, eq=False)
class Projections:
    """Tensors that may be queries, keys and values of heads of a size.

    Attributes:
        query: the tensor of the queries.
        key: that of the keys.
        value: that of the values.
        size: the number of features of each head of queries and keys.
        tiled: whether head h takes value h modulo their number, instead of neighbouring heads sharing one.
        turned: the number of features of a head that rotary positions turn; None where it is not known.
    """

    query: Source
    key: Source
    value: Source
    size: int
    tiled: bool = False
    turned: int | None = None

    @property
    def crosses(self) -> bool:
        """Return whether keys and values are those of another text."""
        return self.query.values.shape[:2] != self.key.values.shape[:2]

    @property
    def heads(self) -> int:
        """The number of heads."""
        return int(self.query.values.shape[-1]) // self.size

    @property
    def value_size(self) -> int:
        """The number of features of each head of values."""
        return int(self.value.values.shape[-1]) * self.size // int(self.key.values.shape[-1])


def projections(site: Site, found: Sequence[Source], sizes: Sequence[int] = ()) -> list[Projections]:
    """Return the tensors that may be queries, keys and values, likeliest first.

    Each output must lie between the least and the largest of the values that it is a mean of.

    Args:
        site: the site.
        found: the tensors.
        sizes: the sizes of heads that are tried first.
    """
    others = [source for source in found if source.values.shape[:2] != site.a.shape[:2]]
    found = [source for source in found if source.values.shape[:2] == site.a.shape[:2]]
    triples = [*_fused(site, found), *_separate(site, found), *_crossing(site, found, others)]
    order = {size: rank for rank, size in enumerate(dict.fromkeys([*sizes, *SIZES]))}
    ranked = sorted(triples, key=lambda entry: entry[0] + order.get(entry[1].size, len(order)))
    return [candidate for _, candidate in ranked]


def splits(
    source: Source, heads: int, size: int, *, reordered: bool = False
) -> Iterator[tuple[Source, Source, Source]]:
    """Yield queries, keys and values as they may stand in a fused tensor: one after the other, or so for each group of heads.

    Args:
        source: the fused tensor.
        heads: the number of heads of queries.
        size: the number of features of a head.
        reordered: whether they may stand in any order, as a port may split them; queries, keys, values otherwise.
    """
    width = source.values.shape[-1]
    pairs, left = divmod(width - heads * size, 2 * size)
    if left or pairs < 1 or heads % pairs:
        return
    shares = {"query": heads // pairs, "key": 1, "value": 1}
    for order in itertools.permutations(shares) if reordered else (tuple(shares),):
        for groups in (1, pairs) if pairs > 1 else (1,):
            by_group = np.arange(width).reshape(groups, -1, pairs // groups * size)
            ends = np.cumsum([shares[role] for role in order])[:-1]
            parts = dict(zip(order, np.split(by_group, ends, axis=1), strict=True))
            query, key, value = (source.part(parts[role].ravel(), role) for role in shares)
            yield query, key, value


def is_causal(site: Site, candidate: Projections) -> bool:
    """Return whether the first query of each text takes the first value alone."""
    first, each = site.real.argmax(1), np.arange(len(site.real))
    values = candidate.value.values[each, first]
    return is_one_value(site.a[each, first], values, candidate.value_size, tiled=candidate.tiled)


def is_one_value(outputs: np.ndarray, values: np.ndarray, size: int, *, tiled: bool = False) -> bool:
    """Return whether outputs, (example, feature), are the value that each head takes, of heads of a size."""
    shared = _shared(values[:, None], outputs.shape[-1], size, tiled)[:, 0]
    return bool(np.linalg.norm(outputs - shared) <= 1e-3 * np.linalg.norm(shared))


def least_window(site: Site, candidate: Projections, *, causal: bool) -> int:
    """Return the least number of positions, itself among them if causal, whose values may have each output as their mean."""
    values = _shared(candidate.value.values, site.a.shape[-1], candidate.value_size, candidate.tiled)
    positions = np.arange(values.shape[1])
    slack = OUTSIDE * float(np.abs(values).max())
    low, high = values.copy(), values.copy()
    for distance in positions:
        if distance:
            low[:, distance:] = np.minimum(low[:, distance:], values[:, :-distance])
            high[:, distance:] = np.maximum(high[:, distance:], values[:, :-distance])
            if not causal:
                low[:, :-distance] = np.minimum(low[:, :-distance], values[:, distance:])
                high[:, :-distance] = np.maximum(high[:, :-distance], values[:, distance:])
        if ((site.a >= low - slack) & (site.a <= high + slack))[site.real].all():
            return int(distance) + int(causal)
    return len(positions)


def _separate(site: Site, found: Sequence[Source]) -> Iterator[tuple[int, Projections]]:
    width = site.a.shape[-1]
    for value in found:
        narrow = value.values.shape[-1]
        sizes = _sizes(site, value)
        if not sizes:
            continue
        for rank, key in enumerate(found):
            for place, query in enumerate(found):
                shapes = key.values.shape[-1] == narrow and query.values.shape[-1] == width
                if shapes and len({id(key), id(query), id(value)}) == 3:
                    behind = 0 if rank < place else 2  # queries are usually computed before keys
                    yield from (
                        (rank + place + behind, Projections(query, key, value, size, tiled)) for size, tiled in sizes
                    )


def _crossing(site: Site, found: Sequence[Source], others: Sequence[Source]) -> Iterator[tuple[int, Projections]]:
    """Yield queries with the keys and values of another text, behind all others."""
    width = site.a.shape[-1]
    queries = [source for source in found if source.values.shape[-1] == width]
    for value in others:
        narrow = value.values.shape[-1]
        if value.values.shape[0] != len(site.a) or width != narrow or not spans_values(site, value.values):
            continue
        for rank, key in enumerate(others):
            for place, query in (
                enumerate(queries) if key is not value and key.values.shape == value.values.shape else ()
            ):
                for size in divisors(narrow):
                    yield CROSSING + rank + place, Projections(query, key, value, size)


def _fused(site: Site, found: Sequence[Source]) -> Iterator[tuple[int, Projections]]:
    """Yield the parts of fused tensors, and their values with queries and keys that a module returned, such as a norm's."""
    width = site.a.shape[-1]
    for rank, source in enumerate(found):
        if source.values.shape[-1] <= width:
            continue
        for size in divisors(width):
            for query, key, value in splits(source, width // size, size):
                for tiled in (tiled for fits, tiled in _sizes(site, value) if fits == size):
                    yield rank, Projections(query, key, value, size, tiled)
                    for place, (normed, other) in enumerate(itertools.permutations(found, 2)):
                        if normed.values.shape == query.values.shape and other.values.shape == key.values.shape:
                            yield rank + place, Projections(normed, other, value, size, tiled)


def _sizes(site: Site, value: Source) -> list[tuple[int, bool]]:
    """Return the sizes of heads with which the outputs may be means of values, and whether values are tiled."""
    width, narrow = site.a.shape[-1], value.values.shape[-1]
    if width % narrow:
        return []
    if width == narrow:
        return [(size, False) for size in _by_rows(site, value)] if spans_values(site, value.values) else []
    sizes = [
        (size, False)
        for size in _by_rows(site, value)
        if narrow % size == 0 and spans_values(site, _shared(value.values, width, size, False))
    ]
    if spans_values(site, _shared(value.values, width, narrow, True)):
        sizes += [(size, True) for size in divisors(narrow) if size < narrow]
    return sizes


def _by_rows(site: Site, value: Source) -> list[int]:
    """Return the sizes of heads that the second row of each text allows, where its queries see two values alone."""
    width, narrow = site.a.shape[-1], value.values.shape[-1]
    sizes = divisors(narrow)
    first = site.real.argmax(1)
    each = np.flatnonzero(site.real.sum(1) > 1)
    second = first[each] + 1
    fitting = []
    for size in sizes:
        values = _shared(value.values, width, size, False)
        start, after = values[each, first[each]], values[each, second]
        x, y = (array.reshape(len(each), -1, size) for array in (site.a[each, second] - after, start - after))
        share = (x * y).sum(-1, keepdims=True) / np.maximum((y**2).sum(-1, keepdims=True), 1e-300)
        if np.linalg.norm(x - share * y) <= LEFT * np.linalg.norm(x) + 1e-12:
            fitting.append(size)
    return fitting[-1:] or sizes


def _shared(values: np.ndarray, width: int, size: int, tiled: bool) -> np.ndarray:
    """Return the values that each head takes, side by side."""
    narrow = values.shape[-1]
    if narrow == width:
        return values
    if tiled:
        return np.tile(values, width // narrow)
    by_head = values.reshape(*values.shape[:2], narrow // size, 1, size)
    return np.broadcast_to(by_head, (*by_head.shape[:3], width // narrow, size)).reshape(*values.shape[:2], width)


def spans_values(site: Site, values: np.ndarray) -> bool:
    """Return whether each output lies between the least and the largest of 0 and the values of its text."""
    slack = OUTSIDE * float(np.abs(values).max())
    low, high = values.min(1, keepdims=True, initial=0.0) - slack, values.max(1, keepdims=True, initial=0.0) + slack
    inside = (site.a >= low) & (site.a <= high)
    return bool(inside[site.real].all())


def divisors(number: int) -> list[int]:
    """Return the numbers from 2 by which a number can be divided, in order."""
    return [size for size in range(2, number + 1) if number % size == 0]
