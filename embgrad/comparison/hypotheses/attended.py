"""The hypothesis of an attentive pooling: one vector of each text, the sum of vectors weighed by a function of their scores.

Bahdanau, Cho and Bengio, "Neural machine translation by jointly learning to align and translate", 2015; Yang and others,
"Hierarchical attention networks for document classification", 2016.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

import numpy as np

from embgrad.comparison.hypotheses.functions import logistic
from embgrad.comparison.hypotheses.site import Explanation, Site, Values
from embgrad.comparison.hypotheses.sources import Source, most_off, sources

__all__ = ["AttentivePooling"]

#: Weights of the vectors by scores, (example, position), and the positions that are real.
Weigh = Callable[[np.ndarray, np.ndarray], np.ndarray]


def _softmax(scores: np.ndarray, axis: int = 1) -> np.ndarray:
    powers = np.exp(scores - scores.max(axis, keepdims=True))
    return np.asarray(powers / powers.sum(axis, keepdims=True))


#: The ways of weighing vectors, with the cause that another one has.
WAYS: Final[Mapping[str, tuple[str, Weigh]]] = {
    "the softmax over tokens": ("pooling", lambda scores, real: _softmax(np.where(real, scores, -np.inf))),
    "the softmax over all positions": ("mask-ignored", lambda scores, real: _softmax(scores)),
    "the softmax over all positions, of scores that are 0 at padding": (
        *("mask-ignored", lambda scores, real: _softmax(scores * real)),
    ),
    "the softmax over the examples of the batch": (
        *("pooling", lambda scores, real: _softmax(np.where(real, scores, -1e9), 0)),
    ),
    "the logistic function at tokens": ("activation", lambda scores, real: logistic(scores) * real),
    "the scores at tokens": ("activation", lambda scores, real: scores * real),
    "the same at each token": ("pooling", lambda scores, real: real / np.maximum(real.sum(1, keepdims=True), 1)),
}


class _Way(NamedTuple):
    """A way of making one of several vectors: their tensor, the name of the weights, and the factor of the scores."""

    vectors: Source
    name: str
    scale: float

    def apply(self, vectors: np.ndarray, scores: np.ndarray, real: np.ndarray) -> np.ndarray:
        """Return the sum of vectors, (example, 1, feature)."""
        weights = WAYS[self.name][1](self.scale * scores[..., 0], real)
        return np.asarray((vectors * weights[..., None]).sum(1, keepdims=True))


class AttentivePooling:
    """A sum of vectors of a text that are weighed by scores."""

    def explain(self, site: Site) -> list[Explanation]:
        """Return how the weights of both models differ; an empty list where a has none."""
        batch = site.recordings[0].batch
        if site.a.shape[1] != 1 or batch.shape[1] < 2:
            return []
        near = [source for source in sources(site) if source.values.shape[:2] == batch.shape]
        for scores in (source for source in near if source.values.shape[-1] == 1):
            ways = [*_ways(near, site.a.shape[-1])]
            mine = next((way for way in ways if way.scale == 1 and _reproduces(site, way, scores, site.a)), None)
            its = None if mine is None else next((way for way in ways if _reproduces(site, way, scores, site.b)), None)
            if mine is not None and its is not None and mine != its:
                return [_explanation(site, scores, mine, its)]
        return []


def _ways(near: list[Source], features: int) -> Iterator[_Way]:
    """Yield the ways in which vectors of so many features may become one, those of the usual scale first."""
    sizes = sorted({source.values.shape[-1] for source in near} - {1})
    scales = [1.0, *(power for size in sizes for power in (size**-0.5, size**0.5))]
    vectors = [source for source in near if source.values.shape[-1] == features]
    for scale, source, name in itertools.product(scales, vectors, WAYS):
        yield _Way(source, name, scale)


def _reproduces(site: Site, way: _Way, scores: Source, wanted: np.ndarray) -> bool:
    found = way.apply(way.vectors.values, scores.values, site.recordings[0].batch.real)
    return site.off(found, from_a=wanted is site.a) <= most_off(site)


def _explanation(site: Site, scores: Source, mine: _Way, its: _Way) -> Explanation:
    real = site.recordings[0].batch.real
    names = (its.vectors.name, scores.name)

    def compute(at: Values) -> np.ndarray:
        return its.apply(at(names[0]), at(names[1]), real)

    predicted = its.apply(its.vectors.values, scores.values, real)
    if mine.scale != its.scale:
        cause, setting, values = "attention-scale", "the scale of the scores", ("1", f"{its.scale:.4g}")
    elif mine.name != its.name:
        cause, setting, values = WAYS[its.name][0], "the vectors are weighed by", (mine.name, its.name)
    else:
        cause, setting, values = "pooling", "the vectors that are weighed are", (mine.vectors.name, its.vectors.name)
    return Explanation(cause, setting, values, predicted, compute, tuple(dict.fromkeys(names)))
