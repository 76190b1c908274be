"""The hypothesis of a pooling: one vector of each text's hidden states, such as their mean or the first of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from embgrad.comparison.hypotheses.site import Explanation, Site, Values
from embgrad.comparison.hypotheses.skipped import calls_as_often, modules_between
from embgrad.comparison.hypotheses.sources import Source, most_off, skipped_norms, sources, unit
from embgrad.comparison.sites import difference

__all__ = ["POOLS", "Pooling"]

Pool = Callable[[np.ndarray, np.ndarray], np.ndarray]


def _mean(values: np.ndarray, real: np.ndarray) -> np.ndarray:
    return np.asarray((values * real[..., None]).sum(1) / np.maximum(real.sum(1), 1)[:, None])


def _last(values: np.ndarray, real: np.ndarray) -> np.ndarray:
    return np.asarray(values[np.arange(len(values)), real.shape[1] - 1 - real[:, ::-1].argmax(1)])


def _weighted(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    weights = np.asarray(weights, np.float64)
    return np.asarray((values * weights[..., None]).sum(1) / np.maximum(weights.sum(1), 1e-30)[:, None])


def _halves(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the first half of a vector's features and the second half of another's, as those of two directions."""
    half = first.shape[-1] // 2
    return np.concatenate([first[:, :half], second[:, half:]], -1)


def _inner(real: np.ndarray) -> np.ndarray:
    """Return the real positions without the first and the last of each text, which special tokens take."""
    places = real.cumsum(1)
    return np.asarray(real & (places > 1) & (places < real.sum(1, keepdims=True)))


def _counted(real: np.ndarray) -> np.ndarray:
    return np.broadcast_to(np.arange(real.shape[1]), real.shape)


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
    "the sum over tokens by the root of their number": lambda values, real: (
        _mean(values, real) * np.sqrt(np.maximum(real.sum(1), 1))[:, None]
    ),
    "the mean of unit vectors": lambda values, real: _mean(unit(values), real),
    "the last state forward and the first one backward": lambda values, real: _halves(
        _last(values, real), values[:, 0]
    ),
    "the states at the last position forward and at the first backward": lambda values, real: _halves(
        values[:, -1], values[:, 0]
    ),
    "the mean over tokens but the first": lambda values, real: _mean(values, real & (real.cumsum(1) > 1)),
    "the mean over tokens but the first and the last": lambda values, real: _mean(values, _inner(real)),
    "the mean weighted by the position from 1": lambda values, real: _weighted(values, real * (_counted(real) + 1)),
    "the mean weighted by the position from 0": lambda values, real: _weighted(values, real * _counted(real)),
    "the mean over all positions weighted by the position from 1": lambda values, real: _weighted(
        values, _counted(real) + 1
    ),
}


class Pooling:
    """A vector of each text, which may have the length 1."""

    def explain(self, site: Site) -> list[Explanation]:
        """Return how the poolings of both models differ; an empty list where a has none."""
        batch = site.recordings[0].batch
        if site.a.shape[1] != 1 or batch.shape[1] < 2:
            return []
        near = [source for source in sources(site) if source.values.shape == (*batch.shape, site.a.shape[-1])]
        mine = next(filter(None, (_found(site, source, site.a) for source in near)), None)
        its = next(filter(None, (_found(site, source, site.b, mine) for source in near)), None)
        if mine is None or its is None:
            return []
        (source, first, _), (other, second, function) = mine, its
        if other.name == source.name:
            return [_explanation(other, first, second, function)] if first != second else []
        for norm, given in skipped_norms(site, source.values):
            if np.array_equal(given.values, other.values) and first == second:
                found = _explanation(other, "applied", "missing", function)
                return [replace(found, cause="missing-norm", setting="the norm", sentence=f"b lacks the norm {norm}")]
        matrices = {weight.module for weight in site.recordings[0].weights if len(weight.shape) > 1}
        products = matrices & modules_between(site, source.name, other.name)
        if products and not calls_as_often(site, products):  # b lacks a layer, and pools what it returns last
            return []
        return [_explanation(other, f"{first} of {source.name}", f"{second} of {other.name}", function)]


#: A tensor, the way in which its vectors are pooled, in words, and the function.
Found = tuple[Source, str, Callable[[np.ndarray], np.ndarray]]


def _found(site: Site, source: Source, wanted: np.ndarray, mine: Found | None = None) -> Found | None:
    """Return the pooling of a tensor that leads to vectors; None where none does.

    Args:
        site: the site.
        source: the tensor.
        wanted: the vectors, (example, 1, feature).
        mine: what was found for a, where the vectors are b's.
    """
    real, most = site.recordings[0].batch.real, most_off(site)
    for text, (function, values) in _pooled(source, real):
        if difference(wanted, values, site.real) <= most:
            return source, text, function
    places = _places_of(source, wanted)
    function = functools.partial(_at, places)
    if difference(wanted, function(source.values), site.real) > most:
        return None
    return source, _text_of_places(site.recordings[0].batch.ids, places, mine), function


def _places_of(source: Source, vectors: np.ndarray) -> np.ndarray:
    """Return the positions whose vectors are nearest to one vector for each text."""
    return np.asarray(np.linalg.norm(source.values - vectors, axis=-1).argmin(1))


def _at(places: np.ndarray, values: np.ndarray) -> np.ndarray:
    return np.asarray(values[np.arange(len(values)), places][:, None])


def _text_of_places(ids: np.ndarray, places: np.ndarray, mine: Found | None) -> str:
    """Return a text for the position of one vector of each text: by its token, or relative to that of a."""
    tokens = np.unique(ids[np.arange(len(ids)), places])
    if len(tokens) == 1 and np.array_equal((ids == tokens[0]).argmax(1), places):
        return f"the vector of the first token {tokens[0]}"
    if mine is not None:
        source, _, function = mine
        steps = np.unique(places - _places_of(source, function(source.values)))
        if len(steps) == 1:
            return f"the vector {abs(steps[0])} {'later' if steps[0] > 0 else 'earlier'}"
    return f"the vectors at {', '.join(map(str, places.tolist()))}"


def _pooled(
    source: Source, real: np.ndarray
) -> Iterator[tuple[str, tuple[Callable[[np.ndarray], np.ndarray], np.ndarray]]]:
    """Yield each pooling of a tensor, by a description: the function, and its values, (example, 1, feature)."""
    for scaled in (False, True):
        for name, pool in POOLS.items():
            function = functools.partial(_apply, pool, real, scaled)
            yield f"{name}, of length 1" if scaled else name, (function, function(source.values))


def _apply(pool: Pool, real: np.ndarray, scaled: bool, values: np.ndarray) -> np.ndarray:
    vector = pool(values, real)
    return np.asarray(unit(vector) if scaled else vector)[:, None]


def _explanation(source: Source, first: str, second: str, function: Callable[[np.ndarray], np.ndarray]) -> Explanation:
    values = function(source.values)

    def compute(at: Values) -> np.ndarray:
        return function(source.read(at))

    return Explanation("pooling", "the pooled vector is", (first, second), values, compute, (source.name,))
