"""Discretized integrated gradients: the gradient's integral along a path whose points lie near rows of the table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from embgrad.attribution.baselines import absent_positions, check_baseline, id_of
from embgrad.attribution.completeness import warn_of_missed
from embgrad.attribution.method import Contributions, Method, expect_choice, expect_count
from embgrad.attribution.passes import Passes, Rows, add_rows
from embgrad.attribution.quadrature import largest_gap
from embgrad.common.options import expect_flag, lists_choices
from embgrad.engine.embedding_table import table_of
from embgrad.errors import BatchError, EmbgradError, UnsupportedError

__all__ = ["DiscretizedIntegratedGradients", "NearestRows", "paths_of"]

#: How the next row of a path is chosen.
STRATEGIES: Final = ("greedy", "maxcount")

#: The most distances between rows that are held at once.
MOST_NUMBERS: Final = 2**23


@dataclass(frozen=True)
class DiscretizedIntegratedGradients(Method):
    """The gradient's integral along a path from a baseline to the inputs whose points lie near rows of the table.

    From each token the path steps to one of its nearest rows, changed where a dimension would leave the way from the last point
    to the baseline. Each dimension so moves in one direction, and the contributions approach L at the inputs minus L at the
    baseline; `delta` is the error, which is larger than that of a straight line, since the last step is a long one. Sanyal and
    Ren, "Discretized integrated gradients for explaining language models", 2021; the sum takes the gradient at the beginning of
    each segment, as the authors' code does.

    Args:
        steps: the number of points of the path, both ends included.
        baseline: "pad", "mask" or an id, a row of the table; or a list of these, over which the result is the mean.
        neighbours: how many nearest rows of the table are candidates of a step.
        strategy: "greedy" takes the row that is changed least, by L2 norm; "maxcount" the one that is changed in the fewest
            dimensions.
        keep_special: see `IntegratedGradients`.
    """

    steps: int = 50
    baseline: Any = "mask"
    neighbours: int = 50
    strategy: str = "greedy"
    keep_special: bool = False

    def __post_init__(self) -> None:
        expect_count(self.steps, "steps", 2)
        expect_count(self.neighbours, "neighbours")
        expect_choice(self.strategy, "strategy", STRATEGIES)
        expect_flag(self.keep_special, "keep_special")
        several = self.baseline if lists_choices(self.baseline) else (self.baseline,)
        if not all(
            isinstance(check_baseline(entry), (str, int)) and entry not in ("zero", "mean") for entry in several
        ):
            raise EmbgradError(
                "baseline is no row of the table: expected 'pad', 'mask' or an id, at which the path can begin"
            )

    def contributions(self, passes: Passes, tokenizer: Any) -> Contributions:
        """Return the contributions of all positions, and warn of examples that they do not explain within 1 %."""
        table, ids = _table_of(passes), passes.batch.ids
        absent = absent_positions(passes, tokenizer, self.keep_special)
        end = self.baseline if isinstance(self.baseline, (int, np.integer)) else id_of(self.baseline, passes, tokenizer)
        if end >= len(table):
            raise BatchError(f"baseline is the id {end}: expected a row of the table of {len(table)}")
        distinct, number = np.unique(ids[absent], return_inverse=True)
        index = np.zeros(ids.shape, int)
        index[absent] = number.ravel()
        nearest = NearestRows(table, self.neighbours)
        paths = np.zeros((1, self.steps, table.shape[1]))
        if len(distinct):
            paths = paths_of(nearest, distinct, int(end), self.steps, self.strategy)
        return self._sum_up(passes, absent, index, paths)

    def _sum_up(self, passes: Passes, absent: np.ndarray, index: np.ndarray, paths: np.ndarray) -> Contributions:
        inputs = passes.inputs
        examples = len(inputs)

        def values(start: int, end: int) -> np.ndarray:
            step, example = np.divmod(np.arange(start, end), examples)
            return np.where(absent[example, :, None], paths[index[example], step[:, None]], inputs[example])

        total = np.zeros(inputs.shape)
        segments = np.diff(paths, axis=1)
        before, sums = np.empty(examples), np.zeros((self.steps - 1) * examples)
        reached = np.empty_like(sums)
        for start, end, gradients, objectives in passes.gradients(Rows(self.steps - 1, values)):
            step, example = np.divmod(np.arange(start, end), examples)
            moved = np.where(absent[example, :, None], segments[index[example], step[:, None]], 0.0)
            products = gradients * moved
            sums[start:end], reached[start:end] = products.sum((1, 2)), objectives
            add_rows(total, start, products)
            if start < examples:
                before[start:end] = objectives[: examples - start]
        difference = passes.state.objective - before
        delta = total.sum((1, 2)) - difference
        warn_of_missed(passes, delta, difference, before, f"{self.steps} steps", "Take more steps")
        gaps = sums.reshape(-1, examples).cumsum(0)[:-1] - (reached.reshape(-1, examples)[1:] - before)
        error = largest_gap(np.concatenate([gaps, delta[None]]))
        return Contributions(total.sum(-1), total, before, delta, error)


def _table_of(passes: Passes) -> np.ndarray:
    """Return the table of the batch's ids."""
    if passes.values is not None:
        raise UnsupportedError(
            f"the values at {passes.at!r} were changed, and DiscretizedIntegratedGradients begins at rows of the table: take "
            "another method here, such as IntegratedGradients"
        )
    if passes.state.vocab is None or not np.array_equal(passes.state.ids, passes.batch.ids):
        raise UnsupportedError(
            f"the point {passes.at!r} has no table of the batch's ids, along whose rows DiscretizedIntegratedGradients walks: "
            "give at='word', or take IntegratedGradients here"
        )
    return table_of(passes.bound, passes.batch, passes.at)


