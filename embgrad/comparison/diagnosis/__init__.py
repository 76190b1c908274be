"""Diagnosis of a difference between two gradients: hypotheses that predict one from the other, measured against the numbers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np

from embgrad.backend.protocol import Call
from embgrad.comparison.align import Alignment
from embgrad.comparison.diagnosis.case import Case
from embgrad.comparison.diagnosis.findings import Finding
from embgrad.comparison.diagnosis.provenance import recorded_causes
from embgrad.comparison.diagnosis.search import (
    Candidate,
    candidates,
    finding_of,
    half_precision,
    is_exact,
    known_factors,
    rearranged,
    select,
)
from embgrad.results.gradients import EmbeddingGradients

__all__ = ["diagnosed"]

#: The most numbers for which pairs of rearrangements are tested: each of some hundred pairs takes a pass over all numbers.
MOST_NUMBERS: Final = 400_000


def diagnosed(
    a: EmbeddingGradients,
    b: EmbeddingGradients,
    alignment: Alignment,
    models: tuple[Any, Any],
    tolerance: float,
    calls: tuple[Call | None, Call | None],
) -> tuple[tuple[Finding, ...], list[str]]:
    """Return the findings that explain the difference between a and b, best first, and notes on what could not be tested.

    Each hypothesis predicts b from a, and a from b, since either side may be the one that departs from the usual.

    Args:
        a: the first result.
        b: the second result.
        alignment: the partner in b of each position of a.
        models: the models of a and b, which are run again; None for one that is not available.
        tolerance: the relative L2 up to which the results agree.
        calls: the functions that call the models; None for the usual call.
    """
    back = alignment.reversed((b.ids.shape[0], b.ids.shape[1]))
    cases = (
        Case(a, b, alignment, tolerance, models[0], models[1], calls[0], "b"),
        Case(b, a, back, tolerance, models[1], models[0], calls[1], "a"),
    )
    explanations = [candidate for case in cases for candidate in (*half_precision(case), *_by_numbers(case))]
    notes: list[str] = []
    further: list[Finding] = []
    settled = any(
        is_exact(candidate) and not candidate.fitted and len(candidate.causes) == 1 for candidate in explanations
    )
    if not settled and models != (None, None):
        from embgrad.comparison.diagnosis.trials import try_models  # imports everything that runs models

        try_models(cases, explanations, further, notes)
    best = select(explanations)
    findings = [finding_of(candidate) for candidate in best]
    if not any(is_exact(candidate) for candidate in best):
        named = {cause for finding in (*further, *findings) for cause in finding.causes}
        known = [finding for finding in recorded_causes(a, b, alignment) if not named & set(finding.causes)]
        findings = [*further, *findings, *known]
    return tuple(findings), list(dict.fromkeys(notes))


def _by_numbers(case: Case) -> Iterable[Candidate]:
    if not np.abs(case.wanted).max(initial=0.0) or not np.abs(case.values).max(initial=0.0):
        return []
    return list(candidates(case, rearranged(case, twice=case.values.size <= MOST_NUMBERS), known_factors(case)))
