"""Shared helpers of the conformance checks: small weights and batches, closed forms, finite differences, tolerances."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import pytest

from embgrad.backend.registry import backend_named
from embgrad.errors import PointError, UnsupportedError
from embgrad.inputs.batch import TokenBatch
from embgrad.objectives.objectives import Objective
from embgrad.testing.snapshot import different

__all__ = [
    "CLASSES",
    "CLOSED_FORM",
    "DIM",
    "EXAMPLES",
    "POSITIONS",
    "SMOOTH",
    "VOCAB",
    "close",
    "closed_form",
    "example_batch",
    "example_weights",
    "expect_same",
    "finite_difference",
    "layers_by_hand",
    "logits_of_mean",
    "needs",
    "softmax",
    "tied_by_hand",
]

VOCAB, DIM, CLASSES, EXAMPLES, POSITIONS = 40, 5, 3, 3, 4

#: The largest difference from the closed form, relative to the largest entry, by the dtype in which the model computes.
CLOSED_FORM: Final[Mapping[str, float]] = {"float64": 1e-12, "float32": 1e-5, "bfloat16": 5e-2, "float16": 5e-3}

#: The architectures that are smooth functions and whose objective can be a projection of the default output.
SMOOTH: Final = ("mean", "hidden", "masked", "positions", "flat", "time_major", "scaled", "positional", "two_tables")


def example_weights(dtype: str = "float64", seed: int = 0) -> dict[str, np.ndarray]:
    """Return random weights for every architecture of the suite."""
    random = np.random.default_rng(seed)
    shapes = {
        "E": (VOCAB, DIM),
        "E2": (VOCAB, DIM),
        "W": (DIM, CLASSES),
        "b": (CLASSES,),
        "W1": (DIM, DIM),
        "b1": (DIM,),
    }
    return {name: random.normal(size=shape).astype(dtype) for name, shape in shapes.items()}


def example_batch(*, masked: bool = False) -> TokenBatch:
    """Return three examples of four distinct ids; `masked` pads the second and the third on the right."""
    ids = np.random.default_rng(1).permutation(np.arange(1, VOCAB))[: EXAMPLES * POSITIONS].reshape(EXAMPLES, POSITIONS)
    mask = np.array([[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 0, 0]]) if masked else None
    return TokenBatch(ids, mask)


def close(actual: np.ndarray, expected: np.ndarray, tolerance: float) -> None:
    """Assert that the largest difference is within the tolerance times the largest expected entry."""
    assert actual.shape == expected.shape
    scale = np.abs(expected).max()
    assert np.abs(actual - expected).max() <= tolerance * scale


def closed_form(weights: Mapping[str, np.ndarray], cotangent: np.ndarray) -> np.ndarray:
    """Return the gradient at the lookup of the architecture `mean` for a cotangent of its logits, equal at all positions."""
    share = cotangent @ weights["W"].astype(np.float64).T / POSITIONS
    return np.repeat(share[:, None, :], POSITIONS, axis=1)


def logits_of_mean(weights: Mapping[str, np.ndarray], ids: np.ndarray) -> np.ndarray:
    """Return the logits of the architecture `mean` in float64."""
    plain = {name: value.astype(np.float64) for name, value in weights.items()}
    return np.asarray(plain["E"][ids].mean(1) @ plain["W"] + plain["b"])


def softmax(logits: np.ndarray) -> np.ndarray:
    """Return the softmax over the last axis."""
    exponentials = np.exp(logits - logits.max(-1, keepdims=True))
    return np.asarray(exponentials / exponentials.sum(-1, keepdims=True))


def finite_difference(
    value: Callable[[np.ndarray], float], at: np.ndarray, direction: np.ndarray, step: float = 1e-5
) -> float:
    """Return the fourth-order central difference of a function of an array in a direction; its error is O(step⁴)."""
    near = value(at + step * direction) - value(at - step * direction)
    far = value(at + 2 * step * direction) - value(at - 2 * step * direction)
    return (8 * near - far) / (12 * step)


def expect_same(actual: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Assert that a call has left the state unchanged."""
    changed = different("", expected, actual)
    assert not changed, f"the call changed {changed}"


def layers_by_hand(
    weights: Mapping[str, np.ndarray],
    ids: np.ndarray,
    objective: Objective,
    override: Mapping[str, np.ndarray] | None = None,
    add: Mapping[str, np.ndarray] | None = None,
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return the value and the gradient at each point of the architecture `layers` and at its logits, derived by hand."""
    override, add = {**(override or {})}, {**(add or {})}
    for changes in (override, add):
        if "layer.-1" in changes:
            changes["layer.2"] = changes.pop("layer.-1")

    def changed(name: str, value: np.ndarray) -> np.ndarray:
        return np.asarray(override.get(name, value) + add.get(name, 0))

    word = changed("word", weights["E"][ids])
    hidden = changed("embeddings", word + weights["E2"][: ids.shape[1]])
    values, bends = {"word": word, "embeddings": hidden}, []
    for number in range(3):
        bends.append(np.tanh(hidden @ weights["W1"] + weights["b1"]))
        hidden = values[f"layer.{number}"] = changed(f"layer.{number}", hidden + bends[-1])
    logits = hidden.mean(1) @ weights["W"] + weights["b"]
    _, cotangent = objective.evaluate(logits, TokenBatch(ids))
    back = np.repeat((cotangent @ weights["W"].T / ids.shape[1])[:, None], ids.shape[1], 1)
    gradients = {"layer.2": back}
    for number in reversed(range(3)):
        back = back + (back * (1 - bends[number] ** 2)) @ weights["W1"].T
        gradients[f"layer.{number - 1}" if number else "embeddings"] = back
    gradients["word"] = gradients["embeddings"]
    points = {name: (values[name], gradients[name]) for name in values}
    return {**points, "layer.-1": points["layer.2"], "logits": (logits, cotangent)}


def tied_by_hand(
    weights: Mapping[str, np.ndarray], batch: TokenBatch, objective: Objective
) -> tuple[np.ndarray, np.ndarray]:
    """Return the gradients of the table of the architecture `tied` through its lookup and its head, derived by hand."""
    rows = weights["E"][batch.ids]
    hidden = np.tanh(rows @ weights["W1"] + weights["b1"])
    _, cotangent = objective.evaluate(hidden @ weights["E"].T, batch)
    lookup = np.zeros_like(weights["E"])
    np.add.at(lookup, batch.ids, ((cotangent @ weights["E"]) * (1 - hidden**2)) @ weights["W1"].T)
    return lookup, np.einsum("bsv,bsd->vd", cotangent, hidden)


def needs(*abilities: str) -> Callable[[type], type]:
    """Decorate a class of checks: if a backend lacks one of these abilities, each check must raise an error that says so."""

    def decorated(checks: type) -> type:
        for name, check in list(vars(checks).items()):
            if name.startswith("test_"):
                setattr(checks, name, _refuse_without(check, abilities))
        return checks

    return decorated


def _refuse_without(check: Callable[..., None], abilities: tuple[str, ...]) -> Callable[..., None]:
    @functools.wraps(check)
    def run(self: Any, *args: Any, **fixtures: Any) -> None:
        harness = fixtures.get("harness") or fixtures["model"].harness
        if backend_named(harness.backend).supports.issuperset(abilities):
            check(self, *args, **fixtures)
        else:
            with pytest.raises((UnsupportedError, PointError)):
                check(self, *args, **fixtures)

    return run
