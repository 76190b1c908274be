"""The hypothesis of a product with a matrix and an activation of it, of which the product alone is no point of b."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from embgrad.comparison.hypotheses.functions import ACTIVATIONS, Activation
from embgrad.comparison.hypotheses.product import biases_of, cause_of, oriented, oriented_of_b
from embgrad.comparison.hypotheses.site import Before, Explanation, Site
from embgrad.comparison.recording import HeldWeight
from embgrad.comparison.weights import Match
from embgrad.model_points.points import INPUT

__all__ = ["ActivatedProduct"]

#: The largest relative L2 between the function and the reference's output.
NEAR: Final = 1e-4

#: The most tensors before a site that may be the product.
MOST_PRODUCTS: Final = 6


@dataclass(frozen=True, eq=False)
class Layer:
    """A dense layer of a with its activation.

    Attributes:
        entry: the tensor that is multiplied.
        path: the path of the module.
        matrix: the matrix, float64, (output, input).
        bias: what is added, (output,).
        activation: the function of the product.
        weight: the weight that holds the matrix.
        match: its partner in b.
    """

    entry: Before
    path: str
    matrix: np.ndarray = field(repr=False)
    bias: np.ndarray = field(repr=False)
    activation: Activation
    weight: HeldWeight
    match: Match | None


class ActivatedProduct:
    """A dense layer with its activation, whose weights differ."""

    causes = ("different-weight", "half-weights", "swapped-weights", "transposed-weight", "missing-bias")

    def explain(self, site: Site) -> list[Explanation]:
        """Return how the layers of both models differ; an empty list where a computes none."""
        layer = next(_layers(site), None)
        return [] if layer is None else list(_explanations(site, layer))


def _layers(site: Site) -> Iterator[Layer]:
    """Yield the layers whose activated output is a's output."""
    wanted = site.rows(site.a)
    others = {match.a: match for match in site.matching.matches}
    near = [before for before in site.before if before.values.shape == site.a.shape][:MOST_PRODUCTS]
    for product in near:
        values = site.rows(product.values)
        weights = [
            weight for weight in site.recordings[0].weights if weight.module == product.name and len(weight.shape) > 1
        ]
        entry = next((before for before in site.before if before.name == f"{product.name}:{INPUT}"), None)
        if not weights or entry is None:
            continue
        x = site.rows(entry.values)
        for activation in ACTIVATIONS:
            if np.linalg.norm(activation.apply(values) - wanted) > NEAR * np.linalg.norm(wanted):
                continue
            for matrix in oriented(weights[0].get(), site, x.shape[1]):
                rest = values - x @ matrix.T
                bias = rest.mean(0)
                if np.linalg.norm(rest - bias) <= NEAR * np.linalg.norm(values):
                    match = others.get(weights[0].name)
                    yield Layer(entry, product.name, matrix, bias, activation, weights[0], match)


def _explanations(site: Site, layer: Layer) -> Iterator[Explanation]:
    own, apply = layer.weight.name, layer.activation.apply
    theirs = {weight.name: weight for weight in site.recordings[1].weights}
    zero = np.zeros_like(layer.bias)

    def explanation(
        cause: str, setting: str, values: tuple[str, str], function: Callable[[np.ndarray], np.ndarray], sentence: str
    ) -> Explanation:
        name = layer.entry.name
        predicted = function(layer.entry.values)
        return Explanation(cause, setting, values, predicted, lambda at: function(at(name)), (name,), sentence)

    def dense(matrix: np.ndarray, bias: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        return lambda x: apply(x @ matrix.T + bias)

    sentence = f"b adds no bias at {layer.path}, and a does"
    yield explanation(
        "missing-bias", f"the bias of {layer.path}", ("added", "missing"), dense(layer.matrix, zero), sentence
    )
    if layer.matrix.shape[0] == layer.matrix.shape[1]:
        sentence = f"b uses {own} transposed"
        function = dense(layer.matrix.T, layer.bias)
        yield explanation("transposed-weight", own, ("as stored", "transposed"), function, sentence)
    if layer.match is None or layer.match.is_equal:
        return
    relation = layer.match.relation.removesuffix(" in b")
    sentence = f"b has {own} {layer.match.as_object}"
    for matrix in oriented_of_b(theirs[layer.match.b].get(), site, layer.matrix.shape[1]):
        for bias in biases_of(site, layer.path, layer.bias):
            function = dense(matrix, bias)
            yield explanation(cause_of(layer.match), own, ("a's own", relation), function, sentence)
