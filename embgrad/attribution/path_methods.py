"""Attribution by gradients along paths from a baseline to the inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from embgrad.attribution.baselines import baseline_values, check_baseline
from embgrad.attribution.completeness import SHARE, find_missed, warn_of_missed
from embgrad.attribution.draws import generators_of, normal
from embgrad.attribution.method import Contributions, GradientMethod, Method, expect_choice, expect_count, expect_number
from embgrad.attribution.passes import Passes, Rows, add_rows
from embgrad.attribution.quadrature import RULES, nodes_and_weights
from embgrad.common.options import expect_flag
from embgrad.errors import EmbgradError, NoGradientError, brief

__all__ = ["GradientShap", "IntegratedGradients", "SequentialIntegratedGradients"]

#: With `tolerance`, steps are doubled up to this many times their first number.
MOST_DOUBLED: Final = 32


@dataclass(frozen=True)
class IntegratedGradients(GradientMethod):
    """The gradient's integral along the straight line from a baseline to the inputs, times their difference.

    The contributions sum to L at the inputs minus L at the baseline, up to the error of the rule, `delta`. Sundararajan, Taly and
    Yan, "Axiomatic attribution for deep networks", 2017.

    Args:
        steps: the number of gradients along the line.
        baseline: "zero", "pad" or "mask", the table's row at all real positions; an id; or an array at the point, which
            broadcasts to (example, position, dim).
        rule: "gausslegendre", or "riemann_left", "riemann_right", "riemann_middle", "riemann_trapezoid".
        tolerance: double the steps of each example, up to 32 times their number, until the size of `delta` is at most this
            share of that of L - L(baseline); None takes the steps as they are.
        keep_special: leave the values of special tokens as they are under a baseline that is a name or an id.
    """

    steps: int = 50
    baseline: Any = "zero"
    rule: str = "gausslegendre"
    tolerance: float | None = None
    keep_special: bool = False

    def __post_init__(self) -> None:
        expect_flag(self.keep_special, "keep_special")
        expect_count(self.steps, "steps")
        check_baseline(self.baseline)
        expect_choice(self.rule, "rule", RULES)
        if self.tolerance is not None:
            expect_number(self.tolerance, "tolerance")

    def prepare(self, passes: Passes, tokenizer: Any) -> np.ndarray:
        """Return the baseline's values at the point."""
        return baseline_values(passes, self.baseline, tokenizer, self.keep_special)

    def values_at(self, passes: Passes, inputs: np.ndarray, prepared: Any) -> np.ndarray:
        """Return the integrals from the baseline to the inputs, times their difference."""
        return self._integrate(passes, inputs, prepared, *nodes_and_weights(self.rule, self.steps))[0]

    def contributions(self, passes: Passes, tokenizer: Any) -> Contributions:
        """Return the contributions, and warn of examples whose error of completeness is more than `tolerance`, or 1 %."""
        inputs = passes.inputs
        baseline = self.prepare(passes, tokenizer)
        (values, before), steps = self._with_baseline(passes, inputs, baseline), self.steps
        taken = np.full(len(inputs), steps)
        difference = passes.state.objective - before
        most = SHARE if self.tolerance is None else self.tolerance
        delta = values.sum((1, 2)) - difference
        left = find_missed(passes, delta, difference, before, most)
        while self.tolerance is not None and left.size and steps < MOST_DOUBLED * self.steps and not passes.is_random:
            steps *= 2
            chosen = np.arange(len(inputs)) if passes.needs_whole else left
            taken[chosen] = steps
            values[chosen], _ = self._integrate(
                passes.of_examples(chosen), inputs[chosen], baseline[chosen], *nodes_and_weights(self.rule, steps)
            )
            delta = values.sum((1, 2)) - difference
            left = find_missed(passes, delta, difference, before, most)
        advice = "Take more steps, or a tolerance that doubles them where needed"
        warn_of_missed(passes, delta, difference, before, f"{steps} steps", advice, most)
        return Contributions(self.scores(values), values, before, delta, {"steps_taken": taken.tolist()})

    def _with_baseline(self, passes: Passes, inputs: np.ndarray, baseline: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the contributions of the batch, and L of each example at the baseline.

        A further step at the baseline, without weight, is cheaper than a pass of its own, but not where it takes another one.
        """
        nodes, weights = nodes_and_weights(self.rule, self.steps)
        if nodes[0] == 0:
            return self._integrate(passes, inputs, baseline, nodes, weights)
        if not passes.has_room(self.steps * len(inputs), len(inputs)):
            before = passes.objective_at(baseline)
            return self._integrate(passes, inputs, baseline, nodes, weights)[0], before
        try:
            return self._integrate(passes, inputs, baseline, np.insert(nodes, 0, 0), np.insert(weights, 0, 0))
        except NoGradientError:  # at the baseline, or at a step as well, where it is raised again
            values, _ = self._integrate(passes, inputs, baseline, nodes, weights)
            return values, passes.objective_at(baseline)

    def _integrate(
        self, passes: Passes, inputs: np.ndarray, baseline: np.ndarray, nodes: np.ndarray, weights: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the contributions, and the objectives at the first node."""
        count, examples = len(inputs), len(baseline)
        origins = np.tile(baseline, (count // examples, 1, 1))
        differences = inputs - origins

        def values(start: int, end: int) -> np.ndarray:
            before, after = start // count, -(-end // count)
            steps = origins + nodes[before:after, None, None, None] * differences
            return np.asarray(steps.reshape(-1, *inputs.shape[1:])[start - before * count : end - before * count])

        total = np.zeros(inputs.shape)
        first = np.empty(count)
        for start, end, gradients, objectives in passes.gradients(Rows(len(nodes) * count // examples, values)):
            add_rows(total, start, weights[np.arange(start, end) // count, None, None] * gradients)
            if start < count:
                first[start:end] = objectives[: count - start]
        return np.asarray(total * differences), first


@dataclass(frozen=True)
class SequentialIntegratedGradients(Method):
    """For each position the integrated gradient along the line on which that position alone is replaced by the baseline.

    A position's contributions sum to L at the inputs minus L with the baseline at that position; `delta` is the sum of the
    errors of these. Enguehard, "Sequential integrated gradients: a simple but effective method for explaining language models",
    2023; its division by the norm is left to the user.

    Args:
        steps: the number of gradients along each line; there is one for each position.
        baseline: see `IntegratedGradients`; so are `rule` and `keep_special`.
    """

    steps: int = 50
    baseline: Any = "mask"
    rule: str = "gausslegendre"
    keep_special: bool = False

    def __post_init__(self) -> None:
        expect_flag(self.keep_special, "keep_special")
        expect_count(self.steps, "steps")
        check_baseline(self.baseline)
        expect_choice(self.rule, "rule", RULES)

    def contributions(self, passes: Passes, tokenizer: Any) -> Contributions:
        """Return the contributions of all positions."""
        inputs = passes.inputs
        baseline = baseline_values(passes, self.baseline, tokenizer, self.keep_special)
        nodes, weights = nodes_and_weights(self.rule, self.steps)
        positions = np.flatnonzero((inputs != baseline).any((0, 2)))
        examples = len(inputs)

        def move_positions(start: int, end: int, fractions: np.ndarray) -> np.ndarray:
            """Return the values of rows, one fraction after another, one position after another, all examples."""
            line, example = np.divmod(np.arange(start, end), examples)
            step, position = np.divmod(line, len(positions))
            values = inputs[example].copy()
            rows, at = np.arange(end - start), positions[position]
            values[rows, at] = baseline[example, at] + fractions[step, None] * (
                values[rows, at] - baseline[example, at]
            )
            return np.asarray(values)

        total = np.zeros(inputs.shape)
        count = len(positions)
        if count:
            rows = Rows(self.steps * count, lambda start, end: move_positions(start, end, nodes))
            for start, end, gradients, _ in passes.gradients(rows):
                line, example = np.divmod(np.arange(start, end), examples)
                step, position = np.divmod(line, count)
                at = positions[position]
                np.add.at(total, (example, at), weights[step, None] * gradients[np.arange(end - start), at])
        values = total * (inputs - baseline)
        promised, size = np.zeros(examples), np.zeros(examples)
        if count:
            without = passes.objectives(Rows(count, lambda start, end: move_positions(start, end, np.zeros(1))))
            differences = passes.state.objective - without.reshape(count, examples)
            promised, size = differences.sum(0), np.abs(differences).sum(0)
        delta = values.sum((1, 2)) - promised
        warn_of_missed(
            passes,
            delta,
            promised,
            passes.state.objective,
            f"{self.steps} steps a position",
            "Take more steps",
            promise="the sum of L minus L without each position",
            size=size,
        )
        return Contributions(values.sum(-1), values, None, delta)


@dataclass(frozen=True)
class GradientShap(Method):
    """The mean of gradients at random places between random baselines and noisy inputs, times their difference.

    It approximates SHAP values: in expectation the contributions sum to L minus the mean of L at the baselines. Lundberg and Lee,
    "A unified approach to interpreting model predictions", 2017; expected gradients are from Erion et al., "Improving performance
    of deep learning models with axiomatic attribution priors and expected gradients", 2021.

    Args:
        baselines: an array of shape (n, position, dim), or a list of names, ids and arrays, see `IntegratedGradients`.
        samples: the number of samples.
        sigma: the standard deviation of the noise added to the inputs, in the units of the values at the point.
        seed: with it an example has the same draws in each framework, whatever batch it is in; padding has no noise.
        keep_special: see `IntegratedGradients`.
    """

    baselines: Any = ("zero",)
    samples: int = 25
    sigma: float = 0.0
    seed: int = 0
    keep_special: bool = False

    def __post_init__(self) -> None:
        expect_flag(self.keep_special, "keep_special")
        is_array = hasattr(self.baselines, "shape")
        fits = len(self.baselines.shape) in (3, 4) if is_array else isinstance(self.baselines, (list, tuple))
        if not fits or not len(self.baselines):
            raise EmbgradError(
                f"baselines is {brief(self.baselines)}: expected an array of shape (n, position, dim), or a list of names and ids"
            )
        for baseline in self.baselines:
            check_baseline(baseline, "baselines")
        expect_count(self.samples, "samples")
        expect_number(self.sigma, "sigma")
        expect_count(self.seed, "seed", 0)

    def contributions(self, passes: Passes, tokenizer: Any) -> Contributions:
        """Return the mean over the samples."""
        inputs = passes.inputs
        origins = np.stack(
            [baseline_values(passes, baseline, tokenizer, self.keep_special) for baseline in self.baselines]
        )
        generators, real = generators_of(passes.batch, self.seed), passes.batch.real
        examples = np.arange(len(inputs))
        total = np.zeros(inputs.shape)
        at_once = passes.batches_at_once
        for start in range(0, self.samples, at_once):
            places, differences = [], []
            for _ in range(min(at_once, self.samples - start)):
                noisy = inputs + self.sigma * normal(generators, real, inputs.shape[-1])
                origin = origins[[generator.integers(len(origins)) for generator in generators], examples]
                fraction = np.array([generator.random() for generator in generators])[:, None, None]
                places.append(origin + fraction * (noisy - origin))
                differences.append(noisy - origin)
            at, difference = np.concatenate(places), np.concatenate(differences)
            for first, end, gradients, _ in passes.gradients(Rows.of(at, len(inputs))):
                add_rows(total, first, gradients * difference[first:end])
        values = total / self.samples
        before = passes.objectives(Rows.of(np.concatenate(origins), len(inputs))).reshape(len(origins), -1).mean(0)
        delta = values.sum((1, 2)) - (passes.state.objective - before)
        return Contributions(values.sum(-1), values, before, delta)
