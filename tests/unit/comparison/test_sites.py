"""Points of two models are paired by roles, modules and parts."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from embgrad.comparison.recording import FINAL, HeldWeight, Recording, Tensor
from embgrad.comparison.sites import Pair, count_layers, difference, in_order, is_product, name_of, pair_points
from embgrad.comparison.weights import Matching, match_weights
from tests.unit.comparison.recorded import REAL, recording, tensor

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(2, 4, 6))


def values(features: int = 6) -> np.ndarray:
    return RANDOM.normal(size=(2, 4, features))


def paired(a: Recording, b: Recording) -> list[Pair]:
    return pair_points(a, b, match_weights(a.weights, b.weights))


def keys(pairs: list[Pair]) -> list[tuple[str, str, str]]:
    return [(pair.name, pair.a, pair.b) for pair in pairs]


def test_points_with_one_role_are_paired_in_the_order_of_the_reference() -> None:
    a = recording(
        [tensor("table", X, 1.0, ["word"]), tensor("one:output#0", X, 2.0, ["layer.0"]),
            tensor("two:output#0", X, 3.0, ["layer.1", "last"]), tensor("pool:output#0", X, 4.0)],
    )  # fmt: skip
    b = recording(
        [tensor("block/1:output#0", X, 3.0, ["layer.1"]), tensor("block/0:output#0", X, 2.0, ["layer.0"]),
            tensor("embedding", X, 1.0, ["word"]), tensor("pool:output#0", X, 4.0)],
    )  # fmt: skip
    pairs = paired(a, b)
    assert keys(pairs) == [
        ("table", "table", "embedding"),
        ("one", "one:output#0", "block/0:output#0"),
        ("two", "two:output#0", "block/1:output#0"),
    ]
    assert [pair.time for pair in pairs] == [1.0, 2.0, 3.0]


def test_a_norm_is_not_paired_with_the_layer_that_holds_it_and_never_calls_it() -> None:
    matrix, gain = RANDOM.normal(size=(6, 6)), RANDOM.normal(size=6)

    def side(*modules: str, owner: str) -> Recording:
        made = recording([tensor(f"{path}:output#0", values(), float(n)) for n, path in enumerate(modules)])
        held = [HeldWeight("0.up.W", "0.up", (6, 6), lambda: matrix), HeldWeight("0.norm.g", owner, (6,), lambda: gain)]
        return replace(made, weights=tuple(held))

    called, idle = side("0.up", "0.norm", "0", owner="0.norm"), side("0.up", "0", owner="0")
    assert [name for name, *_ in keys(paired(called, called))] == ["0.up", "0.norm"]
    for a, b in ((called, idle), (idle, called)):
        assert [name for name, *_ in keys(paired(a, b))] == ["0.up"]
    assert [name for name, *_ in keys(paired(idle, idle))] == ["0.up", "0"], "a layer that applies the gain itself"


def test_layers_that_hold_the_weights_of_others_are_not_paired_by_their_numbers() -> None:
    """The port lacks the first layer, so that its layer 0 is the reference's layer 1."""
    matrices = [values() for _ in range(3)]

    def side(first: int) -> Recording:
        layers = list(enumerate(matrices[first:]))
        made = recording([tensor(f"block.{n}:output#0", X, float(n), [f"layer.{n}"]) for n, _ in layers])
        held = [
            HeldWeight(f"block.{n}.W", f"block.{n}", (2, 4, 6), partial(np.asarray, matrix), layer=n)
            for n, matrix in layers
        ]
        return replace(made, weights=tuple(held))

    moved = {("block.1:output#0", "block.0:output#0"), ("block.2:output#0", "block.1:output#0")}
    for a, b in ((side(0), side(1)), (side(1), side(0))):
        found = {(pair.a, pair.b) for pair in paired(a, b)}
        assert found == (moved if len(a.tensors) == 3 else {(mine, its) for its, mine in moved})
    matching = match_weights(side(0).weights, side(1).weights)
    by_place = tuple(replace(match, by_value=False) for match in matching.matches)
    found = {(pair.a, pair.b) for pair in pair_points(side(0), side(1), replace(matching, matches=by_place))}
    assert found == moved | {(f"block.{n}:output#0",) * 2 for n in range(2)}, "by their numbers as well"


def test_a_pair_holds_itself_and_the_parts_of_its_tensor() -> None:
    whole, part = Pair("up", "up", "dense"), Pair("up[0:2]", "up", "one", np.arange(2))
    assert [whole.holds(other) for other in (whole, part, Pair("up (2)", "up", "two"))] == [True, True, False]
    assert not part.holds(whole)


