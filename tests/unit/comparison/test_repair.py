"""Pairs of points that do not hold the same tensor are repaired, and others are left."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from embgrad.comparison.led_pass import lead
from embgrad.comparison.recording import FINAL
from embgrad.comparison.repair import (
    _in_own_order,
    _is_function,
    _later,
    _nearest,
    misleading_pairs,
    repair_pairs,
    without_unadded_biases,
)
from embgrad.comparison.sites import Pair
from tests.unit.comparison.recorded import REAL, Pass, Steps, recording, tensor

At = Mapping[str, np.ndarray]

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(2, 4, 6))
W, V = RANDOM.normal(size=(2, 6, 6))


def relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0)


#: A dense layer without its activation, and then another one.
APART: Steps = {
    "x": lambda at: X,
    "up:input#0": lambda at: at["x"],
    "up:output#0": lambda at: at["up:input#0"] @ W,
    "act:output#0": lambda at: relu(at["up:output#0"]),
    "down:input#0": lambda at: at["act:output#0"],
    "down:output#0": lambda at: at["down:input#0"] @ V,
    FINAL: lambda at: at["down:output#0"],
}

#: The same, where the first dense layer applies its activation.
INSIDE: Steps = {
    "x": lambda at: X,
    "dense:input#0": lambda at: at["x"],
    "dense:output#0": lambda at: relu(at["dense:input#0"] @ W),
    "last:input#0": lambda at: at["dense:output#0"],
    "last:output#0": lambda at: at["last:input#0"] @ V,
    FINAL: lambda at: at["last:output#0"],
}
PAIRS = [
    Pair("x", "x", "x", time=0.0),
    Pair("up", "up:output#0", "dense:output#0", time=2.0),
    Pair("down:input", "down:input#0", "last:input#0", time=4.0),
    Pair("down", "down:output#0", "last:output#0", time=5.0),
    Pair(FINAL, FINAL, FINAL, time=float("inf")),
]


def repaired(
    first: Steps, second: Steps, pairs: list[Pair] = PAIRS, differing: list[int] | None = None
) -> list[Pair] | None:
    a, b = Pass(first).record(), Pass(second).record()
    led = lead(pairs, a, b, "b")
    if differing is None:
        differing = [
            number
            for number, pair in enumerate(pairs)
            if not np.allclose(pair.in_a(a.tensors[pair.a].values), led.values[number])
        ]
    return repair_pairs(pairs, differing, led.values, a, b)


def keys(pairs: list[Pair] | None) -> list[tuple[str, str, str]]:
    assert pairs is not None
    return [(pair.name, pair.a, pair.b) for pair in pairs]


def test_nothing_is_repaired_where_all_is_right() -> None:
    assert repaired(APART, APART, [Pair(key, key, key, time=float(n)) for n, key in enumerate(APART)]) is None


def test_a_layer_with_its_activation_is_paired_with_the_activation() -> None:
    pairs = [PAIRS[0], PAIRS[1], *PAIRS[3:]]
    assert keys(repaired(APART, INSIDE, pairs, [1])) == [
        ("x", "x", "x"),
        ("act", "act:output#0", "dense:output#0"),
        ("down", "down:output#0", "last:output#0"),
        (FINAL, FINAL, FINAL),
    ]


@pytest.mark.parametrize(("step", "is_paired"), [(lambda x: relu(x @ V), True), (lambda x: x @ V, False)])
def test_a_layer_with_its_activation_is_paired_by_its_range_beside_a_fault(
    step: Callable[[np.ndarray], np.ndarray], is_paired: bool
) -> None:
    """Its values are far from those of both points of the leader, and none is negative."""
    faulty = {**INSIDE, "dense:output#0": lambda at: step(at["dense:input#0"])}
    names = [name for name, _, _ in keys(repaired(APART, faulty, [PAIRS[0], PAIRS[1], *PAIRS[3:]], [1]) or PAIRS)]
    assert ("act" in names) is is_paired


def test_the_order_is_that_of_the_pass() -> None:
    pairs = [PAIRS[0], PAIRS[1], Pair("other", "up:input#0", "dense:input#0", time=2.5), *PAIRS[3:]]
    assert [name for name, _, _ in keys(repaired(APART, INSIDE, pairs, [1]))] == ["x", "other", "act", "down", FINAL]


def test_a_point_that_another_pair_holds_is_not_taken_twice() -> None:
    pairs = [PAIRS[0], PAIRS[1], Pair("act", "act:output#0", "last:input#0", time=3.0), *PAIRS[3:]]
    assert [name for name, _, _ in keys(repaired(APART, INSIDE, pairs, [1]))] == ["x", "act", "down", FINAL]


def test_a_layer_whose_activation_is_no_point_is_dropped() -> None:
    without = {name: step for name, step in APART.items() if not name.startswith("act")}
    without["down:input#0"] = lambda at: relu(at["up:output#0"]) * np.array([1, 2, 3, 4, 5, 6])
    assert [name for name, _, _ in keys(repaired(without, INSIDE))] == ["x", "down:input", "down", FINAL]


def blocks(first: Steps, last: str, *, bias: float = 0.0) -> Steps:
    """Return two blocks, the second of which adds a number before its activation."""
    steps: dict[str, Callable[[At], np.ndarray]] = {"x": lambda at: X}
    inner = {key: step for key, step in first.items() if key not in ("x", FINAL)}
    for number in range(2):
        start = f"{number - 1}.{last}" if number else "x"

        def seen(at: At, number: int = number, start: str = start) -> dict[str, np.ndarray]:
            own = {key: at[f"{number}.{key}"] for key in inner if f"{number}.{key}" in at}
            return {**own, "x": at[start] + number * bias}

        for key, step in inner.items():
            steps[f"{number}.{key}"] = lambda at, step=step, seen=seen: step(seen(at))
    return {**steps, FINAL: lambda at: at[f"1.{last}"]}


def test_a_pair_is_moved_as_that_of_another_layer_where_a_fault_hides_what_it_holds() -> None:
    first, second = blocks(APART, "down:output#0"), blocks(INSIDE, "last:output#0", bias=3.0)
    inner = [("up:output#0", "dense:output#0"), ("down:output#0", "last:output#0")]
    keys_of = [("x", "x"), *((f"{n}.{a}", f"{n}.{b}") for n in range(2) for a, b in inner), (FINAL, FINAL)]
    pairs = [Pair(a.partition(":")[0], a, b, time=float([*first].index(a))) for a, b in keys_of]
    for turned, moved in ((False, {1, 3}), (True, {1, 3})):
        sides = (second, first) if turned else (first, second)
        order = [Pair(it.name, it.b, it.a, time=float(n)) for n, it in enumerate(pairs)] if turned else pairs
        found = repaired(*sides, order)
        assert found is not None
        changed = {
            number for number, pair in enumerate(found) if (pair.a, pair.b) != (order[number].a, order[number].b)
        }
        assert changed == moved
        assert {found[number].b if turned else found[number].a for number in moved} == {
            "0.act:output#0",
            "1.act:output#0",
        }


def test_a_pair_is_not_moved_behind_the_end_of_the_model() -> None:
    sides = [blocks(APART, "down:output#0"), blocks(INSIDE, "last:output#0", bias=3.0)]
    keys_of = [("x", "x"), *((f"{n}.up:output#0", f"{n}.dense:output#0") for n in range(2))]
    first, second = (
        {key: steps[key] for key in [*steps][: [*steps].index(end) + 1]}
        for steps, end in zip(sides, keys_of[-1], strict=True)
    )
    pairs = [Pair(a.partition(":")[0], a, b, time=float([*first].index(a))) for a, b in keys_of]
    moved = [("x", "x", "x"), ("0.act", "0.act:output#0", keys_of[1][1])]
    assert keys(repaired(first, second, pairs)) == [*moved, ("1.up", *keys_of[2])]


BACK = [Pair(pair.name, pair.b, pair.a, time=float(number)) for number, pair in enumerate(PAIRS)]


def test_a_layer_without_the_activation_of_the_leader_is_paired_with_the_activation() -> None:
    assert keys(repaired(INSIDE, APART, BACK, [1])) == [
        ("x", "x", "x"),
        ("up", "dense:output#0", "act:output#0"),
        ("down:input", "last:input#0", "down:input#0"),
        ("down", "last:output#0", "down:output#0"),
        (FINAL, FINAL, FINAL),
    ]


def test_such_a_layer_is_dropped_where_another_pair_holds_the_activation() -> None:
    pairs = [*BACK[:2], Pair("act", "last:input#0", "act:output#0", time=2.0), *BACK[3:]]
    assert [name for name, _, _ in keys(repaired(INSIDE, APART, pairs, [1]))] == ["x", "act", "down", FINAL]


def test_such_a_layer_is_dropped_where_its_activation_is_no_point() -> None:
    without: Steps = {name: step for name, step in APART.items() if not name.startswith("act")}
    without = {**without, "down:input#0": lambda at: relu(at["up:output#0"]) * np.array([1, 2, 3, 4, 5, 6])}
    kept = repaired(INSIDE, without, BACK, [1])
    assert [name for name, _, _ in keys(kept)] == ["x", "down:input", "down", FINAL]


@pytest.mark.parametrize("factor", [1.5, -1.0])
def test_a_fault_is_not_repaired(factor: float) -> None:
    faulty: Steps = {**INSIDE, "dense:output#0": lambda at: factor * (at["dense:input#0"] @ W)}
    plain: Steps = {**APART, "act:output#0": lambda at: at["up:output#0"] * 5}
    assert repaired(plain, faulty, differing=[1]) is None


def test_a_multiple_is_not_paired_with_a_nearer_point_behind_it() -> None:
    faulty: Steps = {**INSIDE, "dense:output#0": lambda at: 20 * (at["dense:input#0"] @ W)}
    plain: Steps = {**APART, "act:output#0": lambda at: at["up:output#0"] * 15}
    assert repaired(plain, faulty, differing=[1]) is None


def test_a_fault_of_the_output_is_not_repaired() -> None:
    faulty: Steps = {**APART, FINAL: lambda at: relu(at["down:output#0"])}
    assert repaired(APART, faulty, [Pair(FINAL, FINAL, FINAL)]) is None


def test_inputs_and_parts_are_not_moved() -> None:
    faulty: Steps = {**INSIDE, "last:input#0": lambda at: at["dense:output#0"] @ V}
    assert repaired(APART, faulty, differing=[2]) is None
    all_features = np.arange(6)
    for sides in ((all_features, None), (None, all_features)):
        assert repaired(APART, INSIDE, [PAIRS[0], Pair("up", "up:output#0", "dense:output#0", *sides)]) is None


#: Two tables whose sum is taken, the second of which holds the sum of two of the other model.
TYPES = RANDOM.normal(size=6)
SPLIT: Steps = {
    "word": lambda at: X,
    "place": lambda at: X * 0 + W[0],
    "sum:output#0": lambda at: at["word"] + at["place"] + TYPES,
    FINAL: lambda at: at["sum:output#0"],
}
MERGED: Steps = {
    "word": lambda at: X,
    "place": lambda at: X * 0 + W[0] + TYPES,
    "sum:output#0": lambda at: at["word"] + at["place"],
    FINAL: lambda at: at["sum:output#0"],
}
SUMS = [Pair(key, key, key, time=float(number)) for number, key in enumerate(SPLIT)]


def misled(first: Steps, second: Steps, pairs: list[Pair]) -> list[str]:
    """Return the names of the pairs that hold different tensors."""
    a, b = Pass(first).record(), Pass(second).record()
    return [pairs[number].name for number in sorted(misleading_pairs(pairs, lead(pairs, a, b, "b"), a, b))]


def test_a_table_that_holds_a_sum_is_misleading() -> None:
    assert misled(SPLIT, MERGED, SUMS) == ["place"]
    many: Steps = {letter: lambda at: X for letter in "abcdefghi"}  # right ones are not looked at
    assert misled({**many, **SPLIT}, {**many, **MERGED}, pairs_of({**many, **SPLIT})) == ["place"]


def test_another_table_is_not_misleading() -> None:
    for other in (MERGED, SPLIT):
        assert misled(SPLIT, {**other, "place": lambda at: X * 0 + W[1]}, SUMS) == []


def test_a_pair_whose_points_are_in_another_order_in_each_model_is_misleading_beside_a_fault() -> None:
    """Embeddings end behind the norm in one model, and before it in the other, which lacks the norm."""

    def embeddings(lookup: str, wide: bool) -> Steps:
        return {
            "x": lambda at: X,
            **({"all:output#0": lambda at: at["x"] + W[0]} if wide else {}),
            "norm:input#0": lambda at: at["all:output#0"] if wide else at["x"] + W[0],
            "norm:output#0": lambda at: at["norm:input#0"] if wide else normed(at["norm:input#0"]),
            **({} if wide else {"all:output#0": lambda at: at["norm:output#0"]}),
            FINAL: lambda at: at[lookup] @ W,
        }

    first, second = embeddings("all:output#0", False), embeddings("norm:output#0", True)
    assert misled(first, second, pairs_of(first)) == ["all:output#0"]


def test_a_misleading_pair_is_found_beside_a_point_that_is_not_finite() -> None:
    first: Steps = {"aside": lambda at: X, **SPLIT}
    second: Steps = {"aside": lambda at: X * np.nan, **MERGED}
    pairs = [Pair(key, key, key, time=float(number)) for number, key in enumerate(first)]
    assert misled(first, second, pairs) == ["place"]


def normed(x: np.ndarray, epsilon: float = 1e-6) -> np.ndarray:
    return np.asarray(x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon))


def layers(
    *, adds: bool, epsilon: float = 1e-6, factor: float = 1.0, faulty: int = 1, count: int = 2
) -> dict[str, Callable[[At], np.ndarray]]:
    """Return the steps of layers whose norm is given a sum, or adds what it is given to the stream.

    Args:
        adds: whether the norm adds.
        epsilon: the norms'.
        factor: what the output of the faulty layer is multiplied by.
        faulty: its number.
        count: the number of layers.
    """
    steps: dict[str, Callable[[At], np.ndarray]] = {"x": lambda at: X}
    for number in range(count):
        given, behind, up = f"{number}.norm:input#0", f"{number}.norm:output#0", f"{number}.up:output#0"
        times = factor if number == faulty else 1.0

        def stream(at: At, number: int = number) -> np.ndarray:
            return X + sum((at[f"{before}.up:output#0"] for before in range(number)), 0.0 * X)

        def last(at: At, number: int = number) -> np.ndarray:
            return at[f"{number - 1}.up:output#0"] if number else X

        def behind_of(at: At, number: int = number, given: str = given) -> np.ndarray:
            added = stream(at, number - 1) if adds and number else 0.0
            return normed(at[given] + added, epsilon)

        steps[given] = last if adds else stream
        steps[behind] = behind_of
        steps[up] = lambda at, behind=behind, times=times: times * at[behind] @ W
    steps[FINAL] = lambda at: X + sum(at[f"{number}.up:output#0"] for number in range(count))
    return steps


def pairs_of(steps: Steps) -> list[Pair]:
    return [Pair(key, key, key, time=float(number)) for number, key in enumerate(steps)]


FAULTS = [{}, {"factor": 1.5}, {"factor": 1.5, "faulty": 0}, {"epsilon": 0.1}, {"factor": 1.5, "epsilon": 0.1}]


@pytest.mark.parametrize("faults", FAULTS)
def test_the_input_of_a_norm_that_adds_to_the_stream_is_misleading_beside_faults(faults: dict[str, Any]) -> None:
    first = layers(adds=False)
    assert misled(first, layers(adds=True, **faults), pairs_of(first)) == ["1.norm:input#0"]


def test_one_kind_of_pairs_may_be_in_many_layers() -> None:
    first = layers(adds=False, count=12)
    wanted = [f"{number}.norm:input#0" for number in range(1, 12)]
    assert misled(first, layers(adds=True, count=12), pairs_of(first)) == wanted


@pytest.mark.parametrize("faults", FAULTS)
def test_a_fault_is_not_misleading(faults: dict[str, Any]) -> None:
    first = layers(adds=False)
    assert misled(first, layers(adds=False, **faults), pairs_of(first)) == []


def test_the_last_pair_is_never_dropped() -> None:
    pairs = [PAIRS[0], Pair("up", "up:output#0", "dense:output#0", time=2.0)]
    without = {"x": APART["x"], "up:input#0": APART["up:input#0"], "up:output#0": APART["up:output#0"]}
    other = {"x": INSIDE["x"], "dense:input#0": INSIDE["dense:input#0"], "dense:output#0": INSIDE["dense:output#0"]}
    assert repaired(without, other, pairs) is None


ORDER = RANDOM.permutation(6)


#: The last layer with its weight's rows in another order, and its input in the usual one.
SHUFFLED: Steps = {**APART, "down:output#0": lambda at: at["down:input#0"] @ V[np.argsort(ORDER)]}


@pytest.mark.parametrize(
    ("first", "second", "order"), [(APART, SHUFFLED, (None, ORDER)), (SHUFFLED, APART, (ORDER, None))]
)
def test_an_order_that_only_a_weight_has_is_left_out(
    first: Steps, second: Steps, order: tuple[np.ndarray | None, np.ndarray | None]
) -> None:
    pairs = [PAIRS[0], Pair("down:input", "down:input#0", "down:input#0", *order, time=4.0), PAIRS[-1]]
    (_, found, _) = repaired(first, second, pairs) or []
    assert (found.name, found.features_a, found.features_b) == ("down:input", None, None)


def test_an_order_that_the_values_have_as_well_is_kept() -> None:
    turned: Steps = {**SHUFFLED, "down:input#0": lambda at: at["act:output#0"][..., np.argsort(ORDER)]}
    pairs = [PAIRS[0], Pair("down:input", "down:input#0", "down:input#0", None, ORDER, time=4.0), PAIRS[-1]]
    assert repaired(APART, turned, pairs) is None
    assert repaired(APART, {**turned, "act:output#0": lambda at: 2 * relu(at["up:output#0"])}, pairs) is None


def test_twelve_later_points_are_looked_at() -> None:
    shapes = [X if number % 2 else X[..., :3] for number in range(30)]
    side = recording([tensor(f"t{number}", values, float(number)) for number, values in enumerate(shapes)])
    assert [later.key for later in _later(side, side.tensors["t26"])] == ["t28"]
    assert [later.key for later in _later(side, side.tensors["t5"])] == ["t7", "t9", "t11", "t13", "t15", "t17"]


def test_of_the_nearest_tensors_the_first_is_taken() -> None:
    near = [tensor(name, X * factor) for name, factor in (("a", 1.3), ("b", 1.1), ("c", 1.1), ("d", 2.0))]
    found = _nearest(iter(near), X, REAL, 0.2)
    assert found is not None
    assert found.key == "b"
    assert _nearest(iter(near), X, REAL, 0.09) is None
    assert _nearest(iter([]), X, REAL, 0.2) is None


def test_one_tensor_is_a_function_of_the_other() -> None:
    other = RANDOM.normal(size=X.shape)
    assert _is_function(X, relu(X), REAL, 0.01)
    assert _is_function(np.tanh(X), X, REAL, 0.01)
    assert _is_function(X, relu(X) * 1.009, REAL, 0.01)
    assert not _is_function(X, relu(X) * 1.02, REAL, 0.01)
    assert not _is_function(X, other, REAL, 0.01)


@pytest.mark.parametrize(("share", "kept"), [(0.25, False), (0.35, True)])
def test_an_order_is_left_out_where_the_values_are_far_nearer_without_it(share: float, kept: bool) -> None:
    order = np.array([1, 0, 2, 3, 5, 4])
    pair = Pair("x", "x", "x", None, order)
    values = tensor("x", X)
    noise = RANDOM.normal(size=X.shape)
    apart = np.linalg.norm((X[..., order] - X)[REAL])
    wanted = X + noise * share * apart / np.linalg.norm(noise[REAL])
    found = _in_own_order(pair, values, wanted[..., order], REAL)
    measured = np.linalg.norm((wanted - X)[REAL]) / np.linalg.norm((wanted[..., order] - X)[REAL])
    assert (found.features_b is not None) is kept is bool(measured > 0.3)
    assert _in_own_order(Pair("x", "x", "x", order, order), values, X, REAL).features_a is order
    short = Pair("x", "x", "x", None, order[:2])
    assert _in_own_order(short, values, X[..., :2], REAL) is short


BIASES = RANDOM.normal(size=(2, 6))


def two_layers(*added: bool) -> Steps:
    """Return two layers of a product and a function, which add these layers' biases between the two."""
    steps: dict[str, Callable[[At], np.ndarray]] = {"x": lambda at: X}
    last = "x"
    for number, is_added in enumerate(added):
        up, act = f"layers.{number}.up:output#0", f"layers.{number}.act:output#0"
        bias = is_added * BIASES[number]
        steps[up] = lambda at, last=last: at[last] @ W  # type: ignore[misc]
        steps[act] = lambda at, up=up, bias=bias, last=last: np.tanh(at[up] + bias) + at[last]  # type: ignore[misc]
        last = act
    return {**steps, FINAL: lambda at, last=last: at[last] @ V}  # type: ignore[misc]


