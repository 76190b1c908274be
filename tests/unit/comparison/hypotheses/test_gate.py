"""Another gated activation is found by its values."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from embgrad.comparison.hypotheses.gate import Gate
from embgrad.comparison.hypotheses.site import Before, Explanation, Site
from tests.unit.comparison.hypotheses.planted import expect_exact, site_of

RANDOM = np.random.default_rng(0)
G, U, OTHER = RANDOM.normal(size=(3, 2, 3, 8))
GATE, UP = "layers.0.mlp.gate_proj", "layers.0.mlp.up_proj"
BEFORE = {UP: U, GATE: G, "layers.0.norm": OTHER}
HALVES = {"layers.0.mlp.gate_up_proj": np.concatenate([G, U], -1), "layers.0.norm": OTHER}


def silu(x: np.ndarray) -> np.ndarray:
    return np.asarray(x / (1 + np.exp(-x)))


def best_of(site: Site) -> Explanation:
    found = min(Gate().explain(site), key=lambda explanation: site.off(explanation.predicted))
    expect_exact(site, found)
    return found


A = silu(G) * U
PLANTED = {
    "relu": (np.maximum(G, 0) * U, "activation", "the activation is SiLU in a and ReLU in b"),
    "no activation": (G * U, "activation", "the activation is SiLU in a and missing in b"),
    "swapped": (G * silu(U), "gate-swapped", "the activation is applied to gate_proj in a and up_proj in b"),
    "swapped, and another": (G * np.maximum(U, 0), "gate-swapped",
        "the activation is applied to SiLU of gate_proj in a and ReLU of up_proj in b"),
    "not multiplied": (silu(G), "missing-gate", "the product with up_proj is computed in a and missing in b"),
    "not gated": (U, "missing-gate", "the product with gate_proj is computed in a and missing in b"),
}  # fmt: skip


@pytest.mark.parametrize(("b", "cause", "text"), PLANTED.values(), ids=PLANTED)
def test_a_difference_is_named(b: np.ndarray, cause: str, text: str) -> None:
    found = best_of(site_of(A, b, BEFORE))
    assert (found.cause, found.text) == (cause, text)


def test_what_an_activation_is_given_has_the_name_of_its_projection() -> None:
    found = best_of(site_of(A, G * silu(U), {"layers.0.mlp.act_fn:input": G, **BEFORE}))
    assert found.text == "the activation is applied to gate_proj in a and up_proj in b"


@pytest.mark.parametrize("size", [1e-6, 1e6])
def test_tiny_and_huge_products_are_those_of_a_gate(size: float) -> None:
    found = best_of(site_of(size * A, size * np.maximum(G, 0) * U, {**BEFORE, UP: size * U}))
    assert found.values == ("SiLU", "ReLU")


def test_two_approximations_of_one_function_are_named() -> None:
    tanh = G * 0.5 * (1 + np.tanh(np.sqrt(2 / np.pi) * (G + 0.044715 * G**3))) * U
    found = best_of(site_of(tanh, U * G / (1 + np.exp(-1.702 * G)), BEFORE))
    assert found.cause == "gelu"
    assert found.values == ("GELU by the tanh approximation", "GELU by the logistic approximation")


def test_halves_of_a_fused_projection_are_exchanged() -> None:
    found = best_of(site_of(A, G * silu(U), HALVES))
    assert found.cause == "gate-swapped"
    assert found.text == (
        "the activation is applied to the first half of gate_up_proj in a and the second half of gate_up_proj in b"
    )


def test_a_fused_projection_is_interleaved() -> None:
    whole = HALVES["layers.0.mlp.gate_up_proj"]
    found = best_of(site_of(A, silu(whole[..., ::2]) * whole[..., 1::2], HALVES))
    assert found.cause == "permuted-weight"
    assert found.values == ("the first half of gate_up_proj", "the even features of gate_up_proj")


@pytest.mark.parametrize("b", [A, np.sin(G)], ids=["the same", "an unknown function"])
def test_nothing_else_is_explained(b: np.ndarray) -> None:
    site = site_of(A, b, BEFORE)
    assert all(site.off(explanation.predicted) > 0.1 for explanation in Gate().explain(site))


@pytest.mark.parametrize("a", [silu(G) + U, silu(G), np.sin(G) * U])
def test_a_reference_without_a_known_gate_is_not_explained(a: np.ndarray) -> None:
    assert not Gate().explain(site_of(a, np.maximum(G, 0) * U, BEFORE))


def test_the_activation_is_found_behind_a_module_of_its_own() -> None:
    before = {UP: U, "layers.0.mlp.act": silu(G), GATE: G}
    site = site_of(A, np.maximum(G, 0) * U, before)
    alone = [Before(name, values, shared=name == UP) for name, values in before.items()]
    found = best_of(replace(site, before=alone))
    assert found.values == ("SiLU", "ReLU")


def test_a_product_without_an_activation_is_found() -> None:
    found = best_of(site_of(G * U, A, BEFORE))
    assert found.text == "the activation is missing in a and SiLU in b"