def test_tensors_of_other_shapes_are_no_pair() -> None:
    a = recording([tensor("table", X, 1.0, ["word"]), tensor(FINAL, X)])
    b = recording([tensor("table", X[:, :3], 1.0, ["word"]), tensor(FINAL, X[..., :2])])
    assert paired(a, b) == []


def test_outputs_are_the_last_pair() -> None:
    a = recording([tensor(FINAL, X), tensor("table", X, 1.0, ["word"])])
    b = recording([tensor("rows", X, 1.0, ["word"]), tensor(FINAL, X)])
    assert keys(paired(a, b)) == [("table", "table", "rows"), (FINAL, FINAL, FINAL)]


def module(
    path: str, start: float, x: np.ndarray, y: np.ndarray, number: int = 0
) -> list[tuple[str, np.ndarray, float]]:
    return [(f"{path}:input#{number}", x, start), (f"{path}:output#{number}", y, start + 1)]


def of_modules(*parts: list[tuple[str, np.ndarray, float]], **weights: np.ndarray) -> Recording:
    named = {name.replace("__", "."): array for name, array in weights.items()}
    return recording([tensor(key, array, time) for part in parts for key, array, time in part], named)


def test_modules_with_equal_weights_are_paired_at_their_inputs_and_outputs() -> None:
    w, bias = RANDOM.normal(size=(5, 6)), RANDOM.normal(size=5)
    a = of_modules(module("up", 1.0, X, values(5)), up__w=w, up__b=bias)
    b = of_modules(module("dense", 1.0, X, values(5)), dense__kernel=w.T.copy(), dense__bias=bias)
    assert keys(paired(a, b)) == [
        ("up:input", "up:input#0", "dense:input#0"),
        ("up", "up:output#0", "dense:output#0"),
    ]


def test_each_call_of_a_module_is_a_pair() -> None:
    w = RANDOM.normal(size=(6, 6))
    calls = [module("up", 2.0 * number, X, X, number) for number in range(2)]
    names = [name for name, _, _ in keys(paired(of_modules(*calls, up__w=w), of_modules(*calls, up__w=w)))]
    assert names == ["up:input", "up", "up#1:input", "up#1"]


def test_a_module_with_two_matrices_of_which_one_has_another_order_keeps_its_features() -> None:
    first, second = RANDOM.normal(size=(2, 6, 6))
    a, b = (of_modules(module("up", 1.0, X, X), up__v=it, up__w=second) for it in (first, first[::-1].copy()))
    assert [(pair.name, pair.features_a, pair.features_b) for pair in paired(a, b)] == [
        ("up:input", None, None),
        ("up", None, None),
    ]


def test_a_module_whose_weights_are_held_by_two_is_no_pair() -> None:
    w, bias = RANDOM.normal(size=(6, 6)), RANDOM.normal(size=6)
    a = of_modules(module("up", 1.0, X, X), up__w=w, up__b=bias)
    b = of_modules(module("one", 1.0, X, X), module("two", 3.0, X, X), one__w=w, two__b=bias)
    assert paired(a, b) == []
    norm = of_modules(module("norm", 1.0, X, X), norm__gain=w[0], norm__bias=bias)
    assert paired(norm, of_modules(module("one", 1.0, X, X), one__gain=w[0], two__bias=bias)) == []


@pytest.mark.parametrize("in_turn", [True, False])
def test_a_module_that_computes_what_several_do_in_turn_is_paired_around_them(in_turn: bool) -> None:
    first, last = np.random.default_rng(1).normal(size=(2, 6, 6))
    entry = X @ first.T if in_turn else X  # branches are given the same
    a = of_modules(module("q", 1.0, X, X + 1), module("o", 3.0, entry, X + 2), q__w=first, o__w=last)
    b = of_modules(module("attention", 1.0, X, X + 2), attention__q=first, attention__o=last)
    around = [("q:input", "q:input#0", "attention:input#0"), ("o", "o:output#0", "attention:output#0")]
    assert keys(paired(a, b)) == (around if in_turn else [])