@pytest.mark.parametrize("added", [(True, True), (False, False), (True, False), (False, True)])
@pytest.mark.parametrize("side", ["a", "b"])
def test_biases_that_a_side_holds_and_does_not_add_are_left_out(side: str, added: tuple[bool, bool]) -> None:
    """The other side's product contains its bias."""
    within: dict[str, Callable[[At], np.ndarray]] = dict(two_layers(False, False))
    for number, (last, bias) in enumerate(zip(("x", "layers.0.act:output#0"), BIASES, strict=True)):
        within[f"layers.{number}.up:output#0"] = lambda at, last=last, bias=bias: at[last] @ W + bias  # type: ignore[misc]
    leader, follower = (Pass(steps).record() for steps in (within, two_layers(*added)))
    pairs = [
        Pair(key.partition(":")[0], key, key, time=float(number), bias_b=BIASES[int(key[7])] if ".up" in key else None)
        for number, key in enumerate(within)
    ]
    if side == "a":
        leader, follower, pairs = follower, leader, [pair.reversed for pair in pairs]
    found = without_unadded_biases(pairs, lead(pairs, leader, follower, "b"), leader, follower)
    kept = [pair.bias_a is not None or pair.bias_b is not None for pair in found if ".up" in pair.name]
    assert kept == [*added]
    assert [pair.name for pair in found] == [pair.name for pair in pairs]
