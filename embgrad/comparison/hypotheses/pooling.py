"""The hypothesis of a pooling: one vector of each text's hidden states, such as their mean or the first of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import numpy as np

from embgrad.comparison.hypotheses.site import Explanation, Site, Values
from embgrad.comparison.hypotheses.sources import Source, most_off, sources

__all__ = ["Pooling"]

Pool = Callable[[np.ndarray, np.ndarray], np.ndarray]


def _mean(values: np.ndarray, real: np.ndarray) -> np.ndarray:
    return np.asarray((values * real[..., None]).sum(1) / np.maximum(real.sum(1), 1)[:, None])


def _last(values: np.ndarray, real: np.ndarray) -> np.ndarray:
    return np.asarray(values[np.arange(len(values)), real.shape[1] - 1 - real[:, ::-1].argmax(1)])


#: The ways of pooling vectors, (example, position, feature), of which some positions are real.
POOLS: Final[Mapping[str, Pool]] = {
    "the mean over tokens": _mean,
    "the first vector": lambda values, real: values[:, 0],
    "the vector of the last token": _last,
    "the vector of the last position": lambda values, real: values[:, -1],
    "the mean over all positions": lambda values, real: values.mean(1),
    "the largest over tokens": lambda values, real: np.where(real[..., None], values, -np.inf).max(1),
    "the largest over all positions": lambda values, real: values.max(1),
    "the sum over tokens": lambda values, real: (values * real[..., None]).sum(1),
    "the sum over tokens by the padded length": lambda values, real: (values * real[..., None]).mean(1),
    "the sum over all positions by the number of tokens": lambda values, real: (
        values.sum(1) / np.maximum(real.sum(1), 1)[:, None]
    ),
    "the mean of unit vectors": lambda values, real: _mean(_unit(values), real),
}


def _unit(values: np.ndarray) -> np.ndarray:
    return np.asarray(values / np.maximum(np.linalg.norm(values, axis=-1, keepdims=True), 1e-30))


class Pooling:
    """A vector of each text, which may have the length 1."""

    causes = ("pooling",)

    def explain(self, site: Site) -> list[Explanation]:
        """Return how the poolings of both models differ; an empty list where a has none."""
        batch = site.recordings[0].batch
        if site.a.shape[1] != 1 or batch.shape[1] < 2:
            return []
        most = most_off(site)
        for source in sources(site):
            if source.values.shape == (*batch.shape, site.a.shape[-1]):
                pooled = dict(_pooled(source, batch.real))
                first = next(
                    (text for text, (_, values) in pooled.items() if site.off(values, from_a=True) <= most), None
                )
                second = next((text for text, (_, values) in pooled.items() if site.off(values) <= most), None)
                if first is not None and second is not None and first != second:
                    function, values = pooled[second]
                    return [_explanation(source, first, second, function, values)]
        return []


def _pooled(
    source: Source, real: np.ndarray
) -> Iterator[tuple[str, tuple[Callable[[np.ndarray], np.ndarray], np.ndarray]]]:
    """Yield each pooling of a tensor, by a description: the function, and its values, (example, 1, feature)."""
    for unit in (False, True):
        for name, pool in POOLS.items():
            function = functools.partial(_apply, pool, real, unit)
            yield f"{name}, of length 1" if unit else name, (function, function(source.values))


def _apply(pool: Pool, real: np.ndarray, unit: bool, values: np.ndarray) -> np.ndarray:
    vector = pool(values, real)
    return np.asarray(_unit(vector) if unit else vector)[:, None]


def _explanation(
    source: Source, first: str, second: str, function: Callable[[np.ndarray], np.ndarray], values: np.ndarray
) -> Explanation:
    def compute(at: Values) -> np.ndarray:
        return function(source.read(at))

    return Explanation("pooling", "the pooled vector is", (first, second), values, compute, (source.name,))