def test_a_module_that_never_calls_one_of_its_parts_is_not_paired_with_that_part() -> None:
    """The weights of a part that is never called, as shared experts that a port forgets, go by the module that holds it."""
    first, last, own = np.random.default_rng(1).normal(size=(3, 6, 6))
    calls = [module("expert", 1.0, X, X + 3), module("up", 2.0, X, X + 1), module("down", 3.0, X @ first.T, X + 2)]
    a = of_modules(*calls, expert__w=own, up__w=first, down__w=last)
    b = of_modules(module("mlp.0", 1.0, X, X + 3), module("mlp", 1.0, X, X + 3))
    held = {"mlp.0.w": own, "mlp.shared.up.w": first, "mlp.shared.down.w": last}
    b = recording([*b.tensors.values()], held)
    owners = {"mlp.0.w": "mlp.0"}
    b = replace(b, weights=tuple(replace(it, module=owners.get(it.name, "mlp")) for it in b.weights))
    assert {pair.b for pair in paired(a, b)} == {"mlp.0:input#0", "mlp.0:output#0"}
    alone = replace(b, weights=b.weights[1:])
    assert {pair.b for pair in paired(a, alone)} == {"mlp:input#0", "mlp:output#0"}


def test_a_module_that_computes_the_norm_behind_as_well_is_paired_with_the_norm() -> None:
    first, last = np.random.default_rng(1).normal(size=(2, 6, 6))
    calls = [module("q", 1.0, X, X + 1), module("o", 3.0, X @ first.T, X + 2), module("norm", 5.0, X + 2, X + 3)]
    a = of_modules(*calls, q__w=first, o__w=last, norm__g=X[0, 0])
    b = of_modules(module("layer", 1.0, X, X + 3), layer__q=first, layer__o=last, layer__g=X[0, 0])
    assert keys(paired(a, b)) == [
        ("q:input", "q:input#0", "layer:input#0"),
        ("norm", "norm:output#0", "layer:output#0"),
    ]


def test_a_lookup_that_has_the_name_of_a_module_is_another_pair() -> None:
    table = RANDOM.normal(size=(9, 6))
    a = recording([tensor("words", X, 1.0, ["word"]), tensor("words:output#0", X, 2.0)], {"words.w": table})
    b = recording([tensor("rows", X, 1.0, ["word"]), tensor("rows:output#0", X, 2.0)], {"rows.w": table})
    assert keys(paired(a, b)) == [
        ("words", "words", "rows"),
        ("words:output", "words:output#0", "rows:output#0"),
    ]


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("inputs_first", [False, True])
def test_permuted_features_are_put_in_the_order_of_the_reference(axis: int, inputs_first: bool) -> None:
    # a's matrix is (output, input), or (input, output); b's has another order along one of the two.
    w = RANDOM.normal(size=(6, 6))
    order = np.array([3, 0, 5, 1, 4, 2])
    y = X @ (w if inputs_first else w.T)
    outputs = (axis == 0) != inputs_first
    held = np.take(w, order, axis)
    x_b, y_b = (X, y[..., order]) if outputs else (X[..., order], y)
    bias = RANDOM.normal(size=6)
    a = of_modules(module("up", 1.0, X, y), up__w=w, up__b=bias)
    b = of_modules(module("up", 1.0, x_b, y_b), up__w=held, up__b=bias)
    first, last = paired(a, b)
    back = np.argsort(order)
    changed, kept = (last, first) if outputs else (first, last)
    assert kept.features_b is None
    assert changed.features_b is not None
    np.testing.assert_array_equal(changed.features_b, back)
    np.testing.assert_array_equal(last.in_b(y_b), y)
    np.testing.assert_array_equal(first.in_b(x_b), X)
    np.testing.assert_array_equal(changed.put_in_b(x_b * 0, y if outputs else X), y_b if outputs else x_b)


Q, K = RANDOM.normal(size=(2, 4, 6))


def test_parts_of_a_fused_projection_are_paired_by_features() -> None:
    q, k = X @ Q.T, X @ K.T
    fused = np.concatenate([q, k], -1)
    apart = of_modules(module("q", 1.0, X, q), module("k", 3.0, X, k), q__w=Q, k__w=K)
    together = of_modules(module("qk", 1.0, X, fused), qk__w=np.concatenate([Q, K]))
    pairs = {pair.name: pair for pair in paired(apart, together)}
    assert list(pairs) == ["q:input", "q", "k:input", "k"]
    np.testing.assert_array_equal(pairs["k"].in_b(fused), k)
    assert pairs["k"].features_a is None
    np.testing.assert_array_equal(pairs["q"].put_in_b(fused, 0 * q), np.concatenate([0 * q, k], -1))
    back = {pair.name: pair for pair in paired(together, apart)}
    assert list(back) == ["qk:input", "qk:input (2)", "qk[0:4]", "qk[4:8]"]
    assert [back[name].b for name in ("qk:input", "qk:input (2)")] == ["q:input#0", "k:input#0"]
    np.testing.assert_array_equal(back["qk[4:8]"].in_a(fused), k)
    assert back["qk[4:8]"].features_b is None
    assert back["qk[0:4]"].b == "q:output#0"


