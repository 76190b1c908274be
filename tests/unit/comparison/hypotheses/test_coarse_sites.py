"""Where outputs are rounded to half precision, causes are named up to that, and figures have the digits that can be known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from embgrad.comparison.hypotheses.activation import ActivationFunction
from embgrad.comparison.hypotheses.combination import Combination
from embgrad.comparison.hypotheses.explain import explain
from embgrad.comparison.hypotheses.functions import ACTIVATIONS, of_no_kind
from embgrad.comparison.hypotheses.gate import Gate
from embgrad.comparison.hypotheses.held_vector import HeldVector
from embgrad.comparison.hypotheses.norm import Norm
from embgrad.comparison.hypotheses.norm_fit import Parameters, norm_with_vectors
from embgrad.comparison.hypotheses.site import NEAR
from embgrad.comparison.weight_values import rounded
from tests.unit.comparison.hypotheses.modules import module_site
from tests.unit.comparison.hypotheses.normed import GAIN, SHIFT, SIZE, ZERO, X, norm, site

#: What rounding to bfloat16 may cause.
COARSE = 0.016

RANDOM = np.random.default_rng(7)


def coarse(values: np.ndarray) -> np.ndarray:
    """Return values rounded to bfloat16."""
    return rounded(values, "bfloat16").astype(np.float64)


@pytest.mark.parametrize(("floor", "near"), [(1e-7, NEAR), (COARSE, COARSE)])
def test_outputs_are_reproduced_up_to_rounding(floor: float, near: float) -> None:
    assert site(X, 2 * X, X, floor=floor).near == near


def test_of_a_small_difference_a_quarter_may_be_left() -> None:
    assert site(X, 1.02 * X, X, floor=COARSE).near == pytest.approx(0.005, rel=0.03)


@pytest.mark.parametrize(("floor", "text"), [(1e-7, "0.265165"), (COARSE, "0.265")])
def test_figures_have_the_digits_that_can_be_known(floor: float, text: str) -> None:
    assert site(X, 2 * X, X, floor=floor).text_of(0.265165) == text


def test_a_missing_norm_is_not_one_with_a_large_epsilon() -> None:
    found = explain(site(norm(X, 1e-5), coarse(X), X, floor=COARSE))
    assert found is not None
    assert found.text == "b lacks the norm norm"


def test_another_epsilon_is_named() -> None:
    found = explain(site(norm(X, 1e-5), coarse(norm(X, 0.5)), X, floor=COARSE, declared=({}, {"epsilon": 0.5})))
    assert found is not None
    assert found.text == "epsilon 1e-05 in a and 0.5 in b"


@pytest.mark.parametrize("epsilon", [1e-12, 1e-6])
def test_of_epsilons_that_rounding_to_single_precision_hides_the_usual_one_is_fitted(epsilon: float) -> None:
    rows = X.reshape(-1, SIZE)
    outputs = Parameters(True, epsilon, GAIN, SHIFT).apply(rows).astype(np.float32).astype(np.float64)
    found = norm_with_vectors([GAIN, SHIFT], rows, outputs, None)
    assert found is not None
    assert found.epsilon == epsilon


def test_a_norm_times_a_number_is_no_norm_with_other_weights() -> None:
    found = explain(site(norm(X, 1e-5), norm(X, 1e-5) / 8, X))
    assert found is not None
    assert found.text == "b applies the norm norm times 0.125"


def linear(matrix: np.ndarray, bias: np.ndarray = ZERO) -> np.ndarray:
    return X @ matrix.T + bias


def product_site(a: np.ndarray, b: np.ndarray, matrix: np.ndarray, **further: Any) -> Any:
    held = {"up.weight": matrix, "up.bias": SHIFT}
    other = {"up.weight": coarse(matrix), "up.bias": coarse(SHIFT)}
    return module_site(a, coarse(b), {"up:input": X}, held_a=held, held_b=other, floor=COARSE, **further)


def test_a_bias_that_b_lacks_is_named() -> None:
    matrix = RANDOM.normal(size=(SIZE, SIZE))
    found = explain(product_site(linear(matrix, SHIFT), linear(coarse(matrix)), matrix))
    assert found is not None
    assert found.text == "b adds no bias at up, and a does"


def test_a_transposed_matrix_is_named_beside_its_rounding() -> None:
    matrix = RANDOM.normal(size=(SIZE, SIZE))
    found = explain(product_site(linear(matrix, SHIFT), linear(coarse(matrix).T, SHIFT), matrix))
    assert found is not None
    assert (found.cause, found.text) == ("transposed-weight", "b uses up.weight transposed and rounded to bfloat16")


@pytest.mark.parametrize(
    ("factor", "cause", "text"),
    [
        (0.0, "missing-residual", "one is added in a and left out in b"),
        (0.5, "residual-scale", "one is multiplied by 1 in a and 0.5 in b"),
    ],
)
def test_a_term_that_b_changes_is_named(factor: float, cause: str, text: str) -> None:
    other = RANDOM.normal(size=X.shape)
    at = module_site(X + other, coarse(coarse(X) * factor + other), {"one": X, "two": other}, floor=COARSE)
    found = next(iter(Combination().explain(at)))
    assert (found.cause, found.text) == (cause, text)


@pytest.mark.parametrize("is_gated", [True, False])
def test_two_kinds_of_gelu_that_rounding_hides_from_each_other_have_one_name(is_gated: bool) -> None:
    gelu, silu = (next(it for it in ACTIVATIONS if it.name.startswith(name)) for name in ("GELU by the tanh", "SiLU"))
    other = RANDOM.normal(size=X.shape) if is_gated else np.ones_like(X)
    before = {"gate": X, "up": other} if is_gated else {"gate": X}
    at = module_site(silu.apply(X) * other, coarse(gelu.apply(X) * other), before, floor=COARSE)
    found = (Gate() if is_gated else ActivationFunction()).explain(at)
    assert [it.text for it in found] == ["the activation is SiLU in a and GELU in b"]
    exact = module_site(silu.apply(X) * other, gelu.apply(X) * other, before)
    found = (Gate() if is_gated else ActivationFunction()).explain(exact)
    assert found[0].text == "the activation is SiLU in a and GELU by the tanh approximation in b"


def test_rows_that_b_rounds_are_recognised() -> None:
    table = RANDOM.normal(size=(9, SIZE))
    rows = np.array([[0, 1, 2, 3, 4], [0, 1, 2, 3, 4]])
    held, other = {"positions.W": table}, {"positions.W": coarse(table)}
    roles = {"positions": ["position"]}
    at = module_site(
        table[rows], coarse(table[rows + 2]), {}, key="positions", held_a=held, held_b=other, roles=roles, floor=COARSE
    )
    found = explain(at)
    assert found is not None
    assert (found.cause, found.values) == ("position-ids-offset", ("0", "2"))


def test_a_module_without_weights_is_no_norm() -> None:
    few = coarse(X / 10)  # so small that tanh is nearly linear, as a norm with a large epsilon is
    at = module_site(coarse(np.tanh(few)), few / 2, {"up:input": few}, floor=COARSE)
    assert Norm().explain(at) == []


def test_only_kinds_of_gelu_have_a_name_together() -> None:
    exact, approximate, other = (ACTIVATIONS[number] for number in (1, 2, 0))
    both = of_no_kind(other, [exact, approximate])
    assert both is not None
    assert (both.name, other.name) == ("GELU", "SiLU")
    assert of_no_kind(ACTIVATIONS[-1], [exact, other]) is of_no_kind(ACTIVATIONS[-1], [other, exact]) is None
    assert of_no_kind(exact, [exact, approximate]) is None


@pytest.mark.parametrize("is_gated", [True, False])
def test_a_kind_of_gelu_that_rounding_does_not_hide_is_named_beside_one_that_it_does(is_gated: bool) -> None:
    logistic, gelu = (
        next(it for it in ACTIVATIONS if it.name.startswith(f"GELU by the {name}")) for name in ("log", "tanh")
    )
    other = RANDOM.normal(size=X.shape) if is_gated else np.ones_like(X)
    wide = 2 * X
    before = {"gate": wide, "up": other} if is_gated else {"gate": wide}
    at = module_site(logistic.apply(wide) * other, coarse(gelu.apply(wide) * other), before, floor=COARSE)
    found = (Gate() if is_gated else ActivationFunction()).explain(at)
    assert [it.text for it in found] == ["the activation is GELU by the logistic approximation in a and GELU in b"]


def test_an_epsilon_that_rounding_hides_is_not_taken_for_another_kind() -> None:
    rows = 3 * (X - X.mean(-1, keepdims=True)).reshape(-1, SIZE) + 1e-8
    hidden = norm_with_vectors([GAIN, SHIFT], rows, Parameters(False, 1e-8, GAIN, SHIFT).apply(rows), None)
    assert hidden is not None
    assert (hidden.centred, hidden.epsilon) == (False, 1e-12)


def test_terms_are_found_up_to_rounding() -> None:
    other, noise = RANDOM.normal(size=X.shape), RANDOM.normal(size=X.shape) * 0.002
    a, b = 1.003 * X + other + noise, 1.003 * other + 0.002 * X + noise
    found = Combination().explain(module_site(a, b, {"one": X, "two": other}, floor=COARSE))
    assert [it.text for it in found] == ["one is added in a and left out in b"]


def test_a_missing_norm_is_all_that_is_said() -> None:
    few = coarse(X / 20)  # of numbers as small a norm with an epsilon of 1 is a product with its gains
    at = site(norm(few, 1e-5), coarse(few), few, floor=COARSE)
    assert [it.text for it in Norm().explain(at)] == ["b lacks the norm norm"]


@pytest.mark.parametrize("is_gated", [True, False])
def test_a_kind_of_gelu_is_not_said_to_be_another_function_than_gelu(is_gated: bool) -> None:
    exact, approximate = (ACTIVATIONS[number] for number in (1, 2))
    other = RANDOM.normal(size=X.shape) if is_gated else np.ones_like(X)
    before = {"gate": X, "up": other} if is_gated else {"gate": X}
    at = module_site(exact.apply(X) * other, coarse(approximate.apply(X) * other), before, floor=COARSE)
    found = (Gate() if is_gated else ActivationFunction()).explain(at)
    assert not [it.text for it in found if it.text.endswith("GELU in b")]


def test_the_multiplier_of_a_is_whole_up_to_rounding() -> None:
    other = RANDOM.normal(size=X.shape)
    at = module_site(1.008 * X + other, 0.5 * X + other, {"one": X, "two": other}, floor=COARSE)
    assert [it.text for it in Combination().explain(at)] == ["one is multiplied by 1 in a and 0.5 in b"]


def test_a_vector_that_b_leaves_out_is_named() -> None:
    at = module_site(X + SHIFT, coarse(X), {"up:input": X}, held_a={"values.bias": SHIFT}, floor=COARSE)
    assert [it.text for it in HeldVector().explain(at)] == ["values.bias is added in a and left out in b"]
