"""Another weight, bias, layout or scale of a product is found by its values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from embgrad.comparison.hypotheses.product import Product, _cap, _order_of_features, cause_of
from embgrad.comparison.hypotheses.site import Explanation, Site
from embgrad.comparison.recording import Tensor
from embgrad.comparison.sites import Pair
from embgrad.comparison.weight_values import quantised, quantised_in_one, rounded
from embgrad.comparison.weights import Match, Matching
from tests.unit.comparison.hypotheses.modules import REAL, best, module_site

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(2, 5, 6))
SQUARE, WIDE = RANDOM.normal(size=(6, 6)), RANDOM.normal(size=(4, 6))
BIAS, GAIN = RANDOM.normal(size=(2, 6))


def site(a: np.ndarray, b: np.ndarray, **further: Any) -> Site:
    return module_site(a, b, {"up:input": X}, **{"held_a": {"up.W": SQUARE, "up.b": BIAS}, **further})


def explained(at: Site) -> Explanation:
    return best(at, Product().explain(at))


A = X @ SQUARE.T + BIAS
LINEAR = X @ SQUARE.T


def test_the_product_of_numbers_by_hand() -> None:
    # (1, 2) times the rows (3, 4) and (5, 6) is 11 and 17; times its columns it is 13 and 16.
    x = np.zeros((2, 5, 2))
    x[0, :3] = [1, 2], [0, 1], [1, 0]
    a, b = np.zeros_like(x), np.zeros_like(x)
    a[0, :3], b[0, :3] = ([11, 17], [4, 6], [3, 5]), ([13, 16], [5, 6], [3, 4])
    at = module_site(a, b, {"up:input": x}, held_a={"up.W": np.array([[3.0, 4.0], [5.0, 6.0]])})
    found = explained(at)
    assert (found.cause, found.text) == ("transposed-weight", "b uses up.W transposed")


@pytest.mark.parametrize("stored", ["output, input", "input, output"])
def test_the_matrix_may_be_stored_in_either_order(stored: str) -> None:
    weights = {"up.W": SQUARE if stored == "output, input" else SQUARE.T, "up.b": BIAS}
    found = explained(site(A, X @ SQUARE + BIAS, held_a=weights))
    assert (found.cause, found.values) == ("transposed-weight", ("as stored", "transposed"))


BIASES = {
    "missing in b": (A, LINEAR, "missing-bias", "b adds no bias at up, and a does"),
    "missing in a": (LINEAR, A, "missing-bias", "b adds a bias at up, and a does not"),
}


@pytest.mark.parametrize(("a", "b", "cause", "text"), BIASES.values(), ids=BIASES)
def test_another_bias_is_named(a: np.ndarray, b: np.ndarray, cause: str, text: str) -> None:
    found = explained(site(a, b))
    assert (found.cause, found.text, found.setting) == (cause, text, "the bias of up")


def test_a_module_that_returns_what_one_inside_of_it_returns_is_a_product() -> None:
    own = [Tensor("up:output#0", "up", "output", 0, (), 1.0, A)]
    held = {"up.W": SQUARE, "up.b": BIAS, "wrap.scale": GAIN}
    before = {"wrap:input": 2 * X, "up:input": X}
    at = module_site(A, LINEAR, before, key="wrap:output#0", held_a=held, others=own)
    assert explained(at).cause == "missing-bias"
    other = [replace(own[0], values=2 * A)]
    assert Product().explain(module_site(A, LINEAR, before, key="wrap:output#0", held_a=held, others=other)) == []


def test_another_bias_that_a_weight_holds_is_named_by_the_weight() -> None:
    other, down = BIAS[::-1] * np.array([0, 1, 1, 1, 1, 1]), RANDOM.normal(size=(6, 6))
    b = LINEAR + other
    for further in ({}, {"up.scale": GAIN}):  # which both have
        mine, its = ({"up.W": SQUARE, "up.b": bias, **further} for bias in (BIAS, other))
        found = explained(site(A, b, held_a=mine, held_b=its))
        assert found.cause == "different-weight"
        assert found.text.startswith("b has up.b with other values")
    held_a = {"up.W": SQUARE, "up.b": BIAS, "down.W": down, "down.b": other}
    held_b = {"first.W": SQUARE, "first.b": other, "second.W": down, "second.b": BIAS}
    found = explained(site(A, b, held_a=held_a, held_b=held_b))
    assert (found.cause, found.text) == ("swapped-weights", "b has up.b equal to a's down.b")


def test_another_bias_is_silent_where_b_holds_the_same_bias() -> None:
    at = site(A, LINEAR + BIAS[::-1])
    assert not [item for item in Product().explain(at) if at.off(item.predicted) <= 0.01]


def test_a_matrix_with_an_axis_of_heads_in_another_order_is_permuted() -> None:
    """The matrix equals a's in a layout that b does not use, with the bias in order."""
    inside = SQUARE.T.reshape(6, 2, 3).swapaxes(1, 2).reshape(6, 3, 2)
    b = X @ inside.reshape(6, 6) + BIAS
    found = explained(site(A, b, held_b={"up.W": inside, "up.b": BIAS.reshape(3, 2)}))
    assert (found.cause, found.text) == ("permuted-weight", "b has up.W in another order")


