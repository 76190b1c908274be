"""Attention cores that differ from another one in one setting."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np

from embgrad.comparison.hypotheses import latent
from embgrad.comparison.hypotheses.core import Core
from embgrad.comparison.hypotheses.core_distances import other_terms
from embgrad.comparison.hypotheses.core_likely import BASES, CAPS, SCALINGS, biases, scales, turned_size
from embgrad.comparison.hypotheses.core_parts import (
    HALVES,
    INTERLEAVED,
    ROUNDINGS,
    HeadNorm,
    Mask,
    Rotary,
    Scaling,
    Soft,
    gains_of,
)
from embgrad.comparison.hypotheses.core_slopes import fitted_slopes
from embgrad.comparison.hypotheses.declared import declared_by, number_in
from embgrad.comparison.hypotheses.norm_fit import EPSILONS
from embgrad.comparison.hypotheses.other_weights import with_weights_of_b
from embgrad.comparison.hypotheses.projections import splits
from embgrad.comparison.hypotheses.site import Site
from embgrad.comparison.hypotheses.sources import Fused, Source, most_off, relative, skipped_norms, sources
from embgrad.model_points.points import INPUT

__all__ = ["late_variants", "variants", "with_norms", "with_settings_of"]

#: The largest number that masks usually subtract in place of an infinite one.
LARGEST: Final = 1e4

#: What masks subtract that are inverted; from larger ones on no digit of a score is left in single precision.
INVERTED: Final = (LARGEST, 1e9)

#: The most windows that are tried one by one.
MOST_WINDOWS: Final = 64

#: The distances of the last buckets.
LONGEST: Final = (12, 16, 20, 32, 64, 128, 256, 512)

#: The factors by which one number of a scaling may differ.
FACTORS: Final = (0.125, 0.25, 0.5, 2.0, 4.0, 8.0)


def variants(site: Site, core: Core, *, rare: bool = True) -> Iterator[Core]:
    """Yield cores that differ in one setting.

    Args:
        site: the site, whose declared settings are among them.
        core: the core that is changed.
        rare: whether every number of features and positions is tried, and every tensor.
    """
    declared = _declared(site)
    yield from _of_scores(declared, core)
    if core.crosses:
        yield replace(core, mask=replace(core.mask, padding=not core.mask.padding))
    else:
        yield from (replace(core, mask=mask) for mask in _masks(site, core.mask, rare) if mask != core.mask)
        yield from (replace(core, rotary=rotary) for rotary in _rotaries(declared, core, rare) if rotary != core.rotary)
        yield from _of_bias(site, core)
        yield from [] if core.places is None else [replace(core, places=None)]
    yield from _of_heads(declared, core)
    yield from (replace(core, norm=norm) for norm in _norms(site, core))
    yield from _of_sources(site, core, rare)


def late_variants(core: Core) -> Iterator[tuple[Core, tuple[str, ...]]]:
    """Yield cores with a change of softmax or mask that hardly any port has, each with the names of its numbers to be fitted."""
    plain = replace(core.mask, padding=False)
    for mask in (core.mask, plain, replace(core.mask, soft=Soft("padding", LARGEST))):
        yield replace(core, over="queries", mask=mask), ()
    if not core.crosses:
        yield replace(core, over="real queries", mask=plain), ()
    narrow, padded = core.mask.causal or core.mask.window is not None, core.mask.padding and not core.real.all()
    for number in INVERTED if padded else ():
        yield replace(core, mask=replace(core.mask, soft=Soft("text", number))), ()
    kinds = [("padding", padded), ("positions", narrow), ("all", narrow and padded)]
    for keys in (keys for keys, is_hidden in kinds if is_hidden):
        for soft, names in (
            (Soft(keys, 1.0), ("soft",)),
            (Soft(keys, 0.0, instead=True), ()),  # which no factor leads to
            (Soft(keys, 1.0, instead=True), ("soft",)),
        ):
            yield replace(core, mask=replace(core.mask, soft=soft)), names


def with_norms(site: Site, core: Core) -> Core | None:
    """Return the core of what norms of queries and keys are given, which it applies itself; None where it reads no norms of them.

    A core that reads what they return has no settings of them.
    """
    if core.norm is not None:
        return None
    skipped = {
        role: (given, source.values)
        for role, source in (("query", core.query), ("key", core.key))
        for _, given in itertools.islice(skipped_norms(site, source.values), 1)
    }
    best, least = None, most_off(site)
    for across, epsilon, offset, centred in itertools.product((False, True), EPSILONS, (0.0, 1.0), (False, True)):
        norm = HeadNorm(None, None, epsilon, offset, centred=centred, across=across)
        found = [_with_gain(site, norm, core.size, given.values, values) for given, values in skipped.values()]
        off = max((off for off, _ in found), default=least)
        if off < least:
            gains = dict(zip(skipped, (gain for _, gain in found), strict=True))
            best, least = replace(norm, query=gains.get("query"), key=gains.get("key")), off
    if best is None:
        return None
    inputs = {role: Source(given.name, given.values) for role, (given, _) in skipped.items()}
    return replace(core, norm=best, **inputs)  # type: ignore[arg-type]


def _with_gain(
    site: Site, norm: HeadNorm, size: int, given: np.ndarray, returned: np.ndarray
) -> tuple[float, np.ndarray | None]:
    """Return the gain in the site's layer with which a norm of heads of a size is nearest, behind its relative L2."""
    heads = given.reshape(*given.shape[:2], -1, size)
    best: tuple[float, np.ndarray | None] = math.inf, None
    for weight in gains_of(site, given.shape[-1] if norm.across else size):
        gain = weight.reshape(-1, size) if norm.across else weight
        normed, _ = replace(norm, query=gain).apply(heads, heads, (given, given))
        best = min(best, (relative(normed.reshape(given.shape), returned), gain), key=lambda entry: entry[0])
    return best