def test_a_matrix_that_is_split_by_its_inputs_has_parts_of_the_input_alone() -> None:
    matrix = RANDOM.normal(size=(6, 6))
    halves = matrix[:, :4], matrix[:, 4:]
    whole = of_modules(module("out", 1.0, X, X @ matrix.T), out__w=matrix)
    given = X[..., :4], X[..., 4:]
    calls = [
        module(f"rank{n}", 1.0 + 2 * n, x, x @ half.T) for n, (x, half) in enumerate(zip(given, halves, strict=True))
    ]
    ranks = of_modules(*calls, rank0__w=halves[0], rank1__w=halves[1])
    pairs = paired(whole, ranks)
    assert keys(pairs) == [
        ("out:input[0:4]", "out:input#0", "rank0:input#0"),
        ("out:input[4:6]", "out:input#0", "rank1:input#0"),
    ]
    for pair, part in zip(pairs, given, strict=True):
        np.testing.assert_array_equal(pair.in_a(X), part)
        np.testing.assert_array_equal(pair.in_b(part), part)
    back = {pair.name: pair for pair in paired(ranks, whole)}
    assert list(back) == ["rank0:input", "rank1:input"]
    np.testing.assert_array_equal(back["rank1:input"].put_in_b(X, 0 * given[1])[..., 4:], 0 * given[1])


def test_a_pair_holds_the_parts_of_its_tensor() -> None:
    whole, part = Pair("x", "x", "y"), Pair("x[0:2]", "x", "y", np.arange(2))
    assert whole.holds(part)
    assert whole.holds(Pair("x", "x", "z"))
    assert not part.holds(whole)
    assert not whole.holds(Pair("z", "z", "y", np.arange(2)))


def test_a_part_beyond_the_features_of_an_output_is_no_pair() -> None:
    apart = of_modules(module("q", 1.0, X, X @ Q.T), q__w=Q)
    short = of_modules(module("qk", 1.0, X, values(7)), qk__w=np.concatenate([K, Q]))
    assert [pair.name for pair in paired(apart, short)] == ["q:input"]
    assert [pair.name for pair in paired(short, apart)] == ["qk:input"]


def test_a_pair_is_reversed() -> None:
    pair = Pair("up", "x", "y", None, np.array([1, 0]), 3.0)
    back = pair.reversed
    assert (back.name, back.a, back.b, back.time) == ("up", "y", "x", 3.0)
    np.testing.assert_array_equal(back.in_a(np.array([5.0, 6.0])), [6, 5])
    np.testing.assert_array_equal(back.in_b(np.array([5.0, 6.0])), [5, 6])
    np.testing.assert_array_equal(pair.put_in_b(np.array([5.0, 6.0]), np.array([1.0, 2.0])), [2, 1])


@pytest.mark.parametrize(
    ("key", "name"),
    [("up:input#0", "up:input"), ("up:output#0", "up"), ("up:input#2", "up#2:input"), ("table", "table")],
)
def test_points_have_readable_names(key: str, name: str) -> None:
    assert name_of(tensor(key, X)) == name


def test_differences_are_relative_and_of_real_positions() -> None:
    first = np.zeros((2, 4, 2))
    first[0, 0] = 3.0, 4.0
    second = first.copy()
    second[1, 2, 1] = 2.5
    assert difference(first, second, REAL) == 0.5
    second[1, 3] = 1e9  # padding
    assert difference(first, second, REAL) == 0.5
    assert difference(np.full((1, 2, 2), 1.0), np.full((1, 2, 2), 1.5), REAL) == 0.5


def test_differences_from_zeros_and_of_broken_numbers_are_infinite() -> None:
    zeros = np.zeros((2, 4, 2))
    assert difference(zeros, zeros, REAL) == 0
    assert difference(zeros, zeros + 1e-9, REAL) == float("inf")
    broken = zeros.copy()
    broken[0, 1, 0] = np.nan
    assert difference(zeros, broken, REAL) == float("inf")
    assert difference(broken, zeros, REAL) == float("inf")
    assert difference(broken, broken.copy(), REAL) == 0
    padding = zeros.copy()
    padding[1, 3] = np.nan
    assert difference(zeros, padding, REAL) == 0


