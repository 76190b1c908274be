"""The attention core that reproduces the reference's output."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from embgrad.comparison.hypotheses.core import Core, Part
from embgrad.comparison.hypotheses.core_distances import distance_terms
from embgrad.comparison.hypotheses.core_likely import (
    BASES,
    CAPS,
    SHARES,
    biases,
    likely_rotaries,
    likely_sizes,
    scales,
)
from embgrad.comparison.hypotheses.core_parts import (
    HALVES,
    INTERLEAVED,
    HeadNorm,
    Mask,
    Rotary,
    Scaling,
    gains_by_head,
    gains_of,
    places_of,
)
from embgrad.comparison.hypotheses.declared import declared_by, number_in
from embgrad.comparison.hypotheses.latent import latent_projections
from embgrad.comparison.hypotheses.products import products
from embgrad.comparison.hypotheses.projections import Projections, is_causal, least_window, projections
from embgrad.comparison.hypotheses.site import Site
from embgrad.comparison.hypotheses.sources import Source, most_off, relative, sources

__all__ = [
    "INTERVALS",
    "fitted_core",
    "fitted_numbers",
    "number_of",
    "part_of",
    "settled",
    "with_number",
]

#: The number of the likeliest masks, rotary positions and scales.
LIKELY: Final = 2

#: The number of usual rotary positions: each layout and share with the likeliest base.
USUAL_ROTARIES: Final = 1 + 2 * len(SHARES)

#: The most rows of queries that a search looks at.
ROWS: Final = 16

#: The most cores of each kind that are tried at a site.
MOST_TRIED: Final = 2000

_Tried = tuple[float, Core]

#: How many cores have their numbers refined.
NEAREST: Final = 4

#: The relative L2 from which numbers are refined.
ROUGHLY: Final = 0.5


def fitted_core(site: Site) -> Core | None:
    """Return the attention core that reproduces the reference's output; None where none does."""
    found = [
        source for source in sources(site) if not np.array_equal(source.values, site.a)
    ]  # what is behind it, as well
    groups = itertools.chain([found], products(site))
    return next((core for core in (_fitted(site, group, found) for group in groups) if core is not None), None)


def _fitted(site: Site, group: Sequence[Source], found: Sequence[Source]) -> Core | None:
    """Return the core of some of a group of tensors that reproduces the reference's output; None where none does.

    A latent core may take queries, and what its heads share, from the others that are found.
    """
    declared = declared_by(site, 0)
    candidates = projections(site, group, likely_sizes(declared, site.a.shape[-1]))
    heads = number_in(declared, "heads")
    candidates += latent_projections(site, group, found, [] if heads is None else [round(heads)])
    most = most_off(site)
    near: list[_Tried] = []
    for options in (_plain, _with_distances, _usual, _with_biases, _with_norms, _with_rotaries, _with_caps):
        most_tried = len(near) + MOST_TRIED
        for candidate in candidates:
            cores = _crossing(site, candidate) if candidate.crosses else options(site, candidate)
            core = _first_of(site, candidate, cores, most, near)
            if core is not None:
                return core
            if len(near) > most_tried:
                break
        core = _refined(site, sorted(near[-MOST_TRIED:], key=_simplest)[:NEAREST], most)
        if core is not None:
            return core
        candidates = [candidate for candidate in candidates if not candidate.crosses]  # which have been tried in full
    return None


def _first_of(
    site: Site, candidate: Projections, cores: Iterable[Core], most: float, near: list[_Tried]
) -> Core | None:
    """Return the first core that reproduces the output up to rounding, and add all to those that have been tried."""
    part = part_of(site, candidate.heads, alone=True)
    wanted = part.of(site.a, candidate.value_size)
    for core in cores:
        off = relative(core.part(part), wanted)
        near.append((off, core))
        whole = _whole(site, core, most) if off <= min(most, 20 * site.floor) else None
        if whole is not None:
            return whole
    return None


def _refined(site: Site, near: Sequence[_Tried], most: float) -> Core | None:
    """Return one of the nearest cores that reproduces the output, if need be with numbers that are fitted."""
    for off, core in near:
        whole = _whole(site, core, most) if off <= 2 * most else None
        if whole is not None:
            return whole
    for off, core in near:
        part = part_of(site, core.heads, alone=True)
        wanted = part.of(site.a, core.value_size)
        for cap in (core.cap, CAPS[0]) if off <= ROUGHLY else ():
            whole = _whole(site, fitted_numbers(replace(core, cap=cap), part, wanted), most)
            if whole is not None:
                return settled(whole, lambda core: site.off(core.predicted, from_a=True), most)
    return None


