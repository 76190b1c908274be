"""Sites at the output of an attention that multiplies with its own output matrix, seen as sites before that product."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from embgrad.comparison.hypotheses.site import Explanation, Site

__all__ = ["projected", "unprojected"]

#: The condition number up to which a matrix is inverted.
MOST_CONDITION: Final = 1e4

Projection = Callable[[np.ndarray], np.ndarray]


def unprojected(site: Site) -> Iterator[tuple[Site, Projection]]:
    """Yield the site before the product with each square matrix of its module, and the product.

    Only modules with several matrices have such sites, and those whose input is no point of b: the others' inputs are points.
    """
    held = [weight for weight, _, _ in site.held.values()] if site.is_output else []
    matrices = [weight for weight in held if len(weight.shape) in (2, 3)]
    width = site.a.shape[-1]
    vectors = [weight.get().astype(np.float64).ravel() for weight in held if int(np.prod(weight.shape)) == width]
    is_inside = len(matrices) > 1 or (site.entry is not None and not site.entry.shared)
    for weight in matrices if is_inside else ():
        if int(np.prod(weight.shape)) != width**2:
            continue
        values = weight.get().astype(np.float64)
        for matrix in (values.reshape(values.shape[0], -1).T, values.reshape(-1, values.shape[-1])):
            if matrix.shape != (width, width) or np.linalg.cond(matrix) > MOST_CONDITION:
                continue
            for bias in [*vectors, np.zeros(width)]:
                yield _before(site, matrix, bias), _product(matrix, bias)


def projected(explanation: Explanation, product: Projection) -> Explanation:
    """Return an explanation of the site before a product as one of the site behind it."""
    inner = explanation.compute
    return replace(
        explanation,
        predicted=product(explanation.predicted),
        compute=None if inner is None else lambda at: product(inner(at)),
        also=tuple(projected(other, product) for other in explanation.also),
    )


def _product(matrix: np.ndarray, bias: np.ndarray) -> Projection:
    return lambda values: np.asarray(values @ matrix + bias)


def _before(site: Site, matrix: np.ndarray, bias: np.ndarray) -> Site:
    inverse = np.linalg.inv(matrix)
    a, b = (site.a - bias) @ inverse, (site.b - bias) @ inverse
    growth = np.linalg.norm(inverse, 2) * np.linalg.norm(site.a) / (np.linalg.norm(a) or 1.0)
    return replace(site, a=a, b=b, floor=site.floor * max(float(growth), 1.0))
