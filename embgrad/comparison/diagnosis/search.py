"""The search for hypotheses, alone or two together, that explain a difference."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from embgrad.common.metrics import figures_of
from embgrad.comparison.diagnosis.case import EXACT, Case, Match, Measure
from embgrad.comparison.diagnosis.factors import Factor, fitted_factor, fitted_factors
from embgrad.comparison.diagnosis.rearrangements import STRUCTURES, Prediction, rearrangements
from embgrad.comparison.findings import Finding

__all__ = [
    "LEAST_EXPLAINED",
    "Candidate",
    "candidates",
    "finding_of",
    "half_precision",
    "is_exact",
    "rearranged",
    "select",
]

HALF: Final = "half-precision"

#: Causes that are less specific than another cause that explains as much.
GENERAL: Final = frozenset({"other-objective", "other-point", "different-weight"})

#: The share of the squared difference that a hypothesis must explain to become a finding.
LEAST_EXPLAINED: Final = 0.9

#: The largest relative L2 between the target and a prediction that is not right up to rounding: for another run of a model,
#: for the source times a known number, for a rearrangement, and for two hypotheses at once. The more gradients a hypothesis
#: can be made to resemble, the closer it must come.
MOST_OF_RUN: Final = 0.3
MOST_OF_FACTOR: Final = 0.15
MOST_OF_STRUCTURE: Final = 0.1
MOST_OF_PAIR: Final = 0.05

#: The largest deviation of a prediction's best fitting scale from 1.
SCALE: Final = 0.1
SCALE_OF_FACTOR: Final = 0.005

#: The largest share of the remaining difference in the direction of the prediction, for half precision: rounding has none.
SCALE_OF_HALF: Final = 0.8

#: In half precision, the ratio of remaining differences from which the worse hypothesis is dropped.
WORSE: Final = 1.5

#: The ratio of remaining differences up to which two hypotheses count as equally good.
HARDLY_WORSE: Final = 1.1

#: The relative L2 below which a fitted prediction equals the source too closely: any small fault may look like that.
NEARLY_ONE: Final = 0.01

#: The factor by which two hypotheses must leave less than one, to become a finding in addition to it.
BETTER: Final = 3.0

#: The smallest count of numbers that must be compared, so that a match is not by chance.
LEAST_NUMBERS: Final = 8

#: The most findings that are returned.
MOST_FINDINGS: Final = 5


@dataclass(frozen=True, eq=False)
class Candidate:
    """A hypothesis, or two together, with its accuracy.

    Attributes:
        case: the direction of the comparison.
        causes: keys of `embgrad.comparison.findings.CAUSES`.
        text: a description of the causes.
        measure: the accuracy.
        fitted: whether something in it was fitted to the target.
        factor: whether it is the source times known numbers.
        side: "a" or "b", the side that departs from the usual; "" for neither.
        chance: whether it is a product of whole numbers, the same for all examples, which may match any number by chance, as a
            fitted factor does.
        checked: whether causes inside the models were checked where they are.
    """

    case: Case
    causes: tuple[str, ...]
    text: str
    measure: Measure
    fitted: bool
    factor: bool
    side: str
    chance: bool = False
    checked: bool = False


def rearranged(case: Case, *, twice: bool = True) -> Iterator[Prediction]:
    """Yield the source itself, and its rearrangements: single ones, and pairs of them if requested."""
    plain = Prediction((), "", case.values)
    yield plain
    yield from rearrangements(case, plain)
    for once in rearrangements(case, plain) if twice else ():  # computed again: all together would take much memory
        yield from rearrangements(case, once)


def candidates(case: Case, predictions: Iterable[Prediction], factors: Sequence[Factor]) -> Iterator[Candidate]:
    """Yield the useful candidates: each prediction, and each prediction times each factor, with at most two causes together."""
    products = list(_products(factors))
    for prediction in predictions:
        match = case.match(prediction.values)
        if match is None:
            continue
        combinations: list[tuple[Factor, ...]] = [()] if prediction.causes else list(products)
        if len(prediction.causes) < 2:
            combinations += [(factor,) for factor in (*factors, *_fits(case, prediction, match))]
        numbers = np.stack([_numbers(case, product) for product in combinations])
        for product, explained in zip(combinations, match.explained(numbers), strict=True):
            causes = (*prediction.causes, *(factor.cause for factor in product))
            if explained >= LEAST_EXPLAINED and len(set(causes)) == len(causes):
                yield _candidate(case, prediction, match, product)


def _numbers(case: Case, factors: tuple[Factor, ...]) -> np.ndarray:
    return np.asarray(np.prod([np.ones(len(case.values)), *(factor.numbers for factor in factors)], axis=0))


def is_exact(candidate: Candidate) -> bool:
    """Return whether a prediction is right up to rounding; in half precision, the remainder must resemble rounding errors too."""
    measure, case = candidate.measure, candidate.case
    if measure.explained < LEAST_EXPLAINED or measure.remaining > case.exact:
        return False
    return measure.remaining <= EXACT * case.tolerance or abs(measure.scale - 1) <= SCALE_OF_HALF * measure.remaining


def accepted(candidate: Candidate) -> bool:
    """Return whether a candidate may become a finding."""
    measure, case = candidate.measure, candidate.case
    if case.matched.sum() * case.values.shape[-1] < LEAST_NUMBERS:
        return False
    if is_exact(candidate):
        return True
    if candidate.fitted or measure.explained < LEAST_EXPLAINED:
        return False
    off = SCALE_OF_FACTOR if candidate.factor else SCALE
    return measure.remaining <= _most(candidate) and abs(measure.scale - 1) <= off


def _most(candidate: Candidate) -> float:
    if candidate.checked:
        return MOST_OF_RUN
    if len(candidate.causes) > 1:
        return MOST_OF_PAIR
    if candidate.factor:
        return MOST_OF_FACTOR
    return MOST_OF_RUN if STRUCTURES.keys().isdisjoint(candidate.causes) else MOST_OF_STRUCTURE


def select(explanations: Iterable[Candidate]) -> list[Candidate]:
    """Return the candidates that become findings, best first.

    These are the ones that are right up to rounding; if there are none, the best single cause, and the best pair of causes if it
    leaves far less of the difference.
    """
    same: dict[tuple[str, ...], list[Candidate]] = {}
    for candidate in _near_the_best([candidate for candidate in explanations if accepted(candidate)]):
        same.setdefault(tuple(sorted(candidate.causes)), []).append(candidate)
    ranked = sorted((_best(alike) for alike in same.values()), key=_rank)
    if not ranked:
        return []
    best = ranked[0]
    singles = [candidate for candidate in ranked if len(candidate.causes) == 1]
    if not is_exact(best):
        pairs = [candidate for candidate in ranked if len(candidate.causes) > 1]
        if singles and pairs and pairs[0].measure.remaining * BETTER > singles[0].measure.remaining:
            pairs = []
        return [*pairs[:1], *singles[:1]]
    alike = [
        candidate
        for candidate in ranked
        if is_exact(candidate)
        and (candidate is best or not GENERAL & set(candidate.causes))
        and (_plain(candidate) == _plain(best) or (best.fitted and candidate.chance))
    ]
    if len(best.causes) == 1:
        return alike
    return [*alike[: MOST_FINDINGS - 1], *[candidate for candidate in singles if not candidate.fitted][:1]]


def _near_the_best(explanations: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates without those that are right up to half precision's rounding, if another is far more accurate."""
    least = min((candidate.measure.remaining for candidate in explanations if is_exact(candidate)), default=0.0)
    return [
        candidate
        for candidate in explanations
        if not (candidate.case.half and is_exact(candidate))
        or candidate.measure.remaining <= max(WORSE * least, EXACT * candidate.case.tolerance)
    ]


