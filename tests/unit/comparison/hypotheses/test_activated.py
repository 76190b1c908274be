"""A dense layer with its activation, of which one model has no point between the two, is explained by its weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from embgrad.comparison.hypotheses.product import Product
from embgrad.comparison.hypotheses.site import Before, Explanation, Site
from embgrad.comparison.weight_values import rounded
from tests.unit.comparison.hypotheses.modules import best, module_site

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(2, 5, 6))
W = RANDOM.normal(size=(6, 6)).astype(np.float32).astype(np.float64)
WIDE = RANDOM.normal(size=(8, 6))
BIAS = RANDOM.normal(size=6)
HELD = {"up.W": W, "up.b": BIAS}


def relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0)


def site(b: np.ndarray, held_b: Any = None, *, a: np.ndarray | None = None, w: np.ndarray = W, **further: Any) -> Site:
    """Return a site at the output of an activation, after the product and its input, which the reference alone has."""
    product = X @ w.T + BIAS[: len(w)] if len(w) <= 6 else X @ w.T
    before = {"up": product, "up:input": X}
    options = {"key": "act:output#0", "held_a": {**HELD, "up.W": w}, "held_b": held_b, "alone": ["up"], **further}
    return module_site(relu(product) if a is None else a, b, before, **options)


def explained(at: Site) -> Explanation:
    return best(at, Product().explain(at))


def test_the_layer_of_numbers_by_hand() -> None:
    # (1, -1) times the rows (2, 1) and (0, 3), plus (0, 4), is (1, 1); without the bias it is (1, -3), of which ReLU keeps 1.
    x = np.zeros((2, 5, 2))
    x[0, 0], x[0, 1], x[0, 2] = [1, -1], [1, 0], [0, 1]
    product = np.tile([0.0, 4.0], (2, 5, 1))
    product[0, 0], product[0, 1], product[0, 2] = [1, 1], [2, 4], [1, 7]
    b = np.zeros_like(x)
    b[0, 0], b[0, 1], b[0, 2] = [1, 0], [2, 0], [1, 3]
    weights = {"up.W": np.array([[2.0, 1.0], [0.0, 3.0]])}
    at = module_site(relu(product), b, {"up": product, "up:input": x}, key="act:output#0", held_a=weights, alone=["up"])
    found = explained(at)
    assert (found.cause, found.text) == ("missing-bias", "b adds no bias at up, and a does")
    assert found.values == ("added", "missing")
    assert found.inputs == ("up:input",)


@pytest.mark.parametrize("stored", [W, W.T], ids=["output, input", "input, output"])
def test_a_transposed_matrix_is_named(stored: np.ndarray) -> None:
    at = site(relu(X @ W + BIAS), held_a={**HELD, "up.W": stored})
    found = explained(at)
    assert (found.cause, found.text) == ("transposed-weight", "b uses up.W transposed")


WEIGHTS = {
    "scaled": (2 * W, "different-weight", "b has up.W times 2"),
    "rounded": (rounded(W, "bfloat16").astype(np.float64), "half-weights", "b has up.W rounded to bfloat16"),
    "other values": (
        W + 0.01 * RANDOM.normal(size=W.shape),
        "different-weight",
        "b has up.W with other values (relative",
    ),
}


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("matrix", "cause", "text"), WEIGHTS.values(), ids=WEIGHTS)
def test_another_matrix_is_named(matrix: np.ndarray, cause: str, text: str, transposed: bool) -> None:
    held = {"dense.W": matrix.T.copy() if transposed else matrix, "dense.b": BIAS}
    found = explained(site(relu(X @ matrix.T + BIAS), held))
    assert found.cause == cause
    assert found.text.startswith(text)
    assert found.values[0] == "a's own"


def test_another_matrix_and_another_bias_are_taken_together() -> None:
    held = {"up.W": 2 * W, "up.b": BIAS * np.array([1, 2, 3, -1, 5, 0])}
    at = site(relu(X @ held["up.W"].T + held["up.b"]), held)
    assert explained(at).text == "b has up.W times 2"


@pytest.mark.parametrize("function", [np.tanh, lambda x: x / (1 + np.exp(-x))], ids=["tanh", "SiLU"])
def test_any_known_activation_may_follow(function: Any) -> None:
    product = X @ W.T + BIAS
    found = explained(site(function(X @ W.T), a=function(product)))
    assert found.cause == "missing-bias"


def test_a_wide_matrix_is_not_transposed() -> None:
    assert not Product().explain(site(relu(X @ WIDE.T + 1), w=WIDE))


def test_a_bias_that_a_lacks_is_named_where_b_holds_it() -> None:
    options = {"a": relu(X @ W.T), "held_a": {"up.W": W}}
    held = {"dense.W": W, "dense.b": BIAS}
    at = site(relu(X @ W.T + BIAS), held, **options)
    at = replace(at, before=[Before("up", X @ W.T), *at.before[1:]])
    found = explained(at)
    assert (found.cause, found.text) == ("missing-bias", "b adds a bias at up, and a does not")
    other = site(relu(X @ W.T + BIAS), {**held, "dense.b": BIAS[::-1].copy()}, **options)
    other = replace(other, before=at.before)
    assert all(other.off(item.predicted) > 0.1 for item in Product().explain(other))


def test_equal_weights_explain_nothing_else() -> None:
    at = site(relu(X @ W.T * 3))
    assert {item.cause for item in Product().explain(at)} == {"missing-bias", "transposed-weight"}
    assert all(at.off(item.predicted) > 0.1 for item in Product().explain(at))


@pytest.mark.parametrize("a", [np.sin(X @ W.T), relu(X @ W.T) * X])
def test_what_is_no_known_layer_is_not_explained(a: np.ndarray) -> None:
    assert not Product().explain(site(relu(X), a=a))


def test_a_layer_without_weights_or_an_input_is_not_explained() -> None:
    product = X @ W.T + BIAS
    assert not Product().explain(site(relu(X), held_a={"up.b": BIAS}))
    assert not Product().explain(site(relu(X), held_a={"other.W": W}))
    at = module_site(relu(product), relu(X), {"up": product}, key="act:output#0", held_a=HELD)
    assert not Product().explain(at)
    assert not Product().explain(site(relu(X), held_a={"up.W": W.T @ W, "up.b": BIAS}))


@pytest.mark.parametrize("transposed", [False, True])
def test_another_wide_matrix_is_named(transposed: bool) -> None:
    held = {"dense.W": (1.5 * WIDE).T.copy() if transposed else 1.5 * WIDE}
    found = explained(site(relu(X @ (1.5 * WIDE).T), held, w=WIDE, held_a={"up.W": WIDE}))
    assert found.text == "b has up.W times 1.5"


@pytest.mark.parametrize(("others", "named"), [(5, True), (6, False)])
def test_the_product_is_among_the_six_nearest_tensors_of_its_shape(others: int, named: bool) -> None:
    product = X @ W.T + BIAS
    near = {f"t{number}": RANDOM.normal(size=X.shape) for number in range(others)}
    before = {**near, "wide": np.tile(X, 2), "up": product, "up:input": X}
    at = module_site(relu(product), relu(X @ W.T), before, key="act:output#0", held_a=HELD, alone=["up"])
    assert bool(Product().explain(at)) is named


def test_a_bias_that_hardly_counts_is_none() -> None:
    options = {"a": relu(X @ W.T + 0.9e-4), "held_a": {"up.W": W}}
    at = site(relu(X @ W.T + BIAS), {"dense.W": W, "dense.b": BIAS}, **options)
    at = replace(at, before=[Before("up", X @ W.T + 0.9e-4), *at.before[1:]])
    assert explained(at).values == ("missing", "added")
