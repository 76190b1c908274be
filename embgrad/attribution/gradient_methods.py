"""Attribution by gradients at the inputs: saliency, input × gradient, and their averages under noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from embgrad.attribution.draws import generators_of, normal
from embgrad.attribution.method import Contributions, GradientMethod, Method, expect_choice, expect_count, expect_number
from embgrad.attribution.passes import Passes, Rows
from embgrad.errors import EmbgradError, brief

__all__ = ["InputXGradient", "Saliency", "SmoothGrad"]

#: How `SmoothGrad` combines the contributions of its samples.
REDUCTIONS: Final = ("mean", "square", "variance")


@dataclass(frozen=True)
class Saliency(GradientMethod):
    """The gradient; a position's score is its L2 norm.

    Simonyan, Vedaldi and Zisserman, "Deep inside convolutional networks: visualising image classification models and saliency
    maps", 2014.
    """

    @property
    def by_length(self) -> bool:
        """Return True: contributions in single directions have no common sign."""
        return True

    def contributions(self, passes: Passes, tokenizer: Any) -> Contributions:
        """Return the gradient of the objectives."""
        values = passes.result.values
        return Contributions(self.scores(values), values)

    def values_at(self, passes: Passes, inputs: np.ndarray, prepared: Any) -> np.ndarray:
        """Return the gradients."""
        return _gradients(passes, inputs)


@dataclass(frozen=True)
class InputXGradient(GradientMethod):
    """The gradient times the value, entry by entry: the contributions of a linear model without a bias.

    Shrikumar, Greenside and Kundaje, "Learning important features through propagating activation differences", 2017.
    """

    def contributions(self, passes: Passes, tokenizer: Any) -> Contributions:
        """Return the product at the batch's values."""
        values = passes.result.values.astype(np.float64) * passes.result.activations
        return Contributions(self.scores(values), values)

    def values_at(self, passes: Passes, inputs: np.ndarray, prepared: Any) -> np.ndarray:
        """Return the products."""
        return np.asarray(_gradients(passes, inputs) * inputs)


@dataclass(frozen=True)
class SmoothGrad(Method):
    """The contributions of another method, averaged over samples of the inputs with normal noise.

    Smilkov, Thorat, Kim, Viégas and Wattenberg, "SmoothGrad: removing noise by adding noise", 2017; the variance from Adebayo et
    al., "Local explanation methods for deep neural networks lack sensitivity to parameter values", 2018.

    Args:
        samples: the number of samples.
        sigma: the standard deviation of the noise, in the units of the values at the point.
        seed: with it an example has the same noise in each framework, whatever batch it is in; padding has none.
        reduce: "mean"; "square", the mean of the squares; or "variance".
        of: the method: `Saliency`, `InputXGradient` or `IntegratedGradients`.
    """

    samples: int = 25
    sigma: float = 0.1
    seed: int = 0
    reduce: str = "mean"
    of: Any = Saliency()

    def __post_init__(self) -> None:
        expect_count(self.samples, "samples")
        expect_number(self.sigma, "sigma")
        expect_count(self.seed, "seed", 0)
        expect_choice(self.reduce, "reduce", REDUCTIONS)
        if not isinstance(self.of, GradientMethod):
            raise EmbgradError(
                f"of is {brief(self.of)}: expected a method by gradients, Saliency(), InputXGradient() or IntegratedGradients()"
            )

    def contributions(self, passes: Passes, tokenizer: Any) -> Contributions:
        """Return the reduced contributions of the samples."""
        own = passes.inputs
        prepared = self.of.prepare(passes, tokenizer)
        generators, real = generators_of(passes.batch, self.seed), passes.batch.real
        first, second = np.zeros(own.shape), np.zeros(own.shape)
        at_once = passes.batches_at_once
        for start in range(0, self.samples, at_once):
            count = min(at_once, self.samples - start)
            noise = np.stack([normal(generators, real, own.shape[-1]) for _ in range(count)])
            noisy = own + self.sigma * noise
            values = self.of.values_at(passes, noisy.reshape(-1, *own.shape[1:]), prepared).reshape(noisy.shape)
            first += values.sum(0)
            second += (values**2).sum(0)
        mean, square = first / self.samples, second / self.samples
        reduced = {"mean": mean, "square": square, "variance": np.maximum(square - mean**2, 0)}[self.reduce]
        return Contributions(self.of.scores(reduced), reduced)


def _gradients(passes: Passes, inputs: np.ndarray) -> np.ndarray:
    """Return the gradients at other values of the point, float64."""
    gradients = np.empty(inputs.shape)
    for start, end, piece, _ in passes.gradients(Rows.of(inputs, len(passes.batch))):
        gradients[start:end] = piece
    return gradients
