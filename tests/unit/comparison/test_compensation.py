"""Differences inside two models count where they reach the output, and not where what follows makes up for them."""

from __future__ import annotations

import numpy as np
import pytest

from embgrad.comparison.compensation import are_compensated, compensated_pairs
from embgrad.comparison.led_pass import lead
from embgrad.comparison.recording import FINAL, Recording
from embgrad.comparison.sites import Pair
from tests.unit.comparison.recorded import Pass, Steps

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(2, 4, 6))
Q, K, V = RANDOM.normal(size=(3, 6, 6))

#: The names of the pairs that belong to the attention's queries and keys.
PROJECTED = ["query:input#0", "query:output#0", "key:input#0", "key:output#0"]


def attention(
    *,
    given: float = 1.0,
    query: float = 1.0,
    key: float = 1.0,
    scores: float = 1.0,
    aside: float = 1.0,
    added: float = 0.0,
    last: float = 1.0,
) -> Steps:
    """Return the steps of an attention, with factors of what its projections are given, of its products and of its scores.

    Args:
        given: of the inputs of queries and keys.
        query: of the queries.
        key: of the keys.
        scores: of the scores.
        aside: of a tensor that leads to no output.
        added: a number that is added to all features of the stream, whose norm subtracts their mean.
        last: of the output.
    """

    def mixed(at: dict[str, np.ndarray]) -> np.ndarray:
        found = scores * at["query:output#0"] @ at["key:output#0"].swapaxes(1, 2)
        shares = np.exp(found - found.max(-1, keepdims=True))
        return np.asarray(shares / shares.sum(-1, keepdims=True) @ at["norm:output#0"])

    return {
        "stream": lambda at: X + added,
        "aside:output#0": lambda at: aside * at["stream"] @ V,
        "norm:output#0": lambda at: at["stream"] - at["stream"].mean(-1, keepdims=True),
        "query:input#0": lambda at: given * at["norm:output#0"],
        "query:output#0": lambda at: query * at["query:input#0"] @ Q,
        "key:input#0": lambda at: given * at["norm:output#0"],
        "key:output#0": lambda at: key * at["key:input#0"] @ K,
        "mixed:input#0": mixed,
        "mixed:output#0": lambda at: at["mixed:input#0"] @ V,
        FINAL: lambda at: last * at["mixed:output#0"],
    }


REFERENCE = attention()
PAIRS = [Pair(key, key, key, time=float(number)) for number, key in enumerate(REFERENCE)]


def recorded(**factors: float) -> tuple[Recording, Recording]:
    return Pass(REFERENCE).record(), Pass(attention(**factors)).record()


def dropped(**factors: float) -> list[str]:
    """Return the names of the pairs for which what follows makes up."""
    a, b = recorded(**factors)
    return [PAIRS[number].name for number in sorted(compensated_pairs(PAIRS, lead(PAIRS, a, b, "b"), a, b))]


@pytest.mark.parametrize("port", [{"given": 0.5, "scores": 4.0}, {"given": 1.01, "scores": 1.01**-2}])
def test_the_scale_of_scores_may_stand_in_what_their_projections_are_given(port: dict[str, float]) -> None:
    assert dropped(**port) == PROJECTED


def test_a_fault_behind_it_stays() -> None:
    assert dropped(given=0.5, scores=4.0, last=2.0) == PROJECTED
    assert dropped(given=0.5, scores=4.0, last=2.0, aside=3.0) == PROJECTED


@pytest.mark.parametrize(
    "port", [{}, {"given": 0.5}, {"scores": 2.0}, {"given": 0.5, "scores": 2.0}, {"query": 2.0}, {"last": 2.0}]
)
def test_no_pair_of_a_faulty_model_is_left_out(port: dict[str, float]) -> None:
    assert dropped(**port) == []


def test_a_pair_whose_change_helps_here_and_harms_there_is_not_left_out() -> None:
    """The other use of a tensor, of the scaled one here, is wrong if the tensor keeps its own value."""
    without = dict(attention(given=0.5, scores=4.0))
    without["mixed:output#0"] = lambda at: at["mixed:input#0"] @ V + at["query:input#0"] * 1e-2
    reference = {**REFERENCE, "mixed:output#0": without["mixed:output#0"]}
    a, b = Pass(reference).record(), Pass(without).record()
    assert compensated_pairs(PAIRS, lead(PAIRS, a, b, "b"), a, b) == frozenset()


def make_up(*differing: str, follower: str = "b", **factors: float) -> bool:
    pairs = PAIRS if follower == "b" else [pair.reversed for pair in PAIRS]
    return are_compensated(pairs, {f"{name}:output#0" for name in differing}, follower, recorded(**factors))


@pytest.mark.parametrize("follower", ["a", "b"])
def test_factors_of_queries_and_keys_cancel(follower: str) -> None:
    assert make_up("query", "key", query=2.0, key=0.5, follower=follower)
    assert not make_up("query", "key", query=2.0, key=0.51, follower=follower)
    assert not make_up("query", query=2.0, follower=follower)


def test_a_norm_hides_what_is_added_to_all_features() -> None:
    assert are_compensated(PAIRS, {"stream"}, "b", recorded(added=3.0))


def test_a_tensor_that_leads_to_no_output_is_not_made_up_for() -> None:
    assert not make_up("aside", aside=2.0)
    assert not make_up("query", "key", "aside", query=2.0, key=0.5, aside=2.0)


def test_what_agrees_by_itself_needs_no_making_up() -> None:
    assert make_up("query", "key", "mixed", query=2.0, key=0.5)
    assert not make_up("mixed", "norm")


def test_nothing_is_said_where_the_output_differs_or_is_none() -> None:
    a, b = recorded(query=2.0, key=0.5)
    names = {"query:output#0", "key:output#0"}
    assert are_compensated(PAIRS, names, "b", (a, b))
    assert not are_compensated(PAIRS, {*names, FINAL}, "b", (a, b))
    assert not are_compensated(PAIRS[:-1], names, "b", (a, b))
    assert not are_compensated(PAIRS, {"none"}, "b", (a, b))


def test_a_tiny_difference_of_the_output_is_compared_with_that_inside() -> None:
    """A fault whose effect is a thousandth of what a random change has is made up for up to rounding, or not at all."""
    a = Pass(attention(scores=1e-5)).record()
    b = Pass(attention(scores=1e-5, query=2.0)).record()
    assert not are_compensated(PAIRS, {"query:output#0"}, "b", (a, b))
