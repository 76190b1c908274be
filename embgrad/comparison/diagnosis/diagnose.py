"""Tests of all causes of a difference: those that the numbers alone show, then those that need another run of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from embgrad.backend.protocol import Call
from embgrad.backend.registry import backend_for
from embgrad.comparison.align import Alignment
from embgrad.comparison.diagnosis.case import Case, objective_of
from embgrad.comparison.diagnosis.computations import COMPUTED, Activation, Inside, LayerNormEpsilon
from embgrad.comparison.diagnosis.dropout import dropout, random_model
from embgrad.comparison.diagnosis.factors import Factor, known_factors
from embgrad.comparison.diagnosis.findings import Finding
from embgrad.comparison.diagnosis.rearrangements import Prediction, rearrangements
from embgrad.comparison.diagnosis.requests import REQUESTS, head_shares
from embgrad.comparison.diagnosis.rerun import Source, Variant, failures_of, reproduction_failure, source_of
from embgrad.comparison.diagnosis.search import (
    Candidate,
    candidates,
    finding_of,
    half_precision,
    is_exact,
    rearranged,
    select,
)
from embgrad.comparison.diagnosis.weights import (
    WeightComparison,
    attention_scales,
    different_weights,
    misplaced_weights,
)
from embgrad.engine.gradients import gradients
from embgrad.model_points.points import WORD
from embgrad.results.gradients import EmbeddingGradients

__all__ = ["diagnosed"]

#: The most numbers for which pairs of rearrangements are tested: each of some hundred pairs takes a pass over all numbers.
MOST_NUMBERS: Final = 400_000

#: The most pairs of causes that are run together: those that would explain most if their effects added up.
MOST_PAIRS: Final = 16

#: The share of the difference that a usual epsilon must explain before the best fitting epsilon is searched for.
WORTH_FITTING: Final = 0.3

#: The index of the last group of causes that are likely and cheap to test.
LIKELY: Final = 2

#: The share of the difference explained by a model's randomness from which no other cause is tested.
MOSTLY_RANDOM: Final = 0.5

#: The number of corrections of the fitted epsilon.
STEPS: Final = 5


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
    settled = any(is_exact(entry) and not entry.fitted and len(entry.causes) == 1 for entry in explanations)
    if not settled and models != (None, None):
        _try_models(cases, explanations, further, notes)
    best = select(explanations)
    findings = [finding_of(candidate) for candidate in best]
    if not any(is_exact(candidate) for candidate in best):
        named = {cause for finding in (*further, *findings) for cause in finding.causes}
        known = [finding for finding in _recorded_causes(a, b, alignment) if not named & set(finding.causes)]
        findings = [*further, *findings, *known]
    return tuple(findings), list(dict.fromkeys(notes))


def _by_numbers(case: Case) -> Iterable[Candidate]:
    if not np.abs(case.wanted).max(initial=0.0) or not np.abs(case.values).max(initial=0.0):
        return []
    return list(candidates(case, rearranged(case, twice=case.values.size <= MOST_NUMBERS), known_factors(case)))


def _recorded_causes(a: EmbeddingGradients, b: EmbeddingGradients, alignment: Alignment) -> Iterator[Finding]:
    """Yield recorded differences that are certain to have an effect: the mode, the point, the objective and the ids.

    None of these is measured: how much of the difference they explain can only be measured with the models.
    """
    for result, name, other in ((a, "a", "b"), (b, "b", "a")):
        if result.provenance.get("training") and not (b if result is a else a).provenance.get("training"):
            text = f"{name} ran in training mode, where dropout is active, and {other} did not"
            yield Finding(("dropout",), text, None, None, name)
    points = [result.provenance.get("point") for result in (a, b)]
    if points[0] != points[1]:
        after_norm = "embeddings" in points and WORD in points
        text = f"a was taken at {points[0]!r}, and b at {points[1]!r}"
        yield Finding(("after-norm" if after_norm else "other-point",), text, None, None)
    objectives = [objective_of(result) for result in (a, b)]
    classes = [description.get("class") for description in objectives]
    if classes[0] != classes[1] and not {"callable", "Scalar", None} & set(classes):
        cause = "sum-objective" if "Sum" in classes else "other-objective"
        yield Finding((cause,), f"a is the gradient of {classes[0]}, and b of {classes[1]}", None, None)
    arranged = alignment.arrange(b.ids)
    if (arranged != a.ids)[alignment.matched].any():
        differ = int((arranged != a.ids)[alignment.matched].sum())
        yield Finding(("other-ids",), f"the ids differ at {differ} of {alignment.matched.sum()} positions", None, None)


def _try_models(cases: Sequence[Case], explanations: list[Candidate], further: list[Finding], notes: list[str]) -> None:
    """Run the models in other ways, and append the candidates, findings and notes that result.

    Args:
        cases: both directions of the comparison.
        explanations: the list of candidates that predict numbers, which is extended.
        further: the list of findings, which is extended if a model is random, since that predicts no numbers.
        notes: the list of notes, which is extended by what could not be tested.
    """
    sources, failures = [], []
    for case in cases:
        source = None if case.model is None else source_of(case, gradients)
        failure = reproduction_failure(source) if isinstance(source, Source) else source
        sources.append(source if isinstance(source, Source) else None)
        failures.append(failure)
    suspected = [
        source for source, failure in zip(sources, failures, strict=True) if source is not None and failure is not None
    ]
    random = [finding for source in suspected if (finding := random_model(source)) is not None]
    further.extend(random[:1])
    if any(finding.explained is not None and finding.explained >= MOSTLY_RANDOM for finding in random):
        return
    insides = [None if source is None else Inside(source) for source in sources]
    for case, source, failure, inside, other in zip(cases, sources, failures, insides, insides[::-1], strict=True):
        if source is None or inside is None or failure is not None:
            notes.extend([] if failure is None else [failure])
            continue
        inside.other = other if other is not None and other.readable else None
        trial = _Trial(source, inside, [factor.cut(source.examples) for factor in known_factors(case)])
        trial.run_all(settled=any(is_exact(candidate) for candidate in explanations))
        notes.extend(failures_of(source))
        count, total = len(source.batch), len(case.source.ids)
        where = "" if count == total else f" (on {count} of {total} examples)"
        explanations.extend(replace(candidate, text=candidate.text + where) for candidate in trial.candidates)
        if any(is_exact(candidate) and not candidate.fitted for candidate in trial.candidates):
            return
    if not random:
        further.extend(_random([source for source in sources if source is not None and source not in suspected]))


def _random(sources: Sequence[Source]) -> list[Finding]:
    """Return a finding if a model draws random numbers, or if one side is recorded to come from training mode."""
    findings = [random_model(source) for source in sources]
    findings += [dropout(source) for source in sources if source.case.target.provenance.get("training")]
    return [finding for finding in findings if finding is not None][:1]


class _Trial:
    """The runs of one model."""

    def __init__(self, source: Source, inside: Inside, factors: list[Factor]) -> None:
        self.candidates: list[Candidate] = []
        self._source = source
        self._factors = factors
        self._inside = inside
        self._compared_weights = WeightComparison(source)
        self._runs: list[tuple[Variant, np.ndarray]] = []

    def run_all(self, *, settled: bool) -> None:
        """Run one group of causes after the other, until one explains everything; otherwise two causes at once.

        Args:
            settled: whether a fitted candidate explains everything already, so that only the likely causes are tested too.
        """
        for number, group in enumerate(self.groups()):
            self.run(group())
            if any(is_exact(candidate) for candidate in self.candidates) or (settled and number == LIKELY):
                return
        self.run(self.pairs())

    def groups(self) -> Iterator[Callable[[], Iterable[Variant]]]:
        """Yield the groups of causes, likely and cheap ones first; a group is tested only if none before explains everything."""
        supports = backend_for(self._source.case.model).supports
        yield lambda: different_weights(self._source, self._compared_weights) if "weights" in supports else ()
        yield self._requests
        yield self._heads
        if {"modules", "add", "edit"} <= supports:
            yield self._computed
            yield self._fitted_epsilon
            yield self._computed_singly
        if "weights" in supports:
            yield lambda: attention_scales(self._source, self._compared_weights, self._inside.receives_same_values)
            yield lambda: misplaced_weights(self._source, self._compared_weights)

    def run(self, variants: Iterable[Variant]) -> None:
        """Run each variant, and test what it explains, by itself, rearranged, and times a number."""
        case = self._source.case
        for variant in self._guarded("a cause", variants):
            values = self._source.values(variant)
            if values is None or self._is_source(values):
                continue
            self._runs.append((variant, values))
            self._add_candidates(Prediction(variant.causes, variant.text, values, variant.fitted), case)
            if variant.fitted and variant.weights and any(is_exact(candidate) for candidate in self.candidates):
                return  # further guesses at weights would add nothing

    def _add_candidates(self, prediction: Prediction, case: Case) -> None:
        further = rearrangements(case, prediction) if len(prediction.causes) == 1 else ()
        self.candidates.extend(candidates(case, [prediction, *further], self._factors))

    def _is_source(self, values: np.ndarray, tolerances: float = 1.0) -> bool:
        """Return whether a run returned the source's values, up to this number of tolerances."""
        values_of_source, tolerance = self._source.case.values, self._source.case.tolerance
        return float(np.linalg.norm(values - values_of_source)) <= tolerances * tolerance * float(
            np.linalg.norm(values_of_source)
        )

    def _guarded(self, cause: str, variants: Iterable[Variant]) -> Iterator[Variant]:
        """Yield the variants, up to one whose construction fails, since that may take a forward pass."""
        left = iter(variants)
        while (variant := self._source.attempt(cause, lambda: next(left, None))) is not None:
            yield variant

    def _requests(self) -> Iterator[Variant]:
        for cause, hypothesis in REQUESTS:
            yield from self._guarded(cause, hypothesis(self._source))

    def _heads(self) -> Iterator[Variant]:
        for text, values in head_shares(self._source):
            self._add_candidates(Prediction(("head-share",), text, values), self._source.case)
        yield from ()

    def _computed(self) -> Iterator[Variant]:
        for hypothesis in COMPUTED:
            yield from self._guarded(hypothesis.causes[0], self._computed_by(hypothesis, hypothesis.variants))

    def _computed_singly(self) -> Iterator[Variant]:
        for hypothesis in COMPUTED:
            yield from self._guarded(hypothesis.causes[0], self._computed_by(hypothesis, hypothesis.singly))

    def _computed_by(
        self, hypothesis: Activation | LayerNormEpsilon, variants: Callable[[Source, Inside], Iterator[Variant]]
    ) -> Iterator[Variant]:
        unchanged = hypothesis.unchanged(self._inside)
        values = None if unchanged is None else self._source.values(unchanged)
        # A function that replaces itself must change nothing; otherwise the stretch does not compute that function.
        if values is not None and self._is_source(values, tolerances=10):
            yield from variants(self._source, self._inside)

    def _fitted_epsilon(self) -> Iterator[Variant]:
        """Yield the epsilon that explains most, searched from the best usual one, as the effect grows with the epsilon."""
        case, hypothesis = self._source.case, LayerNormEpsilon()
        usual = [
            (variant.number, values)
            for variant, values in self._runs
            if variant.causes == hypothesis.causes and variant.number >= 0
        ]
        scored = [(measure.explained, *run) for run in usual if (measure := case.measured(run[1])) is not None]
        if not scored or max(scored, key=lambda entry: entry[0])[0] < WORTH_FITTING:
            return
        _, epsilon, values = max(scored, key=lambda entry: entry[0])
        original = max(norm.epsilon for norm in self._inside.norms)
        wanted = (case.wanted - case.values)[case.matched].ravel()
        for _ in range(STEPS):
            effect = (values - case.values)[case.matched].ravel()
            epsilon = original + (epsilon - original) * float(wanted @ effect) / (float(effect @ effect) or 1.0)
            variant = hypothesis.with_epsilon(self._source, self._inside, max(epsilon, 0.0), fitted=True)
            again = self._source.values(variant)
            if again is None:
                return
            values = again
        yield variant

    def pairs(self) -> Iterator[Variant]:
        """Yield two causes at once: any two changes of inputs, and those that would explain most if their effects added up."""
        case = self._source.case
        counted = case.matched
        wanted = (case.wanted - case.values)[counted].ravel()
        effects = [np.nan_to_num(values - case.values)[counted].ravel() for _, values in self._runs]
        inputs: list[Variant] = []
        others: list[tuple[float, int, Variant]] = []
        for i, effect in enumerate(effects):
            for j in range(i):
                both = self._runs[i][0].combined_with(self._runs[j][0])
                if both is None:
                    continue
                if self._runs[i][0].batch and self._runs[j][0].batch:
                    inputs.append(both)  # effects of inputs seldom add up
                else:
                    others.append((float(np.linalg.norm(wanted - effect - effects[j])), len(others), both))
        yield from inputs[:MOST_PAIRS]
        yield from (both for _, _, both in sorted(others, key=lambda entry: entry[:2])[:MOST_PAIRS])