def _best(alike: Sequence[Candidate]) -> Candidate:
    """Return the best of the candidates with the same causes; without a side if it is as good from either side."""
    best = min(alike, key=_rank)
    if is_exact(best):  # of several exact ones, such as two epsilons, take the first that is hardly worse than the best
        equal = [candidate for candidate in alike if _rank(candidate)[:-1] == _rank(best)[:-1]]
        least = min(candidate.measure.remaining for candidate in equal)
        best = next(
            candidate
            for candidate in equal
            if candidate.measure.remaining <= max(candidate.case.tolerance, HARDLY_WORSE * least)
        )
    sides = {candidate.side for candidate in alike if is_exact(candidate) and candidate.case.side != best.case.side}
    return replace(best, side="") if is_exact(best) and sides and best.side not in sides else best


def finding_of(candidate: Candidate) -> Finding:
    """Return the candidate as a finding; with half precision as a cause if it is right only up to that rounding."""
    measure, case = candidate.measure, candidate.case
    causes, text = candidate.causes, candidate.text
    if case.half and is_exact(candidate) and HALF not in causes and measure.remaining > EXACT * case.tolerance:
        causes, text = (*causes, HALF), f"{text}, and {_half_text(case)}"
    return Finding(causes, text, measure.explained, measure.remaining, candidate.side)


