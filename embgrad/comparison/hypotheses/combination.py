"""The hypothesis of a sum of earlier tensors, such as a residual, whose terms or their multipliers differ."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np

from embgrad.comparison.hypotheses.lookup import MISSING
from embgrad.comparison.hypotheses.site import Before, Explanation, Site, Values

__all__ = ["Combination"]

#: The largest relative L2 between a sum and an output.
NEAR: Final = 1e-5

#: The most tensors before a site that may be terms, and the most terms.
MOST_TENSORS: Final = 12
MOST_TERMS: Final = 3

#: The relative difference up to which two multipliers are equal.
SAME: Final = 1e-4


class Combination:
    """A sum of earlier tensors times numbers: a residual, the sum of the embeddings, or just one of them."""

    causes = (
        "residual-scale",
        "missing-residual",
        "missing-norm",
        "norm-order",
        "scaled-lookup",
        "missing-positions",
        "types-ignored",
    )

    def explain(self, site: Site) -> list[Explanation]:
        """Return how the sums of both models differ; an empty list where a computes none."""
        tensors = list(_distinct(site))
        first = _terms(site, tensors, site.rows(site.a))
        if first is None:
            return []
        terms = [tensors[number] for number in first[0]]
        second = _fitted(site, terms, site.rows(site.b))
        if second is not None:
            return list(self._by_multipliers(site, terms, first[1], second))
        other = _terms(site, tensors, site.rows(site.b))
        return [] if other is None else list(self._by_terms(site, tensors, first, other))

    def _by_multipliers(
        self, site: Site, terms: Sequence[Before], first: np.ndarray, second: np.ndarray
    ) -> Iterator[Explanation]:
        differing = [number for number in range(len(terms)) if abs(second[number] - first[number]) > SAME]
        if not differing:
            return
        number = max(differing, key=lambda index: abs(second[index] - first[index]))
        before, cause = terms[number], "residual-scale"
        roles = _roles(site, before)
        if abs(second[number]) <= SAME:
            cause = next((MISSING[role] for role in roles if role in MISSING), "missing-residual")
            setting, values = f"{before.name} is", ("added", "left out")
        else:
            cause = "scaled-lookup" if "word" in roles or "embeddings" in roles else cause
            setting = f"{before.name} is multiplied by"
            values = f"{first[number]:.6g}", f"{second[number]:.6g}"
        names = tuple(term.name for term in terms)

        compute = _sum_of(second, names)
        predicted = compute({term.name: term.values for term in terms}.__getitem__)
        yield Explanation(cause, setting, values, predicted, compute, names)

    def _by_terms(
        self,
        site: Site,
        tensors: Sequence[Before],
        first: tuple[tuple[int, ...], np.ndarray],
        second: tuple[tuple[int, ...], np.ndarray],
    ) -> Iterator[Explanation]:
        mine, its = ([tensors[number].name for number in numbers] for numbers in (first[0], second[0]))
        names = tuple(its)
        compute = _sum_of(second[1], names)
        predicted = compute({tensor.name: tensor.values for tensor in tensors}.__getitem__)
        only_mine, only_its = [name for name in mine if name not in its], [name for name in its if name not in mine]
        cause = "norm-order"
        if not only_mine or not only_its:
            cause = "missing-residual"
        yield Explanation(cause, f"{site.name} is", (" + ".join(mine), " + ".join(its)), predicted, compute, names)


def _sum_of(multipliers: np.ndarray, names: Sequence[str]) -> Callable[[Values], np.ndarray]:
    """Return the function that sums the values at points times numbers."""
    return lambda at: np.asarray(sum(weight * at(name) for weight, name in zip(multipliers, names, strict=True)))


def _roles(site: Site, before: Before) -> tuple[str, ...]:
    tensors = site.recordings[0].tensors.values()
    return next((tensor.roles for tensor in tensors if tensor.path == before.name and tensor.roles), ())


def _distinct(site: Site) -> Iterator[Before]:
    """Yield the nearest tensors of the site's shape, each once."""
    seen: set[bytes] = set()
    found = 0
    for before in site.before:
        if before.values.shape != site.a.shape or not before.shared:
            continue
        key = before.values.tobytes()
        if key not in seen:
            seen.add(key)
            found += 1
            yield before
        if found == MOST_TENSORS:
            return


def _terms(site: Site, tensors: Sequence[Before], wanted: np.ndarray) -> tuple[tuple[int, ...], np.ndarray] | None:
    """Return the fewest tensors that sum to an output, with their multipliers; None if there are none."""
    rows = [site.rows(tensor.values).ravel() for tensor in tensors]
    gram = np.array([[first @ second for second in rows] for first in rows]).reshape(len(rows), len(rows))
    flat = wanted.ravel()
    with_wanted = np.array([row @ flat for row in rows])
    power = float(flat @ flat)
    for count in range(1, MOST_TERMS + 1):
        for numbers in itertools.combinations(range(len(rows)), count):
            part = gram[np.ix_(numbers, numbers)]
            if np.linalg.cond(part) > 1e10:
                continue
            multipliers = np.linalg.solve(part, with_wanted[list(numbers)])
            left = power - float(multipliers @ with_wanted[list(numbers)])
            if left > 1e-8 * power or np.abs(multipliers).min() <= SAME:
                continue
            rest = flat - sum(weight * rows[number] for weight, number in zip(multipliers, numbers, strict=True))
            if np.linalg.norm(rest) <= NEAR * np.linalg.norm(flat):
                return numbers, multipliers
    return None


def _fitted(site: Site, terms: Sequence[Before], wanted: np.ndarray) -> np.ndarray | None:
    """Return the multipliers with which terms sum to an output; None where they do not."""
    rows = np.stack([site.rows(term.values).ravel() for term in terms], axis=1)
    multipliers = np.linalg.lstsq(rows, wanted.ravel(), rcond=None)[0]
    rest = wanted.ravel() - rows @ multipliers
    return multipliers if np.linalg.norm(rest) <= NEAR * np.linalg.norm(wanted) else None