def _declared(site: Site) -> Mapping[str, Any]:
    """Return what b declares, and what a declares where b declares nothing: either may compute what only the other declares."""
    mine, its = declared_by(site, 0), declared_by(site, 1)
    return {**mine, **{name: value for name, value in its.items() if value is not None}}


def with_settings_of(core: Core, other: Core) -> Iterator[Callable[[Core], Core]]:
    """Yield functions that give a core one of the settings of another core in which the two differ."""
    same_heads = core.heads == other.heads
    names = [
        "cap",
        "mask",
        "tiled",
        "split",
        "joined",
        "over",
        "places",
        *(["bias", "distances", "norm", "scale", "sink"] if same_heads else []),
    ]
    if same_heads or (core.rotary is not None and other.rotary is not None):
        names.append("rotary")
    for name in names:
        mine, its = getattr(core, name), getattr(other, name)
        if mine is its:
            continue
        if mine is None or its is None or not is_dataclass(mine):
            yield from (
                [] if isinstance(mine, (bool, str, float)) and mine == its else [partial(_with, name=name, value=its)]
            )
            continue
        for field in fields(mine):
            value = getattr(its, field.name)
            if getattr(mine, field.name) is not value and (same_heads or field.name != "size"):
                yield partial(_with, name=name, field=field.name, value=value)


def _with(core: Core, name: str, value: Any, field: str = "") -> Core:
    """Return the core with another setting, or with another part of it."""
    part = getattr(core, name)
    if not field:
        return replace(core, **{name: value})
    return core if part is None else replace(core, **{name: replace(part, **{field: value})})


def _of_scores(declared: Mapping[str, Any], core: Core) -> Iterator[Core]:
    for scale in scales(declared, core.heads, core.size):
        if scale != core.scale:
            yield replace(core, scale=scale)
    for cap in dict.fromkeys([number_in(declared, "attention_cap"), None, *CAPS]):
        if cap != core.cap:
            yield replace(core, cap=cap)


