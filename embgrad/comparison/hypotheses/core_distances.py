"""Products of an attention's queries and keys with vectors by distance, as in DeBERTa."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np

from embgrad.comparison.hypotheses.declared import declared_by, number_in
from embgrad.comparison.hypotheses.norm_fit import Parameters
from embgrad.comparison.hypotheses.products import Projection, projection_of
from embgrad.comparison.hypotheses.projections import Projections
from embgrad.comparison.hypotheses.site import Site
from embgrad.comparison.hypotheses.sources import Source
from embgrad.comparison.recording import HeldWeight, Recording
from embgrad.model_points.points import OUTPUT

__all__ = ["DistanceTerms", "distance_terms", "other_terms"]

#: The longest distances of logarithmic buckets that models have where they declare none.
LONGEST: Final = (512, 256, 128)

#: The least rows of a table of distances, the most such tables, and the most norms of one.
LEAST_ROWS: Final = 4
MOST_TABLES: Final = 2
MOST_NORMS: Final = 4

#: The epsilons of a table's norm where the configuration declares none.
EPSILONS: Final = (1e-7, 1e-5, 1e-12)


class _Table(NamedTuple):
    """A table of vectors by distance, and the norm that it goes through; "" for none."""

    rows: np.ndarray
    norm: str


@dataclass(frozen=True, eq=False)
class DistanceTerms:
    """Products of queries and keys with vectors by distance, which are added to the scores before these are scaled.

    The vectors are rows of a table, which stands for keys and queries at distances: row n + d of a table of 2 n rows for a query
    that is d positions behind the key, as defined by Shaw et al., 2018, or projected and in buckets, by He et al., 2021.

    Attributes:
        table: the table, (row, feature), and the norm that it goes through.
        projections: those of queries and keys, which rows go through; None where each head multiplies with the rows themselves.
        of_queries: whether queries are multiplied with rows.
        of_keys: whether keys are multiplied with rows.
        longest: the distance of the last of the buckets that become coarser; None where each distance has its own row.
        senses: for queries and for keys 1, or -1 where rows are those of the opposite distances.
        exchanged: whether queries are multiplied with rows that are projected as queries, and keys likewise.
    """

    table: _Table
    projections: tuple[Projection, Projection] | None
    of_queries: bool = True
    of_keys: bool = True
    longest: int | None = None
    senses: tuple[int, int] = (1, 1)
    exchanged: bool = False

    def products(self, query: np.ndarray, key: np.ndarray, rows: np.ndarray, heads: np.ndarray) -> np.ndarray:
        """Return what is added to some scores, (example, head, query, key).

        Args:
            query: (example, query, head, feature).
            key: (example, key, head, feature).
            rows: the queries' positions.
            heads: the indices of the heads.
        """
        behind = rows[:, None] - np.arange(key.shape[1])
        total = np.zeros((len(query), len(heads), *behind.shape))
        if self.of_queries:
            found = np.einsum("iqhd,rhd->ihqr", query, self._vectors(0, query.shape[-1], heads))
            total += np.take_along_axis(found, self._row(self.senses[0] * behind)[None, None], -1)
        if self.of_keys:
            found = np.einsum("ikhd,rhd->ihkr", key, self._vectors(1, query.shape[-1], heads))
            total += np.take_along_axis(found, self._row(self.senses[1] * behind).T[None, None], -1).swapaxes(2, 3)
        return total

    def _vectors(self, side: int, size: int, heads: np.ndarray) -> np.ndarray:
        """Return the vectors that queries (0) or keys (1) are multiplied with, (row, head, feature)."""
        rows = self.table.rows
        if self.projections is None:
            return np.repeat(rows[:, None], len(heads), 1)
        projection = self.projections[side if self.exchanged else 1 - side]
        return np.asarray((rows @ projection.matrix + projection.bias).reshape(len(rows), -1, size)[:, heads])

    def _row(self, behind: np.ndarray) -> np.ndarray:
        """Return the rows of distances."""
        count = len(self.table.rows)
        if self.longest is not None:
            middle = count // 4
            distance = abs(behind)
            steps = np.log(np.maximum(distance, middle) / middle) / math.log((self.longest - 1) / middle)
            coarse = middle + np.ceil(steps * (middle - 1)).astype(int)
            behind = np.where(distance <= middle, behind, np.sign(behind) * coarse)
        return np.asarray(np.clip(count // 2 + behind, 0, count - 1))

    @property
    def multiplied(self) -> str:
        """A text for what rows are multiplied with."""
        return " and ".join(["queries"] * self.of_queries + ["keys"] * self.of_keys)

    @property
    def buckets(self) -> str:
        """A text for the distances of rows."""
        return "a row for each distance" if self.longest is None else f"buckets up to distance {self.longest}"

    @property
    def turned(self) -> str:
        """A text for what is multiplied with the rows of the opposite distances."""
        queries, keys = self.of_queries and self.senses[0] < 0, self.of_keys and self.senses[1] < 0
        return " and ".join(["queries"] * queries + ["keys"] * keys) or "none"


def distance_terms(site: Site, candidate: Projections) -> Iterator[DistanceTerms]:
    """Yield the products with vectors by distance that the reference may add to the scores of some queries and keys."""
    if candidate.query.values.shape != candidate.key.values.shape:
        return
    for table, projections in _tables(site, candidate.query, candidate.key, candidate.size):
        for longest, (queries, keys) in itertools.product(
            _longest(site, len(table.rows)), ((True, True), (True, False), (False, True))
        ):
            yield DistanceTerms(table, projections, queries, keys, longest)


def other_terms(site: Site, terms: DistanceTerms, query: Source, key: Source, size: int) -> Iterator[DistanceTerms]:
    """Yield the products that differ in one setting."""
    for queries, keys in ((True, True), (True, False), (False, True)):
        yield replace(terms, of_queries=queries, of_keys=keys)
    yield from (replace(terms, longest=longest) for longest in _longest(site, len(terms.table.rows)))
    yield from (replace(terms, senses=senses) for senses in ((-1, -1), (-1, 1), (1, -1), (1, 1)))
    yield replace(terms, exchanged=not terms.exchanged)
    for table, _ in _tables(site, query, key, size):
        if table.norm != terms.table.norm and table.rows.shape == terms.table.rows.shape:
            yield replace(terms, table=table)


def _longest(site: Site, rows: int) -> list[int | None]:
    """Return the longest distances that buckets of so many rows may have, those of the configurations first."""
    declared = [number_in(declared_by(site, side), name) for side in (0, 1) for name in ("bias_distance", "positions")]
    numbers = [round(number) for number in declared if number is not None]
    return [*dict.fromkeys(number for number in [*numbers, *LONGEST] if number > rows // 2 + 1), None]


def _tables(
    site: Site, query: Source, key: Source, size: int
) -> Iterator[tuple[_Table, tuple[Projection, Projection] | None]]:
    """Yield the tables of distances with their projections: rows of heads first, then rows that the layer projects."""
    side = site.recordings[0]
    used = {tensor.path for tensor in side.tensors.values() if tensor.side is None}  # lookups
    used |= {before.name for before in site.before}
    found = [
        weight
        for weight in side.weights
        if len(weight.shape) == 2
        and weight.shape[0] >= LEAST_ROWS
        and weight.shape[1] in (size, query.values.shape[-1])
        and weight.layer in (None, site.layer)
        and weight.module not in used
        and not _is_projection(side, weight)
    ][:MOST_TABLES]
    if not found:
        return
    first, second = projection_of(site, query.name), projection_of(site, key.name)
    for weight in found:
        rows = weight.get().astype(np.float64)
        if rows.shape[1] == size:
            yield _Table(rows, ""), None
        elif first is not None and second is not None:
            # Of several modules' features together, the first one's projection makes a part only.
            shapes = {first.matrix.shape, second.matrix.shape}
            if shapes == {(rows.shape[1], query.values.shape[-1])}:
                yield from ((table, (first, second)) for table in _normed(site, rows))


def _is_projection(side: Recording, weight: HeldWeight) -> bool:
    """Return whether a matrix's module returns as many features as the matrix has rows."""
    output = side.of_module(weight.module, OUTPUT)
    return output is not None and output.features == weight.shape[0]


def _normed(site: Site, rows: np.ndarray) -> Iterator[_Table]:
    """Yield a table behind the norms of no layer, and as it is."""
    epsilon = number_in(declared_by(site, 0), "epsilon")
    outside: dict[str, list[np.ndarray]] = {}
    for weight in site.recordings[0].weights:
        if weight.layer is None and weight.shape == rows.shape[1:]:
            outside.setdefault(weight.module, []).append(weight.get().astype(np.float64))
    for norm, held in [entry for entry in reversed(outside.items()) if len(entry[1]) == 2][:MOST_NORMS]:
        for small in EPSILONS if epsilon is None else (epsilon,):
            for gain, shift in itertools.permutations(held):  # Flax lists the bias first
                yield _Table(Parameters(True, small, gain, shift).apply(rows), norm)
    yield _Table(rows, "")
