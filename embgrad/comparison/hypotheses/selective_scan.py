"""The hypothesis of a selective scan, as in Mamba, whose functions, parts, gate or weights differ."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from embgrad.comparison.hypotheses.changes import Change, explained_by_changes, with_fields
from embgrad.comparison.hypotheses.functions import ACTIVATIONS
from embgrad.comparison.hypotheses.layer_sources import branches
from embgrad.comparison.hypotheses.product import cause_of
from embgrad.comparison.hypotheses.scan import PARTS, RATES, Scan, split
from embgrad.comparison.hypotheses.scan_fit import Sample, fits, laid
from embgrad.comparison.hypotheses.site import Before, Explanation, Site, Values
from embgrad.comparison.hypotheses.sources import Source, Term, carried, most_off
from embgrad.comparison.weight_values import layouts

__all__ = ["SelectiveScan"]


@dataclass(frozen=True, eq=False)
class _Led(Source):
    """A tensor as the led model holds it, with the difference of an earlier site."""

    term: Term = field(kw_only=True)

    def read(self, at: Values) -> np.ndarray:
        """Return its values in a pass whose values at points a function returns."""
        return self.term.read(at)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the points that it reads."""
        return self.term.inputs


class SelectiveScan:
    """A selective scan, as in Mamba."""

    def explain(self, site: Site) -> list[Explanation]:
        """Return how the scans of both models differ; an empty list where a computes none."""
        first = next(fits(site), None)
        if first is None:
            return []
        few, setting = Sample(site), first.weights["logs"].module
        term = carried(site, Term(Before(first.u.name, first.u.values), first.u.values))
        led = first if term is None else replace(first, u=_Led(first.u.name, term.values, term=term))
        if term is not None and term.earlier is not None:
            predicted, compute = few.outputs(led, few.values.__getitem__), functools.partial(few.outputs, led)
            if site.off(predicted) <= most_off(site):
                return [replace(term.earlier, predicted=predicted, compute=compute, inputs=led.inputs, also=())]
        changes = list(_changes_of(site, first))
        tried = (
            explained_by_changes(site, it, changes, few, setting, further=len(changes))
            for it in dict.fromkeys((first, led))
        )
        return next(filter(None, tried), [])


def _changes_of(site: Site, first: Scan) -> Iterator[Change]:
    """Yield the changes of a scan of a that b may have."""
    path = first.weights["logs"].module
    yield from _of_functions(first)
    yield from _of_tensors(site, first)
    yield _changed("missing-bias", "b adds no bias to the step", bias=0 * first.bias)
    yield _changed("different-weight", "b adds the bias of the step twice", bias=2 * first.bias)
    yield _changed("missing-part", f"b leaves out the skip of {path}, the product with D", skip=0 * first.skip)
    yield _changed("different-weight", "D is its weight in a and 1 in b", skip=np.ones_like(first.skip))
    yield from _of_values(site, first)


def _changed(cause: str, sentence: str, **fields: Any) -> Change:
    return Change(cause, sentence, with_fields(**fields))


def _of_functions(first: Scan) -> Iterator[Change]:
    """Yield the changes of what a scan computes."""
    for name, what in (("stepped", "step"), ("gated", "gate"))[: 1 if first.gate is None else 2]:
        own = getattr(first, name)
        for function in (other for other in ACTIVATIONS if other is not own):
            words = f"the function of the {what} is {own.name} in a and {function.name} in b"
            yield _changed("activation", words, **{name: function})
    for rate in RATES:
        if rate != first.rate:
            yield _changed("recurrence", f"A is {first.rate} in a and {rate} in b", rate=rate)
    shares = ("the step", "(exp(step A) - 1) / A, as by a zero-order hold,")[:: -1 if first.held else 1]
    yield _changed("recurrence", f"B is multiplied by {shares[0]} in a and by {shares[1]} in b", held=not first.held)
    yield _changed(
        "recurrence", "the states begin at the first token in a and at the last one in b", backward=not first.backward
    )
    words = f"padding enters the states as {'it is' if first.masked else 'zeros'} in b, not in a"
    yield _changed("mask-ignored", words, masked=not first.masked)
    yield _changed("recurrence", "b adds the skip behind the gate, and a before it", skip_gated=False)
    if first.epsilon is not None:
        words = "the step's part, B and C are divided by their root mean square in a, and not in b"
        yield _changed("missing-norm", words, epsilon=None)


def _of_tensors(site: Site, first: Scan) -> Iterator[Change]:
    """Yield the changes of the tensors that a scan reads."""
    if first.gate is not None:
        yield _changed(
            "missing-gate", f"the product with {first.gate.text} is computed in a and missing in b", gate=None
        )
        for source in branches(site):
            if source.text != first.gate.text:
                words = f"the gate is {first.gate.text} in a and {source.text} in b"
                yield _changed("gate-swapped", words, gate=source)
        yield _changed(
            "gate-swapped", f"{first.gate.text} enters the states in b in place of {first.u.text}", u=first.gate
        )
    if first.whole is None:
        yield _changed(
            "swapped-weights", "B and C are exchanged in b", parts=tuple(first.parts[at] for at in (0, 2, 1))
        )
        return
    sizes = len(first.matrix), first.logs.shape[1]
    for order in (other for other in itertools.permutations(PARTS) if other != first.order):
        words = f"b takes the parts of {first.whole.text} as {', '.join(order)}, and a as {', '.join(first.order)}"
        parts = split(first.whole, order, *sizes)
        yield _changed("permuted-weight", words, parts=parts)
        yield _changed("permuted-weight", f"{words}, but for the step", parts=(first.parts[0], *parts[1:]))


def _of_values(site: Site, first: Scan) -> Iterator[Change]:
    """Yield the changes by b's weights that differ from their partners."""
    width = len(first.skip)
    for name, weight in first.weights.items():
        for mine, other, match in site.differing_by(weight.module):
            for _, _, its in layouts(mine.get(), other.get()) if mine.name == weight.name else ():
                values = laid(name, width, its.reshape(mine.shape).astype(np.float64))
                yield _changed(cause_of(match), f"b has {mine.name} {match.as_object}", **{name: values})