def test_another_matrix_with_another_bias_by_head_is_named() -> None:
    other, bias = RANDOM.normal(size=(6, 2, 3)), RANDOM.normal(size=(2, 3))
    b = X @ other.reshape(6, 6) + bias.ravel()
    assert explained(site(A, b, held_b={"up.W": other, "up.b": bias})).cause == "different-weight"


@pytest.mark.parametrize("permuted", [True, False])
def test_a_matrix_whose_rows_b_permutes_without_the_bias_is_permuted(permuted: bool) -> None:
    order = np.array([2, 0, 1, 5, 4, 3])
    b = X @ SQUARE[order].T + BIAS
    at = site(A, b, held_b={"up.W": SQUARE[order] if permuted else SQUARE, "up.b": BIAS})
    named = [item.cause for item in Product().explain(at) if at.off(item.predicted) < 1e-6]
    assert named == (["permuted-weight"] if permuted else [])


WEIGHTS = {
    "different": (
        SQUARE + 0.1 * RANDOM.normal(size=(6, 6)),
        "different-weight",
        "b has up.W with other values (relative",
    ),
    "scaled": (1.5 * SQUARE, "different-weight", "b has up.W times 1.5"),
    "rounded": (rounded(SQUARE, "float16").astype(np.float64), "half-weights", "b has up.W rounded to float16"),
    "zeros": (0 * SQUARE, "different-weight", "b has up.W zeros"),
}


@pytest.mark.parametrize(("matrix", "cause", "text"), WEIGHTS.values(), ids=WEIGHTS)
def test_another_matrix_is_named(matrix: np.ndarray, cause: str, text: str) -> None:
    first = SQUARE.astype(np.float32).astype(np.float64)
    held_a, held_b = ({"up.W": held, "up.b": BIAS} for held in (first, matrix))
    at = site(X @ first.T + BIAS, X @ matrix.T + BIAS, held_a=held_a, held_b=held_b)
    found = explained(at)
    assert found.cause == cause
    assert found.text.startswith(text)
    assert found.setting == "up.W"


def test_a_matrix_of_another_layer_is_named() -> None:
    second = RANDOM.normal(size=(6, 6))
    at = site(LINEAR, X @ second.T, held_a={"up.W": SQUARE}, held_b={"up.W": second})
    match = Match("up.W", "up.W", 1.0, relation="equal to layers.1.up.W")
    found = explained(replace(at, matching=Matching((match,), {}, (), ())))
    assert (found.cause, found.text) == ("swapped-weights", "b has up.W equal to a's layers.1.up.W")
    assert found.values == ("a's own", "equal to layers.1.up.W")


LAYERS = {
    f"layers.{n}.up.{kind}": RANDOM.normal(size=shape) for n in range(3) for kind, shape in (("W", (6, 6)), ("b", 6))
}


