"""The explanation of a site by the hypotheses, of which each is a known function with settings."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, Protocol

import numpy as np

from embgrad.comparison.hypotheses.activation import ActivationFunction
from embgrad.comparison.hypotheses.attended import AttentivePooling
from embgrad.comparison.hypotheses.attention import AttentionCore
from embgrad.comparison.hypotheses.combination import Combination
from embgrad.comparison.hypotheses.convolution_changes import Convolving
from embgrad.comparison.hypotheses.dropping import Dropout
from embgrad.comparison.hypotheses.experts import Experts
from embgrad.comparison.hypotheses.gate import Gate
from embgrad.comparison.hypotheses.held_vector import HeldVector
from embgrad.comparison.hypotheses.in_half import InHalf
from embgrad.comparison.hypotheses.layer_order import LayerOrder
from embgrad.comparison.hypotheses.lookup import Rows
from embgrad.comparison.hypotheses.norm import Norm, NormOfSum
from embgrad.comparison.hypotheses.norm_in_sum import NormInSum
from embgrad.comparison.hypotheses.pooling import Pooling
from embgrad.comparison.hypotheses.product import Product
from embgrad.comparison.hypotheses.recurrent import Recurrent
from embgrad.comparison.hypotheses.selective_scan import SelectiveScan
from embgrad.comparison.hypotheses.site import FLOORS, MOST_LEFT, Explanation, Site
from embgrad.comparison.hypotheses.skipped import Skipped
from embgrad.comparison.hypotheses.terms import OtherTerm
from embgrad.comparison.hypotheses.turned import TurnedFeatures
from embgrad.comparison.hypotheses.unprojected import (
    INPUTS,
    before_carried,
    before_product,
    before_sum,
    before_taken,
    behind_known_input,
    carried_into_norm,
    carried_on,
    projected,
    with_added,
    with_carried,
    with_carried_input,
)
from embgrad.errors import EmbgradWarning, level_of_user

__all__ = ["EXPLAINING", "HYPOTHESES", "Hypothesis", "explain"]

#: The key in a site's memory of the hypotheses that have explained a site of the check.
EXPLAINING: Final = "explaining"

#: The relative L2 up to which an explanation is exact, so that no other one is looked for.
EXACT: Final = 1e-7


class Hypothesis(Protocol):
    """A known function that a site may compute, with settings that two models may have in different ways."""

    def explain(self, site: Site) -> list[Explanation]:
        """Return explanations of a site, likeliest first; an empty list where the site does not compute this function.

        The function with the reference's setting must reproduce the reference's output; the caller checks that the
        predicted output is the port's.
        """
        ...


#: All hypotheses, in the order in which they are tested.
HYPOTHESES: Final[tuple[Hypothesis, ...]] = (
    Rows(),
    Dropout(),
    LayerOrder(),
    Norm(),
    InHalf(),
    Product(),
    Combination(),
    OtherTerm(),
    NormInSum(),
    HeldVector(),
    ActivationFunction(),
    Pooling(),
    AttentivePooling(),
    Gate(),
    Recurrent(),
    SelectiveScan(),
    Convolving(),
    TurnedFeatures(),
    AttentionCore(),
    Experts(),
    Skipped(),
    NormOfSum(),
)


#: The hypotheses whose search takes long.
SEARCHING: Final = (AttentionCore, Experts, TurnedFeatures)

#: Those that are tested only where the others leave more than a share of a difference: searches, and sums of two other tensors,
#: which each sum with a term left out is as well. Its other explanation leaves the roundings of entries that, in trained models,
#: are a thousand times as large as the rest.
LATE: Final[Mapping[type, float]] = {AttentionCore: 1e-4, Experts: 1e-4, TurnedFeatures: 1e-4, NormOfSum: 1e-2}


def explain(site: Site, hypotheses: Sequence[Hypothesis] = HYPOTHESES) -> Explanation | None:
    """Return the explanation that leaves least of a site's difference; None where none explains it.

    Args:
        site: the site, whose memory keeps the hypotheses that explain one.
        hypotheses: those that are tested.
    """
    carried, into_norm = before_carried(site), carried_into_norm(site)
    quick = [it for it in hypotheses if not isinstance(it, SEARCHING)]
    ways: list[tuple[Site, Callable[[], Explanation | None]]] = []
    if into_norm is not None:
        ways.append((into_norm[0], partial(_carried_into_norm, site, quick, *into_norm)))
    if carried is not None:
        ways.append((carried[0], partial(_carried, site, hypotheses, *carried)))
    # Several modules that read one tensor are given what the first of them is, and explained as it is.
    is_read_again = carried is not None and np.array_equal(carried[1].a, site.a)
    goes_on = not is_read_again and any(inner.difference <= FLOORS * site.floor for inner, _ in ways)
    found = None
    if goes_on or (ways and not _is_explained(site, quick)):  # before anything is searched for in the whole difference
        ways.sort(key=lambda way: way[0].difference)
        found = next(filter(None, (way() for _, way in ways)), None)
    found = found or _explain(site, hypotheses)
    for behind in _seen_before(site, hypotheses) if found is None else ():
        if site.off(behind.predicted) <= MOST_LEFT * site.difference and site.suits_most_tokens(behind.predicted):
            return behind
    return found


def _is_explained(site: Site, hypotheses: Sequence[Hypothesis]) -> bool:
    """Return whether hypotheses explain a site; nothing of it is remembered."""
    memory = {key: [*it] if isinstance(it, list) else it for key, it in site.memory.items()}
    return _explain(replace(site, memory=memory), hypotheses) is not None


def _carried(
    site: Site, hypotheses: Sequence[Hypothesis], inner: Site, earlier: Site, explanation: Explanation
) -> Explanation | None:
    """Return the explanation of a site by the difference of an earlier one that goes on, and by what else differs there."""
    if inner.difference <= site.most_left:
        return carried_on(site, earlier, explanation)
    found = _explain(inner, hypotheses)
    return None if found is None else with_carried(found, earlier)


def _carried_into_norm(
    site: Site, hypotheses: Sequence[Hypothesis], inner: Site, earlier: Site, goes_on: Explanation, name: str
) -> Explanation | None:
    """Return the explanation of a norm by the difference of an earlier site in its input, and by what else differs there."""
    found = None if inner.difference <= FLOORS * site.floor else _explain(inner, hypotheses)
    found = goes_on if found is None and inner.difference <= site.most_left else found
    return None if found is None else with_carried_input(found, earlier, name)


def _seen_before(site: Site, hypotheses: Sequence[Hypothesis]) -> Iterator[Explanation]:
    """Yield the explanations of a site by what is before the product or the sum at its end."""
    products = [*before_product(site)]
    for inner, product in products:
        explanation = _explain(inner, hypotheses)
        if explanation is not None:
            site.memory.setdefault(INPUTS, []).append((inner.a, explanation))
            yield projected(explanation, product)
    for explanation, product in behind_known_input(site) if not products else ():
        yield projected(explanation, product)
    for inner, taken in before_taken(site):
        explanation = explain(inner, [it for it in hypotheses if not isinstance(it, SEARCHING)])
        known = {(it.cause, it.values) for _, it in site.memory.get("explained", []) if it is not None}
        if explanation is not None and (explanation.cause, explanation.values) in known:  # few vectors show little
            yield projected(explanation, taken)
    for inner, added in before_sum(site):
        explanation = _explain(inner, [it for it in hypotheses if not isinstance(it, SEARCHING)])
        if explanation is not None:
            yield with_added(explanation, added)


def _explain(site: Site, hypotheses: Sequence[Hypothesis]) -> Explanation | None:
    best: tuple[float, Explanation, Hypothesis] | None = None
    for hypothesis in hypotheses:
        enough = max(site.floor, EXACT, LATE.get(type(hypothesis), 0.0) * site.difference)
        if best is not None and best[0] <= enough:
            break
        for explanation in _explanations(site, hypothesis):
            left = site.off(explanation.predicted)
            is_better = left <= site.most_left and (best is None or left < 0.5 * best[0])
            if is_better and site.suits_most_tokens(explanation.predicted):
                best = (left, explanation, hypothesis)
    if best is None:
        return None
    site.memory.setdefault(EXPLAINING, []).append(best[2])
    return best[1]


def _explanations(site: Site, hypothesis: Hypothesis) -> list[Explanation]:
    """Return a hypothesis's explanations of a site; where it raises, warn and return none: the figures hold without it."""
    try:
        return hypothesis.explain(site)
    except Exception as error:
        warnings.warn(
            f"the hypothesis {type(hypothesis).__name__} failed at {site.name} ({type(error).__name__}: {error}), so that a "
            "cause there may be missing from the report. This is an error of embgrad: please report it",
            EmbgradWarning,
            stacklevel=level_of_user() + 1,
        )
        return []
