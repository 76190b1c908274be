"""The diagnosis: causes that the numbers show, other requests to a model, and causes inside two models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from embgrad.backend.protocol import Call
from embgrad.comparison.align import Alignment
from embgrad.comparison.diagnosis.case import EXACT, Case, objective_of
from embgrad.comparison.diagnosis.factors import Factor, known_factors
from embgrad.comparison.diagnosis.models import inside_models
from embgrad.comparison.diagnosis.rearrangements import Prediction, rearrangements
from embgrad.comparison.diagnosis.requests import REQUESTS, head_shares
from embgrad.comparison.diagnosis.rerun import Source, Variant, random_model, reproduction_failure, source_of
from embgrad.comparison.diagnosis.search import (
    Candidate,
    candidates,
    finding_of,
    half_precision,
    is_exact,
    rearranged,
    select,
)
from embgrad.comparison.findings import Finding
from embgrad.model_points.points import WORD
from embgrad.results.gradients import EmbeddingGradients

__all__ = ["diagnosed"]

#: The most numbers for which pairs of rearrangements are tested: each of some hundred pairs takes a pass over all numbers.
MOST_NUMBERS: Final = 400_000

#: The share of the difference explained by a model's randomness from which no other cause is tested.
MOSTLY_RANDOM: Final = 0.5


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
        Case(a, b, alignment, tolerance, models[0], calls[0], "b"),
        Case(b, a, back, tolerance, models[1], calls[1], "a"),
    )
    trial = _Trial(cases)
    trial.run()
    best = select(trial.explanations)
    findings = [finding_of(candidate) for candidate in best]
    if not any(is_exact(candidate) for candidate in best):
        named = {cause for finding in (*trial.findings, *findings) for cause in finding.causes}
        known = [finding for finding in _recorded_causes(a, b, alignment) if not named & set(finding.causes)]
        findings = [*trial.findings, *findings, *known]
    return tuple(findings), list(dict.fromkeys(trial.notes))


class _Trial:
    """The tests of all causes.

    Args:
        cases: both directions of the comparison.

    Attributes:
        explanations: the candidates that predict numbers.
        findings: findings that predict no numbers: random models, and causes beside others that are not known.
        notes: what could not be tested.
    """

    def __init__(self, cases: tuple[Case, Case]) -> None:
        self._cases = {"a": cases[0], "b": cases[1]}  # by their sources
        self.explanations: list[Candidate] = []
        self.findings: list[Finding] = []
        self.notes: list[str] = []

    def run(self) -> None:
        """Test the numbers, then other requests to each model, then causes inside both, until a cause explains everything."""
        for case in self._cases.values():
            self.explanations += _by_numbers(case, known_factors(case))
        if any(_is_settled(entry) and len(entry.causes) == 1 for entry in self.explanations):
            return
        sources = self._sources()
        numbers = list(self.explanations)
        for source in sources:
            asked = self._requested(source)
            self.explanations += asked
            if any(map(_is_settled, asked)):
                return
        if all(case.model is not None for case in self._cases.values()):
            self._between(sources, numbers)
        if not self.findings:
            random = (random_model(source) for source in sources)
            self.findings += [finding for finding in random if finding is not None]

    def _sources(self) -> list[Source]:
        """Return the models that give their side's gradient again; none if a model draws random numbers."""
        reproduced = []
        for case in self._cases.values():
            if case.model is None:
                continue
            source = source_of(case)
            failure = source if isinstance(source, str) else reproduction_failure(source)
            if failure is None and isinstance(source, Source):
                reproduced.append(source)
                continue
            random = random_model(source) if isinstance(source, Source) else None
            if random is None:
                self.notes += [failure] if failure else []
                continue
            self.findings += [] if self.findings else [random]
            if random.explained is not None and random.explained >= MOSTLY_RANDOM:
                return []
        return reproduced

    def _between(self, sources: Sequence[Source], numbers: Sequence[Candidate]) -> None:
        """Test causes inside the models, from the request of a side that its model reproduces."""
        ways: list[tuple[Source, Source, Candidate | None]] = []
        is_whole = False
        for source in sources:
            other = self._cases[source.target]
            between = source.asked_of(other.model, other.call, other.source)
            if between is None:
                why = source.failure or "its gradient has another shape"
                self.notes.append(
                    f"{source.target}'s model cannot be run as {source.name}'s was, so causes inside the models were not "
                    f"tested: {why}"
                )
                continue
            if source.gives(between.case.values):
                return
            is_whole = between.case.off(between.case.values) <= EXACT * between.case.tolerance
            rest = None if is_whole else next(iter(select(self._explained(between))), None)
            is_whole = is_whole or (rest is not None and is_exact(rest))
            ways.append((source, between, rest))
            if is_whole:
                break
        if not ways or self.findings:
            return
        found = inside_models(*(ways[-1] if is_whole else ways[0]), is_whole=is_whole)
        if is_whole or isinstance(found, Candidate):
            # What nearly explains the difference does so by chance: the models themselves differ.
            self.explanations = [candidate for candidate in numbers if is_exact(candidate)]
        if isinstance(found, Candidate):
            self.explanations.append(found)
        elif isinstance(found, Finding):
            self.findings.append(found)
        else:
            self.notes.append(found)

    def _explained(self, source: Source) -> list[Candidate]:
        """Return the candidates that predict the target from a source that is not one of the two results."""
        found = list(_by_numbers(source.case, self._factors(source)))
        return found if any(map(_is_settled, found)) else [*found, *self._requested(source)]

    def _requested(self, source: Source) -> list[Candidate]:
        """Return the candidates that predict the target by another request to the source's model."""
        case, factors = source.case, self._factors(source)
        found: list[Candidate] = []

        def add(prediction: Prediction) -> None:
            further = rearrangements(case, prediction) if len(prediction.causes) == 1 else ()
            found.extend(candidates(case, [prediction, *further], factors))

        for variant in _guarded(source):
            values = source.values(variant)
            if values is not None and not source.gives(values):
                add(Prediction(variant.causes, variant.text, values))
        if not any(map(is_exact, found)):
            for text, values in source.attempt("head-share", lambda: list(head_shares(source))) or ():
                add(Prediction(("head-share",), text, values))
        self.notes += [f"{cause} could not be tested: {why}" for cause, why in source.failures.items()]
        count, total = len(source.batch), len(self._cases[source.name].source.ids)
        where = "" if count == total else f" (on {count} of {total} examples)"
        return [replace(candidate, text=candidate.text + where) for candidate in found]

    def _factors(self, source: Source) -> list[Factor]:
        return known_factors(source.case, self._cases[source.name], source.examples)


