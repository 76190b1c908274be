"""Discretized integrated gradients: the gradient's integral along a path whose points lie near rows of the table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from embgrad.attribution.baselines import absent_positions, checked_baseline, id_of
from embgrad.attribution.completeness import warn_of_missed
from embgrad.attribution.method import Contributions, Method, expect_choice, expect_count
from embgrad.attribution.passes import Passes, Rows
from embgrad.common.options import expect_flag
from embgrad.engine.embedding_table import table_of
from embgrad.errors import BatchError, EmbgradError, UnsupportedError

__all__ = ["DiscretizedIntegratedGradients", "nearest_rows", "path_of"]

#: How the next row of a path is chosen.
STRATEGIES: Final = ("greedy", "maxcount")

#: How many rows of a table are compared with at once.
BLOCK: Final = 8192


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
        baseline: "pad", "mask" or an id, a row of the table.
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
        if not isinstance(checked_baseline(self.baseline), (str, int)) or self.baseline == "zero":
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
        neighbours: dict[int, np.ndarray] = {}
        paths = np.zeros((max(1, len(distinct)), self.steps, table.shape[1]))
        for row, id_ in enumerate(distinct.tolist()):
            paths[row] = path_of(table, id_, int(end), self.steps, self.neighbours, self.strategy, neighbours)
        return self._summed(passes, absent, index, paths)

    def _summed(self, passes: Passes, absent: np.ndarray, index: np.ndarray, paths: np.ndarray) -> Contributions:
        inputs = passes.inputs
        examples = len(inputs)

        def values(start: int, end: int) -> np.ndarray:
            step, example = np.divmod(np.arange(start, end), examples)
            return np.where(absent[example, :, None], paths[index[example], step[:, None]], inputs[example])

        total = np.zeros(inputs.shape)
        segments = np.diff(paths, axis=1)
        before = np.empty(examples)
        for start, end, gradients, objectives in passes.gradients(Rows(self.steps - 1, values)):
            step, example = np.divmod(np.arange(start, end), examples)
            moved = np.where(absent[example, :, None], segments[index[example], step[:, None]], 0.0)
            np.add.at(total, example, gradients * moved)
            before[example[step == 0]] = objectives[step == 0]
        difference = passes.state.objective - before
        delta = total.sum((1, 2)) - difference
        warn_of_missed(passes, delta, difference, before, f"{self.steps} steps", "Take more steps")
        return Contributions(total.sum(-1), total, before, delta)


def _table_of(passes: Passes) -> np.ndarray:
    """Return the table of the batch's ids.

    Raises:
        UnsupportedError: the point is not the lookup of the batch's ids.
    """
    if passes.state.vocab is None or not np.array_equal(passes.state.ids, passes.batch.ids):
        raise UnsupportedError(
            f"the point {passes.at!r} has no table of the batch's ids, along whose rows DiscretizedIntegratedGradients walks: "
            "give at='word', or take IntegratedGradients here"
        )
    return table_of(passes.bound, passes.batch, passes.at)


def path_of(
    table: np.ndarray,
    start: int,
    end: int,
    steps: int,
    neighbours: int,
    strategy: str,
    known: dict[int, np.ndarray],
) -> np.ndarray:
    """Return the points from the row `end` to the row `start`, float64, (steps, dim).

    Args:
        table: the table, (vocab, dim).
        start: the id of the token.
        end: the id of the baseline.
        steps: the number of points.
        neighbours: how many nearest rows are candidates of a step.
        strategy: "greedy" or "maxcount".
        known: the nearest rows by id, to which those of this path are added.
    """
    baseline = np.asarray(table[end], np.float64)
    visited, current = {start, end}, start
    points = [np.asarray(table[start], np.float64)]
    for _ in range(steps - 2):
        if current != end:
            if current not in known:
                known[current] = nearest_rows(table, current, neighbours)
            candidates = np.array([id_ for id_ in known[current].tolist() if id_ not in visited], int)
            current = _next(table, current, baseline, candidates, steps, strategy) if len(candidates) else end
            visited.add(current)
        points.append(_monotone(np.asarray(table[current], np.float64), points[-1], baseline, steps)[0])
    return np.stack([*points, baseline][::-1])


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


def nearest_rows(table: np.ndarray, id_: int, count: int) -> np.ndarray:
    """Return the ids of the rows nearest to a row by L2 distance, nearest first, int64, (count,) at most, without its own."""
    row = np.asarray(table[id_], np.float64)
    squares = [((table[start : start + BLOCK] - row) ** 2).sum(-1) for start in range(0, len(table), BLOCK)]
    distances = np.concatenate(squares)
    distances[id_] = np.inf
    count = min(count, len(table) - 1)
    nearest = np.argpartition(distances, count - 1)[:count] if count else np.zeros(0, int)
    return nearest[np.lexsort((nearest, distances[nearest]))]
