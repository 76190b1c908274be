"""Matrices and rows of weights are compared by their values, up to the limits within which two are versions of one."""

from __future__ import annotations

import numpy as np
import pytest

from embgrad.comparison.recording import HeldWeight
from embgrad.comparison.weight_matches import summaries_of
from embgrad.comparison.weight_places import _Places, _strayed, at_one_place, moved
from embgrad.comparison.weight_values import (
    bits_of,
    distance_of,
    exact_distance,
    index_of_rows,
    is_distinct,
    keys_of_rows,
    layouts,
    nearest_of,
    order_of_rows,
    oriented,
    parts_of,
    quantised,
    quantised_in_one,
    rounded,
    roundings,
)
from embgrad.comparison.weights import Match, Matching, match_weights

RANDOM = np.random.default_rng(0)
MATRIX = RANDOM.normal(size=(6, 5))


def test_the_nearest_of_sorted_keys() -> None:
    keys = np.array([0.0, 1.0, 3.0])
    assert nearest_of(keys, np.array([-5.0, 0.4, 0.6, 1.9, 2.1, 9.0])).tolist() == [0, 0, 1, 1, 2, 2]
    assert nearest_of(np.array([2.0]), np.array([1.0, 3.0])).tolist() == [0, 0]


def test_layouts_are_all_ways_in_which_two_shapes_are_equal() -> None:
    square = RANDOM.normal(size=(3, 3))
    assert [(turned, its[0, 1] == square[0, 1]) for turned, _, its in layouts(square, square)] == [
        (False, True),
        (True, False),
    ]
    vector = np.arange(4.0)
    assert [(turned, mine.shape, its.shape) for turned, mine, its in layouts(vector, vector)] == [
        (False, (1, 4), (1, 4))
    ]
    heads = MATRIX.reshape(2, 3, 5)
    assert any(np.array_equal(mine, its) for turned, mine, its in layouts(MATRIX, heads) if not turned)
    assert list(layouts(MATRIX, MATRIX[:5])) == []


@pytest.mark.parametrize(("rows", "columns", "wanted"), [(2, 4, True), (1, 4, False), (2, 3, False)])
def test_two_rows_of_four_numbers_show_an_order(rows: int, columns: int, wanted: bool) -> None:
    matrix = RANDOM.normal(size=(rows, columns))
    order = order_of_rows(matrix, matrix[::-1])
    assert (order is not None) is wanted
    if order is not None:
        assert order.tolist() == [1, 0]


def test_rows_that_are_nearly_the_same_have_an_order() -> None:
    order = np.array([3, 0, 5, 1, 2, 4])
    for off, wanted in ((0.9e-4, True), (2e-4, False)):
        found = order_of_rows(MATRIX[order] * (1 + off), MATRIX)
        assert (found is not None) is wanted
        if found is not None:
            assert found.tolist() == order.tolist()
    keys = keys_of_rows(MATRIX)
    twisted = MATRIX[order].copy()
    direction = RANDOM.normal(size=5)
    weights = np.cos(1.0 + np.arange(5))
    twisted[0] += 3 * (direction - weights * (direction @ weights) / (weights @ weights))
    assert np.allclose(np.sort(keys_of_rows(twisted)), np.sort(keys))
    assert order_of_rows(twisted, MATRIX) is None  # the keys are equal, and a row is another


def test_rows_to_be_recognised_are_long_and_several() -> None:
    assert [matrix.shape for matrix in oriented(MATRIX)] == [(6, 5), (5, 6)]
    assert [matrix.shape for matrix in oriented(RANDOM.normal(size=(2, 3, 4)))] == [(2, 12), (6, 4), (4, 6)]
    assert list(oriented(np.ones((6, 5)))) == []
    assert [matrix.shape for matrix in oriented(RANDOM.normal(size=(4, 3)))] == [(3, 4)]
    assert list(oriented(RANDOM.normal(size=9))) == []


