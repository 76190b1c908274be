"""The activation functions that models apply to each feature."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np

__all__ = ["ACTIVATIONS", "GELUS", "IDENTITY", "Activation", "logistic", "of_no_kind"]


class Activation(NamedTuple):
    """A function of each feature by itself.

    Attributes:
        name: its name in texts.
        apply: returns its values at an array.
    """

    name: str
    apply: Callable[[np.ndarray], np.ndarray]


_erf = np.frompyfunc(math.erf, 1, 1)


def logistic(x: np.ndarray) -> np.ndarray:
    """Return 1 / (1 + exp(-x))."""
    return np.asarray(0.5 * (1 + np.tanh(0.5 * x)))


def _softplus(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.logaddexp(0.0, x))


def _gelu_erf(x: np.ndarray) -> np.ndarray:
    return np.asarray(0.5 * x * (1 + np.asarray(_erf(x / math.sqrt(2)), np.float64)))


def _gelu_tanh(x: np.ndarray) -> np.ndarray:
    return np.asarray(0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))


#: The functions named GELU: x Φ(x), and the two approximations of Hendrycks and Gimpel, "Gaussian error linear units", 2016.
GELUS: Final = (
    Activation("GELU by the error function", _gelu_erf),
    Activation("GELU by the tanh approximation", _gelu_tanh),
    Activation("GELU by the logistic approximation", lambda x: x * logistic(1.702 * x)),
)

IDENTITY: Final = Activation("missing", lambda x: x)

#: All functions that are recognised; the frequent ones are first, and the last changes nothing.
ACTIVATIONS: Final = (
    Activation("SiLU", lambda x: x * logistic(x)),
    *GELUS,
    Activation("ReLU", lambda x: np.maximum(x, 0)),
    Activation("tanh", np.tanh),
    Activation("squared ReLU", lambda x: np.maximum(x, 0) ** 2),
    Activation("the square", lambda x: x**2),
    Activation("the logistic function", logistic),
    Activation("ReLU6", lambda x: np.clip(x, 0, 6)),
    Activation("leaky ReLU of slope 0.01", lambda x: np.where(x > 0, x, 0.01 * x)),
    Activation("leaky ReLU of slope 0.2", lambda x: np.where(x > 0, x, 0.2 * x)),
    Activation("ELU", lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0)))),
    Activation("softplus", _softplus),
    Activation("mish", lambda x: x * np.tanh(_softplus(x))),
    Activation("hard swish", lambda x: x * np.clip(x + 3, 0, 6) / 6),
    IDENTITY,
)


def of_no_kind(first: Activation, near: Sequence[Activation]) -> Activation | None:
    """Return the name for kinds of GELU that rounding hides from each other; None where one is another function, or a's own.

    Args:
        first: a's function.
        near: the functions that b may compute.
    """
    is_hidden = first not in near and all(function in GELUS for function in near)
    return near[0]._replace(name="GELU") if is_hidden else None
