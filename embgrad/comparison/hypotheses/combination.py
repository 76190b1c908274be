"""The hypothesis of a sum of earlier tensors, such as a residual, whose terms or their multipliers differ."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from embgrad.comparison.hypotheses.lookup import cause_of_missing, is_looked_up, roles_of
from embgrad.comparison.hypotheses.site import Before, Explanation, Site, Values
from embgrad.comparison.hypotheses.sources import Term, carried
from embgrad.comparison.recording import FINAL
from embgrad.comparison.sites import difference
from embgrad.model_points.points import OUTPUT

__all__ = ["Combination", "by_multipliers", "distinct", "moved_terms", "terms_of"]

#: The largest relative L2 between a sum and an output.
NEAR: Final = 1e-5

#: The most tensors before a site that may be terms, and the most terms.
MOST_TENSORS: Final = 12
MOST_TERMS: Final = 3

#: The most tensors behind a site among which the next sum is looked for.
MOST_LATER: Final = 32

#: The relative difference up to which two multipliers are equal.
SAME: Final = 1e-4


class Combination:
    """A sum of earlier tensors times numbers: a residual, the sum of the embeddings, or just one of them."""

    def explain(self, site: Site) -> list[Explanation]:
        """Return how the sums of both models differ; an empty list where a computes none."""
        tensors = list(distinct(site))
        first = terms_of(site, tensors, site.rows(site.a))
        if first is None:
            return []
        own = [Term(tensors[number], tensors[number].values) for number in first[0]]
        led = [carried(site, term) for term in own]
        for terms in (own, [change or term for change, term in zip(led, own, strict=True)]):
            second = _fitted(site, terms, site.rows(site.b))
            if second is not None:
                return list(by_multipliers(site, terms, first[1], second))
        other = terms_of(site, tensors, site.rows(site.b))
        return [] if other is None else list(_by_terms(site, tensors, first, other))


def by_multipliers(site: Site, terms: Sequence[Term], first: np.ndarray, second: np.ndarray) -> Iterator[Explanation]:
    """Yield the explanation by another multiplier of a term; by an earlier site's, where there is none."""
    same = max(SAME, site.floor)
    first = np.where(np.abs(first - 1) <= site.floor, 1.0, first)
    second = np.where(np.abs(second - first) <= same, first, np.where(np.abs(second) <= same, 0.0, second))
    compute = _sum_of(second, [term.read for term in terms])
    names = tuple(dict.fromkeys(name for term in terms for name in term.inputs))
    predicted = np.asarray(sum(weight * term.values for weight, term in zip(second, terms, strict=True)))
    known = all(term.earlier is None or term.earlier.compute is not None for term in terms)
    differing = [number for number in range(len(terms)) if second[number] != first[number]]
    if not differing:
        for term in terms:
            if term.earlier is not None:
                yield replace(
                    term.earlier, predicted=predicted, compute=compute if known else None, inputs=names, also=()
                )
        return
    number = max(differing, key=lambda index: abs(second[index] - first[index]))
    before, cause, sentence = terms[number].before, "residual-scale", ""
    roles = roles_of(site, before)
    setting, values = f"{before.name} is multiplied by", (site.text_of(first[number]), site.text_of(second[number]))
    if second[number] == 0:
        cause = cause_of_missing(site, before)
        setting, values = f"{before.name} is", ("added", "left out")
        if cause == "missing-residual" and _is_added_later(
            site, sum(m * t.values for m, t in zip(first, terms, strict=True))
        ):
            sentence = f"what b gives to {site.path} lacks {before.name}, which b adds later"
    elif "word" in roles or "embeddings" in roles or is_looked_up(site, before):
        cause = "scaled-lookup"
    elif site.pair.a == FINAL and len(terms) == 1:
        cause = "logit-scale"
    yield Explanation(cause, setting, values, predicted, compute if known else None, names, sentence)


def _is_added_later(site: Site, whole: np.ndarray) -> bool:
    """Return whether the next sum of a that contains one agrees, as in a parallel block: what one norm is given alone differs.

    The next sum is the first tensor that is the sum and what a module has returned since.

    Args:
        site: the site, at whose end the sum, or its norm, is an input of a module: an output goes on to all that is behind it.
        whole: the sum.
    """
    if site.is_output:
        return False
    a = site.recordings[0]
    time = a.tensors[site.pair.a].time
    behind = (it for it in a.tensors.values() if it.time > time and it.values.shape == whole.shape)
    later = list(itertools.islice(behind, MOST_LATER))
    returned = [it.values for it in later if it.side == OUTPUT]
    sums = (
        it.values for it in later if any(difference(each, it.values - whole, site.real) <= NEAR for each in returned)
    )
    following = next(sums, None)
    if following is None:
        return False
    alike = [it for it in later if np.array_equal(it.values, following)]
    norms = [a.of_module(it.path, OUTPUT, it.number) for it in alike if it.side != OUTPUT]
    values = [it.values for it in (*alike, *norms) if it is not None]
    names = {pair.name for pair in site.pairs if any(np.array_equal(a.tensors[pair.a].values, it) for it in values)}
    names = names or {pair.name for pair in site.pairs if pair.a == FINAL}
    return bool(names) and names.isdisjoint(site.memory.get("differing", ()))


