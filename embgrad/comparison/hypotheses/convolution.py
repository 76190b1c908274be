"""Convolutions over the positions of a text in NumPy, with an activation and a pooling, several side by side.

Kim, "Convolutional neural networks for sentence classification", 2014.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from embgrad.comparison.hypotheses.functions import IDENTITY, Activation
from embgrad.comparison.hypotheses.pooling import POOLS

__all__ = ["PADDINGS", "Convolution", "Convolutions"]

#: The ways of padding, in words: the numbers of positions before and behind a text for a kernel that spans some positions.
PADDINGS: Final[Mapping[str, Callable[[int], tuple[int, int]]]] = {
    "adds no padding": lambda span: (0, 0),
    "pads texts at both ends to outputs of their length": lambda span: ((span - 1) // 2, span // 2),
    "pads texts in front alone": lambda span: (span - 1, 0),
    "pads texts at the end alone": lambda span: (0, span - 1),
    "pads texts at both ends, in front more, to outputs of their length": lambda span: (span // 2, (span - 1) // 2),
    "pads texts by half the kernel at both ends": lambda span: (span // 2, span // 2),
    "pads texts by the kernel but a tap at both ends": lambda span: (span - 1, span - 1),
}


@dataclass(frozen=True, eq=False)
class Convolution:
    """A convolution, and what follows it.

    Attributes:
        kernel: (tap, input, output); of one input where each output reads an input of its own, depthwise.
        bias: what is added, (output,).
        padding: a key of `PADDINGS`.
        dilation: the number of positions from a tap to the next.
        masked: whether the inputs at padding tokens are zero.
        activation: the function of each output.
        pool: a key of `POOLS`, by which one vector of each text is made; "" for none.
        pools_first: whether the activation is that of the pooled vectors.
    """

    kernel: np.ndarray
    bias: np.ndarray
    padding: str = "adds no padding"
    dilation: int = 1
    masked: bool = False
    activation: Activation = IDENTITY
    pool: str = ""
    pools_first: bool = False

    def run(self, x: np.ndarray, real: np.ndarray, most: int | None = None) -> np.ndarray:
        """Return the outputs, (example, position, output), of which a pooled text has one position.

        Args:
            x: the inputs, (example, position, input).
            real: the positions that are not padding tokens, bool, (example, position).
            most: the number of outputs that are computed; None for all.
        """
        return self.finish(self.products(x, real, most), real)

    def products(self, x: np.ndarray, real: np.ndarray, most: int | None = None) -> np.ndarray:
        """Return the outputs before the activation and the pooling; NaN where the texts are too short."""
        kernel = self.kernel[..., :most]
        span = self.dilation * (len(kernel) - 1) + 1
        x = np.pad(x * real[..., None] if self.masked else x, ((0, 0), PADDINGS[self.padding](span), (0, 0)))
        length = x.shape[1] - span + 1
        if length < 1:
            return np.full((len(x), 1, kernel.shape[-1]), np.nan)
        if self.kernel.shape[1] == 1:  # several outputs may be of one input
            x = np.repeat(x, self.kernel.shape[-1] // x.shape[-1], -1)[..., :most]
        parts = (x[:, tap * self.dilation :][:, :length] for tap in range(len(kernel)))
        multiply = np.multiply if self.kernel.shape[1] == 1 else np.matmul
        return np.asarray(sum(map(multiply, parts, kernel), self.bias[:most]))

    def finish(self, products: np.ndarray, real: np.ndarray) -> np.ndarray:
        """Return the outputs for those before the activation and the pooling."""
        with np.errstate(invalid="ignore"):
            values = products if self.pools_first else self.activation.apply(products)
            if self.pool:
                # Without padding the outputs are fewer than the tokens: one counts where the last token that it reads is real.
                front = ((0, 0), (values.shape[1], 0))
                counted = np.pad(real, front, constant_values=True)[:, real.shape[1] :]
                values = POOLS[self.pool](values, counted)[:, None]
            return self.activation.apply(values) if self.pools_first else values


@dataclass(frozen=True, eq=False)
class Convolutions:
    """Convolutions of one input, whose outputs stand side by side.

    Attributes:
        layers: the convolutions.
        order: for each feature its index among the outputs of the layers one after the other.
        turned: whether the features are before the positions.
    """

    layers: tuple[Convolution, ...]
    order: np.ndarray
    turned: bool = False

    def run(self, x: np.ndarray, real: np.ndarray) -> np.ndarray:
        """Return the outputs, (example, position, feature), for inputs at some real positions."""
        outputs = np.concatenate([layer.run(x, real) for layer in self.layers], -1)[..., self.order]
        return outputs.swapaxes(1, 2) if self.turned else outputs