@pytest.mark.parametrize("other", [0, 2])
def test_a_matrix_of_another_layer_that_b_uses_is_named_though_b_holds_the_same_weights(other: int) -> None:
    def computed(layer: int) -> np.ndarray:
        return X @ LAYERS[f"layers.{layer}.up.W"].T + LAYERS[f"layers.{layer}.up.b"]

    options = {"key": "layers.1.up:output#0", "held_a": {**LAYERS, "layers.2.other.W": SQUARE}}
    at = module_site(computed(1), computed(other), {"layers.1.up:input": X}, **options)
    found = explained(at)
    text = f"b has layers.1.up.W equal to a's layers.{other}.up.W"
    assert (found.cause, found.text) == ("swapped-weights", text)
    parts = {f"layers.{n}.all.W": np.concatenate([LAYERS[f"layers.{n}.up.W"], SQUARE + n]) for n in range(3)}
    at = module_site(computed(1), computed(other), {"layers.1.up:input": X}, **options, held_b=parts)
    assert not at.matching.matches
    assert explained(at).text == text, "a part of a fused matrix"
    at = module_site(computed(1), X @ SQUARE.T, {"layers.1.up:input": X}, **options)
    assert not any("equal to" in each.text for each in Product().explain(at)), "a weight of another kind"


@pytest.mark.parametrize(
    ("relation", "cause"),
    [("rounded to float16 in b", "half-weights"), ("equal to down.W", "swapped-weights"),
        ("different", "different-weight"), ("times 8", "different-weight")],
)  # fmt: skip
def test_relations_of_weights_are_causes(relation: str, cause: str) -> None:
    assert cause_of(Match("a", "b", 1.0, relation=relation)) == cause


@pytest.mark.parametrize(
    ("size", "further"),
    [
        (None, ""),
        (32, ", and rounds what it multiplies with to 8 bits in blocks of 32"),
        (64, ", and rounds what it multiplies with to 8 bits"),
        (0, ", and rounds what it multiplies with to 8 bits with one step for all"),
    ],
)
def test_products_of_numbers_of_8_bits_are_named(size: int | None, further: str) -> None:
    x, matrix = np.random.default_rng(1).normal(size=(2, 5, 64)), np.random.default_rng(2).normal(size=(6, 64))
    held = quantised(matrix, 64)
    rounded_x = x if size is None else quantised(x, size) if size else quantised_in_one(x)
    at = module_site(x @ matrix.T, rounded_x @ held.T, {"up:input": x}, held_a={"up.W": matrix}, held_b={"up.W": held})
    match = Match("up.W", "up.W", 0.01, relation="rounded to 8 bits in b")
    found = explained(replace(at, matching=Matching((match,), {}, (), ())))
    assert (found.cause, found.text) == ("half-weights", f"b has up.W rounded to 8 bits{further}")


def test_outputs_in_another_order_are_named() -> None:
    order = [2, 0, 1, 5, 3, 4]
    found = explained(site(A, A[..., order]))
    assert (found.cause, found.text) == ("permuted-weight", "b has the outputs of up in another order")


def test_two_tokens_do_not_show_an_order() -> None:
    real = np.zeros((2, 5), bool)
    real[0, :2] = True
    at = site(A, A[..., [2, 0, 1, 5, 3, 4]], real=real)
    assert all(item.cause != "permuted-weight" for item in Product().explain(at))


def test_a_multiple_of_the_output_is_named() -> None:
    found = explained(site(A, A * -0.25))
    assert (found.cause, found.text) == ("logit-scale", "the output of up is multiplied by 1 in a and -0.25 in b")


def test_a_multiple_of_the_matrix_alone_is_named() -> None:
    found = explained(site(A, LINEAR * 2 + BIAS))
    assert (found.cause, found.text) == ("different-weight", "up.W is multiplied by 1 in a and 2 in b")


FACTORS, OFFSETS = 1 + 0.1 * RANDOM.normal(size=6), 0.1 * RANDOM.normal(size=6)
ROWS = {
    "a factor of its own": (FACTORS, 0 * OFFSETS),
    "a number added to it": (1 + 0 * FACTORS, OFFSETS),
    "a factor of its own and a number added to it": (FACTORS, OFFSETS),
}


