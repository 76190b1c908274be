"""Differences inside two models count where they reach the output, and not where what follows makes up for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest

from embgrad.comparison.compensation import are_compensated, compensated_pairs
from embgrad.comparison.led_pass import lead
from embgrad.comparison.recording import FINAL, Recording
from embgrad.comparison.sites import Pair, difference
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
    first: float = 1.0,
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
        first: of the stream.
    """

    def mixed(at: dict[str, np.ndarray]) -> np.ndarray:
        found = scores * at["query:output#0"] @ at["key:output#0"].swapaxes(1, 2)
        shares = np.exp(found - found.max(-1, keepdims=True))
        return np.asarray(shares / shares.sum(-1, keepdims=True) @ at["norm:output#0"])

    return {
        "stream": lambda at: first * X + added,
        "aside:output#0": lambda at: aside * at["stream"] @ V,
        "further:output#0": lambda at: at["aside:output#0"] @ V,
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


def test_a_fault_before_it_stays() -> None:
    """All later tensors of the port, taken by themselves, carry the small fault as well."""
    assert dropped(given=0.5, scores=4.0, first=1.001) == PROJECTED


def test_a_small_difference_beside_it_stays() -> None:
    assert dropped(given=0.5, scores=4.0, aside=1 + 5e-5) == PROJECTED


def prefixed(steps: Steps, prefix: str) -> dict[str, Callable[[Mapping[str, np.ndarray]], np.ndarray]]:
    """Return the steps with another name of each tensor but the output."""

    def step_of(
        step: Callable[[Mapping[str, np.ndarray]], np.ndarray],
    ) -> Callable[[Mapping[str, np.ndarray]], np.ndarray]:
        return lambda at: step(
            {key.removeprefix(prefix): values for key, values in at.items() if key.startswith(prefix)}
        )

    return {key if key == FINAL else f"{prefix}{key}": step_of(step) for key, step in steps.items()}


def layers(*factors: dict[str, float]) -> Steps:
    """Return the steps of two attentions, one after the other, each with factors."""
    first, second = (prefixed(attention(**each), f"{number}.") for number, each in enumerate(factors))
    del first[FINAL]
    return {**first, **second, "1.stream": lambda at: at["0.mixed:output#0"]}


def test_all_layers_are_made_up_for() -> None:
    port = {"given": 0.5, "scores": 4.0}
    a, b = Pass(layers({}, {})).record(), Pass(layers(port, port)).record()
    pairs = [Pair(key, key, key, time=float(number)) for number, key in enumerate(a.tensors)]
    found = compensated_pairs(pairs, lead(pairs, a, b, "b"), a, b)
    assert [pairs[number].name for number in sorted(found)] == [
        f"{layer}.{name}" for layer in "01" for name in PROJECTED
    ]


def test_no_pair_is_left_out_where_that_mends_nothing() -> None:
    """A factor below the smallest difference that counts, which a difference of near numbers shows, leaves a fault as it is."""

    def steps(given: float, aside: float) -> Steps:
        return {
            "stream": lambda at: X,
            "scaled": lambda at: given * at["stream"],
            "aside:output#0": lambda at: aside * at["stream"] @ V,
            "further:output#0": lambda at: at["aside:output#0"] @ V,
            "sharp:output#0": lambda at: at["scaled"] / given - 0.9999 * at["stream"],
            FINAL: lambda at: at["sharp:output#0"] @ Q,
        }

    a, b = Pass(steps(1.0, 1.0)).record(), Pass(steps(1 + 5e-5, 3.0)).record()
    pairs = [Pair(key, key, key, time=float(number)) for number, key in enumerate(a.tensors)]
    led = lead(pairs, a, b, "b")
    assert difference(a.tensors["sharp:output#0"].values, led.values[4], a.batch.real) > 0.1
    assert compensated_pairs(pairs, led, a, b) == frozenset()


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


def make_up(*differing: str, scores: float = 1.0, **factors: float) -> bool:
    sides = Pass(attention(scores=scores)).record(), Pass(attention(scores=scores, **factors)).record()
    return are_compensated(PAIRS, {f"{name}:output#0" for name in differing}, "b", sides)


def test_factors_of_queries_and_keys_cancel() -> None:
    assert make_up("query", "key", query=2.0, key=0.5)
    assert not make_up("query", "key", query=2.0, key=0.51)
    assert not make_up("query", query=2.0)


def test_the_side_that_can_be_run_may_be_a() -> None:
    a, b = recorded(query=2.0, key=0.5)
    names = {"query:output#0", "key:output#0"}
    assert are_compensated(PAIRS, names, "a", (a, replace(b, live=None)))
    assert not are_compensated(PAIRS, names, "a", (replace(a, live=None), b))
    assert not are_compensated(PAIRS, names, "a", recorded(query=2.0, key=0.51))


@pytest.mark.parametrize("follower", ["a", "b"])
@pytest.mark.parametrize("key", [0.5, 0.51])
def test_the_points_may_have_other_names_and_orders_of_features(follower: str, key: float) -> None:
    order = RANDOM.permutation(6)
    port = dict(attention(query=2.0, key=key))
    for name in PROJECTED[1::2]:
        port[name] = lambda at, step=port[name]: step(at)[..., np.argsort(order)]
    a, b = Pass(REFERENCE).record(), Pass(prefixed(port, "of b ")).record()
    pairs = [
        replace(it, b=it.b if it.b == FINAL else f"of b {it.b}", features_b=order if it.b in PROJECTED[1::2] else None)
        for it in PAIRS
    ]
    assert are_compensated(pairs, {"query:output#0", "key:output#0"}, follower, (a, b)) == (key == 0.5)


def test_a_layer_alone_may_differ() -> None:
    a, b = Pass(layers({}, {})).record(), Pass(layers({"query": 2.0, "key": 0.5}, {})).record()
    pairs = [Pair(key, key, key, time=float(number)) for number, key in enumerate(a.tensors)]
    names = {f"{layer}.{name}:output#0" for layer in "01" for name in ("query", "key")}
    assert are_compensated(pairs, names, "b", (a, b))


def test_a_norm_hides_what_is_added_to_all_features() -> None:
    assert are_compensated(PAIRS, {"stream"}, "b", recorded(added=3.0))


def test_a_tensor_that_leads_to_no_output_is_not_made_up_for() -> None:
    assert not make_up("aside", aside=2.0)
    assert not make_up("query", "key", "aside", query=2.0, key=0.5, aside=2.0)


def test_what_agrees_by_itself_needs_no_making_up() -> None:
    assert make_up("query", "key", "mixed", query=3.0, key=1 / 3)
    assert not make_up("mixed", "norm")


def test_nothing_is_said_where_the_output_differs_or_is_none() -> None:
    a, b = recorded(query=2.0, key=0.5)
    names = {"query:output#0", "key:output#0"}
    assert are_compensated(PAIRS, names, "b", (a, b))
    assert not are_compensated(PAIRS, {*names, FINAL}, "b", (a, b))
    assert not are_compensated(PAIRS[:-1], names, "b", (a, b))
    assert not are_compensated(PAIRS, {"none"}, "b", (a, b))


def test_the_difference_of_the_output_is_small_against_a_random_change_of_the_same_size() -> None:
    """Of what is a factor of 1.0003 in queries, keys make up for all but a tenth, and for all but a thousandth."""
    assert not make_up("query", "key", query=1.0003, key=(1 + 3e-5) / 1.0003)
    assert make_up("query", "key", query=1.0003, key=(1 + 3e-7) / 1.0003)


def test_an_output_that_is_off_by_more_than_rounding_is_not_made_up_for() -> None:
    assert make_up("query", "key", query=2.0, key=0.5 * (1 + 3e-5))
    assert not make_up("query", "key", query=2.0, key=0.5 * (1 + 1e-4))


def test_a_change_that_the_output_hardly_shows_says_nothing() -> None:
    assert not make_up("query", "key", scores=1e-5, query=2.0)
    assert not make_up("query", "key", scores=1e-5, query=2.0, key=0.5)