def test_large_weights_are_compared_by_a_sample_where_they_are_far_apart() -> None:
    x = RANDOM.normal(size=4096)
    far = x.copy()
    far[1::2] += 10  # every second number is compared first
    assert distance_of(x, far) == exact_distance(x, far)
    far[::2] += 1.0
    sampled = distance_of(x, far)
    assert sampled == exact_distance(x[::2], far[::2])
    assert sampled < exact_distance(x, far)
    near = x.copy()
    near[::2] *= 1.09
    assert distance_of(x, near) == exact_distance(x, near)
    small = RANDOM.normal(size=2048)
    assert distance_of(small, -small) == 2.0
    assert distance_of(x, x.copy()) == 0.0


def test_distances_from_zeros_are_zero_or_one() -> None:
    zeros = np.zeros(3)
    assert (exact_distance(zeros, zeros), exact_distance(zeros, zeros + 9), exact_distance(zeros + 2, zeros)) == (
        0,
        1,
        1,
    )


@pytest.mark.parametrize(("change", "distinct"), [(0.9e-3, False), (1.1e-3, True)])
def test_entries_are_distinct_that_differ_by_a_thousandth(change: float, distinct: bool) -> None:
    assert is_distinct(np.array([-2.0, -2.0 + 2 * change])) is distinct


def found(values: np.ndarray, others: dict[str, np.ndarray]) -> list[tuple[str, list[int], list[int]]]:
    parts = parts_of(values, index_of_rows(others.items()))
    return [(part.name, part.rows.tolist(), part.others.tolist()) for part in parts]


def test_rows_are_found_in_the_weights_that_hold_them() -> None:
    whole = RANDOM.normal(size=(10, 5))
    others = {"q": whole[:4], "k": whole[[7, 5]]}
    assert found(whole, others) == [("q", [0, 1, 2, 3], [0, 1, 2, 3]), ("k", [5, 7], [1, 0])]
    assert found(RANDOM.normal(size=(10, 5)), others) == []
    assert found(RANDOM.normal(size=(10, 7)), others) == []


@pytest.mark.parametrize(("rows", "equal", "wanted"), [(10, 2, True), (11, 2, False), (4, 1, False)])
def test_a_fifth_of_the_rows_and_at_least_two_show_a_part(rows: int, equal: int, wanted: bool) -> None:
    whole = RANDOM.normal(size=(rows, 5))
    assert bool(found(whole, {"q": np.concatenate([whole[:equal], RANDOM.normal(size=(3, 5))])})) is wanted


@pytest.mark.parametrize(("off", "wanted"), [(0.5e-5, True), (4e-5, False)])
def test_rows_are_equal_up_to_their_keys_rounding(off: float, wanted: bool) -> None:
    whole = RANDOM.normal(size=(3, 5))
    weights = np.cos(1.0 + np.arange(5))
    change = off * np.linalg.norm(whole, axis=1)[:, None] * weights / (weights @ weights)
    assert bool(found(whole, {"q": whole + change})) is wanted


def weight(name: str, values: np.ndarray, time: float = 0.5, layer: int | None = None) -> HeldWeight:
    return HeldWeight(name, name.rpartition(".")[0], values.shape, lambda: values, time, layer)


def test_sums_of_two_weights_differ_by_the_larger_share() -> None:
    first, second = summaries_of([weight("a", np.array([3.0, -1.0])), weight("b", np.array([2.0, 2.0]))])
    assert (first.number, first.size, first.magnitude, first.power) == (0, 2, 4.0, 10.0)
    assert first.distance(second) == second.distance(first) == pytest.approx(0.2)
    zero, tiny = summaries_of([weight("a", np.zeros(2)), weight("b", np.array([1e-40, 0.0]))])
    assert zero.distance(zero) == 0
    assert zero.distance(tiny) == pytest.approx(1e-10)


@pytest.mark.parametrize(("factor", "matched"), [(1.009, True), (1.011, False)])
def test_sums_of_versions_are_alike_within_two_hundredths(factor: float, matched: bool) -> None:
    """The sum of squares differs by twice as much as the sum of magnitudes."""
    values = RANDOM.normal(size=(6, 6))
    other = values * factor
    (match,) = match_weights([weight("a", values)], [weight("b", other)]).matches
    assert match.relation == ("different" if matched else f"times {factor:.6g}")


