"""The inspection of two recordings: its clock, its limits, and the figures at each pair of points."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from embgrad.comparison.inspection import (
    Clock,
    Inspection,
    _different_tensors,
    _nothing_in_common,
    _points,
    inspect_recordings,
)
from embgrad.comparison.led_pass import Led
from embgrad.comparison.recording import FINAL
from embgrad.comparison.sites import Pair
from embgrad.comparison.unled import follow
from embgrad.comparison.weights import Match, Matching
from embgrad.errors import EmbgradError
from tests.unit.comparison.recorded import Pass, Steps, recording, tensor

X = np.random.default_rng(0).normal(size=(2, 4, 3))


def test_a_clock_adds_the_seconds_of_each_step() -> None:
    reports: list[int] = []
    clock = Clock(report=lambda: reports.append(len(reports)))
    clock.seconds["causes"] = 5.0
    for step in ("led", "causes", "led"):
        with clock.of(step):
            pass
    assert reports == [0, 1, 2]
    assert list(clock.seconds) == ["causes", "led"]
    assert 5.0 <= clock.seconds["causes"] < 6.0
    assert 0.0 <= clock.seconds["led"] < 1.0
    assert Clock().report() is None


@pytest.mark.parametrize(
    ("values", "floor", "apart"),
    [(0.99e-2, 1e-4, False), (1.01e-2, 1e-4, True), (0.99e-4, 0.0, False), (1.01e-4, 0.0, True)],
)
def test_models_are_apart_beyond_a_hundred_floors_or_roundoffs(values: float, floor: float, apart: bool) -> None:
    points: Any = tuple(SimpleNamespace(values=number, floor=floor) for number in (9.0, values))
    none: Any = None
    inspection = Inspection((none, none), none, none, [], (), [], points, roundoff=1e-6)
    assert inspection.is_apart is apart


def test_models_without_anything_in_common_are_counted() -> None:
    a = recording([tensor("x", X)], {"up.W": np.ones((2, 3)), "up.b": np.ones(3)})
    b = replace(recording([tensor("y", X)], {"fc.W": np.ones((4, 4))}), label="another")
    matching = Matching((Match("up.W", "fc.W", 0.0),), {}, (), ())
    text = (
        "the two models have nothing in common that can be compared: a is a model with 2 weights, 9 numbers, b is another "
        "with 1 weights, 16 numbers, and 1 weights of a have a partner in b. Pass a port with the reference's weights"
    )
    assert _nothing_in_common(a, b, matching) == text
    shared = recording([tensor("x", X, 1.0, ["word"])])
    for only_first, enough in ((False, False), (True, True)):
        if enough:
            assert inspect_recordings((shared, shared), 1e-9, Clock(), only_first=only_first).examined.sites == []
        else:
            with pytest.raises(EmbgradError, match="nothing in common that can be compared"):
                inspect_recordings((shared, shared), 1e-9, Clock(), only_first=only_first)


W, V = np.random.default_rng(1).normal(size=(2, 3, 3))


def scores(*, given: float = 1.0, query: float = 1.0, key: float = 1.0, scale: float = 1.0) -> Steps:
    """Return the steps of products of queries and keys, with factors of what both are given, of both, and of the products."""
    return {
        "query:input#0": lambda at: given * X,
        "query:output#0": lambda at: query * at["query:input#0"] @ W,
        "key:input#0": lambda at: given * X,
        "key:output#0": lambda at: key * at["key:input#0"] @ V,
        FINAL: lambda at: scale * at["query:output#0"] @ at["key:output#0"].swapaxes(1, 2),
    }


@pytest.mark.parametrize("follower", ["a", "b"])
def test_what_the_output_does_not_show_is_named_and_does_not_count(follower: str) -> None:
    def inspected(*, only_first: bool = False, **factors: float) -> Inspection:
        sides = {}
        for side, changed in (("a", {}), ("b", factors)):
            weights = {"query.W": W.T * changed.get("query", 1.0), "key.W": V.T * changed.get("key", 1.0)}
            recorded = Pass(scores(**changed)).record(weights)
            sides[side] = recorded if side == follower else replace(recorded, live=None)
        return inspect_recordings((sides["a"], sides["b"]), 1e-9, Clock(), only_first=only_first)

    found = inspected(query=2.0, key=0.5)
    assert (found.causes, found.found, found.is_apart) == ((), [], False)
    assert [point.name for point in found.points] == ["query:input", "key:input", FINAL]
    assert found.made_up == ["b has query.W times 2", "b has key.W times 0.5"]
    assert [site.name for site, _ in inspected(query=2.0, key=0.5, only_first=True).explained] == ["query"]
    faulty = inspected(query=2.0, key=0.6)
    assert (len(faulty.causes), faulty.made_up, faulty.is_apart) == (2, [], True)
    given = inspected(given=0.5, scale=4.0)
    assert given.made_up == ["the models hold different tensors at query:input, query, key:input, key"]
    assert (given.causes, given.is_apart) == ((), False)


def test_four_kinds_of_tensors_are_named_at_most() -> None:
    names = [f"layer.{layer}.{name}" for layer in range(2) for name in ("one", "two", "three", "four")]
    sentence = "the models hold different tensors at layer.N.one, layer.N.two, layer.N.three, layer.N.four"
    assert _different_tensors([]) == []
    assert _different_tensors(names) == [sentence]
    assert _different_tensors([*names, "five", "six"]) == [f"{sentence} and 2 more"]


KEYS = ("one:output#0", "two:output#0", "three:output#0")
PAIRS = [Pair(key.partition(":")[0], key, key, time=float(number)) for number, key in enumerate(KEYS)]


@pytest.mark.parametrize("follower", ["a", "b"])
def test_figures_of_each_pair_of_points(follower: str) -> None:
    a = recording([tensor(key, X, float(number), gradient=X) for number, key in enumerate(KEYS)])
    values = {key: X * factor for key, factor in zip(KEYS, (1.0, 1.5, 2.0), strict=True)}
    b = recording([tensor(key, own, float(number), gradient=own) for number, (key, own) in enumerate(values.items())])
    tensors = {**b.tensors, KEYS[0]: replace(b.tensors[KEYS[0]], gradient=None)}
    b = replace(b, tensors=tensors)
    led = Led({0: X * 1.25, 1: X * 3}, {1: X * 6, 0: X}, follower)
    examined: Any = SimpleNamespace(pairs=PAIRS, led=led, differing=frozenset({"two"}))
    found = list(_points(examined, a, b, [1.0, 2.0, 3.0], ["three"]))
    assert [(point.name, point.port_name, point.floor, point.agrees) for point in found] == [
        ("one", KEYS[0], 1.0, True),
        ("two", KEYS[1], 2.0, False),
        ("three", KEYS[2], 3.0, False),
    ]
    assert [point.values for point in found] == pytest.approx([0, 0.5, 1])
    assert [point.gradient for point in found] == [None, pytest.approx(0.5), pytest.approx(1)]
    local = {"b": [0.25, 2.0, None], "a": [0.25, 1.0, None]}[follower]
    assert [point.local for point in found] == [None if each is None else pytest.approx(each) for each in local]
    gradients = {"b": [0.0, 5.0, None], "a": [None, 3.0, None]}[follower]
    assert [point.local_gradient for point in found] == [
        None if each is None else pytest.approx(each) for each in gradients
    ]


def test_unled_values_are_compared_up_to_the_first_that_differs() -> None:
    a, b = (
        recording([tensor(key, X * (1 + step * number), float(number)) for number, key in enumerate(KEYS)])
        for step in (0, 1)
    )
    led, floors = follow(PAIRS, a, b, 1e-8, 8.0)
    assert (list(led.values), led.follower, led.gradients) == ([0, 1], "b", {})
    assert floors == pytest.approx([4e-8, 4e-8 * 2**0.5, 4e-8 * 3**0.5])
    assert list(follow(PAIRS, a, a, 1e-8, 8.0)[0].values) == [0, 1, 2]
