"""Outputs of a module of the reference with the weights of the port, which shows no point behind that module."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from embgrad.comparison.hypotheses.norm import norm_with_weights_of_b
from embgrad.comparison.hypotheses.product import cause_of
from embgrad.comparison.hypotheses.products import projection_of
from embgrad.comparison.hypotheses.site import Before, Site, Values
from embgrad.comparison.hypotheses.sources import Source
from embgrad.comparison.weight_values import oriented
from embgrad.model_points.points import INPUT

__all__ = ["OtherWeights", "with_weights_of_b"]


@dataclass(frozen=True, eq=False)
class OtherWeights(Source):
    """A tensor that b computes with weights that differ from a's.

    Attributes:
        function: what b computes from the module's input.
        cause: the cause that the difference between the weights is.
        sentence: a text that says how they relate.
    """

    function: Callable[[np.ndarray], np.ndarray] = np.asarray
    cause: str = ""
    sentence: str = ""

    def read(self, at: Values) -> np.ndarray:
        """Return its values in a pass whose values at points a function returns."""
        return self.function(at(self.names[0]))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the points that it reads."""
        return (f"{self.name}:{INPUT}",)


def with_weights_of_b(site: Site, source: Source) -> Iterator[OtherWeights]:
    """Yield what a norm or a projection before a site returns with b's weights, where one of them differs from a's."""
    held = site.differing_by(source.name)
    entry = next((before for before in site.before if before.name == f"{source.name}:{INPUT}"), None)
    if not held or entry is None or source.features is not None or source.matrix is not None:
        return
    sentence = ", and ".join(f"b has {weight.name} {match.as_object}" for weight, _, match in held)
    for function in _functions(site, source, entry):
        yield OtherWeights(
            source.name,
            function(entry.values),
            label=source.label,
            function=function,
            cause=cause_of(held[0][2]),
            sentence=sentence,
        )


def _functions(site: Site, source: Source, entry: Before) -> Iterator[Callable[[np.ndarray], np.ndarray]]:
    """Yield what the module may compute with b's weights."""
    norm = norm_with_weights_of_b(site, source.name, entry.values, source.values)
    if norm is not None:
        yield norm.apply
    own = projection_of(site, source.name)
    if own is None:
        return
    matrices, bias = [own.matrix], own.bias
    for weight, other, _ in site.differing_by(source.name):
        values = other.get().astype(np.float64)
        parts = site.matching.parts.get(weight.name)
        if parts:
            fused = (rows for rows in oriented(values) if rows.shape[1] == len(own.matrix))
            matrices = [rows[parts[0].others].T for rows in fused if len(rows) > parts[0].others.max()]
        elif values.shape == bias.shape:
            bias = values
        elif values.ndim == 2:
            matrices = [layout for layout in (values.T, values) if layout.shape == own.matrix.shape]
    yield from (lambda x, matrix=matrix: np.asarray(x @ matrix + bias) for matrix in matrices)