def _by_terms(
    site: Site,
    tensors: Sequence[Before],
    first: tuple[tuple[int, ...], np.ndarray],
    second: tuple[tuple[int, ...], np.ndarray],
) -> Iterator[Explanation]:
    """Yield the explanation by other terms, where b adds each of them as it is, or times a number of a's.

    A sum with any further numbers is a likeness: 0.4 (x + y) + 0.6 x, for example, of x + 0.4 y where y is not known by itself.
    """
    usual = np.abs([1.0, *first[1]])
    if any(np.abs(usual - abs(number)).min() > SAME * abs(number) for number in second[1]):
        return
    mine, its = ([tensors[number].name for number in numbers] for numbers in (first[0], second[0]))
    names = tuple(its)
    compute = _sum_of(second[1], [_reader(name) for name in names])
    predicted = compute({tensor.name: tensor.values for tensor in tensors}.__getitem__)
    only_mine, only_its = [name for name in mine if name not in its], [name for name in its if name not in mine]
    setting, values = f"{site.name} is", (" + ".join(mine), " + ".join(its))
    cause = "norm-order" if only_mine and only_its else "missing-residual"
    if not only_mine and len(only_its) == 1:
        added = next(tensor for tensor in tensors if tensor.name == only_its[0])
        cause, setting, values = cause_of_missing(site, added), f"{added.name} is", ("left out", "added")
    yield Explanation(cause, setting, values, predicted, compute, names)


def moved_terms(explained: Sequence[tuple[Site, Explanation | None]]) -> list[tuple[Site, Explanation | None]]:
    """Return the sites with their explanations, where one term that moves from one sum to another one is one explanation.

    A term that one model adds before a norm and the other behind it is in either sum missing in one model.
    """
    changed = dict(enumerate(explained))
    for (first, (site, mine)), (second, (other, its)) in itertools.combinations(enumerate(explained), 2):
        if mine is None or its is None or site.layer != other.layer or mine.setting != its.setting:
            continue
        if {mine.values, its.values} == {("added", "left out"), ("left out", "added")}:
            term = mine.setting.removesuffix(" is")
            values = (site.name, other.name) if mine.values[0] == "added" else (other.name, site.name)
            for number, (at, explanation) in ((first, (site, mine)), (second, (other, its))):
                changed[number] = (
                    at,
                    replace(explanation, cause="norm-order", setting=f"{term} is added at", values=values),
                )
    return list(changed.values())


def _reader(name: str) -> Callable[[Values], np.ndarray]:
    return lambda at: at(name)


def _sum_of(
    multipliers: np.ndarray, readers: Sequence[Callable[[Values], np.ndarray]]
) -> Callable[[Values], np.ndarray]:
    """Return the function that sums what functions read in a pass, times numbers."""
    return lambda at: np.asarray(sum(weight * read(at) for weight, read in zip(multipliers, readers, strict=True)))


def distinct(site: Site, *, shared: bool = True) -> Iterator[Before]:
    """Yield the nearest tensors of the site's shape, each once: those that both models have, or all."""
    seen: set[bytes] = set()
    for before in site.before:
        if before.values.shape != site.a.shape or (shared and not before.shared):
            continue
        key = before.values.tobytes()
        if key not in seen:
            seen.add(key)
            yield before
        if len(seen) == MOST_TENSORS:
            return


def terms_of(site: Site, tensors: Sequence[Before], wanted: np.ndarray) -> tuple[tuple[int, ...], np.ndarray] | None:
    """Return the fewest tensors that sum to an output, with their multipliers; None if there are none."""
    if not tensors:
        return None
    near = max(NEAR, site.floor)
    rows, flat = np.stack([site.rows(tensor.values).ravel() for tensor in tensors]), wanted.ravel()
    gram, with_wanted, power = rows @ rows.T, rows @ flat, float(flat @ flat)
    for count in range(1, min(MOST_TERMS, len(rows)) + 1):
        chosen = np.array(list(itertools.combinations(range(len(rows)), count)))
        parts, sums = gram[chosen[:, :, None], chosen[:, None, :]], with_wanted[chosen]
        independent = np.linalg.cond(parts) <= 1e10
        chosen, sums = chosen[independent], sums[independent]
        multipliers = np.linalg.solve(parts[independent], sums[..., None])[..., 0]
        left = power - (multipliers * sums).sum(-1)
        for number in np.flatnonzero(
            (left <= max(1e-8, near**2) * power) & (np.abs(multipliers).min(-1) > max(SAME, near))
        ):
            rest = flat - multipliers[number] @ rows[chosen[number]]
            if np.linalg.norm(rest) <= near * np.linalg.norm(flat):
                return tuple(chosen[number].tolist()), multipliers[number]
    return None


def _fitted(site: Site, terms: Sequence[Term], wanted: np.ndarray) -> np.ndarray | None:
    """Return the multipliers with which terms sum to an output; None where they do not."""
    rows = np.stack([site.rows(term.values).ravel() for term in terms], axis=1)
    multipliers = np.linalg.lstsq(rows, wanted.ravel(), rcond=None)[0]
    rest = wanted.ravel() - rows @ multipliers
    return multipliers if np.linalg.norm(rest) <= max(NEAR, site.floor) * np.linalg.norm(wanted) else None
