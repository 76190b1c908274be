"""Activation functions have the values of their definitions."""

from __future__ import annotations

import numpy as np
import pytest

from embgrad.comparison.hypotheses.functions import ACTIVATIONS

X = np.array([-4.0, -1.0, -0.5, 0.5, 8.0])
WANTED = {
    "ReLU": [0, 0, 0, 0.5, 8],
    "ReLU6": [0, 0, 0, 0.5, 6],
    "squared ReLU": [0, 0, 0, 0.25, 64],
    "leaky ReLU of slope 0.01": [-0.04, -0.01, -0.005, 0.5, 8],
    "leaky ReLU of slope 0.2": [-0.8, -0.2, -0.1, 0.5, 8],
    "ELU": [np.exp(-4) - 1, np.exp(-1) - 1, np.exp(-0.5) - 1, 0.5, 8],
    "softplus": np.log(1 + np.exp(X)),
    "mish": X * np.tanh(np.log(1 + np.exp(X))),
    "hard swish": [0, -1 / 3, -0.5 * 2.5 / 6, 0.5 * 3.5 / 6, 8],
    "missing": X,
}


@pytest.mark.parametrize("name", WANTED)
def test_values_are_those_of_the_definition(name: str) -> None:
    function = next(function for function in ACTIVATIONS if function.name == name)
    np.testing.assert_allclose(function.apply(X), WANTED[name], rtol=1e-12)
