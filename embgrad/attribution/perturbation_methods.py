"""Attribution by replacing inputs with a baseline, from forward passes alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from embgrad.attribution.baselines import absent_positions, baseline_values, check_baselines
from embgrad.attribution.draws import generators_of
from embgrad.attribution.method import Contributions, Method, expect_count, expect_number
from embgrad.attribution.passes import Passes, Rows
from embgrad.attribution.shapley import MOST_MEMBERS, exact_values, fit_values, sample_coalitions
from embgrad.common.options import expect_flag
from embgrad.errors import EmbgradError

__all__ = ["KernelShap", "Lime", "Occlusion"]

#: LIME multiplies the cosine distance by this before it compares it with the kernel's width.
DISTANCE: Final = 100.0


@dataclass(frozen=True)
class Occlusion(Method):
    """For each position L at the inputs minus L with the position's value replaced.

    Zeiler and Fergus, "Visualizing and understanding convolutional networks", 2014; Li, Monroe and Jurafsky, "Understanding
    neural networks through representation erasure", 2016.

    Args:
        replacement: "zero", "pad", "mask", "mean", an id, an array, or a list of these, see `IntegratedGradients`.
        keep_special: see `IntegratedGradients`.
    """

    replacement: Any = "mask"
    keep_special: bool = False

    def __post_init__(self) -> None:
        expect_flag(self.keep_special, "keep_special")
        check_baselines(self.replacement, "replacement")

    def contributions(self, passes: Passes, tokenizer: Any) -> Contributions:
        """Return the differences."""
        features, evaluated = _replacing(passes, self.replacement, tokenizer, self.keep_special)
        positions = np.flatnonzero(features.any(0))
        present = np.ones((len(positions), *features.shape), bool)
        present[np.arange(len(positions)), :, positions] = False
        scores = np.zeros(features.shape)
        if len(positions):
            scores[:, positions] = (passes.state.objective - evaluated(present)).T
        return Contributions(np.where(features, scores, 0.0))


@dataclass(frozen=True)
class Lime(Method):
    """The coefficients of a linear model of L by which positions are present, from weighted ridge regression near the inputs.

    Ribeiro, Singh and Guestrin, "'Why should I trust you?': explaining the predictions of any classifier", 2016, with the kernel
    of its authors' package for texts: exp(-(d/width)²/2), where d is 100 times the cosine distance to the whole text.

    Args:
        samples: the number of samples; in the first all positions are present, in the others each with probability 1/2.
        baseline: replaces the values of absent positions, see `IntegratedGradients`; so does `keep_special`.
        kernel_width: the width of the kernel.
        ridge: the penalty on the squares of the coefficients.
        seed: with it an example has the same samples in each framework, whatever batch it is in.
    """

    samples: int = 500
    baseline: Any = "mask"
    kernel_width: float = 25.0
    ridge: float = 1.0
    seed: int = 0
    keep_special: bool = False

    def __post_init__(self) -> None:
        expect_flag(self.keep_special, "keep_special")
        expect_count(self.samples, "samples", 2)
        check_baselines(self.baseline)
        expect_number(self.kernel_width, "kernel_width")
        if not self.kernel_width:
            raise EmbgradError("kernel_width is 0: expected a positive number")
        expect_number(self.ridge, "ridge")
        expect_count(self.seed, "seed", 0)

    def contributions(self, passes: Passes, tokenizer: Any) -> Contributions:
        """Return the coefficients."""
        features, evaluated = _replacing(passes, self.baseline, tokenizer, self.keep_special)
        present = np.ones((self.samples, *features.shape), bool)
        for example, generator in enumerate(generators_of(passes.batch, self.seed)):
            drawn = generator.random((self.samples - 1, int(features[example].sum()))) < 0.5
            present[1:, example, features[example]] = drawn
        objectives = evaluated(present)
        scores = np.zeros(features.shape)
        for example, own in enumerate(features):
            if own.any():
                scores[example, own] = self._coefficients(present[:, example, own], objectives[:, example])
        return Contributions(scores)

    def _coefficients(self, present: np.ndarray, objectives: np.ndarray) -> np.ndarray:
        shares = present.mean(1)
        distances = DISTANCE * (1 - np.sqrt(shares))  # 1 - cosine to the vector of ones
        weights = np.exp(-((distances / self.kernel_width) ** 2) / 2)
        mean, level = np.average(present, 0, weights), np.average(objectives, weights=weights)
        centred = (present - mean) * np.sqrt(weights)[:, None]
        target = (objectives - level) * np.sqrt(weights)
        penalty = np.sqrt(self.ridge) * np.eye(present.shape[1])
        stacked = np.concatenate([centred, penalty]), np.concatenate([target, np.zeros(present.shape[1])])
        return np.asarray(np.linalg.lstsq(*stacked, rcond=None)[0])


@dataclass(frozen=True)
class KernelShap(Method):
    """Shapley values of positions: the mean contribution to L over all orders in which positions become present.

    They are exact where all 2^n coalitions of an example's n positions are at most `samples`; otherwise coalitions are drawn in
    pairs by the Shapley kernel, and the values are the weighted least squares solution that sums to L minus L at the baseline.
    Lundberg and Lee, "A unified approach to interpreting model predictions", 2017; the pairs are from Covert and Lee, "Improving
    KernelSHAP: practical Shapley value estimation using linear regression", 2021.

    Args:
        samples: the most coalitions of an example.
        baseline: replaces the values of absent positions, see `IntegratedGradients`; so does `keep_special`.
        seed: with it an example has the same samples in each framework, whatever batch it is in.
    """

    samples: int = 1024
    baseline: Any = "mask"
    seed: int = 0
    keep_special: bool = False

    def __post_init__(self) -> None:
        expect_flag(self.keep_special, "keep_special")
        expect_count(self.samples, "samples", 4)
        check_baselines(self.baseline)
        expect_count(self.seed, "seed", 0)

    def contributions(self, passes: Passes, tokenizer: Any) -> Contributions:
        """Return the Shapley values."""
        features, evaluated = _replacing(passes, self.baseline, tokenizer, self.keep_special)
        coalitions = [
            sample_coalitions(int(own.sum()), self.samples, generator)
            for own, generator in zip(features, generators_of(passes.batch, self.seed), strict=True)
        ]
        most = max(len(rows) for rows in coalitions)
        present = np.ones((most, *features.shape), bool)
        for example, own in enumerate(features):
            present[: len(coalitions[example]), example, own] = coalitions[example]
        objectives = evaluated(present)
        scores = np.zeros(features.shape)
        exact = []
        for example, own in enumerate(features):
            rows, values = coalitions[example], objectives[: len(coalitions[example]), example]
            exact.append(own.sum() <= MOST_MEMBERS and len(rows) == 2 ** int(own.sum()))
            scores[example, own] = (exact_values if exact[-1] else fit_values)(rows, values)
        before = np.array([objectives[0, example] for example in range(len(features))])
        delta = scores.sum(1) - (passes.state.objective - before)
        return Contributions(scores, None, before, delta, notes={"exact": exact})


def _replacing(passes: Passes, baseline: Any, tokenizer: Any, keep_special: bool) -> Any:
    """Return which positions can be absent, (example, position), and the function that evaluates coalitions.

    The function takes bool arrays, (coalition, example, position), true where a position is present, and returns the objectives,
    (coalition, example).
    """
    inputs = passes.inputs
    origin = baseline_values(passes, baseline, tokenizer, keep_special)
    examples = len(inputs)

    def evaluated(present: np.ndarray) -> np.ndarray:
        rows = present.reshape(-1, present.shape[-1], 1)

        def values(start: int, end: int) -> np.ndarray:
            example = np.arange(start, end) % examples
            return np.where(rows[start:end], inputs[example], origin[example])

        return passes.objectives(Rows(len(present), values)).reshape(-1, examples)

    return absent_positions(passes, tokenizer, keep_special), evaluated