@pytest.mark.parametrize(("rows", "relations"), [(4, ["different in 4 of 10 rows"]), (5, [])])
def test_most_rows_are_more_than_half(rows: int, relations: list[str]) -> None:
    values = RANDOM.normal(size=(10, 6))
    other = values.copy()
    other[:rows] *= -3
    matching = match_weights([weight("a", values)], [weight("b", other)])
    assert [match.relation for match in matching.matches] == relations
    assert bool(matching.parts) is (not relations)  # half of the rows are a part


@pytest.mark.parametrize(
    ("factor", "shift", "off", "relation"),
    [(8.0, 0.0, 0.9e-5, "times 8"), (8.0, 0.0, 1.2e-5, "different"), (1.0, 2.0, 0.9e-5, "plus 2"),
        (1.0, 2.0, 1.2e-5, "different")],
)  # fmt: skip
def test_a_multiple_and_a_sum_are_ones_up_to_rounding(factor: float, shift: float, off: float, relation: str) -> None:
    values = RANDOM.normal(size=(6, 6))
    noise = RANDOM.normal(size=(6, 6))
    noise -= noise.mean() if shift else values * (noise * values).sum() / (values**2).sum()
    other = factor * values + shift
    other += off * noise * np.linalg.norm(other) / np.linalg.norm(noise)
    (match,) = match_weights([weight("a", values)], [weight("b", other)]).matches
    assert match.relation == relation


def test_a_match_is_an_object_of_a_sentence() -> None:
    assert Match("a", "b", 0.25, relation="different").as_object == "with other values (relative L2 2.5e-01)"
    assert Match("a", "b", 0.25, relation="rounded to float16 in b").as_object == "rounded to float16"
    assert Match("a", "b", 0.25, relation="equal to next").as_object == "equal to a's next"
    equal, off = Match("a", "b", 1e-6), Match("a", "b", 1.1e-6)
    assert (equal.is_equal, off.is_equal) == (True, False)
    assert Matching((equal, off), {}, (), ()).different == (off,)


def test_weights_belong_together_by_their_modules_their_layers_and_their_times() -> None:
    one, two = np.ones(2), np.ones(3)
    a = [weight("up.W", one, 0.2), weight("up.b", two, 0.25), weight("mid.b", two, 0.5, 0), weight("end.W", one, 0.8)]
    b = [weight("fc.W", one, 0.3), weight("fc.b", two, 0.45), weight("mi.b", two, 0.5, 1), weight("ed.W", one, 0.9)]
    places = _Places([Match("up.W", "fc.W", 0.0), Match("end.W", "ed.W", 0.0)], a, b)
    assert places.distance(a[1], b[1]) == pytest.approx(-0.8)  # of partners, behind one another
    assert places.distance(a[1], b[2]) is None
    assert places.distance(a[2], b[1]) is None
    assert places.distance(a[2], b[2]) is None  # of another layer
    free = weight("new.b", two, 0.5)
    assert places.distance(free, b[2]) == pytest.approx(0.1)  # 0.5 lies halfway between 0.2 and 0.8, as 0.6 does in b
    assert places.distance(weight("new.b", two, 0.1), weight("x.b", two, 0.1)) == pytest.approx(0.05)
    assert places.distance(weight("new.b", two, 0.9), weight("x.b", two, 0.95)) == pytest.approx(0.0)


def layered(count: int, layers: list[int | None]) -> list[HeldWeight]:
    return [weight(f"m{number}.W", np.ones(2), 0.1 * number, layers[number]) for number in range(count)]


def pairs(*others: int) -> list[Match]:
    """Return the matches of weights with those of b by their numbers."""
    return [Match(f"m{number}.W", f"m{other}.W", 0.0) for number, other in enumerate(others)]


@pytest.mark.parametrize(
    ("others", "wanted"),
    [
        ((0, 1, 2, 3), {}),
        ((0, 2, 1, 3), {"m1.W": "m2.W", "m2.W": "m1.W"}),
        ((1, 2, 0, 3), {"m0.W": "m1.W", "m1.W": "m2.W", "m2.W": "m0.W"}),  # layers in another order
    ],
)
def test_weights_are_moved_where_few_lie_in_another_layer(others: tuple[int, ...], wanted: dict[str, str]) -> None:
    side = layered(4, [0, 1, 2, 3])
    assert moved(pairs(*others), side, side) == wanted