def half_precision(case: Case) -> Iterator[Candidate]:
    """Yield a candidate if the target was computed in half precision and the difference has the size of its rounding errors."""
    plain = np.where(case.matched[..., None], case.values, 0)
    measure = None if case.half is None or not case.wanted.any() else case.measured(plain)
    if measure is not None:
        measure = replace(measure, explained=1.0)
        rounding = Candidate(case, (HALF,), _half_text(case), measure, False, False, case.side)
        yield from [rounding] if is_exact(rounding) else []


def _half_text(case: Case) -> str:
    return f"rounding: {case.names[1]} was computed in {case.half}"


def _plain(candidate: Candidate) -> tuple[int, bool]:
    return len(candidate.causes), candidate.fitted


def _rank(candidate: Candidate) -> tuple[object, ...]:
    """Return a sort key: candidates right up to rounding first, those with simple causes before others; then by remainder."""
    remaining = candidate.measure.remaining
    if is_exact(candidate):
        # A product of two known numbers is more specific than one fitted number, unless it may match any number by chance.
        general = bool(GENERAL & set(candidate.causes))
        by_chance = candidate.fitted or candidate.chance
        return (0, by_chance, len(candidate.causes), general, remaining if candidate.case.half else 0.0)
    return (1, remaining)


def _candidate(case: Case, prediction: Prediction, match: Match, factors: tuple[Factor, ...]) -> Candidate:
    texts = [text for text in (prediction.text, *(factor.text for factor in factors)) if text]
    means = [factor.mean_on for factor in factors if factor.mean_on]
    source, target = case.names
    numbers = _numbers(case, factors)
    return Candidate(
        case=case,
        causes=(*prediction.causes, *(factor.cause for factor in factors)),
        text=", and ".join(texts),
        measure=match.measured(numbers),
        fitted=any(factor.fitted for factor in factors),
        factor=bool(factors) and not prediction.causes,
        side=source if means == ["source"] else target if prediction.causes or means else "",
        chance=bool(means) and any(factor.whole for factor in factors) and bool((numbers == numbers[0]).all()),
    )


def _products(factors: Sequence[Factor]) -> Iterator[tuple[Factor, Factor]]:
    """Yield pairs of known factors; never two means, whose product would match nearly any number."""
    for number, first in enumerate(factors):
        for second in factors[number + 1 :]:
            if not (first.mean_on and second.mean_on):
                yield first, second


def _fits(case: Case, prediction: Prediction, match: Match) -> Iterator[Factor]:
    """Yield the number that fits best, one for all examples; for the source itself also one per example."""
    number, numbers = match.best_numbers()
    if not _is_nearly_the_source(case, prediction.values * number):
        yield fitted_factor(case, number)
    enough = numbers is not None and len(numbers) > 1 and match.least_count() >= LEAST_NUMBERS
    if not prediction.causes and numbers is not None and enough and np.abs(numbers - 1).max() > NEARLY_ONE:
        yield fitted_factors(numbers)


def _is_nearly_the_source(case: Case, values: np.ndarray) -> bool:
    """Return whether a prediction nearly equals the source, such as a factor of nearly 1."""
    counted = case.matched & np.isfinite(values).all(-1)
    return figures_of(case.values[counted], values[counted]).relative_l2 <= NEARLY_ONE