@pytest.mark.parametrize("text", ROWS)
@pytest.mark.parametrize("positions", [7, 8])
def test_other_scales_of_the_rows_are_named_where_there_are_enough_tokens(text: str, positions: int) -> None:
    factors, offsets = ROWS[text]
    x = RANDOM.normal(size=(2, positions, 6))
    b = x @ (SQUARE * factors[:, None] + offsets[:, None]).T + BIAS
    held = {"held_a": {"up.W": SQUARE, "up.b": BIAS}, "real": np.ones((2, positions), bool)}
    at = module_site(x @ SQUARE.T + BIAS, b, {"up:input": x}, **held)
    if positions == 8:
        sentence = f"each row of up.W has {text} in b, as with other scales or zero points of few bits"
        assert (explained(at).cause, explained(at).text) == ("different-weight", sentence)
    else:
        assert not any("few bits" in found.text for found in Product().explain(at))


def test_what_a_projection_returns_has_no_cap() -> None:
    capped = replace(site(A, CAP * np.tanh(A / CAP)), layer=0)
    assert all(item.cause != "logit-cap" for item in Product().explain(capped))


CAP = 3.0


def capped(x: np.ndarray, cap: float = CAP) -> np.ndarray:
    return np.asarray(cap * np.tanh(x / cap))


CAPS = {
    "in b": (A, capped(A), ("no cap", "the cap 3")),
    "in a": (LINEAR, None, ("the cap 3", "no cap")),
    "another": (LINEAR, capped(LINEAR, 5), ("the cap 3", "the cap 5")),
}


@pytest.mark.parametrize(("product", "b", "values"), CAPS.values(), ids=CAPS)
def test_caps_are_named(product: np.ndarray, b: np.ndarray | None, values: tuple[str, str]) -> None:
    a = product if values[0] == "no cap" else capped(product)
    found = explained(site(a, product if b is None else b))
    assert (found.cause, found.values) == ("logit-cap", values)
    assert found.text == f"the output of up has {values[0]} in a and {values[1]} in b"


TABLE = RANDOM.normal(size=(9, 6))


def head(a: np.ndarray, b: np.ndarray, **further: Any) -> Site:
    """Return a site at the model's output, which has no module, after a hidden state and a lookup of a table."""
    options = {"key": "output", "held_a": {"table.W": TABLE}, "roles": {"table": ["word"]}, **further}
    return module_site(a, b, {"norm": X, "table": X * 0 + 1}, **options)


def test_a_head_that_shares_the_table_is_a_product_with_it() -> None:
    logits = X @ TABLE.T
    found = explained(head(logits, logits * 0.5))
    assert found.cause == "logit-scale"
    assert found.inputs == ("norm",)


def test_a_head_that_holds_the_table_in_half_precision_is_named() -> None:
    half = TABLE.astype(np.float16).astype(np.float32)
    found = explained(head(X @ TABLE.T, X @ half.T, held_b={"words.W": TABLE, "lm_head.W": half}))
    assert found.cause == "half-weights"
    assert found.text == "b multiplies by lm_head.W, which is table.W rounded to float16"


def test_a_table_that_cannot_lead_to_an_output_is_not_read() -> None:
    """A table of a trained model is large, and a norm's output, which has the table's width, is no product with it."""
    at = head(X @ SQUARE.T, X)

    def unread() -> np.ndarray:
        raise AssertionError("the table is read")

    first = at.recordings[0]
    weights = tuple(replace(weight, get=unread) for weight in first.weights if weight.name == "table.W")
    assert [weight.shape for weight in weights] == [(9, 6)]
    assert Product().explain(replace(at, recordings=(replace(first, weights=weights), at.recordings[1]))) == []


def test_a_head_that_should_share_the_table_is_named() -> None:
    other = RANDOM.normal(size=(9, 6))
    at = head(X @ TABLE.T, X @ other.T, held_b={"words.W": TABLE, "lm_head.W": other})
    found = explained(at)
    assert (found.cause, found.values) == ("head-untied", ("table.W", "lm_head.W"))
    assert found.text == "b multiplies by lm_head.W, which equals no weight of a, where a multiplies by table.W"


