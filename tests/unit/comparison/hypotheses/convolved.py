"""Convolutions over texts, written position by position, and sites that they lead to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from embgrad.comparison.hypotheses.convolution_changes import Convolving
from embgrad.comparison.hypotheses.site import Explanation, Site
from tests.unit.comparison.hypotheses.modules import REAL, best, module_site

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(*REAL.shape, 12))

#: Kernels of two and three taps, (tap, input, output), and biases with which some of the largest outputs are negative.
KERNELS = tuple(RANDOM.normal(size=(taps, 12, 12)) for taps in (2, 3))
BIASES = tuple(RANDOM.normal(size=12) - 4 for _ in KERNELS)


def relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0)


def convolve(
    x: np.ndarray, kernel: np.ndarray, bias: np.ndarray, ends: tuple[int, int] = (0, 0), dilation: int = 1
) -> np.ndarray:
    """Return a convolution of (example, position, input) by a kernel, (tap, input, output), padded at both ends."""
    length = x.shape[1] + sum(ends) - dilation * (len(kernel) - 1)
    outputs = np.tile(bias, (len(x), length, 1))
    for example in range(len(x)):
        for start in range(length):
            for tap, matrix in enumerate(kernel):
                position = start + tap * dilation - ends[0]
                if 0 <= position < x.shape[1]:
                    outputs[example, start] += x[example, position] @ matrix
    return outputs


def stored(kernel: np.ndarray) -> np.ndarray:
    """Return a kernel, (tap, input, output), as (output, input, tap)."""
    return kernel.transpose(2, 1, 0)


WEIGHTS = {
    f"convs.{number}.{part}": values
    for number, (kernel, bias) in enumerate(zip(KERNELS, BIASES, strict=True))
    for part, values in (("weight", stored(kernel)), ("bias", bias))
}


def text_site(
    a: np.ndarray,
    b: np.ndarray,
    held_a: Mapping[str, np.ndarray] | None = None,
    before: Mapping[str, np.ndarray] | None = None,
    **further: Any,
) -> Site:
    """Return a site with the vectors of texts, (example, feature), at the input of a head."""
    return module_site(
        a[:, None],
        b[:, None],
        before or {"words": X},
        key="head:input#0",
        held_a=WEIGHTS if held_a is None else held_a,
        real=np.ones((len(a), 1), bool),
        **further,
    )


def named(site: Site) -> Explanation:
    """Return the first explanation by convolutions, which predicts b's output."""
    return best(site, Convolving().explain(site))
