"""An attention whose output is multiplied by the logistic function of a gate: Qiu et al., 2025, "Gated attention"."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from embgrad.comparison.hypotheses.activation import cause_of
from embgrad.comparison.hypotheses.core import Core
from embgrad.comparison.hypotheses.functions import ACTIVATIONS, Activation, logistic
from embgrad.comparison.hypotheses.projections import Projections, divisors, is_causal
from embgrad.comparison.hypotheses.site import Explanation, Site, Values
from embgrad.comparison.hypotheses.sources import Source, sources

__all__ = ["gated", "other_gate", "ungated"]

#: The share of a difference, and the number of floors, that another function of the gate may leave.
MOST_LEFT: Final = 0.01
FLOORS: Final = 10.0

LOGISTIC: Final = next(function for function in ACTIVATIONS if function.apply is logistic)


def ungated(site: Site) -> Iterator[tuple[Site, Source]]:
    """Yield the site before the product with a gate, and the gate, if the first query of each text takes one value there."""
    values = list(sources(site))
    for gate in _gates(site):
        share = logistic(gate.values)
        growth = np.linalg.norm(site.a) / (np.linalg.norm(site.a / share) or 1.0) / share[site.real].min()
        inner = replace(site, a=site.a / share, b=site.b / share, floor=site.floor * max(float(growth), 1.0))
        if any(is_causal(inner, candidate) for source in values for candidate in _candidates(inner, source)):
            yield inner, gate


def _gates(site: Site) -> Iterator[Source]:
    """Yield the tensors of the site's shape, and the second halves of those that are twice as wide, whole or by head."""
    width = site.a.shape[-1]
    for source in sources(site):
        if source.values.shape == site.a.shape:
            yield source
        if source.values.shape == (*site.a.shape[:2], 2 * width):
            for size in reversed(divisors(width)):
                yield source.part(np.arange(2 * width).reshape(-1, 2, size)[:, 1].ravel(), "the gate")


def _candidates(site: Site, source: Source) -> Iterator[Projections]:
    """Yield a tensor as values of each size of heads."""
    width, narrow = site.a.shape[-1], source.values.shape[-1]
    if source.values.shape[:2] == site.a.shape[:2] and width % narrow == 0:
        sizes = divisors(narrow) if narrow < width else [width]
        yield from (Projections(source, source, source, size) for size in sizes)


def gated(explanation: Explanation, gate: Source) -> Explanation:
    """Return an explanation of the site before the product with a gate as one of the site behind it."""
    inner = explanation.compute
    return replace(
        explanation,
        predicted=explanation.predicted * logistic(gate.values),
        compute=None if inner is None else lambda at: inner(at) * logistic(gate.read(at)),
        inputs=tuple(dict.fromkeys((*explanation.inputs, *gate.names))),
        also=tuple(gated(other, gate) for other in explanation.also),
    )


def other_gate(site: Site, core: Core, gate: Source) -> Explanation | None:
    """Return the explanation that b has another function of the gate, or none; None where no function gives its output.

    Args:
        site: the site behind the product.
        core: the core before it.
        gate: the gate.
    """
    without = Activation("", np.ones_like)
    offs = {it.name: site.off(core.predicted * it.apply(gate.values)) for it in (without, *ACTIVATIONS)}
    best = min((without, *ACTIVATIONS), key=lambda function: offs[function.name])

    def compute(at: Values) -> np.ndarray:
        return np.asarray(core.compute(at) * best.apply(gate.read(at)))

    predicted = core.predicted * best.apply(gate.values)
    inputs = tuple(dict.fromkeys((*core.inputs, *gate.names)))
    if best is LOGISTIC or site.off(predicted) > max(MOST_LEFT * site.difference, FLOORS * site.floor):
        return None
    if best is without:
        return Explanation(
            "missing-gate", f"the product with the logistic function of {gate.text} is", ("computed", "missing"),
            predicted, compute, inputs,
        )  # fmt: skip
    names = (LOGISTIC.name, best.name)
    return Explanation(cause_of(LOGISTIC, best), f"the function of {gate.text} is", names, predicted, compute, inputs)
