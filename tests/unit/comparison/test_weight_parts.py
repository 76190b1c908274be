"""Weights that one model holds in parts, joined, or added up are matched."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from tests.unit.comparison.test_weights import matched, names

RANDOM = np.random.default_rng(0)


def numbers(*shape: int) -> np.ndarray:
    return RANDOM.normal(size=shape).astype(np.float32)


def test_keys_and_values_are_parts_of_a_weight_with_axes_for_both_and_for_heads() -> None:
    """Gemma's weights of Flax are (keys and values, head, input, feature)."""
    keys, values = numbers(16, 24), numbers(16, 24)
    fused = np.stack([weight.reshape(2, 8, 24).swapaxes(1, 2) for weight in (keys, values)])
    matching = matched({"k": keys, "v": values}, {"kv": fused})
    assert matching.alone_a == matching.alone_b == ()
    for number, name in enumerate("kv"):
        (part,) = matching.parts[name]
        np.testing.assert_array_equal(part.others[np.argsort(part.rows)], 16 * number + np.arange(16))


QKV = {name: numbers(8, 6) for name in "qkv"}


@pytest.mark.parametrize("transposed", [False, True])
def test_separate_projections_are_parts_of_a_fused_one(transposed: bool) -> None:
    fused = np.concatenate([QKV["q"], QKV["k"], QKV["v"]])
    matching = matched(QKV, {"qkv": fused.T.copy() if transposed else fused})
    assert set(matching.parts) == set("qkv")
    for number, name in enumerate("qkv"):
        (part,) = matching.parts[name]
        assert part.name == "qkv"
        np.testing.assert_array_equal(part.rows, np.arange(8))
        np.testing.assert_array_equal(part.others, np.arange(8) + 8 * number)
    assert (matching.matches, matching.alone_a, matching.alone_b) == ((), (), ())


def test_a_fused_projection_is_split_into_parts() -> None:
    fused = np.concatenate([QKV["q"], QKV["k"], QKV["v"]])
    matching = matched({"qkv": fused}, QKV)
    parts = matching.parts["qkv"]
    assert [part.name for part in parts] == ["q", "k", "v"]
    for number, part in enumerate(parts):
        np.testing.assert_array_equal(part.rows, np.arange(8) + 8 * number)
        np.testing.assert_array_equal(part.others, np.arange(8))
    assert (matching.matches, matching.alone_a, matching.alone_b) == ((), (), ())


def test_gate_and_up_are_fused_in_turns() -> None:
    gate, up = numbers(2, 5, 7)
    turns = np.stack([gate, up], 1).reshape(10, 7)
    matching = matched({"gate": gate, "up": up}, {"both": turns})
    np.testing.assert_array_equal(matching.parts["gate"][0].others, [0, 2, 4, 6, 8])
    np.testing.assert_array_equal(matching.parts["up"][0].others, [1, 3, 5, 7, 9])
    back = matched({"both": turns}, {"gate": gate, "up": up}).parts["both"]
    assert [(part.name, part.rows.tolist()) for part in back] == [("gate", [0, 2, 4, 6, 8]), ("up", [1, 3, 5, 7, 9])]


def test_a_part_with_a_different_projection_keeps_the_others() -> None:
    fused = np.concatenate([QKV["q"], numbers(8, 6), QKV["v"]])
    matching = matched(QKV, {"qkv": fused})
    assert set(matching.parts) == {"q", "v"}
    assert matching.alone_a == ("k",)
    assert not matching.alone_b


FIRST, SECOND, ORDER = numbers(12), numbers(12), [*range(4, 8), *range(4), *range(8, 12)]


SUM, ROWS = FIRST + SECOND, np.stack([FIRST, SECOND])


@pytest.mark.parametrize(
    "held_b",
    [SUM, SUM[ORDER], ROWS, ROWS[:, ORDER], ROWS.ravel(), ROWS[::-1, ORDER].ravel()],
    ids=["sum", "sum in another order", "rows", "rows in another order", "one vector", "one vector, the second first"],
)
def test_vectors_that_b_adds_or_stacks_are_matched(held_b: np.ndarray) -> None:
    """PyTorch's recurrent cells have two biases, and those of Keras their sum, or both as the rows of one."""
    matrix = numbers(3, 5)
    matching = matched({"rnn.ih": FIRST, "rnn.W": matrix, "rnn.hh": SECOND}, {"lstm.W": matrix, "lstm.b": held_b})
    assert (matching.alone_a, matching.alone_b, matching.different) == ((), (), ())
    partners = {**names(matching), **{name: part.name for name, parts in matching.parts.items() for part in parts}}
    assert partners == {"rnn.ih": "lstm.b", "rnn.W": "lstm.W", "rnn.hh": "lstm.b"}


def test_sums_of_several_modules_vectors_are_matched() -> None:
    a = {f"rnn{cell}.{name}": numbers(8) for cell in range(3) for name in ("ih", "hh")}
    b = {f"gru{cell}.b": a[f"rnn{cell}.ih"] + a[f"rnn{cell}.hh"] for cell in (2, 0, 1)}
    matching = matched(a, b)
    assert names(matching) == {name: f"gru{name[3]}.b" for name in a}
    assert all(match.is_equal for match in matching.matches)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ({"x.ih": FIRST, "y.hh": SECOND}, SUM),
        ({"x.ih": FIRST, "x.hh": SECOND}, FIRST - SECOND),
        ({"x.ih": FIRST, "x.hh": SECOND}, SUM + 1e-3 * numbers(12)),
        ({"x.ih": FIRST[:3], "x.hh": SECOND[:3]}, SUM[:3]),
        ({"x.ih": FIRST[:6], "x.hh": SECOND}, np.concatenate([FIRST[:6], SECOND])),
        ({"x.ih": FIRST.reshape(3, 4), "x.hh": SECOND.reshape(3, 4)}, SUM.reshape(3, 4)),
        ({"x.ih": FIRST, "x.hh": 1 - FIRST}, np.ones(12)),
    ],
    ids=["two modules", "a difference", "another sum", "three numbers", "two sizes", "matrices", "a constant"],
)
def test_what_is_no_sum_of_a_modules_vectors_is_not_matched(a: Mapping[str, np.ndarray], b: np.ndarray) -> None:
    matching = matched(a, {"z.b": b})
    assert not any(match.is_equal for match in matching.matches)
    assert len(matching.matches) < 2


def test_a_vector_is_added_once() -> None:
    third = numbers(12)
    matching = matched({"x.0": FIRST, "x.1": SECOND, "x.2": third}, {"y.0": SUM, "y.1": FIRST + third})
    assert [match.b for match in matching.matches if match.is_equal] == ["y.0", "y.0"]


def test_matrices_of_zeros_or_ones_are_no_parts_of_each_other() -> None:
    """The biases of a Keras attention are such: a row for each head."""
    biases = {f"layers.{n}.{name}.b": np.zeros((2, 8)) for n in range(2) for name in ("query", "key", "value")}
    kernels = {name.replace(".b", ".W"): RANDOM.normal(size=(8, 16)) for name in biases}
    matching = matched({**kernels, **biases}, {**kernels, **biases})
    assert matching.parts == {}
    assert all(match.a == match.b and match.relation == "equal" for match in matching.matches)
    assert len(matching.matches) == 12
