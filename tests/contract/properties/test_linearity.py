"""The gradient is linear in the objective."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.contract.properties.cases import Case, built, close
from tests.contract.properties.generating import cases, seeds
from tests.contract.properties.running import each_framework, property_of


@each_framework
@property_of
@given(case=cases(goal=("projection",)), seed=seeds, share=st.integers(-16, 16))
def test_of_a_sum_it_is_the_sum(framework: str, case: Case, seed: int, share: float) -> None:
    share /= 8
    model = built(framework, case.spec)
    first = case.goal.numbers
    second = np.random.default_rng(seed).normal(size=first.shape)
    vectors = {"first": first, "second": second, "both": first + share * second, "scaled": share * first}
    asked = {name: replace(case, goal=replace(case.goal, numbers=one)) for name, one in vectors.items()}
    found = {name: one.gradients(model) for name, one in asked.items()}
    off = {name: one.closed_form().allowed for name, one in asked.items()}
    for name, allowed in (("values", "word"), ("objective", "objective")):
        one, other, both, scaled = (np.asarray(getattr(found[which], name), np.float64) for which in vectors)
        sums = off["both"][allowed] + off["first"][allowed] + abs(share) * off["second"][allowed]
        close(both, one + share * other, sums, f"the {name} of a sum")
        close(scaled, share * one, off["scaled"][allowed] + abs(share) * off["first"][allowed], f"the scaled {name}")
