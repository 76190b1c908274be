"""Weights of two models are matched by their values, in any layout and under any name."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from embgrad.comparison.recording import HeldWeight
from embgrad.comparison.weight_values import matrices_of, rounded
from embgrad.comparison.weights import Match, Matching, match_weights

RANDOM = np.random.default_rng(0)


def held(arrays: Mapping[str, np.ndarray]) -> list[HeldWeight]:
    """Return weights whose names may tell the layer, as "layers.1.up.W" does; they are called in order."""
    return [
        HeldWeight(
            name,
            name.rpartition(".")[0],
            values.shape,
            partial(np.asarray, values),
            time=(number + 1) / (len(arrays) + 1),
            layer=int(name.split(".")[1]) if name.startswith("layers.") else None,
        )
        for number, (name, values) in enumerate(arrays.items())
    ]


def matched(a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray]) -> Matching:
    return match_weights(held(a), held(b))


def single(a: np.ndarray, b: np.ndarray) -> Match:
    """Return the match of two weights."""
    matching = matched({"one.W": a}, {"two.W": b})
    assert (matching.alone_a, matching.alone_b, matching.parts) == ((), (), {})
    (match,) = matching.matches
    assert (match.a, match.b) == ("one.W", "two.W")
    return match


def numbers(*shape: int) -> np.ndarray:
    return RANDOM.normal(size=shape).astype(np.float32)


def names(matching: Matching) -> dict[str, str]:
    return {match.a: match.b for match in matching.matches}


def relations(matching: Matching) -> dict[str, str]:
    return {match.a: match.relation for match in matching.matches}


@pytest.mark.parametrize("shape", [(6,), (5, 6), (6, 6), (3, 4, 5)])
def test_equal_weights_are_matched_whatever_their_order(shape: tuple[int, ...]) -> None:
    weights = {f"w{number}": numbers(*shape) for number in range(5)}
    others = {f"v{number}": weights[f"w{number}"].copy() for number in (3, 1, 4, 0, 2)}
    matching = matched(weights, others)
    assert names(matching) == {f"w{number}": f"v{number}" for number in range(5)}
    assert [match.a for match in matching.matches] == list(weights)
    for match in matching.matches:
        assert (match.distance, match.relation, match.transposed, match.order) == (0, "equal", False, None)
        assert match.is_equal
        assert match.by_value
    assert matching.different == ()


def test_a_square_matrix_is_distinguished_from_its_transpose() -> None:
    matrix = numbers(5, 5)
    assert not single(matrix, matrix.copy()).transposed
    assert single(matrix, matrix.T.copy()).transposed


@pytest.mark.parametrize("axes", [*itertools.permutations(range(3))])
@pytest.mark.parametrize("split", ["outputs", "inputs"])
def test_a_matrix_cut_into_heads_is_its_partner(axes: tuple[int, int, int], split: str) -> None:
    matrix = numbers(12, 10)  # 12 is 3 heads of 4 features, or 10 is 2 heads of 5 features
    heads = matrix.reshape(3, 4, 10) if split == "outputs" else matrix.reshape(12, 2, 5)
    for a, b in ((matrix, heads.transpose(axes)), (heads.transpose(axes), matrix)):
        match = single(a, np.ascontiguousarray(b))
        assert match.distance == 0
        assert match.relation == "equal"


def test_axes_of_length_one_do_not_count() -> None:
    vector, matrix = numbers(7), numbers(4, 6)
    matching = matched({"a": vector, "b": matrix}, {"c": matrix.reshape(4, 1, 6), "d": vector.reshape(1, 1, 7)})
    assert names(matching) == {"a": "d", "b": "c"}
    assert matching.different == ()


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("axis", [0, 1])
def test_permuted_rows_and_columns_are_put_in_order(axis: int, transposed: bool) -> None:
    matrix = numbers(6, 8)
    order = RANDOM.permutation(matrix.shape[axis])
    moved = np.take(matrix, order, axis)
    match = single(matrix, np.ascontiguousarray(moved.T) if transposed else moved)
    assert match.distance == 0
    assert (match.axis, match.transposed) == (axis, transposed)
    assert match.order is not None
    np.testing.assert_array_equal(np.take(moved, match.order, axis), matrix)


def test_of_rows_that_are_too_short_or_too_few_the_numbers_alone_are_the_same() -> None:
    short, both, moved = numbers(6, 3), numbers(1, 6), "with the same numbers in another order"
    for values, other in ((short, short[::-1]), (both, both[:, ::-1])):
        match = single(values, other.copy())
        assert (match.relation, match.order, match.is_equal) == (moved, None, False)
        assert match.as_object == moved
        assert single(values, other + 1e-3 * numbers(*values.shape)).relation == "different"


def test_what_is_reshaped_in_place_of_turned_has_the_same_numbers() -> None:
    stored = numbers(16, 24)
    match = single(stored, stored.reshape(4, 24, 4))
    assert match.relation == "with the same numbers in another order"
    turned = stored.reshape(4, 4, 24).swapaxes(1, 2)
    assert single(stored, turned).is_equal


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rounding_is_named_with_the_side_that_is_rounded(dtype: str) -> None:
    matrix = numbers(9, 8)
    coarse = rounded(matrix, dtype)
    match = single(matrix, coarse)
    assert match.relation == f"rounded to {dtype} in b"
    assert match.as_object == f"rounded to {dtype}"
    assert 0 < match.distance < 1e-2
    assert not match.is_equal
    assert match.by_value
    assert single(coarse, matrix.T.copy()).relation == f"rounded to {dtype} in a"


def test_rounding_to_few_bits_is_named_where_the_weights_are_near() -> None:
    matrix = numbers(8, 512)
    step = np.abs(matrix).max(1, keepdims=True) / 7
    coarse = np.round(matrix / step) * step
    assert single(matrix, coarse).relation == "rounded to 4 bits in b"
    assert single(coarse, matrix).relation == "rounded to 4 bits in a"
    assert single(numbers(8, 512), coarse).relation == "different"


def test_rounding_is_to_the_nearest_even_number() -> None:
    # bfloat16 has eight significant bits: near 1 its steps are 2^-7, and 1 + 2^-8 lies halfway between two.
    values = np.array([1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, 1.5, -1 - 3 * 2**-8], np.float32)
    wanted = np.array([1, 1 + 2**-6, 1 + 2**-7, 1.5, -1 - 2**-6], np.float32)
    np.testing.assert_array_equal(rounded(values, "bfloat16"), wanted)
    np.testing.assert_array_equal(
        rounded(np.array([1 + 2**-11, 1e6, 0.1]), "float16"), np.array([1, np.inf, 0.0999755859375], np.float32)
    )


def test_a_slightly_different_weight_is_different() -> None:
    matrix = numbers(9, 8)
    match = single(matrix, matrix + 1e-3 * numbers(9, 8))
    assert match.relation == "different"
    assert match.by_value
    assert match.distance == pytest.approx(1e-3, rel=0.3)
    assert match.as_object == f"with other values (relative L2 {match.distance:.1e})"


@pytest.mark.parametrize(
    ("change", "relation"),
    [(lambda w: 8 * w, "times 8"), (lambda w: -w, "times -1"), (lambda w: w.T * 0.125, "times 0.125"),
        (lambda w: w + 1, "plus 1"), (lambda w: w - 0.5, "plus -0.5")],
)  # fmt: skip
def test_a_factor_and_a_summand_are_named(change: partial[np.ndarray], relation: str) -> None:
    matrix = numbers(6, 7)
    match = single(matrix, np.ascontiguousarray(change(matrix)))
    assert match.relation == relation
    assert match.as_object == relation
    assert not match.is_equal


def test_mostly_equal_rows_are_one_table() -> None:
    table = numbers(20, 5)
    changed = table.copy()
    changed[[2, 17]] = 3.0
    match = single(table, changed)
    assert match.relation == "different in 2 of 20 rows"
    assert match.by_value
    assert match.distance == pytest.approx(np.linalg.norm(changed - table) / np.linalg.norm(table))
    turned = single(table, changed.T.copy())
    assert (turned.relation, turned.transposed) == ("different in 2 of 20 rows", True)
    columns = table.copy()
    columns[:, 4] = 0
    assert single(table, columns).relation == "different in 1 of 5 rows"
    assert single(table.ravel(), changed.ravel()).relation == "different"  # which has no rows


def test_norms_of_ones_are_matched_by_their_place() -> None:
    matrices = {f"layers.{number}.up.W": numbers(4, 4) for number in range(3)}
    a, b = {}, {}
    for number in range(3):
        a |= {f"layers.{number}.norm.W": np.ones(4), f"layers.{number}.up.W": matrices[f"layers.{number}.up.W"]}
        b |= {
            f"layers.{number}.first.g": np.ones(4),
            f"layers.{number}.first.b": np.zeros(4),
            f"layers.{number}.dense.W": matrices[f"layers.{number}.up.W"].T,
        }
    matching = matched(a, b)
    wanted = {f"layers.{number}.norm.W": f"layers.{number}.first.g" for number in range(3)}
    assert wanted.items() <= names(matching).items()
    assert all(match.is_equal for match in matching.matches)
    assert matching.alone_b == tuple(f"layers.{number}.first.b" for number in range(3))


def test_constant_weights_of_a_module_belong_to_its_partner() -> None:
    matrix = numbers(4, 4)
    a = {"first.b": np.zeros(4), "up.W": matrix, "up.b": np.zeros(4)}
    b = {"kernel.W": matrix, "kernel.b": np.zeros(4), "norm.b": np.zeros(4)}
    assert names(matched(a, b)) == {"first.b": "norm.b", "up.W": "kernel.W", "up.b": "kernel.b"}
    del b["kernel.b"]
    assert names(matched(a, b)) == {"first.b": "norm.b", "up.W": "kernel.W"}
    assert matched(a, b).alone_a == ("up.b",)


def test_a_weight_of_another_layer_is_moved() -> None:
    first = {f"layers.{number}.up.W": numbers(5, 6) for number in range(4)}
    swapped = {**first, "layers.1.up.W": first["layers.2.up.W"], "layers.2.up.W": first["layers.1.up.W"]}
    matching = matched(first, swapped)
    assert names(matching) == {name: name for name in first}
    assert relations(matching) == {
        "layers.0.up.W": "equal",
        "layers.1.up.W": "equal to layers.2.up.W",
        "layers.2.up.W": "equal to layers.1.up.W",
        "layers.3.up.W": "equal",
    }
    assert [match.as_object for match in matching.different] == [
        "equal to a's layers.2.up.W",
        "equal to a's layers.1.up.W",
    ]


def test_layers_that_are_counted_otherwise_are_not_moved() -> None:
    first = {f"layers.{number}.up.W": numbers(5, 6) for number in range(4)}
    later = {f"layers.{number + 1}.up.W": first[f"layers.{number}.up.W"] for number in range(4)}
    matching = matched(first, later)
    assert names(matching) == {f"layers.{number}.up.W": f"layers.{number + 1}.up.W" for number in range(4)}
    assert matching.different == ()


@pytest.mark.parametrize(("zeroed", "relation"), [("b", "zeros in b"), ("a", "zeros in a")])
def test_zeros_are_named(zeroed: str, relation: str) -> None:
    full, empty = {"up.W": numbers(4, 5), "up.b": numbers(4)}, {"up.W": numbers(4, 5), "up.b": np.zeros(4)}
    empty["up.W"] = full["up.W"]
    matching = matched(full, empty) if zeroed == "b" else matched(empty, full)
    assert relations(matching) == {"up.W": "equal", "up.b": relation}
    (match,) = matching.different
    assert not match.by_value


def test_weights_of_other_sizes_have_no_partner() -> None:
    shared = numbers(4, 5)
    matching = matched({"x": shared, "only a": numbers(3)}, {"only b": numbers(2, 2), "y": shared})
    assert names(matching) == {"x": "y"}
    assert (matching.alone_a, matching.alone_b) == (("only a",), ("only b",))


def test_weights_of_equal_size_and_other_shape_are_said_so() -> None:
    match = single(numbers(4, 6), numbers(3, 8))
    assert match.relation == "of another shape"
    assert match.distance == float("inf")
    assert not match.by_value


def test_weights_that_are_all_different_are_paired_by_place() -> None:
    a = {f"layers.{number}.{part}.W": numbers(6, 5) for number in range(3) for part in ("up", "down")}
    b = {name.replace("layers", "layers"): numbers(6, 5) for name in a}
    matching = matched(a, b)
    assert names(matching) == {name: name for name in a}
    assert set(relations(matching).values()) == {"different"}
    assert not any(match.by_value for match in matching.matches)
    assert len(matching.different) == 6


def test_different_vectors_belong_to_the_modules_of_the_largest_weights() -> None:
    a, b = (
        {
            f"{name}.{end}": numbers(*shape)
            for name, rows in sizes.items()
            for end, shape in (("W", (rows, 5)), ("b", (5,)))
        }
        for sizes in ({"one": 6, "two": 7}, {"second": 7, "first": 6})
    )
    partners = {"one": "first", "two": "second"}
    assert names(matched(a, b)) == {f"{mine}.{end}": f"{its}.{end}" for mine, its in partners.items() for end in "Wb"}


def test_equal_weights_are_shared_by_the_nearest_in_time() -> None:
    weight = numbers(5, 6)
    a = {"early": weight, "middle": numbers(3, 3), "late": weight}
    b = {"first": weight, "second": a["middle"], "third": weight}
    assert names(matched(a, b)) == {"early": "first", "middle": "second", "late": "third"}
    less = matched(a, {"first": weight, "second": a["middle"]})
    assert names(less) == {"early": "first", "middle": "second"}
    assert less.alone_a == ("late",)


def test_no_weights_match_nothing() -> None:
    matching = matched({}, {"x": numbers(3)})
    assert (matching.matches, matching.parts, matching.alone_a, matching.alone_b) == ((), {}, (), ("x",))


def test_matrices_of_three_axes_are_all_their_cuts() -> None:
    values = np.arange(24).reshape(2, 3, 4)
    shapes = [matrix.shape for matrix in matrices_of(values)]
    assert shapes == [
        (2, 12),
        (6, 4),
        (2, 12),
        (8, 3),
        (3, 8),
        (6, 4),
        (3, 8),
        (12, 2),
        (4, 6),
        (8, 3),
        (4, 6),
        (12, 2),
    ]
    (row,) = matrices_of(np.arange(3))
    assert row.tolist() == [[0, 1, 2]]
    (number,) = matrices_of(np.array(5.0))
    assert number.shape == (1, 1)
    assert [matrix.shape for matrix in matrices_of(np.zeros((2, 2, 2, 3)))] == [(2, 12), (4, 6), (8, 3), *[(12, 2)] * 3]


def test_thousands_of_weights_are_matched() -> None:
    random = np.random.default_rng(5)
    a = {f"layers.{n // 8}.{n % 8}.W": random.normal(size=(8, 16)) for n in range(600)}
    a |= {f"layers.{n // 8}.{n % 8}.b": np.zeros(16) for n in range(600)}
    order: Sequence[int] = random.permutation(len(a)).tolist()
    items = list(a.items())
    b = {items[number][0]: items[number][1].T.copy() for number in order}
    matching = matched(a, b)
    assert all(match.is_equal for match in matching.matches)
    wide = {name: name for name in a if name.endswith(".W")}
    assert {mine: its for mine, its in names(matching).items() if mine in wide} == wide


def test_constant_weights_of_other_layers_do_not_belong_together() -> None:
    shared = {"layers.2.up.W": numbers(3, 4)}
    matching = matched({"layers.0.norm.W": np.ones(4), **shared}, {"layers.1.norm.W": np.ones(4), **shared})
    assert names(matching) == {"layers.2.up.W": "layers.2.up.W"}
    assert (matching.alone_a, matching.alone_b) == (("layers.0.norm.W",), ("layers.1.norm.W",))


def test_a_weight_with_a_zero_is_not_zeros() -> None:
    holed = numbers(4, 6)
    holed[1, 2] = 0
    assert single(numbers(4, 6), holed).relation == "different"
    assert single(holed, numbers(4, 6)).relation == "different"


def test_three_numbers_do_not_show_a_factor() -> None:
    assert single(np.array([1.0, 2.0, 4.0]), np.array([2.0, 4.0, 8.0])).relation == "different"


def test_a_weight_with_nan_belongs_to_the_weight_with_its_other_rows() -> None:
    values = RANDOM.normal(size=(6, 5))
    broken = values.copy()
    broken[2, 0] = np.nan
    assert single(values, broken).relation == "different in 1 of 6 rows"


def test_a_bias_by_head_is_the_same_bias() -> None:
    bias = numbers(12)
    assert single(bias, bias.reshape(3, 4)).is_equal
    assert single(bias.reshape(3, 4), bias).is_equal


@pytest.mark.parametrize("missing", [0, 1, 3])
def test_a_layer_that_b_lacks_has_no_partner_and_the_others_keep_theirs(missing: int) -> None:
    """Norms of ones alone are told apart by their layer, which has another number in b."""
    own = [numbers(6, 4) for _ in range(4)]
    a = {
        name: values
        for layer in range(4)
        for name, values in ((f"layers.{layer}.up.W", own[layer]), (f"layers.{layer}.norm.gain", np.ones(4)))
    }
    kept = [layer for layer in range(4) if layer != missing]
    b = {
        name.replace(f"layers.{layer}.", f"layers.{number}."): a[name]
        for number, layer in enumerate(kept)
        for name in a
        if name.startswith(f"layers.{layer}.")
    }
    matching = matched(a, b)
    assert matching.alone_a == (f"layers.{missing}.up.W", f"layers.{missing}.norm.gain")
    assert matching.alone_b == ()
    assert {(match.a.split(".")[1], match.b.split(".")[1]) for match in matching.matches} == {
        (str(layer), str(number)) for number, layer in enumerate(kept)
    }
    assert all(match.is_equal for match in matching.matches)


def test_a_weight_that_b_holds_twice_is_equal_to_that_of_the_other_layer() -> None:
    """The vectors of one size belong to the partners of their matrices, and to those of the same name."""
    first, second = ({"up.W": numbers(6, 6), "up.b": numbers(6), "down.W": numbers(6, 6)} for _ in range(2))
    a = {f"layers.{n}.{name}": values for n, layer in enumerate((first, second)) for name, values in layer.items()}
    b = {f"layers.{n}.{name}": values for n in range(2) for name, values in first.items()}
    matching = matched(a, b)
    assert all(name == other for name, other in names(matching).items())
    wanted = {f"layers.1.{name}": f"equal to layers.0.{name}" for name in second}
    assert {name: relation for name, relation in relations(matching).items() if relation != "equal"} == wanted


def test_a_vector_beside_several_products_belongs_to_the_partner_of_its_name() -> None:
    """A module that computes two products itself holds their biases."""
    mine, its = {"layers.0.up.W": numbers(6, 6)}, {}
    mine |= {"layers.0.up.b": numbers(6), "layers.0.value.b": numbers(6), "layers.1.up.b": numbers(6)}
    its = {"layers.0.up": numbers(6, 6), "layers.0.b": mine["layers.1.up.b"], "layers.1.b": mine["layers.1.up.b"]}
    product, *vectors = held(its)
    b = [replace(product, module="layers.0.up"), *(replace(it, module=it.name.removesuffix(".b")) for it in vectors)]
    found = {match.a: (match.b, match.relation) for match in match_weights(held(mine), b).matches}
    assert found["layers.0.up.b"] == ("layers.0.b", "equal to layers.1.up.b")


def test_layers_that_are_shifted_by_one_are_moved_unless_they_are_counted_from_one() -> None:
    layers = [numbers(6, 6) for _ in range(4)]
    a = {f"layers.{n}.up.W": layer for n, layer in enumerate(layers)}
    shifted = {f"layers.{n}.up.W": layers[max(n - 1, 0)] for n in range(4)}
    wanted = {f"layers.{n}.up.W": f"equal to layers.{n - 1}.up.W" for n in range(1, 4)}
    assert relations(matched(a, shifted)) == {"layers.0.up.W": "equal", **wanted}
    from_one = {f"layers.{n + 1}.up.W": layer for n, layer in enumerate(layers)}
    assert set(relations(matched(a, from_one)).values()) == {"equal"}