def test_a_head_that_holds_the_table_as_a_weight_of_its_own_is_named() -> None:
    table, head = RANDOM.normal(size=(2, 6, 6))
    lookup = Tensor("table", "table", None, 0, ("word",), 0.0, X)
    own = {"table.W": table, "up.W": head}
    given = {"held_a": own, "others": [lookup]}
    found = explained(module_site(X @ head.T, X @ table.T, {"up:input": X}, held_b={**own, "up.W": table}, **given))
    assert (found.cause, found.text) == ("head-untied", "b has up.W equal to a's table.W")
    found = explained(module_site(X @ head.T, X @ table.T, {"up:input": X}, **given))
    text = "b multiplies by table.W, which is table.W of a, where a multiplies by up.W"
    assert (found.cause, found.text) == ("head-untied", text), "b holds a's head as well"


def test_a_head_that_a_does_not_share_is_named() -> None:
    other = RANDOM.normal(size=(9, 6))
    at = head(
        X @ other.T,
        X @ TABLE.T,
        held_a={"table.W": TABLE, "lm_head.W": other},
        held_b={"words.W": TABLE},
        roles={"table": ["word"]},
    )
    tables = {"words": Tensor("words", "words", None, 0, ("word",), 0.0, X), **at.recordings[1].tensors}
    at = replace(at, recordings=(at.recordings[0], replace(at.recordings[1], tensors=tables)))
    found = explained(at)
    assert (found.cause, found.values) == ("head-untied", ("lm_head.W", "words.W"))
    assert found.text == "a multiplies by lm_head.W, which equals no weight of b, where b multiplies by words.W"


def test_a_head_whose_output_a_multiplies_is_named() -> None:
    found = explained(head(0.125 * X @ TABLE.T, X @ TABLE.T))
    assert (found.cause, found.text) == ("logit-scale", "the output of output is multiplied by 0.125 in a and 1 in b")
    assert explained(head(2 * X @ TABLE.T, 3 * X @ TABLE.T)).values == ("2", "3")


def test_a_part_of_a_fused_product_is_explained_by_its_rows() -> None:
    rows = np.array([4, 5, 1])
    b = A.copy()
    b[..., rows] -= BIAS[rows]
    pair = Pair("up[some]", "up:output#0", "up:output#0", rows, rows)
    at = site(A, b, pair=pair)
    found = explained(replace(at, a=at.a[..., rows], b=at.b[..., rows]))
    assert found.text == "b adds no bias at up, and a does"
    assert found.predicted.shape == (2, 5, 3)


def test_padding_does_not_count() -> None:
    a, b = A.copy(), LINEAR.copy()
    a[1, 3:], b[1, 3:] = 55.0, -3.0
    at = site(a, b)
    assert (
        next(item.text for item in Product().explain(at) if at.off(item.predicted) < 1e-6) == BIASES["missing in b"][3]
    )


@pytest.mark.parametrize("a", [np.tanh(A), A * X, X[..., ::-1], A + RANDOM.normal(size=A.shape)])
def test_what_is_no_product_is_not_explained(a: np.ndarray) -> None:
    assert not Product().explain(site(a, LINEAR))


def test_a_module_without_a_matrix_or_an_input_is_no_product() -> None:
    assert not Product().explain(site(A, LINEAR, held_a={"up.b": BIAS}))
    assert not Product().explain(module_site(A, LINEAR, {"norm": X}, held_a={"up.W": SQUARE}))
    assert not Product().explain(site(X @ WIDE.T, X @ WIDE.T + 1, held_a={"up.W": SQUARE}))


def test_a_wide_matrix_is_not_transposed() -> None:
    a = X @ WIDE.T
    at = site(a, a + 1, held_a={"up.W": WIDE})
    assert all(item.cause != "transposed-weight" for item in Product().explain(at))
    assert explained(at).text == "b adds a bias at up, and a does not"


def test_a_part_of_a_wider_output_of_b_is_explained_by_the_rows_of_its_weight() -> None:
    rows = np.arange(6, 12)
    whole = np.concatenate([RANDOM.normal(size=(6, 6)), 1.5 * SQUARE])
    b = X @ whole.T
    at = site(LINEAR, b, held_b={"both.W": whole}, pair=Pair("up", "up:output#0", "up:output#0", None, rows))
    match = Match("up.W", "both.W", 1.0, relation="different")
    found = explained(replace(at, b=at.b[..., rows], matching=Matching((match,), {}, (), ())))
    assert found.cause == "different-weight"


def test_outputs_in_the_same_order_are_not_permuted() -> None:
    for b in (LINEAR, A):
        assert all(item.cause != "permuted-weight" for item in Product().explain(site(A, b)))