def _simplest(entry: _Tried) -> tuple[bool, float]:
    """Return a key by which cores are sorted: those whose frequencies are not scaled first, the nearest of them first."""
    off, core = entry
    return core.rotary is not None and core.rotary.scaling is not None and off > ROUGHLY / 100, off


def part_of(site: Site, heads: int, *, alone: bool = False, rows: int = ROWS) -> Part:
    """Return the part of the outputs that a search looks at: the longest text, alone or with the shortest, and a few heads.

    Of many positions half are those that both texts have.
    """
    order = np.argsort(-site.real.sum(1), kind="stable")
    chosen = order[:1] if alone else np.unique(np.array([order[0], order[-1]]))
    places = np.flatnonzero(site.real[order[0]])
    if alone:
        places = _spread(places, rows)
    elif len(places) > rows:
        both = np.flatnonzero(site.real[chosen].all(0))
        places = np.union1d(_spread(both, rows // 2), _spread(places, rows - rows // 2))
    real = site.real[np.ix_(chosen, places)]
    return Part(chosen, places, np.unique(np.array([0, min(1, heads - 1), heads - 1])), real)


def _spread(places: np.ndarray, count: int) -> np.ndarray:
    """Return a number of places, evenly spread; all of them where there are no more."""
    return np.asarray(places[np.unique(np.linspace(0, len(places) - 1, min(count, len(places))).astype(int))])


def _whole(site: Site, core: Core, most: float) -> Core | None:
    """Return the core, with another window where it needs one, if it reproduces the whole output."""
    if site.off(core.predicted, from_a=True) <= most:
        return core
    part = part_of(site, core.heads, rows=2 * ROWS)
    wanted = part.of(site.a, core.value_size)
    masks = [replace(core.mask, padding=not core.mask.padding)]
    masks += [replace(core.mask, window=size) for size in range(1, site.real.shape[1])] if not core.crosses else []
    for mask in masks:
        changed = replace(core, mask=mask)
        if relative(changed.part(part), wanted) <= 2 * most and site.off(changed.predicted, from_a=True) <= most:
            return changed
    return None


def _plain(site: Site, candidate: Projections) -> Iterator[Core]:
    """Yield the cores that are tried with all tensors."""
    yield from _cores(site, candidate, numbers=_numbers(site, candidate)[:1])


def _crossing(site: Site, candidate: Projections) -> Iterator[Core]:
    """Yield the cores of queries with the keys and values of another text."""
    yield from _cores(site, candidate, [Mask(), Mask(padding=False)], [None], _numbers(site, candidate))


def _usual(site: Site, candidate: Projections) -> Iterator[Core]:
    """Yield the cores that most models have."""
    declared = declared_by(site, 0)
    rotaries = itertools.islice(likely_rotaries(declared, candidate), USUAL_ROTARIES)
    yield from _cores(site, candidate, rotaries=list(rotaries), caps=[number_in(declared, "attention_cap")])


def _with_distances(site: Site, candidate: Projections) -> Iterator[Core]:
    """Yield cores with products with vectors by distance."""
    numbers = [1 / math.sqrt(terms * candidate.size) for terms in (3, 2, 1)]
    for distances in distance_terms(site, candidate):
        cores = _cores(site, candidate, rotaries=[None], numbers=numbers)
        yield from (replace(core, distances=distances) for core in cores)


def _with_biases(site: Site, candidate: Projections) -> Iterator[Core]:
    """Yield cores with a bias by distance, or with a score that takes a share for no value."""
    for core in _cores(site, candidate, rotaries=[None]):
        yield from (replace(core, bias=bias) for bias in biases(site, candidate.heads))
    sinks = [*gains_of(site, candidate.heads), np.zeros(candidate.heads)]
    window = number_in(declared_by(site, 0), "window")
    masks = [Mask(causal=True), Mask(), *([] if window is None else [Mask(causal=True, window=round(window))])]
    for core in _cores(site, candidate, masks):
        yield from (replace(core, sink=sink) for sink in sinks)


def _with_norms(site: Site, candidate: Projections) -> Iterator[Core]:
    """Yield cores with norms of queries and keys."""
    declared = list(itertools.islice(likely_rotaries(declared_by(site, 0), candidate), LIKELY))
    others = [changed for it in declared if it is not None for changed in _turned_otherwise(it)]
    local = Rotary(BASES[0], candidate.turned or candidate.size)  # that of local layers, beside another of global ones
    rotaries = [*declared, local, *others]
    usual = list(_cores(site, candidate, rotaries=list(dict.fromkeys(rotaries))))
    for norm in _norms(site, candidate):
        yield from (replace(core, norm=norm) for core in usual)


def _turned_otherwise(rotary: Rotary) -> list[Rotary]:
    """Return rotary positions with the other layout, and with the opposite angles."""
    return [replace(rotary, layout=HALVES if rotary.layout == INTERLEAVED else INTERLEAVED), replace(rotary, sense=-1)]


def _with_rotaries(site: Site, candidate: Projections) -> Iterator[Core]:
    """Yield cores with all kinds of rotary positions."""
    yield from _cores(site, candidate, rotaries=list(likely_rotaries(declared_by(site, 0), candidate)))


def _with_caps(site: Site, candidate: Projections) -> Iterator[Core]:
    """Yield cores with soft caps and all masks."""
    numbers = _numbers(site, candidate)
    yield from _cores(site, candidate, _masks(site, candidate), numbers=numbers, caps=[None, *CAPS])


def _numbers(site: Site, candidate: Projections) -> list[float]:
    return scales(declared_by(site, 0), candidate.heads, candidate.size)


def _cores(
    site: Site,
    candidate: Projections,
    masks: Sequence[Mask] | None = None,
    rotaries: Sequence[Rotary | None] | None = None,
    numbers: Sequence[float] | None = None,
    caps: Sequence[float | None] = (None,),
) -> Iterator[Core]:
    """Yield the cores with all combinations of settings, of which the likeliest are taken where they are None."""
    if masks is None:
        masks = _masks(site, candidate)[:LIKELY]
    if rotaries is None:
        rotaries = list(itertools.islice(likely_rotaries(declared_by(site, 0), candidate), LIKELY))
    if numbers is None:
        numbers = _numbers(site, candidate)[:LIKELY]
    places = None if candidate.crosses else places_of(site)
    for mask, rotary, scale, cap in itertools.product(masks, rotaries, numbers, caps):
        yield Core(
            candidate.query,
            candidate.key,
            candidate.value,
            candidate.heads,
            scale,
            site.real_of(candidate.key.values),
            candidate.tiled,
            cap,
            mask,
            rotary,
            places=places,
        )


def _norms(site: Site, candidate: Projections) -> Iterator[HeadNorm]:
    """Yield the norms of queries and keys that the weights of the site's layer allow."""
    epsilon = number_in(declared_by(site, 0), "epsilon")
    pairs = int(candidate.key.values.shape[-1]) // candidate.size
    queries, keys = (gains_by_head(site, heads, candidate.size) for heads in (candidate.heads, pairs))
    by_head = ((query, key) for query, key in itertools.product(queries, keys) if not np.array_equal(query, key))
    gains = [*itertools.permutations(gains_of(site, candidate.size), 2), *by_head]
    for (query, key), centred, offset, small in itertools.product(
        gains, (False, True), (0.0, 1.0), (1e-6, 1e-5) if epsilon is None else (epsilon,)
    ):
        yield HeadNorm(query, key, small, offset, centred=centred)
    unit = np.ones(candidate.size)
    for small, late in itertools.product((1e-6, 1e-5) if epsilon is None else (epsilon, 1e-6), (True, False)):
        yield HeadNorm(unit, unit, small, late=late)


def _masks(site: Site, candidate: Projections) -> list[Mask]:
    causal = is_causal(site, candidate)
    least = least_window(site, candidate, causal=causal)
    longest = site.real.shape[1]
    windows = list(range(least, least + 3)) if least < longest - 1 else []
    plain = [Mask(causal=causal)] if causal or site.real.all() else [Mask(), Mask(padding=False)]
    narrow = [Mask(causal=causal, window=size) for size in windows]
    masks = [*narrow[:1], *plain, *narrow[1:]] if 2 * least < longest else [*plain, *narrow]
    if causal:
        return masks
    return [*masks, Mask(causal=True, shift=1), Mask(causal=True, shift=-1), Mask(causal=True, padding=False)]


#: The intervals in which numbers lie, as powers of ten.
INTERVALS: Final = {
    "scale": (-4.0, 1.5),
    "base": (1.0, 8.5),
    "cap": (-0.5, 3.0),
    "factor": (-2.0, 2.0),
    "soft": (-1.0, 4.0),
    "epsilon": (-12.0, 0.0),
}

#: How many numbers of an interval are tried first, and how often the nearest is improved.
POINTS: Final = 24
STEPS: Final = 14

#: The change of a logarithm by which a derivative is measured.
SMALL: Final = 1e-5


def number_of(core: Core, name: str) -> float | None:
    """Return a number of a core, of those in `INTERVALS`; None where it has none."""
    if name in ("scale", "cap"):
        return core.scale if name == "scale" else core.cap
    if name == "soft":
        return None if core.mask.soft is None else core.mask.soft.number
    if name == "epsilon":
        return None if core.norm is None else core.norm.epsilon or None  # 0 has no logarithm
    if core.rotary is None:
        return None
    if name == "base" or core.rotary.scaling is None:
        return core.rotary.base if name == "base" else None
    return core.rotary.scaling.factor


def with_number(core: Core, name: str, number: float) -> Core:
    """Return the core with another number."""
    if name in ("scale", "cap"):
        return replace(core, scale=number) if name == "scale" else replace(core, cap=number)
    if name == "soft":
        assert core.mask.soft is not None, "the caller has checked"
        return replace(core, mask=replace(core.mask, soft=replace(core.mask.soft, number=number)))
    if name == "epsilon":
        assert core.norm is not None, "the caller has checked"
        return replace(core, norm=replace(core.norm, epsilon=number))
    assert core.rotary is not None, "the caller has checked"
    if name == "base":
        return replace(core, rotary=replace(core.rotary, base=number))
    scaling = core.rotary.scaling or Scaling("linear", number)
    return replace(core, rotary=replace(core.rotary, scaling=replace(scaling, factor=number)))


def fitted_numbers(core: Core, part: Part, wanted: np.ndarray, names: Sequence[str] = ()) -> Core:
    """Return the core with the numbers that fit best to a part of the outputs.

    Args:
        core: the core with its other settings.
        part: the part of the outputs.
        wanted: their values.
        names: the numbers that are fitted; all that it has except a factor if empty.
    """
    names = names or [name for name in ("scale", "base", "cap") if number_of(core, name) is not None]
    best = core
    for name in names:
        low, high = INTERVALS[name]
        tried = [best] if number_of(best, name) is not None else []
        tried += [with_number(best, name, 10.0**at) for at in np.linspace(low, high, POINTS)]
        best = min(tried, key=lambda core: relative(core.part(part), wanted))
    return _improved(best, part, wanted, names)


def _improved(core: Core, part: Part, wanted: np.ndarray, names: Sequence[str]) -> Core:
    """Return the core after steps of the method of Levenberg and Marquardt in the numbers' logarithms."""
    damping = 1e-3
    rest = (core.part(part) - wanted).ravel()
    for _ in range(STEPS):
        slopes = []
        for name in names:
            moved = _times(core, name, math.exp(SMALL))
            slopes.append(((moved.part(part) - wanted).ravel() - rest) / SMALL)
        jacobian = np.stack(slopes, 1)
        square = jacobian.T @ jacobian
        while damping < 1e6:
            step = np.linalg.solve(square + damping * np.diag(np.diag(square) + 1e-30), -jacobian.T @ rest)
            changed = core
            for name, change in zip(names, np.clip(step, -2, 2), strict=True):
                changed = _times(changed, name, math.exp(change))
            left = (changed.part(part) - wanted).ravel()
            if left @ left < rest @ rest:
                break
            damping *= 8
        else:
            return core
        gain = (left @ left) / (rest @ rest)
        core, rest, damping = changed, left, damping / 8
        if gain > 1 - 1e-6:
            return core
    return core


def _times(core: Core, name: str, factor: float) -> Core:
    number = number_of(core, name)
    assert number is not None, "the nearest of several numbers has been taken"
    return with_number(core, name, number * factor)


def settled(core: Core, off: Callable[[Core], float], most: float, usual: Iterable[Core] = ()) -> Core:
    """Return the core with each number replaced by the shortest that fits as well.

    Args:
        core: the core.
        off: returns how far a core is off.
        most: how far it may be off.
        usual: cores whose numbers are preferred.
    """
    limit = max(min(most, 2 * off(core)), 1.2 * off(core))
    if core.cap is not None and off(replace(core, cap=None)) <= limit:
        core = replace(core, cap=None)
    if core.rotary is not None and off(replace(core, rotary=None)) <= limit:
        core = replace(core, rotary=None)
    if core.rotary is not None and core.rotary.scaling is not None:
        plain = replace(core, rotary=replace(core.rotary, scaling=None))
        core = plain if off(plain) <= limit else core
    for name in INTERVALS:
        number = number_of(core, name)
        if number is None:
            continue
        known = [number_of(other, name) for other in usual]
        known += [core.usual_scale] if name == "scale" else []
        near = [other for other in known if other is not None and math.isclose(other, number, rel_tol=0.01)]
        roots = [1 / math.sqrt(max(round(number**-2), 1))] if name == "scale" else []
        near += [root for root in roots if math.isclose(root, number, rel_tol=1e-3)]  # chance is near one as well
        for other in [*near, *(float(f"{number:.{digits}g}") for digits in range(1, 7))]:
            changed = with_number(core, name, other)
            if off(changed) <= limit:
                core = changed
                break
    return core