def test_outside_of_layers_weights_are_moved_where_all_names_are_the_same() -> None:
    side = layered(4, [None] * 4)
    assert moved(pairs(0, 2, 1, 3), side, side) == {"m1.W": "m2.W", "m2.W": "m1.W"}
    renamed = [*side[:3], weight("last.W", np.ones(2))]
    matches = [*pairs(0, 2, 1), Match("m3.W", "last.W", 0.0)]
    assert moved(matches, side, renamed) == {}
    half = layered(4, [0, None, 2, 3])
    assert moved(pairs(0, 2, 1, 3), half, half) == {}  # of pairs with one layer nothing is known


def owned(**shapes: tuple[int, ...]) -> list[HeldWeight]:
    return [weight(name.replace("__", "."), np.ones(shape)) for name, shape in shapes.items()]


def test_weights_stray_where_two_modules_exchange_them_and_keep_their_largest() -> None:
    a = owned(up__W=(4, 4), up__b=(4,), down__W=(4, 4), down__b=(4,))
    b = owned(fc1__W=(4, 4), fc1__b=(4,), fc2__W=(4, 4), fc2__b=(4,))

    def strayed(*others: str) -> dict[str, str]:
        return _strayed([Match(first.name, other, 0.0) for first, other in zip(a, others, strict=True)], a, b)

    assert strayed("fc1.W", "fc1.b", "fc2.W", "fc2.b") == {}
    assert strayed("fc1.W", "fc2.b", "fc2.W", "fc1.b") == {"up.b": "fc2.b", "down.b": "fc1.b"}
    assert strayed("fc2.W", "fc2.b", "fc1.W", "fc1.b") == {}
    short = [*a[:3], weight("down.b", np.ones(3))]
    matches = [
        Match(first.name, other, 0.0) for first, other in zip(short, ("fc1.W", "fc2.b", "fc2.W", "fc1.b"), strict=True)
    ]
    assert _strayed(matches, short, b) == {}  # of other sizes they are not exchanged


def test_weightsat_one_place_are_described() -> None:
    one, two = weight("a.W", MATRIX), weight("b.W", MATRIX)
    equal = at_one_place(one, two, {})
    assert (equal.relation, equal.distance, equal.by_value) == ("equal", 0.0, True)
    other = weight("b.W", MATRIX + 1)
    found = at_one_place(one, other, {})
    assert (found.relation, found.by_value, found.transposed) == ("different", False, False)
    assert found.distance == pytest.approx(30**0.5 / np.linalg.norm(MATRIX))
    assert at_one_place(one, other, {"b.W": "c.W"}).relation == "equal to c.W"
    assert at_one_place(one, weight("b.W", 0 * MATRIX), {}).relation == "zeros in b"
    assert at_one_place(weight("a.W", 0 * MATRIX), two, {}).relation == "zeros in a"
    turned = at_one_place(one, weight("b.W", MATRIX.T.copy()), {})
    assert (turned.transposed, turned.relation, turned.by_value) == (True, "equal", True)
    shape = at_one_place(one, weight("b.W", np.ones((3, 10))), {})
    assert (shape.relation, shape.distance, shape.by_value) == ("of another shape", float("inf"), False)


def test_of_equal_weights_the_nearest_in_time_are_matched_once() -> None:
    values = MATRIX.copy()
    a = [weight("a.W", values, 0.2), weight("b.W", values, 0.8)]
    b = [weight("x.W", values, 0.9), weight("y.W", values, 0.3)]
    matching = match_weights(a, b)
    assert [(match.a, match.b) for match in matching.matches] == [("a.W", "y.W"), ("b.W", "x.W")]
    single = match_weights(a, b[:1])
    assert ([(match.a, match.b) for match in single.matches], single.alone_a) == ([("a.W", "x.W")], ("b.W",))


