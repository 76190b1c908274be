"""Finds which hypotheses, alone or two together, explain a difference."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from embgrad.common.metrics import figures_of
from embgrad.comparison.diagnosis.case import EXACT, Case, Match, Measure
from embgrad.comparison.diagnosis.factors import FACTORS, Factor, fitted_factor, fitted_factors
from embgrad.comparison.diagnosis.findings import Finding
from embgrad.comparison.diagnosis.rearrangements import STRUCTURES, Prediction

__all__ = ["Candidate", "candidates", "chosen", "halved", "is_exact", "known_factors", "rearranged", "told"]

#: The causes that rearrange.
STRUCTURAL: Final = frozenset(hypothesis.cause for hypothesis in STRUCTURES)

HALF: Final = "half-precision"

#: Causes that say less than another that explains as much.
GENERAL: Final = frozenset({"other-objective", "other-point", "different-weight"})

#: What a hypothesis must explain of the squared difference to be named.
LEAST_EXPLAINED: Final = 0.9

#: How far, in relative L2, the target may be from a prediction that is not right to rounding: what a model gives when it is run
#: in another way, what is rearranged, the source times a known number, and two at once. The more can be made to look like a
#: gradient, the nearer it must come.
MOST_OF_RUN: Final = 0.3
MOST_OF_FACTOR: Final = 0.15
MOST_OF_STRUCTURE: Final = 0.1
MOST_OF_PAIR: Final = 0.05

#: How far the best fitting size of a prediction may be from its own.
SCALE: Final = 0.1
SCALE_OF_FACTOR: Final = 0.005

#: How much of what half precision leaves may be of one direction, that of the prediction itself: rounding goes in all.
SCALE_OF_HALF: Final = 0.8

#: In half precision what leaves so many times more than another is no explanation: only the other is.
WORSE: Final = 1.5

#: What leaves up to so many times more than another does as well.
HARDLY_WORSE: Final = 1.1

#: A factor that is made to fit says nothing where it gives nearly the source again: any small fault may look like that.
NEARLY_ONE: Final = 0.01

#: How much less two hypotheses must leave than one, to be named beside it.
BETTER: Final = 3.0

#: How many numbers must be compared, so that chance does not explain them.
LEAST_NUMBERS: Final = 8

#: How many findings are given.
MOST_FINDINGS: Final = 5


@dataclass(frozen=True, eq=False)
class Candidate:
    """A hypothesis, or two, with how well it does.

    Attributes:
        case: the question that it answers.
        causes: keys of `embgrad.comparison.diagnosis.findings.CAUSES`.
        text: what they are.
        measure: how well it does.
        fitted: whether something in it was made to fit.
        factor: whether it is the source times known numbers.
        side: "a" or "b", the side that departs; "" for neither.
        chance: whether it is a product of whole numbers, the same for all: it may be any, and a factor made to fit says as much.
    """

    case: Case
    causes: tuple[str, ...]
    text: str
    measure: Measure
    fitted: bool
    factor: bool
    side: str
    chance: bool = False


def rearranged(case: Case, *, twice: bool = True) -> list[Prediction]:
    """The source as it is, and rearranged, once and where asked for twice."""
    plain = Prediction((), "", case.values)
    once = [one for hypothesis in STRUCTURES for one in hypothesis.predictions(case, case.values)]
    again = [
        Prediction((*first.causes, *second.causes), f"{first.text}, and {second.text}", second.values)
        for first in (once if twice else ())
        for hypothesis in STRUCTURES
        if hypothesis.cause not in first.causes
        for second in hypothesis.predictions(case, first.values)
    ]
    return [plain, *once, *again]


def candidates(case: Case, predictions: Iterable[Prediction], factors: Sequence[Factor]) -> Iterator[Candidate]:
    """Those worth a look: each prediction as it is, and times each factor, where no more than two causes come together."""
    products = list(_products(factors))
    for prediction in predictions:
        match = case.match(prediction.values)
        if match is None:
            continue
        taken: list[tuple[Factor, ...]] = [()] if prediction.causes else list(products)
        if len(prediction.causes) < 2:
            taken += [(factor,) for factor in (*factors, *_fits(case, prediction, match))]
        numbers = np.stack([_numbers(case, one) for one in taken]) if taken else np.zeros((0, len(case.values)))
        for one, explained in zip(taken, match.explained(numbers), strict=True):
            causes = (*prediction.causes, *(factor.cause for factor in one))
            if explained >= LEAST_EXPLAINED and len(set(causes)) == len(causes):
                yield _candidate(case, prediction, match, one)


def _numbers(case: Case, factors: tuple[Factor, ...]) -> np.ndarray:
    return np.asarray(np.prod([np.ones(len(case.values)), *(factor.numbers for factor in factors)], axis=0))


def known_factors(case: Case) -> list[Factor]:
    """The numbers by which the source may be multiplied."""
    return [factor for hypothesis in FACTORS for factor in hypothesis.factors(case)]


def is_exact(candidate: Candidate) -> bool:
    """Whether a prediction is right to rounding, which in half precision is so coarse that it must look like that too."""
    measure, case = candidate.measure, candidate.case
    if measure.explained < LEAST_EXPLAINED or measure.remaining > case.exact:
        return False
    return measure.remaining <= EXACT * case.tolerance or abs(measure.scale - 1) <= SCALE_OF_HALF * measure.remaining


def accepted(candidate: Candidate) -> bool:
    """Whether it may be named."""
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
    if len(candidate.causes) > 1:
        return MOST_OF_PAIR
    if candidate.factor:
        return MOST_OF_FACTOR
    return MOST_OF_STRUCTURE if candidate.causes[0] in STRUCTURAL else MOST_OF_RUN


def chosen(found: Iterable[Candidate]) -> list[Candidate]:
    """Those to be named, best first: what is right to rounding, or else the best alone, and the best two that leave far less."""
    same: dict[tuple[str, ...], list[Candidate]] = {}
    for one in _near_the_best([one for one in found if accepted(one)]):
        same.setdefault(tuple(sorted(one.causes)), []).append(one)
    ranked = sorted((_best(alike) for alike in same.values()), key=_rank)
    if not ranked:
        return []
    best = ranked[0]
    if is_exact(best):
        alike = [
            one for one in ranked if is_exact(one) and (_plain(one) == _plain(best) or (best.fitted and one.chance))
        ]
        alike = [one for one in alike if one is best or not GENERAL & set(one.causes)]
        partial = [one for one in ranked if len(one.causes) == 1 and one not in alike and not one.fitted]
        return alike if len(best.causes) == 1 else [*alike[: MOST_FINDINGS - 1], *partial[:1]]
    singles = [one for one in ranked if len(one.causes) == 1]
    pairs = [one for one in ranked if len(one.causes) > 1]
    if singles and pairs and pairs[0].measure.remaining * BETTER > singles[0].measure.remaining:
        pairs = []
    return [*pairs[:1], *singles[:1]]


def _near_the_best(found: Sequence[Candidate]) -> list[Candidate]:
    """Without what is right to the rounding of half precision, where another is far nearer."""
    least = min((one.measure.remaining for one in found if is_exact(one)), default=0.0)
    return [
        one
        for one in found
        if not (one.case.half and is_exact(one))
        or one.measure.remaining <= max(WORSE * least, EXACT * one.case.tolerance)
    ]


def _best(alike: Sequence[Candidate]) -> Candidate:
    """The best of those with the same causes; without a side where it does as well from either."""
    best = min(alike, key=_rank)
    if is_exact(best):  # of two that are, such as two epsilons, the first that does hardly worse than the best
        equal = [one for one in alike if _rank(one)[:-1] == _rank(best)[:-1]]
        least = min(one.measure.remaining for one in equal)
        best = next(one for one in equal if one.measure.remaining <= max(one.case.tolerance, HARDLY_WORSE * least))
    sides = {one.side for one in alike if is_exact(one) and one.case.side != best.case.side}
    return replace(best, side="") if is_exact(best) and sides and best.side not in sides else best


def told(candidate: Candidate) -> Finding:
    """The candidate as a finding; where it is right only to the rounding of half precision, with that."""
    measure, case = candidate.measure, candidate.case
    causes, text = candidate.causes, candidate.text
    if case.half and is_exact(candidate) and causes != (HALF,) and measure.remaining > EXACT * case.tolerance:
        causes, text = (*causes, HALF), f"{text}, and {_half_text(case)}"
    return Finding(causes, text, measure.explained, measure.remaining, candidate.side)


def halved(case: Case) -> Iterator[Candidate]:
    """That the target was computed in half precision: its dtype is known, and the difference is of the size of its rounding."""
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
    """What is right to rounding comes first, of that what takes least; of the rest what leaves least."""
    remaining = candidate.measure.remaining
    if is_exact(candidate):
        # A product of two known numbers says more than one number that was made to fit, unless it may be any number.
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
        fitted=prediction.fitted or any(factor.fitted for factor in factors),
        factor=bool(factors) and not prediction.causes,
        side=source if means == ["source"] else target if prediction.causes or means else "",
        chance=bool(means) and any(factor.whole for factor in factors) and bool((numbers == numbers[0]).all()),
    )


def _products(factors: Sequence[Factor]) -> Iterator[tuple[Factor, Factor]]:
    """Two known numbers together; never two means, which would meet nearly any number."""
    for number, first in enumerate(factors):
        for second in factors[number + 1 :]:
            if not (first.mean_on and second.mean_on):
                yield first, second


def _fits(case: Case, prediction: Prediction, match: Match) -> Iterator[Factor]:
    """The number that fits best, one for all, and for the source alone one an example."""
    number, numbers = match.best_numbers()
    if not _is_nearly_the_source(case, prediction.values * number):
        yield fitted_factor(case, number)
    enough = numbers is not None and len(numbers) > 1 and match.fewest() >= LEAST_NUMBERS
    if not prediction.causes and numbers is not None and enough and np.abs(numbers - 1).max() > NEARLY_ONE:
        yield fitted_factors(numbers)


def _is_nearly_the_source(case: Case, values: np.ndarray) -> bool:
    """Whether a prediction is hardly another: times a number nearly 1, or scaled to length 1 and back again."""
    counted = case.matched & np.isfinite(values).all(-1)
    return figures_of(case.values[counted], values[counted]).relative_l2 <= NEARLY_ONE
