"""The selective scans that reproduce the reference's output."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from embgrad.comparison.hypotheses.functions import ACTIVATIONS, IDENTITY, Activation
from embgrad.comparison.hypotheses.layer_sources import branches, within
from embgrad.comparison.hypotheses.scan import PARTS, Scan, split
from embgrad.comparison.hypotheses.site import Site, Values
from embgrad.comparison.hypotheses.sources import Source, most_off, relative
from embgrad.comparison.recording import HeldWeight

__all__ = ["Sample", "fits", "laid"]

#: The numbers of examples, features and tokens by which scans are told apart.
EXAMPLES: Final = 2
FEATURES: Final = 16
TOKENS: Final = 24

#: The numbers that are added to mean squares.
EPSILONS: Final = (1e-6, 1e-5)

#: The conventions of references but the usual one. Falcon-Mamba divides the parts by their root mean square.
CONVENTIONS: Final[tuple[Mapping[str, Any], ...]] = (
    {},
    *({"epsilon": epsilon} for epsilon in EPSILONS),
    {"rate": "its weight"},
    {"held": True},
    {"masked": True},
)

#: The most scans that are tried at one site, of each convention, and the number of tokens by which they are told apart first.
MOST_STARTED: Final = 200
FIRST: Final = 8


class Sample:
    """A few examples and features of a site, by which scans, of which each feature is by itself, are told apart."""

    def __init__(self, site: Site) -> None:
        self.real = site.recordings[0].batch.real
        self.examples = np.argsort(-self.real.sum(1), kind="stable")[:EXAMPLES]
        width = site.a.shape[-1]
        self.features = np.arange(0, width, -(-width // FEATURES))
        self.values = {before.name: before.values for before in reversed(site.before)}

    def of(self, values: np.ndarray, tokens: int | None = None) -> np.ndarray:
        """Return a few examples of values, (example, position, feature), and their first tokens."""
        return np.asarray(values[self.examples, :tokens])

    def counting(self, tokens: int | None) -> np.ndarray:
        """Return which of the first tokens of a few examples are not padding, or all where all are."""
        real = self.of(self.real, tokens)
        return real if real.any() else np.ones_like(real)

    def at(self, name: str) -> np.ndarray:
        """Return a few examples of the values at a point before the site."""
        return self.of(self.values[name])

    def off(self, scan: Scan, wanted: np.ndarray) -> float:
        """Return the relative L2 of a scan's outputs against those of a site, in a few places."""
        tokens = None if scan.needs_all_tokens else TOKENS
        real = self.counting(tokens)
        with np.errstate(all="ignore"):
            found = scan.run(lambda name: self.of(self.values[name], tokens), real, self.features)
        return relative(found[real], self.of(wanted, tokens)[..., self.features][real])

    def reproduces(self, scan: Scan, site: Site) -> bool:
        """Return whether a scan has the reference's outputs."""
        return site.off(self.outputs(scan, self.values.__getitem__), from_a=True) <= most_off(site)

    def outputs(self, scan: Scan, at: Values) -> np.ndarray:
        """Return a scan's outputs in a pass whose values at points a function returns."""
        with np.errstate(all="ignore"):
            return np.asarray(scan.run(at, self.real))

    def inputs(self, scan: Scan) -> tuple[str, ...]:
        """Return the names of the points that a scan reads."""
        return tuple(scan.inputs)


def fits(site: Site) -> Iterator[Scan]:
    """Yield the scans that reproduce the reference's output."""
    started = list(itertools.islice(_started(site), MOST_STARTED))
    if not started:
        return
    found = branches(site)
    few, most = Sample(site), most_off(site)
    real, wanted = few.counting(FIRST), few.of(site.a, FIRST)[..., few.features]
    gates = [(None, IDENTITY), *((source, function) for function in ACTIVATIONS for source in found)]
    of_gates = np.stack(
        [_few_of(few, source, function)[real] if source else np.ones_like(wanted[real]) for source, function in gates]
    )
    for convention, begun, u in itertools.product(CONVENTIONS, started, found):
        scan = replace(begun, u=u, **convention)
        with np.errstate(all="ignore"):
            states = scan.scanned(lambda name: few.at(name)[:, :FIRST], real, few.features)
        for held in _vectors_of(site, scan.weights["logs"].module):
            skip = _floats(held).ravel()
            output = states + skip[few.features] * _few_of(few, u, IDENTITY)
            off = np.linalg.norm(of_gates * output[real] - wanted[real], axis=(1, 2))
            for number in np.flatnonzero(off <= most * np.linalg.norm(wanted[real])):
                gate, function = gates[number]
                fit = replace(scan, skip=skip, gate=gate, gated=function, weights={**scan.weights, "skip": held})
                if few.reproduces(fit, site):
                    others = [replace(fit, epsilon=it) for it in EPSILONS if fit.epsilon is not None]
                    yield min([fit, *others], key=lambda it: few.off(it, site.a))


def _few_of(few: Sample, source: Source, function: Activation) -> np.ndarray:
    return function.apply(few.of(source.values, FIRST)[..., few.features])


def _started(site: Site) -> Iterator[Scan]:
    """Yield the scans that the weights of a site's layer and the tensors before it may make, but for what enters and the gate."""
    if site.a.shape[:2] != site.recordings[0].batch.real.shape:
        return
    width = site.a.shape[-1]
    flat = [weight for weight in site.weights if len(weight.shape) == 2 and width in weight.shape]
    narrow = [weight for weight in flat if min(weight.shape) < width]
    for weight, other in itertools.permutations(narrow, 2):
        logs, matrix = _by_feature(_floats(weight), width), _by_feature(_floats(other), width).T
        if _vectors_of(site, weight.module):
            for whole, order, parts in _triples(site, len(matrix), logs.shape[1]):
                own, none = {"logs": weight, "matrix": other}, np.zeros(width)
                scan = Scan(parts[0], parts, logs, matrix, none, none, own, whole=whole, order=order)
                for bias in _vectors_of(site):
                    yield replace(scan, bias=_floats(bias).ravel(), weights={**own, "bias": bias})
                yield scan


def _floats(weight: HeldWeight) -> np.ndarray:
    return weight.get().astype(np.float64)


def _by_feature(values: np.ndarray, width: int) -> np.ndarray:
    return values if len(values) == width else values.T


def laid(name: str, width: int, values: np.ndarray) -> np.ndarray:
    """Return a weight's values as a scan holds them."""
    if name in ("bias", "skip"):
        return values.ravel()
    return _by_feature(values, width).T if name == "matrix" else _by_feature(values, width)


def _triples(
    site: Site, low: int, states: int
) -> Iterator[tuple[Source | None, tuple[str, ...], tuple[Source, Source, Source]]]:
    """Yield the step's part, of one width, and B and C, of another one, behind the tensor that holds all, and their order."""
    found = [source for source in within(site) if source.values.shape[:2] == site.a.shape[:2]]
    for whole in found:
        if whole.values.shape[-1] == low + 2 * states:
            for order in itertools.permutations(PARTS):
                yield whole, order, split(whole, order, low, states)
    both = [source for source in found if source.values.shape[-1] == states]
    for step in (source for source in found if source.values.shape[-1] == low):
        yield from ((None, (), (step, *pair)) for pair in itertools.permutations(both, 2))


def _vectors_of(site: Site, module: str | None = None) -> list[HeldWeight]:
    """Return the vectors of a site's layer, or of a module of it, that have the site's width."""
    width = site.a.shape[-1]
    held = [weight for weight in site.weights if module in (None, weight.module)]
    return [weight for weight in held if width in weight.shape and math.prod(weight.shape) == width]