def test_sixty_four_candidates_are_compared() -> None:
    """All have the same sums, so that the nearest in time come first."""
    random = np.random.default_rng(3)
    values = random.normal(size=(8, 8))
    others = [weight(f"b{number}.W", random.permuted(values), 0.5) for number in range(64)]
    last = weight("last.W", values, 0.9)
    (match,) = match_weights([weight("a.W", values)], [*others[:63], last]).matches
    assert match.b == "last.W"
    matching = match_weights([weight("a.W", values)], [*others, last])
    assert (matching.matches, matching.parts["a.W"][0].name) == ((), "last.W")  # its rows are found all the same


def test_rows_of_a_large_model_are_not_equal_by_chance() -> None:
    table = RANDOM.normal(size=(100_000, 8)).astype(np.float32)
    assert found(RANDOM.normal(size=(200, 8)).astype(np.float32), {"table": table}) == []


def stored(matrix: np.ndarray, bits: int, block: int, *, lowest: bool = False) -> np.ndarray:
    """Return a matrix whose blocks are rounded to multiples of a step, from zero or from the lowest entry."""
    groups = matrix.reshape(-1, block)
    start = groups.min(1, keepdims=True) if lowest else np.zeros((len(groups), 1))
    steps = 2**bits - 1 if lowest else 2 ** (bits - 1) - 1
    step = np.abs(groups - start).max(1, keepdims=True) / steps
    return (start + np.rint((groups - start) / step) * step).reshape(matrix.shape).astype(np.float32)


WIDE = np.random.default_rng(4).normal(size=(6, 384)).astype(np.float32)


@pytest.mark.parametrize(
    ("matrix", "wanted"),
    [
        (stored(WIDE, 8, 384), 8),
        (stored(WIDE, 8, 32), 8),
        (stored(WIDE, 8, 64), 8),
        (stored(WIDE, 8, 384, lowest=True), 8),
        (stored(WIDE.T.copy(), 8, 6 * 384).T, 8),
        (stored(WIDE, 4, 64), 4),
        (stored(WIDE, 4, 32, lowest=True), 4),
        (np.sign(WIDE), 2),
        (np.vstack([stored(WIDE[:5], 8, 384), 0 * WIDE[5:]]), 8),
        (np.vstack([stored(WIDE[:5], 8, 32), 0 * WIDE[5:]]), 8),
        (stored(WIDE[:, :32].copy(), 8, 6 * 32), 8),
        (stored(WIDE, 8, 384)[:, :16][:1], None),
        (WIDE, None),
        (WIDE[:, :256], None),  # no more entries in a row than eight bits have values
        (rounded(WIDE, "bfloat16"), None),
        (np.vstack([stored(WIDE[:5], 8, 384), WIDE[5:]]), None),
    ],
)
def test_the_bits_to_which_a_matrix_is_quantised(matrix: np.ndarray, wanted: int | None) -> None:
    assert bits_of(matrix) == wanted


def test_numbers_are_quantised_by_blocks() -> None:
    values = np.array([[127.0, 63.6, -2.2, 0.4, 0.254, -0.0031, 0.0, 0.0]])
    np.testing.assert_allclose(quantised(values, 4), [[127, 64, -2, 0, 0.254, -0.004, 0, 0]])
    np.testing.assert_allclose(quantised(values, 8), [[127, 64, -2, 0, 0, 0, 0, 0]])
    assert not quantised(np.zeros((2, 4)), 2).any()


def test_numbers_are_quantised_in_one_from_the_least_to_the_largest() -> None:
    np.testing.assert_allclose(quantised_in_one(np.array([[127.0, -128.0], [3.4, -0.6]])), [[127, -128], [3, -1]])
    np.testing.assert_allclose(quantised_in_one(np.array([[25.5, 10.04]])), [[25.5, 10]])
    np.testing.assert_allclose(quantised_in_one(np.array([[-25.5, -10.04]])), [[-25.5, -10]])
    assert not quantised_in_one(np.zeros((2, 4))).any()


def test_inputs_are_quantised_in_blocks_that_divide_them() -> None:
    assert [text for text, _ in roundings(64)] == ["8 bits in blocks of 32", "8 bits", "8 bits with one step for all"]
    assert [text for text, _ in roundings(48)] == ["8 bits", "8 bits with one step for all"]
