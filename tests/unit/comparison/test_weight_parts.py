"""Weights that one model holds in parts, joined, or added up are matched."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest

from embgrad.comparison import weight_rows
from embgrad.comparison.weight_values import rounded
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


def layers_of(count: int = 3) -> list[dict[str, np.ndarray]]:
    return [{name: numbers(8, 6) for name in ("up", "query", "key")} for _ in range(count)]


def held_apart(layers: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {f"layers.{at}.{name}.W": values for at, layer in enumerate(layers) for name, values in layer.items()}


def fused(layers: Sequence[Mapping[str, np.ndarray]], *, transposed: bool = False) -> dict[str, np.ndarray]:
    """Return the weights of layers, which are counted from 1, queries and keys in turns in one."""
    weights: dict[str, np.ndarray] = {}
    for at, layer in enumerate(layers, 1):
        both = np.stack([layer["query"], layer["key"]], 1).reshape(16, 6)
        weights |= {f"layers.{at}.up.W": layer["up"], f"layers.{at}.both.W": both.T.copy() if transposed else both}
    return weights


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    ("change", "relation"),
    [
        (lambda values: rounded(values, "float16"), "rounded to float16 in b"),
        (lambda values: values + 0.03 * np.roll(values, 1, 0), "different"),
    ],
)
def test_parts_of_a_fused_weight_that_are_nearly_equal_are_matched(
    change: Callable[[np.ndarray], np.ndarray], relation: str, transposed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weight_rows, "MOST_PRODUCTS", 48)  # three rows at once
    layers = layers_of()
    changed = [{**layer, "query": change(layer["query"]), "key": change(layer["key"])} for layer in layers]
    matching = matched(held_apart(layers), fused(changed, transposed=transposed))
    assert (matching.alone_a, matching.alone_b) == ((), ())
    for at in range(3):
        for number, name in enumerate(("query", "key")):
            (part,) = matching.parts[f"layers.{at}.{name}.W"]
            assert (part.name, part.relation) == (f"layers.{at + 1}.both.W", relation)
            assert part.others[np.argsort(part.rows)].tolist() == list(range(number, 16, 2))
            assert 1e-6 < part.distance < 0.2


@pytest.mark.parametrize("held", [None, 0])
def test_other_values_in_a_fused_weight_are_parts_as_in_other_layers(held: int | None) -> None:
    """They are those of another layer, or of another checkpoint."""
    layers = layers_of()
    others = layers[held] if held is not None else layers_of(1)[0]
    weights = {"layers.3.alike.W": numbers(16, 6), **fused([*layers[:2], {**others, "up": layers[2]["up"]}])}
    matching = matched(held_apart(layers), weights)
    assert (matching.alone_a, matching.alone_b) == ((), ("layers.3.alike.W",))
    for number, name in enumerate(("query", "key")):
        (part,) = matching.parts[f"layers.2.{name}.W"]
        assert part.relation == ("different" if held is None else f"equal to layers.0.{name}.W")
        assert (part.name, part.others.tolist()) == ("layers.3.both.W", list(range(number, 16, 2)))
        assert [other.relation for other in matching.parts[f"layers.0.{name}.W"]] == ["equal"]


def test_fused_weights_of_other_layers_or_lengths_hold_no_parts() -> None:
    layers = layers_of(2)
    changed = [{**layer, "key": numbers(8, 6), "query": numbers(8, 6)} for layer in layers]
    matching = matched(held_apart(layers), fused(changed))
    assert not matching.parts
    assert len(matching.alone_a) == 4
    for shape, left in (((16, 7), ("query", "key")), ((15, 6), ("key",))):
        others = {**fused(layers[:1]), "layers.2.up.W": layers[1]["up"], "layers.2.both.W": numbers(*shape)}
        assert matched(held_apart(layers), others).alone_a == tuple(f"layers.1.{name}.W" for name in left)


def test_a_weight_of_the_same_size_is_no_part() -> None:
    weight = numbers(8, 6)
    matching = matched({"layers.0.up.W": weight}, {"layers.0.up.V": weight + 0.1 * numbers(8, 6)})
    assert (names(matching), dict(matching.parts)) == ({"layers.0.up.W": "layers.0.up.V"}, {})
