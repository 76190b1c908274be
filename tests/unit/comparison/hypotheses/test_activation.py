"""Another activation function is found by its values."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from embgrad.comparison.hypotheses.activation import ActivationFunction
from embgrad.comparison.hypotheses.site import Before
from tests.unit.comparison.hypotheses.planted import expect_exact, site_of

X = np.array([[[-3.0, -1.0], [-0.5, 0.25]], [[0.5, 1.0], [2.0, 3.0]]])
OTHER = np.array([[[4.0, -1.5], [2.5, 0.75]], [[-0.5, 1.5], [-2.0, 0.1]]])

# Of X's entries in order: Φ(x), and 1 / (1 + exp(-x)).
NORMAL = np.array([0.0013498980316, 0.1586552539315, 0.3085375387260, 0.5987063256829])
NORMAL = np.array([*NORMAL, 0.6914624612740, 0.8413447460685, 0.9772498680518, 0.9986501019684]).reshape(X.shape)
LOGISTIC = np.array([0.0474258731776, 0.2689414213700, 0.3775406687981, 0.5621765008858])
LOGISTIC = np.array([*LOGISTIC, 0.6224593312019, 0.7310585786300, 0.8807970779779, 0.9525741268224]).reshape(X.shape)
GELU, SILU = X * NORMAL, X * LOGISTIC
TANH = X * 0.5 * (1 + np.tanh(np.sqrt(2 / np.pi) * (X + 0.044715 * X**3)))
QUICK = X / (1 + np.exp(-1.702 * X))
RELU = np.array([[[0.0, 0.0], [0.0, 0.25]], [[0.5, 1.0], [2.0, 3.0]]])
SQUARE = np.array([[[0.0, 0.0], [0.0, 0.0625]], [[0.25, 1.0], [4.0, 9.0]]])
LEAKY = np.array([[[-0.03, -0.01], [-0.005, 0.25]], [[0.5, 1.0], [2.0, 3.0]]])

NAMES = {
    "GELU by the error function": GELU,
    "GELU by the tanh approximation": TANH,
    "GELU by the logistic approximation": QUICK,
    "SiLU": SILU,
    "ReLU": RELU,
    "squared ReLU": SQUARE,
    "leaky ReLU of slope 0.01": LEAKY,
    "the logistic function": LOGISTIC,
    "tanh": np.tanh(X),
}


@pytest.mark.parametrize("first", NAMES)
@pytest.mark.parametrize("second", [*NAMES, "missing"])
def test_two_functions_are_named(first: str, second: str) -> None:
    site = site_of(NAMES[first], {**NAMES, "missing": X}[second], {"norm": OTHER, "layers.0.up": X})
    found = ActivationFunction().explain(site)
    if first == second:
        assert not found
        return
    best = min(found, key=lambda explanation: site.off(explanation.predicted))
    assert best.cause == ("gelu" if first.startswith("GELU") and second.startswith("GELU") else "activation")
    assert best.text == f"the activation is {first} in a and {second} in b"
    expect_exact(site, best)


@pytest.mark.parametrize(("off", "named"), [(0.9e-4, True), (1.2e-4, False)])
def test_a_function_reproduces_the_outputs_nearly(off: float, named: bool) -> None:
    noise = OTHER / np.linalg.norm(OTHER)
    near = [values + off * np.linalg.norm(values) * noise for values in (GELU, RELU)]
    assert bool(ActivationFunction().explain(site_of(*near, {"layers.0.up": X}))) is named


def of_length_1(values: np.ndarray) -> np.ndarray:
    return np.asarray(values / np.linalg.norm(values, axis=-1, keepdims=True))


@pytest.mark.parametrize(("first", "second"), [("tanh", "missing"), ("missing", "tanh"), ("SiLU", "ReLU")])
def test_a_function_before_a_division_by_the_length_is_named(first: str, second: str) -> None:
    values = {
        "missing": OTHER,
        "tanh": np.tanh(OTHER),
        "SiLU": OTHER / (1 + np.exp(-OTHER)),
        "ReLU": np.maximum(OTHER, 0),
    }
    a, b = (of_length_1(values[name]) for name in (first, second))
    site = site_of(a, b, {"norm": X, "layers.0.up": OTHER})
    (found,) = ActivationFunction().explain(site)
    assert found.text == f"the activation is {first} in a and {second} in b"
    expect_exact(site, found)
    for other in (2 * b, b[..., ::-1]):  # of another length, and no function
        assert not ActivationFunction().explain(site_of(a, other, {"norm": X, "layers.0.up": OTHER}))


@pytest.mark.parametrize("a", [X, np.sin(X), X * OTHER, X[..., ::-1]], ids=["same", "unknown", "product", "reversed"])
def test_another_function_of_the_reference_is_not_explained(a: np.ndarray) -> None:
    assert not ActivationFunction().explain(site_of(a, RELU, {"layers.0.up": X, "norm": OTHER}))


def test_padding_does_not_count() -> None:
    real = np.array([[True, True], [True, False]])
    a, b = np.where(real[..., None], GELU, 7.0), np.where(real[..., None], RELU, -7.0)
    site = site_of(a, b, {"layers.0.up": X}, real=real)
    best = min(ActivationFunction().explain(site), key=lambda explanation: site.off(explanation.predicted))
    assert (best.cause, best.values) == ("activation", ("GELU by the error function", "ReLU"))


def test_functions_that_hardly_differ_are_distinguished() -> None:
    x = X / 20  # here the two differ by less than the share up to which an output counts as reproduced
    exact = np.array([v * 0.5 * (1 + math.erf(v / np.sqrt(2))) for v in x.ravel()]).reshape(x.shape)
    close = x * 0.5 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    site = site_of(close, exact, {"layers.0.up": x})
    assert site.difference < 1e-4
    best = min(ActivationFunction().explain(site), key=lambda explanation: site.off(explanation.predicted))
    assert best.values == ("GELU by the tanh approximation", "GELU by the error function")


def test_the_argument_may_be_known_of_the_reference_alone() -> None:
    site = replace(site_of(GELU, RELU, {}), before=[Before("act", GELU, shared=False), Before("up", X, shared=False)])
    best = min(ActivationFunction().explain(site), key=lambda explanation: site.off(explanation.predicted))
    assert best.values == ("GELU by the error function", "ReLU")


@pytest.mark.parametrize("shape", [(2, 2, 2), (2, 1, 2)])
def test_a_function_of_a_sum_is_named(shape: tuple[int, ...]) -> None:
    """The second term may be one vector for all positions, as in additive attention."""
    second = OTHER[:, : shape[1]]
    site = site_of(np.tanh(X + second), X + second, {"memory": X, "query": second})
    found = ActivationFunction().explain(site)
    assert [explanation.text for explanation in found] == ["the activation is tanh in a and missing in b"]
    expect_exact(site, found[0])


def test_a_function_of_a_difference_is_not_explained() -> None:
    assert ActivationFunction().explain(site_of(np.tanh(X - OTHER), X - OTHER, {"memory": X, "query": OTHER})) == []
