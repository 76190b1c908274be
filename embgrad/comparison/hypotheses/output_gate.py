"""An attention whose output is multiplied by the logistic function of a gate: Qiu et al., 2025, "Gated attention"."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from embgrad.comparison.hypotheses.activation import cause_of
from embgrad.comparison.hypotheses.core import Core
from embgrad.comparison.hypotheses.functions import ACTIVATIONS, Activation, logistic
from embgrad.comparison.hypotheses.projections import divisors, is_one_value
from embgrad.comparison.hypotheses.site import Explanation, Site, Values
from embgrad.comparison.hypotheses.sources import Source, sources

__all__ = ["gated", "other_gate", "ungated"]

LOGISTIC: Final = next(function for function in ACTIVATIONS if function.apply is logistic)


def ungated(site: Site) -> Iterator[tuple[Site, Source]]:
    """Yield the site before the product with a gate, and the gate, if the first query of each text takes one value there."""
    width, each, first = site.a.shape[-1], np.arange(len(site.real)), site.real.argmax(1)
    found = [source for source in sources(site) if source.values.shape[:2] == site.a.shape[:2]]
    values = [source.values[each, first] for source in found if width % source.values.shape[-1] == 0]
    outputs = site.a[each, first]
    for gate in _gates(width, found):
        before = outputs / logistic(gate.values[each, first])
        if not any(is_one_value(before, value, size) for value in values for size in divisors(value.shape[-1])):
            continue
        share = logistic(gate.values)
        growth = np.linalg.norm(site.a) / (np.linalg.norm(site.a / share) or 1.0) / share[site.real].min()
        yield replace(site, a=site.a / share, b=site.b / share, floor=site.floor * max(float(growth), 1.0)), gate


def _gates(width: int, found: Sequence[Source]) -> Iterator[Source]:
    """Yield the tensors of a width, and the second halves of those that are twice as wide, whole or by head."""
    for source in found:
        if source.values.shape[-1] == width:
            yield source
        if source.values.shape[-1] == 2 * width:
            for size in reversed(divisors(width)):
                yield source.part(np.arange(2 * width).reshape(-1, 2, size)[:, 1].ravel(), "the gate")


def gated(explanation: Explanation, gate: Source) -> Explanation:
    """Return an explanation of the site before the product with a gate as one of the site behind it."""
    predicted = explanation.predicted * logistic(gate.values)
    return explanation.behind(predicted, lambda values, at: values * logistic(gate.read(at)), gate.names)


def other_gate(site: Site, core: Core, gate: Source) -> Explanation | None:
    """Return the explanation that b has another function of the gate, or none; None where no function gives its output.

    Args:
        site: the site behind the product.
        core: the core before it.
        gate: the gate.
    """
    without, before = Activation("", np.ones_like), core.predicted
    best = min((without, *ACTIVATIONS), key=lambda function: site.off(before * function.apply(gate.values)))

    def compute(at: Values) -> np.ndarray:
        return np.asarray(core.compute(at) * best.apply(gate.read(at)))

    predicted = before * best.apply(gate.values)
    inputs = tuple(dict.fromkeys((*core.inputs, *gate.names)))
    if best is LOGISTIC or site.off(predicted) > site.most_left:
        return None
    if best is without:
        return Explanation(
            "missing-gate", f"the product with the logistic function of {gate.text} is", ("computed", "missing"),
            predicted, compute, inputs,
        )  # fmt: skip
    names = (LOGISTIC.name, best.name)
    return Explanation(cause_of(LOGISTIC, best), f"the function of {gate.text} is", names, predicted, compute, inputs)
