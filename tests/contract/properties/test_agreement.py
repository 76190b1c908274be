"""Two frameworks agree on one generated model."""

from __future__ import annotations

from hypothesis import given

from tests.contract.properties.cases import Case, built, close
from tests.contract.properties.generating import cases
from tests.contract.properties.running import each_pair, property_of


@each_pair
@property_of
@given(case=cases(meets=True) | cases())
def test_two_frameworks_agree(first: str, second: str, case: Case) -> None:
    allowed = case.closed_form().allowed
    one, other = (case.gradients(built(framework, case.spec), case.points) for framework in (first, second))
    for point in case.points:
        close(one[point].values, other[point].values, 2 * allowed[point], f"the gradient at {point}")
        close(one[point].activations, other[point].activations, 2 * allowed[f"at {point}"], f"the value at {point}")
        close(one[point].objective, other[point].objective, 2 * allowed["objective"], "the objective")
