"""Attribution by gradients along paths from a baseline to the inputs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from embgrad.attribution.baselines import (
    AUTO,
    NEEDS_DIRECTION,
    NOT_FINITE,
    SCALE_FREE,
    SCALES,
    Visible,
    baseline_values,
    check_baselines,
    choose_visible,
    explain_zeros,
    is_auto,
    is_flat,
    is_scale_free,
    is_zero,
    keep_first,
    notes_of,
    rows_at_scales,
    warn_of_no_direction,
)
from embgrad.attribution.completeness import ADVICE, SHARE, find_missed, warn_of_missed
from embgrad.attribution.draws import generators_of, normal
from embgrad.attribution.lines import Along, InputLine, along, integrate
from embgrad.attribution.method import (
    Contributions,
    GradientMethod,
    Method,
    expect_choice,
    expect_count,
    expect_number,
)
from embgrad.attribution.passes import Passes, Rows, add_rows
from embgrad.attribution.quadrature import RULES, nodes_and_weights
from embgrad.attribution.refinement import refine
from embgrad.common.options import expect_flag, lists_choices
from embgrad.errors import EmbgradError, ObjectiveError, brief

__all__ = ["GradientShap", "IntegratedGradients", "SequentialIntegratedGradients"]

#: With `tolerance` an example takes up to this many times its first number of steps.
MOST_TIMES: Final = 32


@dataclass(frozen=True)
class IntegratedGradients(GradientMethod):
    """The gradient's integral along the straight line from a baseline to the inputs, times their difference.

    The contributions sum to L at the inputs minus L at the baseline, up to the error of the rule, `delta`. Sundararajan, Taly and
    Yan, "Axiomatic attribution for deep networks", 2017.

    Args:
        steps: the number of gradients along the line.
        baseline: "auto", zeros unless L does not change with the scale of the values, as where a model normalises them at once,
            and then the row of the padding or of the end of a text, or the table's mean row; "zero"; "pad" or "mask", the table's
            row at all real positions, or "mean", its mean row; an id; or an array at the point, which broadcasts to (example,
            position, dim). The result for a list of names, ids and arrays is the mean over these. In `attribute_tokens` "auto" is
            the other row with the first token in place if the error from zeros is larger than a quarter of the difference of L.
        rule: "gausslegendre", or "riemann_left", "riemann_right", "riemann_middle", "riemann_trapezoid".
        tolerance: refine the line of each example, in parts of a few steps that are halved where they miss their share of L,
            until `error` is at most this share of the size of L - L(baseline); None takes the steps as they are.
        keep_special: leave the values of special tokens as they are under a baseline that is a name or an id.
        most: with `tolerance` the most steps of an example in all; None for 32 times `steps`.
        keep_first: leave the values of the first real position as they are. A trained causal model computes there what it
            computes nowhere else, unless all positions have the same row.
    """

    steps: int = 50
    baseline: Any = AUTO
    rule: str = "gausslegendre"
    tolerance: float | None = None
    keep_special: bool = False
    most: int | None = None
    keep_first: bool = False

    def __post_init__(self) -> None:
        expect_flag(self.keep_special, "keep_special")
        expect_flag(self.keep_first, "keep_first")
        expect_count(self.steps, "steps")
        check_baselines(self.baseline, auto=True)
        expect_choice(self.rule, "rule", RULES)
        if self.tolerance is not None:
            expect_number(self.tolerance, "tolerance")
        if self.most is not None:
            expect_count(self.most, "most", self.steps)

    @property
    def most_steps(self) -> int:
        """The most steps of an example."""
        return self.most or MOST_TIMES * self.steps

    def prepare(self, passes: Passes, tokenizer: Any) -> list[np.ndarray]:
        """Return the values at the point of each baseline."""
        if not is_auto(self.baseline):
            several = self.baseline if lists_choices(self.baseline) else (self.baseline,)
            return [self.origin(passes, baseline, tokenizer) for baseline in several]
        origin = self.origin(passes, "zero", tokenizer)
        flat = is_scale_free(passes, origin)
        chosen = self._choose(passes, tokenizer) if flat.any() else None
        return [origin if chosen is None else np.where(flat[:, None, None], chosen.values, origin)]

    def origin(self, passes: Passes, baseline: Any, tokenizer: Any) -> np.ndarray:
        """Return the values of a baseline at the point, (example, position, dim)."""
        values = baseline_values(passes, baseline, tokenizer, self.keep_special)
        return keep_first(passes, values) if self.keep_first else values

    def _choose(self, passes: Passes, tokenizer: Any) -> Visible | None:
        chosen = choose_visible(passes, tokenizer, self.keep_special)
        return replace(chosen, values=keep_first(passes, chosen.values)) if chosen and self.keep_first else chosen

    def values_at(self, passes: Passes, inputs: np.ndarray, prepared: Any) -> np.ndarray:
        """Return the integrals from the baseline to the inputs, times their difference, the mean over several baselines."""
        rule = nodes_and_weights(self.rule, self.steps)
        made = [integrate(passes, inputs, origin, *rule).values for origin in prepared]
        return made[0] if len(made) == 1 else np.asarray(np.mean(made, axis=0))

    def contributions(self, passes: Passes, tokenizer: Any) -> Contributions:
        """Return the contributions, and warn of examples whose error of completeness is more than `tolerance`, or 1 %."""
        notes: dict[str, Any] = {}
        if is_auto(self.baseline):
            line, flat, notes = self._from_visible(passes, tokenizer)
        else:
            baseline = self.origin(passes, self.baseline, tokenizer)
            with explain_zeros(self.baseline):
                line = along(passes, baseline, self.rule, self.steps)
            flat = self._is_flat(passes, line) if is_zero(self.baseline) else np.zeros(len(baseline), bool)
        difference = passes.state.objective - line.before
        taken = np.full(len(difference), self.steps)
        missed, share, promise = line.delta, SHARE, "L - L(baseline)"
        if self.tolerance is not None:
            if not passes.is_random:
                self._refine(passes, line, difference, taken)
            missed, share, promise = line.error, self.tolerance, "L - L(baseline) on each stretch of the line"
        wrong = find_missed(passes, missed, difference, line.before, share)
        advice = NEEDS_DIRECTION if flat[wrong].any() else ADVICE[self.tolerance is not None]
        warn_of_missed(passes, missed, difference, line.before, f"{taken.max()} steps", advice, share, promise)
        notes["steps_taken"] = taken.tolist()
        return Contributions(self.scores(line.values), line.values, line.before, line.delta, line.error, notes)

    def _from_visible(self, passes: Passes, tokenizer: Any) -> tuple[Along, np.ndarray, dict[str, Any]]:
        """Return the contributions from zeros, or where L does not change with their scale from another baseline.

        Returns:
            The contributions; the examples that need another baseline when none is known, bool, (example,); and the entries of
            the provenance.
        """
        origin = self.origin(passes, "zero", tokenizer)
        try:
            line = along(passes, origin, self.rule, self.steps)
            flat, why = self._is_flat(passes, line), SCALE_FREE
        except ObjectiveError:
            flat, why = np.ones(len(origin), bool), NOT_FINITE
            chosen = self._choose(passes, tokenizer)
            if chosen is None:
                raise
            line = along(passes, chosen.values, self.rule, self.steps)
        else:
            chosen = self._choose(passes, tokenizer) if flat.any() else None
            if chosen is not None:
                line.take_from(along(passes, chosen.values, self.rule, self.steps), flat)
        return line, flat & (chosen is None), notes_of(flat, chosen, why)

    def _is_flat(self, passes: Passes, line: Along) -> np.ndarray:
        """Return whether L is the same at all scales of an example's values, bool, (example,).

        Only where it is the same at the steps a forward pass tests it at further scales.
        """
        objectives = line.objectives[line.nodes >= SCALES[0]]
        flat = is_flat(objectives, np.asarray(passes.state.objective), line.before, passes.rounding)
        return flat & is_scale_free(passes, line.baseline) if flat.any() else flat

    def _refine(self, passes: Passes, line: Along, difference: np.ndarray, taken: np.ndarray) -> None:
        """Refine the lines of the examples whose error is too large, in `line` and `taken`."""
        assert self.tolerance is not None
        own, before = np.asarray(passes.state.objective), line.before
        missed = find_missed(passes, line.error, difference, before, self.tolerance)
        if not missed.size:
            return
        refined = refine(
            InputLine(passes, line.baseline),
            missed,
            (before[:, None], own[:, None]),
            self.tolerance * np.abs(difference)[:, None],
            passes.rounding * (np.abs(own) + np.abs(before))[:, None],
            self.rule,
            self.steps,
            self.most_steps,
        )
        if refined is None:
            return
        taken[missed] = refined.taken
        better = refined.error[:, 0] < line.error[missed]
        chosen = missed[better]
        line.values[chosen] = refined.contributions[0][better]
        line.delta[chosen] = line.values[chosen].sum((1, 2)) - difference[chosen]
        line.error[chosen] = np.maximum(refined.error[better, 0], np.abs(line.delta[chosen]))


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
        check_baselines(self.baseline)
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
        differences = np.empty((count, examples))
        if count:
            with explain_zeros(self.baseline):
                without = passes.objectives(Rows(count, lambda start, end: move_positions(start, end, np.zeros(1))))
            differences = passes.state.objective - without.reshape(count, examples)
        promised, size = differences.sum(0), np.abs(differences).sum(0)
        error = np.abs(values[:, positions].sum(-1).T - differences).sum(0)
        delta = values.sum((1, 2)) - promised
        before = np.asarray(passes.state.objective)
        missed = find_missed(passes, delta, size, before, SHARE)
        flat = missed.size and is_zero(self.baseline) and is_scale_free(passes, baseline)[missed].any()
        warn_of_missed(
            passes,
            delta,
            promised,
            before,
            f"{self.steps} steps a position",
            NEEDS_DIRECTION if flat else "Take more steps",
            promise="the sum of L minus L without each position",
            size=size,
        )
        return Contributions(values.sum(-1), values, None, delta, error)


@dataclass(frozen=True)
class GradientShap(Method):
    """The mean of gradients at random places between random baselines and noisy inputs, times their difference.

    It approximates SHAP values: in expectation the contributions sum to L minus the mean of L at the baselines. Lundberg and Lee,
    "A unified approach to interpreting model predictions", 2017; expected gradients are from Erion et al., "Improving performance
    of deep learning models with axiomatic attribution priors and expected gradients", 2021.

    Args:
        baselines: an array of shape (n, position, dim), or a list of names, "auto" among them, ids and arrays, see
            `IntegratedGradients`.
        samples: the number of samples.
        sigma: the standard deviation of the noise added to the inputs, in the units of the values at the point.
        seed: with it an example has the same draws in each framework, whatever batch it is in; padding has no noise.
        keep_special: see `IntegratedGradients`.
    """

    baselines: Any = (AUTO,)
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
            check_baselines(baseline, "baselines", auto=True)
        expect_count(self.samples, "samples")
        expect_number(self.sigma, "sigma")
        expect_count(self.seed, "seed", 0)

    def contributions(self, passes: Passes, tokenizer: Any) -> Contributions:
        """Return the mean over the samples."""
        inputs, count = passes.inputs, len(passes.inputs)
        from_zeros = np.array([is_auto(baseline) or is_zero(baseline) for baseline in self.baselines])
        chooses = np.array([is_auto(baseline) for baseline in self.baselines])
        origins = np.stack(
            [
                baseline_values(passes, "zero" if is_auto(baseline) else baseline, tokenizer, self.keep_special)
                for baseline in self.baselines
            ]
        )
        values, notes = self._mean(passes, origins), {}
        flat, why = np.zeros(count, bool), SCALE_FREE
        scaled = rows_at_scales(inputs, origins[from_zeros.argmax()]) if from_zeros.any() else inputs[:0]
        try:
            found = passes.objectives(Rows.of(np.concatenate([*origins, scaled]), count)).reshape(-1, count)
            before, at_scales = found[: len(origins)], found[len(origins) :]
            if from_zeros.any():
                own = np.asarray(passes.state.objective)
                flat = is_flat(at_scales, own, before[from_zeros.argmax()], passes.rounding)
        except ObjectiveError:
            if not chooses.any():
                with explain_zeros("zero" if from_zeros.any() else None):
                    raise
            flat, why, before = np.ones(count, bool), NOT_FINITE, np.empty(0)
        if chooses.any():
            chosen = choose_visible(passes, tokenizer, self.keep_special) if flat.any() else None
            if chosen is not None:
                origins = np.where(chooses[:, None, None, None] & flat[:, None, None], chosen.values, origins)
                values = self._mean(passes, origins)
            if chosen is not None or not before.size:
                before = passes.objectives(Rows.of(np.concatenate(origins), count)).reshape(len(origins), -1)
            notes = notes_of(flat, chosen, why)
            flat = flat & (chosen is None or bool((from_zeros & ~chooses).any()))
        warn_of_no_direction(flat)
        mean = before.mean(0)
        delta = values.sum((1, 2)) - (passes.state.objective - mean)
        return Contributions(values.sum(-1), values, mean, delta, None, notes)

    def _mean(self, passes: Passes, origins: np.ndarray) -> np.ndarray:
        """Return the mean over the samples between these baselines, (baseline, example, position, dim), and the inputs."""
        inputs = passes.inputs
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
        return np.asarray(total / self.samples)
