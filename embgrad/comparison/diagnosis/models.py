"""Causes inside two models, as the check of a port finds them, together with what else explains a difference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from embgrad.backend.protocol import Call
from embgrad.common.metrics import figures_of
from embgrad.comparison.align import aligned
from embgrad.comparison.diagnosis.case import EXACT, Case, Measure, half_of
from embgrad.comparison.diagnosis.requests import other_table
from embgrad.comparison.diagnosis.rerun import AS_IT_WAS, Source
from embgrad.comparison.diagnosis.search import LEAST_EXPLAINED, Candidate, is_exact, select
from embgrad.comparison.findings import Finding
from embgrad.comparison.port import check_port
from embgrad.comparison.unled import NOTE as UNLED
from embgrad.results.port_report import PortReport

__all__ = ["Division", "Inside", "divided", "inside_models"]

#: The most causes and places that a text lists.
MOST_LISTED: Final = 4


@dataclass(frozen=True)
class Division:
    """A difference divided by the gradient of the target's model for the source's request.

    The source differs from that gradient because of the models, and it from the target because of the request, or of what was
    done to the result.

    Attributes:
        source: the source's model, which gives the source's gradient.
        between: the target's model with the same request, and its gradient as the source.
        rest: what explains the difference between that gradient and the target; None if nothing does, or if there is none.
        is_whole: whether nothing remains between them but rounding.
    """

    source: Source
    between: Source
    rest: Candidate | None
    is_whole: bool

    @property
    def by_models(self) -> bool:
        """True if the models give different gradients."""
        return not self.source.gives(self.between.case.values)


@dataclass(frozen=True)
class Inside:
    """The causes inside two models that give different gradients for one request.

    Attributes:
        candidates: the causes that explain the difference, together with those outside of the models.
        findings: the causes that were found, where the models also differ without a known cause.
        notes: what was found that explains nothing, or could not be tested.
    """

    candidates: tuple[Candidate, ...] = ()
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()


def divided(
    source: Source, model: Any, call: Call | None, explained: Callable[[Source], Sequence[Candidate]]
) -> Division | str:
    """Return the difference of a source and its target, divided; or a message why the target's model cannot be run so.

    Args:
        source: the source's model, which gives the source's gradient.
        model: the target's model.
        call: a function that calls the target's model; None for the usual call.
        explained: returns candidates that explain the difference of a source and its target, without causes inside a model.
    """
    case = source.case
    between = source.asked_of(model, call, case.target)
    if between is None:
        why = source.failures.pop(AS_IT_WAS.causes[0], None) or source.refused or "its gradient has another shape"
        return f"{source.target}'s model cannot be run as {source.name}'s was, so causes inside the models were not tested: {why}"
    counted = case.matched[..., None]
    left = figures_of(np.where(counted, case.wanted, 0.0), np.where(counted, between.case.values, 0.0)).relative_l2
    if left <= EXACT * case.tolerance or source.gives(between.case.values):
        return Division(source, between, None, left <= EXACT * case.tolerance)
    rest = next(iter(select(explained(between))), None)
    return Division(source, between, rest, rest is not None and is_exact(rest))


def inside_models(division: Division) -> Inside:
    """Return the causes inside two models that give different gradients, by the check of a port."""
    source, case = division.source, division.source.case
    report = source.attempt("inside", lambda: _checked(source, division.between))
    if report is None:
        why = source.failures.pop("inside", None) or source.refused
        return Inside(notes=(f"causes inside the models could not be tested: {why}",))
    rest = division.rest
    measure = case.measured(division.between.case.values) if rest is None else _measure(case, rest)
    if measure is None and division.is_whole:  # the target is zero
        measure = Measure(1.0, 0.0, 1.0)
    causes = [cause.cause for cause in report.causes]
    texts = [_as_object(cause.text) for cause in report.causes]
    explained = 1.0 if report.explained is None else report.explained
    if not causes or report.unexplained or explained < LEAST_EXPLAINED or UNLED in report.notes:
        table = _other_table(division)
        if table is None:
            return _beside(_joined(_cut(texts)), report, rest)
        causes, texts = ["different-table"], [table]
    if measure is None or measure.explained < LEAST_EXPLAINED:
        return Inside(
            notes=(f"the models differ, too, which explains little of the difference: {_joined(_cut(texts))}",)
        )
    candidate = Candidate(
        case=case,
        causes=tuple(dict.fromkeys((*causes, *(() if rest is None else rest.causes)))),
        text=_joined([*_cut(texts), *([] if rest is None else [rest.text])]),
        measure=measure,
        fitted=rest is not None and rest.fitted,
        factor=False,
        side="" if rest is None else rest.side,
        chance=rest is not None and rest.chance,
        checked=True,
    )
    return Inside(candidates=(candidate,))


def _other_table(division: Division) -> str | None:
    """Return a text if the models look up other values, and the source's model gives the other's gradient with those."""
    source, own = division.source, division.between.case.source
    alignment = aligned(source.case.source, own)
    case = replace(source.case, target=own, alignment=alignment)
    against = Source(case, source.batch, source.objective, None, source.examples)
    for variant in other_table(against):
        values = against.values(variant)
        if values is not None and division.between.gives(values):
            return variant.text
    return None


def _checked(source: Source, between: Source) -> PortReport:
    """Return the check of both models on the source's request."""
    sides = [source, between] if source.name == "a" else [between, source]
    half = half_of(source.case.source) or half_of(between.case.source)
    return check_port(
        sides[0].case.model,
        sides[1].case.model,
        (sides[0].batch, sides[1].batch),
        source.objective,
        call=(sides[0].case.call, sides[1].case.call),
        floor=half,
    )


