"""Products of tensors before a site with weights of its layer, where no module outputs them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from embgrad.comparison.hypotheses.site import NEAR, Site
from embgrad.comparison.hypotheses.sources import Source, relative, sources
from embgrad.comparison.recording import HeldWeight
from embgrad.model_points.points import INPUT

__all__ = ["Projection", "products", "projection_of"]

#: The most tensors that are multiplied with weights, and the most weights of a layer.
MOST_INPUTS: Final = 4
MOST_WEIGHTS: Final = 12


class Projection(NamedTuple):
    """A product with a matrix, (input, output), to which a bias is added."""

    matrix: np.ndarray
    bias: np.ndarray


def projection_of(site: Site, module: str) -> Projection | None:
    """Return the projection that a module before a site computes; None where none with its weights returns what it does."""
    before = {it.name: it.values for it in site.before if it.name in (module, f"{module}:{INPUT}")}
    given, returned = before.get(f"{module}:{INPUT}"), before.get(module)
    if given is None or returned is None:
        return None
    held = [weight.get().astype(np.float64) for weight, _, _ in site.held_by(module).values()]
    bias = next((values for values in held if values.shape == returned.shape[-1:]), np.zeros(returned.shape[-1]))
    for matrix in (layout for values in held if values.ndim == 2 for layout in (values.T, values)):
        if matrix.shape == (given.shape[-1], len(bias)) and relative(given @ matrix + bias, returned) <= NEAR:
            return Projection(matrix, bias)
    return None


def products(site: Site) -> Iterator[list[Source]]:
    """Yield, for each of the nearest tensors, its products with the matrices of the layer whose own outputs are not known.

    A module may multiply with several matrices, as in some implementations of attention, or apply the activation itself.
    """
    own = [weight for weight in site.weights if _is_used(site, weight)]
    matrices = [weight for weight in own if len(weight.shape) in (2, 3)][:MOST_WEIGHTS]
    if not matrices:
        return
    for source in sources(site, MOST_INPUTS):
        if source.values.shape[:2] == site.a.shape[:2]:
            found = [
                Source(source.name, source.values @ matrix + bias, label=weight.name, matrix=matrix, bias=bias)
                for weight in matrices
                for matrix in _matrices(weight, source.values.shape[-1])
                for bias in [_bias(weight, own, matrix.shape[1])]
            ]
            if found:
                yield found


def _is_used(site: Site, weight: HeldWeight) -> bool:
    """Return whether a weight's module begins before the site, and has no output before it."""
    side = site.recordings[0]
    entry = side.of_module(weight.module, INPUT)
    if entry is None or entry.time >= side.tensors[site.pair.a].time:
        return False
    return all(before.name != weight.module for before in site.before)


def _matrices(weight: HeldWeight, width: int) -> Iterator[np.ndarray]:
    """Yield a weight as matrices of shape (input, output) for an input's width."""
    values = weight.get().astype(np.float64)
    layouts = [values, values.T] if values.ndim == 2 else [values, np.moveaxis(values, 1, 0)]
    for layout in layouts:
        if len(layout) == width:
            yield layout.reshape(width, -1)


def _bias(weight: HeldWeight, own: list[HeldWeight], width: int) -> np.ndarray:
    """Return the vector of the same module whose name is most like the matrix's; zeros where there is none."""
    found = [
        other
        for other in own
        if other.module == weight.module and int(np.prod(other.shape)) == width and other.name != weight.name
    ]
    found = [other for other in found if len(other.shape) < len(weight.shape)]
    if not found:
        return np.zeros(width)
    best = max(found, key=lambda other: _alike(other.name, weight.name))
    return best.get().astype(np.float64).reshape(width)


def _alike(first: str, second: str) -> int:
    """Return the number of characters with which both names begin."""
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))
