"""Why there is no trace, with any objective or with one alone."""

from __future__ import annotations

from typing import Any

from embgrad.backend import NativeObjective, Request
from embgrad.refusals import OBJECTIVES, Refusals

OURS = Request(("word",), lambda _: [])


def native(function: Any) -> Request:
    return Request(("word",), NativeObjective(function, scalar=False))


def test_a_reason_that_is_no_objectives() -> None:
    refusals = Refusals()
    assert refusals.why(OURS) is refusals.why(native(len)) is refusals.of_all is None
    refusals.add("it draws")
    assert refusals.why(OURS) == refusals.why(native(len)) == refusals.of_all == "it draws"


def test_a_reason_that_one_of_embgrads_own_has_is_none_of_its_making() -> None:
    refusals = Refusals()
    refusals.add("it differs", OURS)
    assert refusals.why(native(len)) == refusals.of_all == "it differs"


def test_a_reason_that_may_be_a_functions_is_told_of_this_alone() -> None:
    """A function that is made anew for each call is the same."""

    def made(factor: float) -> Any:
        return lambda returned: returned * factor

    refusals = Refusals()
    refusals.add("it differs", native(made(1.0)))
    assert refusals.why(native(made(2.0))) == "it differs"
    assert refusals.why(native(lambda returned: returned)) is refusals.why(OURS) is refusals.of_all is None


def test_so_many_functions_are_remembered_the_first_going_first() -> None:
    made = [native(eval(f"lambda _: {number}")) for number in range(OBJECTIVES + 1)]
    refusals = Refusals()
    for number, one in enumerate(made):
        refusals.add(f"reason {number}", one)
    assert refusals.why(made[0]) is None
    assert [refusals.why(one) for one in made[1:]] == [f"reason {number + 1}" for number in range(OBJECTIVES)]
