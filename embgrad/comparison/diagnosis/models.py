"""Causes inside two models, as the check of a port finds them, together with what else explains a difference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from embgrad.comparison.diagnosis.case import Measure, half_of
from embgrad.comparison.diagnosis.rerun import Source
from embgrad.comparison.diagnosis.search import LEAST_EXPLAINED, Candidate, is_exact
from embgrad.comparison.findings import Finding
from embgrad.comparison.port import check_port
from embgrad.comparison.unled import NOTE as UNLED
from embgrad.results.port_report import PortReport

__all__ = ["inside_models"]

#: The most causes and places that a text lists.
MOST_LISTED: Final = 4


def inside_models(
    source: Source, between: Source, rest: Candidate | None, *, is_whole: bool
) -> Candidate | Finding | str:
    """Return the causes inside two models that give different gradients for one request, by the check of a port.

    The source differs from the gradient between because of the models, and that one from the target because of the request, or of
    what was done to the result.

    Args:
        source: the source's model, which gives the source's gradient.
        between: the target's model with the same request, and its gradient as the source.
        rest: what explains the difference between that gradient and the target; None if nothing does, or if there is none.
        is_whole: whether nothing remains between them but rounding.

    Returns:
        The causes that explain the difference, together with `rest`; or a finding of what is certain where the models also differ
        without a known cause; or a note of what was found that explains nothing, or could not be tested.
    """
    report = source.attempt("", lambda: _checked(source, between))
    if report is None:
        return f"causes inside the models could not be tested: {source.failure}"
    causes = [cause.cause for cause in report.causes]
    texts = [_as_object(cause.text) for cause in report.causes]
    explained = 1.0 if report.explained is None else report.explained
    if not causes or report.unexplained or explained < LEAST_EXPLAINED or UNLED in report.notes:
        return _beside(_joined(texts), report, rest)
    measure = _measure(source, between, rest, is_whole=is_whole)
    if measure is None or measure.explained < LEAST_EXPLAINED:
        return f"the models differ, too, which explains little of the difference: {_joined(texts)}"
    if rest is None:
        return Candidate(source.case, _once(causes), _joined(texts), measure, False, False, "", checked=True)
    text = f"{_joined(texts)}, and {rest.text}"
    return replace(
        rest,
        case=source.case,
        causes=_once([*causes, *rest.causes]),
        text=text,
        measure=measure,
        factor=False,
        checked=True,
    )


def _once(causes: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(causes))


def _measure(source: Source, between: Source, rest: Candidate | None, *, is_whole: bool) -> Measure | None:
    """Return how much of the difference of the source and the target the causes explain; None where that is not known."""
    if rest is None:
        measure = source.case.measured(between.case.values)
        return Measure(1.0, 0.0, 1.0) if measure is None and is_whole else measure  # the target may be zero
    before = source.case.off(source.case.values)
    return replace(rest.measure, explained=1 - (rest.measure.remaining / before) ** 2 if before else 0.0)


def _checked(source: Source, between: Source) -> PortReport:
    """Return the check of both models on the source's request."""
    a, b = (source, between) if source.name == "a" else (between, source)
    return check_port(
        a.case.model,
        b.case.model,
        (a.batch, b.batch),
        source.objective,
        call=(a.case.call, b.case.call),
        floor=half_of(source.case.source) or half_of(between.case.source),
    )


def _beside(known: str, report: PortReport, rest: Candidate | None) -> Finding | str:
    """Return what is certain where the models differ without a known cause: their weights, and causes outside of the models."""
    unknown = f"the models differ at {_listed(report.unexplained)} without a known cause"
    if not report.unexplained:
        unknown = "the models differ without a known cause, at no point that both have"
    alike = report.weights.matches if report.labels[0] == report.labels[1] else ()  # models of one class
    changed = [pair for pair in alike if pair.a == pair.b and not pair.is_equal]
    turned = [pair for pair in alike if pair.a == pair.b and pair.is_equal and pair.transposed]
    weights = [*(f"{pair.a} ({pair.relation})" for pair in changed), *(f"{pair.a} (transposed)" for pair in turned)]
    causes = ["different-weight"] * bool(changed) + ["transposed-weight"] * bool(turned)
    texts, side = [f"the weights {_listed(weights)}"] if weights else [], ""
    if rest is not None and is_exact(rest):
        causes, texts, side = [*causes, *rest.causes], [*texts, rest.text], rest.side
    if not causes:
        return f"{unknown}; known is {known}" if known else unknown
    return Finding(tuple(causes), f"{', and '.join(texts)}; {unknown}", None, None, side)


def _as_object(text: str) -> str:
    """Return a cause's text as the end of "the difference is …": with "that" where it is a sentence."""
    sentence = text.startswith("b ") or " is " in text.partition(" in a ")[0]
    return f"that {text}" if sentence else text


def _joined(texts: Sequence[str]) -> str:
    return ", and ".join(_cut(texts))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(_cut(names))


def _cut(texts: Sequence[str]) -> list[str]:
    return [*texts[:MOST_LISTED], *([f"{len(texts) - MOST_LISTED} more"] if texts[MOST_LISTED:] else [])]