def _masks(site: Site, mask: Mask, rare: bool) -> Iterator[Mask]:
    yield replace(mask, causal=not mask.causal, shift=0)
    yield replace(mask, padding=not mask.padding)
    if mask.causal:
        yield from (replace(mask, shift=shift) for shift in (-1, 0, 1))
        yield replace(mask, shift=-1, blank=True)  # the first query sees nothing
        yield replace(mask, shift=-1, itself=True)
    yield replace(mask, window=None)
    window = number_in(_declared(site), "window")
    longest = site.real.shape[1]
    nearest = [size for size in range(1, min(longest, MOST_WINDOWS)) if rare or size & (size - 1) == 0]
    for size in dict.fromkeys([*([] if window is None else [round(window), round(window) // 2]), *nearest]):
        if 0 < size <= longest:
            yield replace(mask, window=size)
    for away in (-1, 1):
        if mask.window is not None and mask.window + away > 0:
            yield replace(mask, window=mask.window + away)


def _rotaries(declared: Mapping[str, Any], core: Core, rare: bool) -> Iterator[Rotary | None]:
    base, share = number_in(declared, "rotary_base"), number_in(declared, "rotary_share")
    bases = dict.fromkeys([*([] if base is None else [base]), *BASES])
    if core.rotary is None:
        sizes = dict.fromkeys(turned_size(core.size, part) for part in (share or 1.0, 1.0, 0.25, 0.5))
        for number, size in itertools.product(bases, sizes):
            yield from (Rotary(number, size, HALVES), Rotary(number, size, INTERLEAVED))
        return
    rotary = core.rotary
    yield None
    yield from (replace(rotary, base=number) for number in bases)
    yield replace(rotary, layout=HALVES if rotary.layout == INTERLEAVED else INTERLEAVED)
    yield from (replace(rotary, size=size) for size in range(2, core.size + 1, 2) if rare or core.size % size == 0)
    if rotary.pairs is not None:
        yield replace(rotary, size=rotary.turned, pairs=None)
    elif rotary.layout == HALVES and rotary.size < core.size:
        yield replace(rotary, size=core.size, pairs=rotary.size // 2)
    if rotary.layout == HALVES:
        numbers = range(1, core.size // 2) if rare and rotary.size == core.size else ()
        yield from (replace(rotary, pairs=pairs) for pairs in numbers)
    yield from (replace(rotary, scaling=scaling) for scaling in _scalings(declared, rotary.scaling))
    yield from (replace(rotary, queries=queries, keys=not queries) for queries in (True, False))
    if rotary.size <= core.value_size:
        yield replace(rotary, values=not rotary.values)
    yield from (replace(rotary, ahead=ahead) for ahead in (-1, 0, 1))
    yield replace(rotary, sense=-rotary.sense)
    yield from (replace(rotary, rounded=rounded) for rounded in (None, *ROUNDINGS))


def _scalings(declared: Mapping[str, Any], scaling: Scaling | None) -> Iterator[Scaling | None]:
    yield None
    own = declared.get("rotary_scaling")
    yield from [] if own is None else [own]
    yield from SCALINGS
    if scaling is not None:
        yield replace(scaling, rounded=not scaling.rounded)
        for name in ("factor", "low", "high", "original"):
            for factor in FACTORS:
                changed = replace(scaling, **{name: getattr(scaling, name) * factor})
                yield from [changed] if changed.low < changed.high else []
        for other in SCALINGS:
            yield replace(other, factor=scaling.factor)


def _of_heads(declared: Mapping[str, Any], core: Core) -> Iterator[Core]:
    width, narrow = core.heads * core.size, core.pairs * core.size  # the first is a multiple of the second
    is_free = (
        not core.is_latent
        and core.norm is None
        and core.distances is None
        and (core.bias is None or not core.bias.is_by_head)
    )
    for size in range(2, narrow + 1) if is_free and core.sink is None else ():
        if narrow % size or size == core.size or (core.rotary is not None and size % 2):
            continue
        rotary = None if core.rotary is None else core.rotary.of_head(core.size, size)
        changed = replace(core, heads=width // size, rotary=rotary)
        yield replace(changed, scale=changed.usual_scale)
        yield changed
        if core.rotary is not None:
            yield replace(changed, rotary=replace(core.rotary, size=min(core.rotary.size, size)))
    if 1 < core.pairs < core.heads:
        yield replace(core, tiled=not core.tiled)
    for split in ("by head", "by feature", "unturned"):
        if split != core.split:
            yield replace(core, split=split)
    for joined in ("by head", "by feature", "unturned"):
        if joined != core.joined:
            yield replace(core, joined=joined)
    for both in ("by feature", "unturned"):
        if both not in (core.split, core.joined):
            yield replace(core, split=both, joined=both)
    if core.joined != "unturned":  # then what queries at padding see is at real positions as well
        yield replace(core, joined="unturned", mask=replace(core.mask, padding=not core.mask.padding))


def _of_bias(site: Site, core: Core) -> Iterator[Core]:
    yield replace(core, sink=np.zeros(core.heads))
    if core.sink is not None:
        yield from (replace(core, sink=None), replace(core, sink=core.sink * core.scale))
    if core.distances is not None:
        yield replace(core, distances=None)
        for distances in other_terms(site, core.distances, core.query, core.key, core.size):
            yield replace(core, distances=distances)
    if core.bias is None:
        yield from (replace(core, bias=bias) for bias in biases(site, core.heads))
        return
    yield replace(core, bias=None)
    if core.bias.table is None:
        other = fitted_slopes(site, core)
        yield from [] if other is None else [other]
        return
    for factor in (core.scale, 1 / core.scale):  # where it is added before scores are scaled, or behind
        yield replace(core, bias=replace(core.bias, factor=core.bias.factor * factor))
    yield replace(core, bias=replace(core.bias, causal=not core.bias.causal))
    longer = (longest for longest in LONGEST if longest > len(core.bias.table) // 2 and longest != core.bias.longest)
    yield from (replace(core, bias=replace(core.bias, longest=longest)) for longest in longer)
    yield replace(core, bias=replace(core.bias, sense=-core.bias.sense))
    others = (ahead for ahead in (-1, 0, 1) if ahead != core.bias.ahead)
    yield from (replace(core, bias=replace(core.bias, ahead=ahead)) for ahead in others)


def _norms(site: Site, core: Core) -> Iterator[HeadNorm | None]:
    norm = core.norm
    if norm is None:
        yield from _norms_of_b(site, core)
        return
    yield None
    yield from (replace(norm, epsilon=epsilon) for epsilon in EPSILONS if epsilon != norm.epsilon)
    yield replace(norm, offset=1 - norm.offset)
    yield replace(norm, late=not norm.late)
    yield replace(norm, centred=not norm.centred)
    yield replace(norm, across=not norm.across)
    if norm.query is None or norm.key is None:
        yield replace(norm, query=norm.key, key=norm.query)
        return
    if norm.query.shape == norm.key.shape:
        yield replace(norm, query=norm.key, key=norm.query)
    yield from (replace(norm, query=None), replace(norm, key=None))
    if norm.query.shape == norm.key.shape:
        yield from (replace(norm, query=norm.key), replace(norm, key=norm.query))
    if norm.query.ndim > 1:
        yield replace(norm, query=norm.query[0], key=norm.key[0])
    without = replace(norm, query=np.ones_like(norm.query), key=np.ones_like(norm.key), offset=0.0)
    if any(np.ptp(gain) for gain in (norm.query, norm.key)):
        yield without


def _norms_of_b(site: Site, core: Core) -> Iterator[HeadNorm]:
    """Yield the norms of queries, keys or both whose gains b alone has, or that have none."""
    declared = number_in(declared_by(site, 1), "epsilon")
    epsilons = (1e-6, 1e-5) if declared is None else (declared,)
    gains = gains_of(site, core.size, of_b_alone=True)
    chosen = [*itertools.permutations(gains, 2), *((gain, None) for gain in gains), *((None, gain) for gain in gains)]
    for (query, key), epsilon, offset, late in itertools.product(chosen, epsilons, (0.0, 1.0), (False, True)):
        yield HeadNorm(query, key, epsilon, offset, late)
    unit = np.ones(core.size)
    without = ((unit, unit), (unit, None), (None, unit))
    for (query, key), epsilon, late in itertools.product(without, epsilons, (False, True)):
        yield HeadNorm(query, key, epsilon, late=late)


def _of_sources(site: Site, core: Core, rare: bool) -> Iterator[Core]:
    roles = (core.query, core.key, core.value)
    for query, key, value in itertools.permutations(roles):
        if (query, key, value) != roles and _is_possible(core, query, key, value):
            yield replace(core, query=query, key=key, value=value)
    values = {before.name: before.values for before in site.before}
    names = ("query", "key", "value")
    others = [[source, *with_weights_of_b(site, source)] for source in roles]  # several, as of another checkpoint
    for chosen in itertools.islice(itertools.product(*others), 1, None):
        yield replace(core, **dict(zip(names, chosen, strict=True)))  # type: ignore[arg-type]
    for name, source in zip(names, roles, strict=True):
        matrix, bias = source.matrix, source.bias
        if matrix is not None and matrix.shape[0] == matrix.shape[1]:
            product = values[source.name] @ matrix.T + (0.0 if bias is None else bias)
            yield replace(core, **{name: replace(source, values=product, matrix=matrix.T)})  # type: ignore[arg-type]
    given = {
        role: Source(before.name, before.values)
        for role, source in (("query", core.query), ("key", core.key))
        for _, before in itertools.islice(skipped_norms(site, source.values), 1)
    }
    for skipped in ({role: source} for role, source in given.items()):
        yield replace(core, **skipped)  # type: ignore[arg-type]
    if len(given) > 1:
        yield replace(core, **given)  # type: ignore[arg-type]
    if core.query.name == core.key.name == core.value.name:
        whole = next(source for source in sources(site, len(site.before)) if source.name == core.query.name)
        for query, key, value in splits(whole, core.heads, core.size, reordered=True):
            yield replace(core, query=query, key=key, value=value)
    for parts in latent.other_orders(core, list(sources(site))) if core.is_latent else ():
        yield replace(core, query=parts.query, key=parts.key, value=parts.value)
    fused = _fused(site, roles)
    for query, key, value in () if fused is None else splits(fused, core.heads, core.size, reordered=True):
        yield replace(core, query=query, key=key, value=value)
    for other in sources(site) if rare else ():
        for name in ("query", "key", "value"):
            changed: dict[str, Source] = {"query": core.query, "key": core.key, "value": core.value, name: other}
            own = getattr(core, name).name
            if other.name == f"{own}:{INPUT}" and _has_matrix(site, own):
                continue  # no port attends with what a projection is given
            if other.name not in core.inputs and _is_possible(core, *changed.values()):
                yield replace(core, query=changed["query"], key=changed["key"], value=changed["value"])


def _fused(site: Site, roles: Sequence[Source]) -> Fused | None:
    """Return what b's fused projection returns; None where b has none for a's queries, keys and values."""
    modules = {
        weight.module: weight.name for weight in site.recordings[0].weights if weight.name in site.matching.parts
    }
    parts = [site.matching.parts.get(modules.get(source.name, ""), ()) for source in roles]
    if len({source.name for source in roles}) < len(roles) or any(len(part) != 1 for part in parts):
        return None
    (query,), (key,), (value,) = parts
    whole = [source.values.shape[-1] == len(part.rows) for source, (part,) in zip(roles, parts, strict=True)]
    places = np.concatenate([part.others[np.argsort(part.rows)] for part in (query, key, value)])
    if len({query.name, key.name, value.name}) > 1 or not all(whole) or set(places) != set(range(len(places))):
        return None
    order = np.argsort(places)
    values = np.concatenate([source.values for source in roles], -1)[..., order]
    return Fused(roles[0].name, values, parts=tuple(roles), order=order)


def _has_matrix(site: Site, path: str) -> bool:
    return any(len(weight.shape) > 1 for weight, _, _ in site.held_by(path).values())


def _is_possible(core: Core, query: Source, key: Source, value: Source) -> bool:
    shapes = [source.values.shape for source in (query, key, value)]
    return shapes == [core.query.values.shape, core.key.values.shape, core.value.values.shape]