def _beside(text: str, report: PortReport, rest: Candidate | None) -> Inside:
    """Return what is certain where the models differ without a known cause: their weights, and causes outside of the models."""
    unknown = f"the models differ at {_listed(report.unexplained)} without a known cause"
    if not report.unexplained:
        unknown = "the models differ without a known cause, at no point that both have"
    notes = (f"{unknown}; known is {text}" if text else unknown,)
    alike = report.weights.matches if report.labels[0] == report.labels[1] else ()  # models of one class
    changed = [pair for pair in alike if pair.a == pair.b and not pair.is_equal]
    turned = [pair for pair in alike if pair.a == pair.b and pair.is_equal and pair.transposed]
    weights = [f"{pair.a} ({'transposed' if pair in turned else pair.relation})" for pair in (*changed, *turned)]
    exact = rest if rest is not None and is_exact(rest) else None
    inside = [*(["different-weight"] if changed else []), *(["transposed-weight"] if turned else [])]
    causes = (*inside, *(() if exact is None else exact.causes))
    texts = [f"the weights {_listed(weights)}"] if weights else []
    texts += [] if exact is None else [exact.text]
    side = "" if exact is None else exact.side
    findings = (Finding(causes, f"{_joined(texts)}; {unknown}", None, None, side),) if causes else ()
    return Inside(findings=findings, notes=() if findings else notes)


def _as_object(text: str) -> str:
    """Return a cause's text as the end of "the difference is …": with "that" where it is a sentence."""
    sentence = text.startswith("b ") or " is " in text.partition(" in a ")[0]
    return f"that {text}" if sentence else text


def _joined(texts: Sequence[str]) -> str:
    return ", and ".join(texts)


def _cut(texts: Sequence[str]) -> list[str]:
    return [*texts[:MOST_LISTED], *([f"{len(texts) - MOST_LISTED} more"] if texts[MOST_LISTED:] else [])]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(_cut(names))


def _measure(case: Case, rest: Candidate) -> Measure:
    """Return the accuracy of a prediction from the gradient between source and target, as one from the source."""
    reference = case.reference
    left = rest.measure.remaining * float(np.linalg.norm(np.where(reference.counted[..., None], case.wanted, 0.0)))
    before = reference.before * reference.unit
    return replace(rest.measure, explained=1 - (left / before) ** 2 if before else 0.0)