def paths_of(nearest: NearestRows, starts: np.ndarray, end: int, steps: int, strategy: str) -> np.ndarray:
    """Return the points from the row `end` to each of the rows `starts`, float64, (start, steps, dim).

    Args:
        nearest: the nearest rows of the table.
        end: the id of the baseline.
        strategy: "greedy" or "maxcount".
    """
    table = nearest.table
    baseline = np.asarray(table[end], np.float64)
    walks = [[id_] for id_ in starts.tolist()]
    points = [[np.asarray(table[id_], np.float64)] for id_ in starts.tolist()]
    for _ in range(steps - 2):
        nearest.find([walk[-1] for walk in walks])
        for walk, path in zip(walks, points, strict=True):
            around = nearest.of(walk[-1])
            candidates = around[~np.isin(around, [*walk, end])]
            is_over = walk[-1] == end or not len(candidates)
            walk.append(end if is_over else _next(table, walk[-1], baseline, candidates, steps, strategy))
            path.append(_monotone(np.asarray(table[walk[-1]], np.float64), path[-1], baseline, steps)[0])
    return np.stack([np.stack([*path, baseline][::-1]) for path in points])


def _next(
    table: np.ndarray, current: int, baseline: np.ndarray, candidates: np.ndarray, steps: int, strategy: str
) -> int:
    """Return the candidate that is changed least to lie between the current row and the baseline; the nearest among equals."""
    rows = np.asarray(table[candidates], np.float64)
    changed, outside = _monotone(rows, np.asarray(table[current], np.float64), baseline, steps)
    costs = outside.sum(-1) if strategy == "maxcount" else np.linalg.norm(rows - changed, axis=-1)
    return int(candidates[np.argmin(costs)])


def _monotone(rows: np.ndarray, last: np.ndarray, baseline: np.ndarray, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Return rows between a last point and the baseline, and where they were changed, both of the rows' shape.

    A dimension outside moves from the last point by `1 / steps` of the way to the baseline.
    """
    outside = (rows < np.minimum(last, baseline)) | (rows > np.maximum(last, baseline))
    return np.where(outside, last - (last - baseline) / steps, rows), outside


class NearestRows:
    """The rows of a table that are nearest to a row by L2 distance."""

    def __init__(self, table: np.ndarray, count: int) -> None:
        self.table = table
        self._count = min(count, len(table) - 1)
        self._squares = np.einsum("ij,ij->i", table, table)
        self._known: dict[int, np.ndarray] = {}

    def of(self, id_: int) -> np.ndarray:
        """Return the ids of the rows nearest to a row, nearest first, without its own."""
        self.find([id_])
        return self._known[id_]

    def find(self, ids: list[int]) -> None:
        """Find the nearest rows of several rows at once, for later calls of `of`."""
        unknown = sorted(set(ids) - set(self._known))
        at_once = max(1, MOST_NUMBERS // len(self.table))
        for start in range(0, len(unknown), at_once):
            some = unknown[start : start + at_once]
            for id_, product in zip(some, self.table[some] @ self.table.T, strict=True):
                self._known[id_] = self._nearest(id_, self._squares - 2 * product)

    def _nearest(self, id_: int, rough: np.ndarray) -> np.ndarray:
        """Return the nearest of candidates, which are chosen by distances with rounding errors of the table's dtype."""
        rough[id_] = np.inf
        most = min(2 * self._count + 8, len(rough) - 1)
        candidates = np.argpartition(rough, most - 1)[:most]
        differences = self.table[candidates].astype(np.float64) - self.table[id_]
        return candidates[np.lexsort((candidates, (differences**2).sum(-1)))][: self._count]
