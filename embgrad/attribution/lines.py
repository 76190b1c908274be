"""Integrals of gradients along the straight line from a baseline to the inputs, with what L changes by on the way."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from embgrad.attribution.passes import Passes, Rows, add_rows
from embgrad.attribution.quadrature import error_along, nodes_and_weights
from embgrad.errors import NoGradientError

__all__ = ["Along", "InputLine", "along", "explain_end", "integrate"]


@dataclass
class Integral:
    """The integral of the gradient along the lines of the examples, times the difference of their ends.

    Attributes:
        values: the integrals, float64, (row, position, dim).
        slopes: at each node how L changes along the line, (step, row).
        objectives: L at each node, likewise.
    """

    values: np.ndarray
    slopes: np.ndarray
    objectives: np.ndarray


def integrate(
    passes: Passes,
    inputs: np.ndarray,
    baseline: np.ndarray,
    nodes: np.ndarray,
    weights: np.ndarray,
) -> Integral:
    """Return the integrals from a baseline to the inputs.

    Args:
        inputs: the values at the end of the line, (row, position, dim), of the whole batch or of several such.
        baseline: the values at the beginning, (example, position, dim).
        nodes: the places of the steps on the line, from 0 to 1, (step,).
        weights: their weights, likewise; (step, row) where those of the rows differ, as the nodes may.
    """
    count, examples = len(inputs), len(baseline)
    origins = np.tile(baseline, (count // examples, 1, 1))
    differences = inputs - origins
    places, shares = (
        np.broadcast_to(array if array.ndim == 2 else array[:, None], (len(nodes), count)) for array in (nodes, weights)
    )

    def values(start: int, end: int) -> np.ndarray:
        before, after = start // count, -(-end // count)
        steps = origins + places[before:after, :, None, None] * differences
        return np.asarray(steps.reshape(-1, *inputs.shape[1:])[start - before * count : end - before * count])

    total = np.zeros(inputs.shape)
    slopes, objectives = np.zeros(len(nodes) * count), np.empty(len(nodes) * count)
    rows = Rows(len(nodes) * count // examples, values)
    for start, end, gradients, found in passes.gradients(rows):
        objectives[start:end] = found
        for row, gradient in enumerate(gradients, start):
            slopes[row] = np.vdot(gradient, differences[row % count])
        add_rows(total, start, shares.reshape(-1)[start:end, None, None] * gradients)
    shape = (len(nodes), count)
    return Integral(np.asarray(total * differences), slopes.reshape(shape), objectives.reshape(shape))


@dataclass
class Along:
    """The contributions by a rule along the lines of a batch.

    Attributes:
        baseline: the beginnings of the lines, (example, position, dim).
        values: the contributions, likewise.
        before: L at the baseline, (example,).
        delta: the error of their sum, likewise.
        error: the largest error of their sum on any stretch, see `error_along`.
        nodes: the places of the steps, (step,).
        objectives: L there, (step, example).
    """

    baseline: np.ndarray
    values: np.ndarray
    before: np.ndarray
    delta: np.ndarray
    error: np.ndarray
    nodes: np.ndarray
    objectives: np.ndarray

    def take_from(self, other: Along, examples: np.ndarray) -> None:
        """Take some examples' contributions from others."""
        for name in ("baseline", "values", "before", "delta", "error"):
            own, theirs = getattr(self, name), getattr(other, name)
            setattr(self, name, np.where(examples.reshape(-1, *[1] * (own.ndim - 1)), theirs, own))


@contextlib.contextmanager
def explain_end(rule: str) -> Iterator[None]:
    """Say in an error of a gradient that is not finite what to do where a rule needs one at the baseline."""
    try:
        yield
    except NoGradientError as error:
        if rule not in ("riemann_left", "riemann_trapezoid"):
            raise
        raise NoGradientError(
            f"{error.message}. The rule {rule!r} takes a step at the baseline itself: rule='gausslegendre' takes none there"
        ) from error


def along(passes: Passes, baseline: np.ndarray, rule: str, steps: int) -> Along:
    """Return the contributions by a rule along the lines from a baseline to the inputs."""
    inputs, (nodes, weights) = passes.inputs, nodes_and_weights(rule, steps)
    if nodes[0] == 0:
        with explain_end(rule):
            made = integrate(passes, inputs, baseline, nodes, weights)
        before = made.objectives[0]
    else:
        before = passes.objective_at(baseline)
        made = integrate(passes, inputs, baseline, nodes, weights)
    delta = made.values.sum((1, 2)) - (passes.state.objective - before)
    error = error_along(rule, made.slopes, made.objectives, before, delta)
    return Along(baseline, made.values, before, delta, error, nodes, made.objectives)


@dataclass(frozen=True)
class InputLine:
    """The lines from a baseline to the values at a point, see `embgrad.attribution.refinement`.

    Attributes:
        baseline: the beginnings of the lines, (example, position, dim).
    """

    passes: Passes
    baseline: np.ndarray

    @property
    def examples(self) -> int:
        """The number of examples."""
        return len(self.baseline)

    @property
    def is_free(self) -> bool:
        """Return whether a pass may run any examples, each as often as is needed."""
        return not self.passes.needs_whole

    @property
    def at_once(self) -> int:
        """The most rows of a pass."""
        return self.passes.size

    def objectives_at(self, examples: np.ndarray, places: np.ndarray) -> np.ndarray:
        """Return L at one place on the line of each of some examples, (row, 1)."""
        inputs, origins = self.passes.inputs[examples], self.baseline[examples]
        rows = Rows.of(origins + places[:, None, None] * (inputs - origins), len(examples))
        return self._of(examples).objectives(rows)[:, None]

    def integrals(
        self, examples: np.ndarray, places: np.ndarray, weights: np.ndarray
    ) -> tuple[list[np.ndarray], np.ndarray]:
        """Return the contributions, (row, position, dim), and their sums, (row, 1)."""
        inputs, origins = self.passes.inputs[examples], self.baseline[examples]
        made = integrate(self._of(examples), inputs, origins, places, weights)
        return [made.values], made.values.sum((1, 2))[:, None]

    def _of(self, examples: np.ndarray) -> Passes:
        return self.passes.of_examples(examples) if self.is_free else self.passes