def test_nothing_in_common_is_no_pair() -> None:
    assert pair_points(recording([]), recording([]), Matching((), {}, (), ())) == []


def test_a_vector_of_another_module_does_not_make_a_module_composed() -> None:
    w, bias = RANDOM.normal(size=(6, 6)), RANDOM.normal(size=6)
    a = of_modules(module("up", 1.0, X, X), module("shift", 3.0, X, X), up__w=w, shift__b=bias)
    b = of_modules(module("dense", 1.0, X, X), dense__w=w, dense__b=bias)
    assert {pair.a for pair in paired(a, b)} >= {"up:input#0", "up:output#0"}


def test_modules_that_share_a_vector_and_return_other_tensors_are_no_pair() -> None:
    frequencies = RANDOM.normal(size=3)
    a = of_modules(module("rotary", 1.0, X, values(8)), rotary__frequencies=frequencies)
    b = of_modules(module("turn", 1.0, values(), values()), turn__frequencies=frequencies)
    assert paired(a, b) == []
    same = of_modules(module("norm", 1.0, X, values()), norm__gain=frequencies)
    assert [pair.name for pair in paired(same, same)] == ["norm:input", "norm"]


@pytest.mark.parametrize(("off", "wanted"), [(0.9e-2, True), (1.2e-2, False)])
def test_an_output_is_a_product_up_to_a_bias_and_a_hundredth(off: float, wanted: bool) -> None:
    y = X @ Q.T
    noise = values(4)
    noise -= noise.mean((0, 1))
    size = np.linalg.norm(y - y.mean((0, 1))) / np.linalg.norm(noise)
    assert is_product(X, Q, y + 7.0 + off * size * noise) is wanted
    assert not is_product(X, Q.T, y)
    assert not is_product(X[..., :3], Q, y)
    assert is_product(0 * X, Q, 0 * y + 3.0)


def test_pairs_are_in_the_order_of_the_pass_and_of_their_names() -> None:
    side = recording([tensor("b", X, 2.0), tensor("a", X, 1.0), tensor("c", X, 2.0)])
    order = [("z", "c", 2.0), ("y", "b", 2.0), ("x", "b", 2.0), ("w", "a", 1.0)]
    pairs = [Pair(name, key, str(number), time=time) for number, (name, key, time) in enumerate(order)]
    assert [pair.name for pair in in_order(pairs, side)] == ["w", "x", "y", "z"]


MATRIX, BIAS = RANDOM.normal(size=(6, 6)), RANDOM.normal(size=6)


def product(path: str, *, biased: bool) -> list[Tensor]:
    """Return the tensors at a product, with the bias of a module or without it."""
    return [tensor(f"{path}:input#0", X, 1.0), tensor(f"{path}:output#0", X @ MATRIX.T + (BIAS if biased else 0), 2.0)]


@pytest.mark.parametrize("bias", ["b.b", "other.bias"])
def test_a_bias_that_a_function_adds_belongs_to_the_pair(bias: str) -> None:
    a = recording(product("up", biased=True), {"up.weight": MATRIX, "up.bias": BIAS})
    b = replace(
        recording(product("w", biased=False)),
        weights=tuple(
            HeldWeight(name, module, values.shape, partial(np.asarray, values))
            for name, module, values in (("w", "w", MATRIX), (bias, "", BIAS))
        ),
    )
    for first, second in ((a, b), (b, a)):
        entry, output = paired(first, second)
        assert (entry.bias_a, entry.bias_b) == (None, None)
        values_a, values_b = (side.tensors[key].values for side, key in ((first, output.a), (second, output.b)))
        np.testing.assert_allclose(output.in_a(values_a), output.in_b(values_b))
        np.testing.assert_allclose(output.put_in_b(values_b, output.in_a(values_a)), values_b)
        np.testing.assert_allclose(output.reversed.put_in_b(values_a, output.in_b(values_b)), values_a)
        np.testing.assert_array_equal(output.gradients.put_in_b(values_b, values_a), values_a)


@pytest.mark.parametrize("heads", [False, True])
def test_a_bias_that_is_in_the_product_already_is_not_added(heads: bool) -> None:
    """A function that takes both returns their sum; a matrix may have its outputs last."""
    a = recording(product("up", biased=True), {"up.weight": MATRIX, "up.bias": BIAS})
    matrix = MATRIX.T.reshape(MATRIX.shape[1], 2, -1) if heads else MATRIX
    arrays = {("w", "w"): matrix, ("scale", "w"): np.ones(1), ("b", ""): BIAS}
    held = tuple(HeldWeight(*names, values.shape, partial(np.asarray, values)) for names, values in arrays.items())
    for biased in (True, False):
        _, output = paired(a, replace(recording(product("w", biased=biased)), weights=held))
        assert (output.bias_b is None) == biased


