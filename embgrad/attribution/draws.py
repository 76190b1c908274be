"""Random draws of attribution methods, which depend on the seed and on an example's own ids alone."""

from __future__ import annotations

import numpy as np

from embgrad.inputs.batch import TokenBatch

__all__ = ["generators_of", "normal"]


def generators_of(batch: TokenBatch, seed: int) -> list[np.random.Generator]:
    """Return NumPy's default generator for each example, seeded by the seed and the ids at the example's real positions.

    An example has the same draws in each framework, whatever other examples and however much padding its batch has.
    """
    return [np.random.default_rng([seed, *ids[real].tolist()]) for ids, real in zip(batch.ids, batch.real, strict=True)]


def normal(generators: list[np.random.Generator], real: np.ndarray, dim: int) -> np.ndarray:
    """Return standard normal noise, (example, position, dim), that is 0 at padding."""
    noise = np.zeros((*real.shape, dim))
    for example, generator in enumerate(generators):
        noise[example, real[example]] = generator.standard_normal((int(real[example].sum()), dim))
    return noise