def test_a_head_with_a_bias_of_its_own_shares_the_table() -> None:
    bias, logits = RANDOM.normal(size=9), X @ TABLE.T
    at = module_site(
        logits + bias,
        logits,
        {"head:input": X, "table": X * 0 + 1},
        key="head:output#0",
        held_a={"table.W": TABLE, "head.b": bias},
        roles={"table": ["word"]},
    )
    assert explained(at).text == "b adds no bias at head, and a does"


@pytest.mark.parametrize("cap", [0.5, 3.0, 40.0])
def test_the_cap_is_that_of_the_largest_output(cap: float) -> None:
    found = _cap(A, capped(A, cap))
    assert found == pytest.approx(cap, rel=1e-9)


def test_what_is_not_smaller_has_no_cap() -> None:
    assert _cap(A, A) is None
    assert _cap(A, A * (1 - 0.9e-6)) is None
    assert _cap(A, A * (1 - 1.1e-6)) is not None
    assert _cap(A, 2 * A) is None
    assert _cap(A, 0 * A) is None


def test_a_small_change_of_a_large_output_is_within_the_bounds_of_a_cap() -> None:
    found = _cap(np.array([[3.0]]), np.array([[3.0 * (1 - 2e-6)]]))
    assert found is not None
    assert found * np.tanh(3.0 / found) == pytest.approx(3.0 * (1 - 2e-6), rel=1e-12)


def test_the_order_of_features_is_that_of_b() -> None:
    order = np.array([2, 0, 1, 5, 3, 4])
    rows = A.reshape(-1, 6)
    np.testing.assert_array_equal(_order_of_features(rows, rows[:, order]), order)
    assert _order_of_features(rows, rows) is None
    assert _order_of_features(rows, rows[:, order] * (1 + 0.9e-4)) is not None
    assert _order_of_features(rows, rows[:, order] * (1 + 1.1e-4)) is None


@pytest.mark.parametrize(("off", "named"), [(0.9e-4, True), (1.2e-4, False)])
def test_a_product_reproduces_the_output_nearly(off: float, named: bool) -> None:
    noise = RANDOM.normal(size=A.shape)
    noise -= noise[REAL].mean(0)
    near = LINEAR + off * noise * np.linalg.norm(LINEAR[REAL]) / np.linalg.norm(noise[REAL])
    assert bool(Product().explain(site(near, 2 * A, held_a={"up.W": SQUARE}))) is named


def test_zeros_are_multiplied_by_nothing() -> None:
    at = site(0 * A, 0 * A + 1, held_a={"up.W": 0 * SQUARE})
    texts = [item.text for item in Product().explain(at)]
    assert "the output of up is multiplied by 1 in a and 0 in b" in texts


def test_another_bias_that_no_weight_holds_is_said() -> None:
    held = {"up.W": SQUARE, "up.b": BIAS}
    at = site(A, LINEAR + 2 * BIAS, held_b={"up.W": SQUARE, "up.b": BIAS[::-1].copy()}, held_a=held)
    found = explained(at)
    assert (found.cause, found.text) == ("different-weight", "b adds another bias at up")
    assert found.values == ("a's own", "different")


def test_a_tiny_bias_is_none() -> None:
    tiny = 1e-6 * BIAS
    found = explained(site(LINEAR, A))
    assert found.values == ("missing", "added")
    at = site(A, LINEAR + tiny)
    assert [item.values for item in Product().explain(at) if item.cause == "missing-bias"] == [("added", "missing")]


def test_a_product_of_what_a_norm_is_given_lacks_the_norm() -> None:
    normed = X / np.sqrt((X**2).mean(-1, keepdims=True))
    weights = {"up.W": SQUARE, "norm.g": np.ones(6)}
    at = module_site(
        normed @ SQUARE.T, X @ SQUARE.T, {"up:input": normed, "norm": normed, "norm:input": X}, held_a=weights
    )
    found = explained(at)
    assert (found.cause, found.text) == ("missing-norm", "b lacks the norm norm")
    assert found.compute is not None
    np.testing.assert_allclose(found.compute({"norm:input": X}.__getitem__), at.b)