def _by_numbers(case: Case, factors: Sequence[Factor]) -> Iterator[Candidate]:
    """Yield the candidates that predict the target from the source's numbers alone."""
    yield from half_precision(case)
    if case.wanted.any() and case.values.any():
        yield from candidates(case, rearranged(case, twice=case.values.size <= MOST_NUMBERS), factors)


def _guarded(source: Source) -> Iterator[Variant]:
    """Yield the other requests; of a kind those up to one whose construction fails, since that may take a forward pass."""
    for cause, hypothesis in REQUESTS:
        left = iter(hypothesis(source))
        while (variant := source.attempt(cause, lambda: next(left, None))) is not None:  # noqa: B023
            yield variant


def _is_settled(candidate: Candidate) -> bool:
    return is_exact(candidate) and not candidate.fitted


def _recorded_causes(a: EmbeddingGradients, b: EmbeddingGradients, alignment: Alignment) -> Iterator[Finding]:
    """Yield recorded differences that are certain to have an effect: the mode, the point, the objective and the ids.

    None of these is measured: how much of the difference they explain can only be measured with the models.
    """
    modes = [bool(result.provenance.get("training")) for result in (a, b)]
    if modes[0] != modes[1]:
        name, other = ("a", "b") if modes[0] else ("b", "a")
        text = f"{name} ran in training mode, where dropout is active, and {other} did not"
        yield Finding(("dropout",), text, None, None, name)
    points = [result.provenance.get("point") for result in (a, b)]
    if points[0] != points[1]:
        cause = "after-norm" if "embeddings" in points and WORD in points else "other-point"
        yield Finding((cause,), f"a was taken at {points[0]!r}, and b at {points[1]!r}", None, None)
    classes = [objective_of(result).get("class") for result in (a, b)]
    if classes[0] != classes[1] and not {"callable", "Scalar", None} & set(classes):
        cause = "sum-objective" if "Sum" in classes else "other-objective"
        yield Finding((cause,), f"a is the gradient of {classes[0]}, and b of {classes[1]}", None, None)
    differing = (alignment.arrange(b.ids) != a.ids)[alignment.matched]
    if differing.any():
        text = f"the ids differ at {int(differing.sum())} of {differing.size} positions"
        yield Finding(("other-ids",), text, None, None)
