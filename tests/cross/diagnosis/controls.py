"""Gradients that have nothing to do with one another, and pairs that are the same: no cause may be named for either."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

import numpy as np

import embgrad
from tests.cross.diagnosis.faults import BASES
from tests.cross.diagnosis.worlds import World, quietly

Maker = Callable[[np.ndarray, np.random.Generator], np.ndarray]


def _as_long(values: np.ndarray, wanted: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    length = np.sqrt((values**2).sum(axes, keepdims=True))
    return values / np.where(length > 0, length, 1) * np.sqrt((wanted**2).sum(axes, keepdims=True))


def _normal(values: np.ndarray, random: np.random.Generator) -> np.ndarray:
    return random.normal(size=values.shape)


def _low_rank(values: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """As the gradients of one deep network look alike: one direction in all."""
    return random.normal(size=(*values.shape[:-1], 1)) * random.normal(size=values.shape[-1])


#: Gradients of nothing, made from the healthy one's shape, and some from its lengths or entries.
RANDOM: Final[Mapping[str, Maker]] = {
    "normal": _normal,
    "normal × 1e-4": lambda values, random: 1e-4 * _normal(values, random),
    "normal × 1e4": lambda values, random: 1e4 * _normal(values, random),
    "a's norm": lambda values, random: _as_long(_normal(values, random), values, (0, 1, 2)),
    "a's norm in each example": lambda values, random: _as_long(_normal(values, random), values, (1, 2)),
    "a's norm at each position": lambda values, random: _as_long(_normal(values, random), values, (2,)),
    "a's entries in another order": lambda values, random: random.permutation(values.ravel()).reshape(values.shape),
    "a's entries of each position in another order": lambda values, random: random.permuted(values, axis=-1),
    "a's dimensions in another order": lambda values, random: values[..., random.permutation(values.shape[-1])],
    "a's signs drawn anew": lambda values, random: values * random.choice([-1.0, 1.0], values.shape),
    "uniform from 0 to 1": lambda values, random: random.uniform(size=values.shape),
    "one direction": _low_rank,
    "heavy tails": lambda values, random: random.standard_cauchy(values.shape),
    "sparse": lambda values, random: _normal(values, random) * (random.random(values.shape) < 0.05),
    "a's magnitudes, other numbers": lambda values, random: np.abs(values) * random.uniform(0, 2, values.shape),
}

#: The healthy gradient with noise, by its size: more than rounding, and no cause.
NOISE: Final = (1e-3, 1e-2, 1e-1, 1.0)


def unrelated(a: embgrad.results.EmbeddingGradients, name: str, seed: int) -> embgrad.results.EmbeddingGradients:
    random = np.random.default_rng([seed, 8])
    values = RANDOM[name](a.values.astype(np.float64), random)
    return replace(a, values=np.ascontiguousarray(values, a.values.dtype))


def noisy(a: embgrad.results.EmbeddingGradients, size: float, seed: int) -> embgrad.results.EmbeddingGradients:
    random = np.random.default_rng([seed, 9])
    length = np.sqrt((a.values.astype(np.float64) ** 2).mean(-1, keepdims=True))
    values = a.values + size * length * random.normal(size=a.values.shape)
    return replace(a, values=np.ascontiguousarray(values, a.values.dtype))


@functools.cache
def healthy_results(world: World) -> tuple[embgrad.results.EmbeddingGradients, ...]:
    """Results of several shapes: the whole batch, one example, one of three positions."""
    base = BASES.get(world.kind, "cross-entropy")
    whole = world.healthy(base)
    if base != "cross-entropy":
        return (whole,)
    objective = world.objective(base).take(slice(0, 1), len(world.batch))
    one = world.batch[:1]
    cut = {name: getattr(one, name) for name in ("ids", "mask", "types")}
    short = one.replace(**{name: None if value is None else value[:, :3] for name, value in cut.items()})
    return whole, quietly(world.model, one, objective), quietly(world.model, short, objective)