@pytest.mark.parametrize("biased", [False, True])
def test_a_bias_is_in_the_product_with_the_matrix_of_another_layer_as_well(biased: bool) -> None:
    a = recording(product("up.0", biased=True), {"up.0.weight": MATRIX, "up.0.bias": BIAS})
    others = RANDOM.normal(size=(6, 6)), RANDOM.normal(size=6)
    computed = X @ others[0].T + (others[1] if biased else 0)
    weights = {"w.0": MATRIX, "b.0": BIAS, "w.1": others[0], "b.1": others[1]}
    held = tuple(
        HeldWeight(it, it if it[0] == "w" else "", v.shape, partial(np.asarray, v)) for it, v in weights.items()
    )
    tensors = [tensor("w.0:input#0", X, 1.0), tensor("w.0:output#0", computed, 2.0)]
    _, output = paired(a, replace(recording(tensors), weights=held))
    assert (output.bias_b is None) == biased


def test_a_layer_whose_products_are_points_adds_its_biases_itself() -> None:
    """It is called too, and its bias by head has two axes."""
    a = recording(product("up", biased=True), {"up.weight": MATRIX, "up.bias": BIAS})
    layer = [tensor("layer:input#0", X, 0.5), *product("layer.w", biased=False), tensor("layer:output#0", X, 3.0)]
    held = tuple(
        HeldWeight(name, module, values.shape, partial(np.asarray, values))
        for name, module, values in (("layer.w", "layer.w", MATRIX), ("layer.b", "layer", BIAS.reshape(2, -1)))
    )
    b = replace(recording(layer), weights=held)
    for first, second in ((a, b), (b, a)):
        _, output = paired(first, second)
        assert {first.tensors[output.a].path, second.tensors[output.b].path} == {"up", "layer.w"}
        bias = output.bias_b if second is b else output.bias_a
        np.testing.assert_array_equal(bias, BIAS)


def test_a_bias_of_zeros_is_a_difference() -> None:
    a = recording(product("up", biased=True), {"up.weight": MATRIX, "up.bias": BIAS})
    held = (HeldWeight("w", "w", MATRIX.shape, lambda: MATRIX), HeldWeight("b", "", BIAS.shape, lambda: 0 * BIAS))
    b = replace(recording(product("w", biased=False)), weights=held)
    _, output = paired(a, b)
    np.testing.assert_array_equal(output.bias_b, 0 * BIAS)


def test_a_part_of_a_bias_belongs_to_the_part_of_a_fused_product() -> None:
    a = recording(product("up", biased=True), {"up.weight": MATRIX, "up.bias": BIAS})
    fused, biases = np.concatenate([MATRIX + 1, MATRIX]), np.concatenate([BIAS + 1, BIAS])
    tensors = [tensor("w:input#0", X, 1.0), tensor("w:output#0", X @ fused.T, 2.0)]
    held = (HeldWeight("w", "w", fused.shape, lambda: fused), HeldWeight("b", "", biases.shape, lambda: biases))
    _, output = paired(a, replace(recording(tensors), weights=held))
    np.testing.assert_allclose(output.in_b(tensors[1].values), a.tensors["up:output#0"].values)


def test_a_layer_that_computes_its_norms_itself_is_no_norm() -> None:
    norms = {f"{name}.gain": RANDOM.normal(size=6) for name in ("first", "second")}
    a = recording([tensor(f"{name}:output#0", values(), time) for time, name in enumerate(("first", "second"))], norms)
    b = recording([tensor("layer:output#0", values())], {f"layer.{name}": it for name, it in norms.items()})
    assert not paired(a, b)


def test_layers_are_counted_by_roles_or_else_by_weights() -> None:
    by_roles = recording([tensor(f"layer{number}", X, number, [f"layer.{number}"]) for number in range(3)])
    weights = tuple(HeldWeight(f"w{number}", "", (6,), lambda: BIAS, layer=number) for number in (0, 1, None))
    assert count_layers(replace(by_roles, weights=weights)) == 3
    assert count_layers(replace(recording([tensor("table", X)]), weights=weights)) == 2
    assert count_layers(recording([tensor("table", X)])) == 0
