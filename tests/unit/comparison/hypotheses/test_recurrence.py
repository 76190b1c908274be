"""Recurrent layers in NumPy are those of their definitions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from embgrad.comparison.hypotheses.functions import Activation
from embgrad.comparison.hypotheses.pooling import POOLS
from embgrad.comparison.hypotheses.recurrence import Cell, Recurrence
from tests.unit.comparison.hypotheses.modules import REAL
from tests.unit.comparison.hypotheses.recurrences import LETTERS, Weights, both, run, sigmoid, weights_of

RANDOM = np.random.default_rng(0)
INPUTS, SIZE = 4, 3
X = RANDOM.normal(size=(*REAL.shape, INPUTS))
WEIGHTS = {kind: [weights_of(kind, INPUTS, SIZE, RANDOM) for _ in range(2)] for kind in LETTERS}


def cell(kind: str, weights: Weights, **options: Any) -> Cell:
    letters = LETTERS[kind]
    matrices = (np.stack([part[letter].T for letter in letters], 1) for part in (weights.entry, weights.state))
    biases = (np.stack([part[letter] for letter in letters]) for part in (weights.bias, weights.state_bias))
    return Cell(kind, *matrices, *biases, **options)


def constant(kind: str, values: list[float], own: float = 0.0, **options: Any) -> np.ndarray:
    """Return the states of one feature after each of three tokens, where only the biases and the state's candidate count."""
    zeros, state = np.zeros((1, len(values), 1)), np.zeros((1, len(values), 1))
    state[0, -1] = own
    bias = np.array(values)[:, None]
    return Cell(kind, zeros, state, bias, 0 * bias, **options).run(np.ones((1, 3, 1)))[0, :, 0]


@pytest.mark.parametrize("gates", [(0.5, 0.2, 0.3, -0.4), (-1, 0, 0.7, 2), (3, -2, -0.1, 0)])
def test_an_lstm_with_constant_gates_holds_a_geometric_sum(gates: tuple[float, float, float, float]) -> None:
    i, f, o = (sigmoid(np.array(gates[number])) for number in (0, 1, 3))
    memory = i * np.tanh(gates[2]) * (1 - f ** np.arange(1, 4)) / (1 - f)
    np.testing.assert_allclose(constant("LSTM", list(gates)), o * np.tanh(memory))


@pytest.mark.parametrize("update", [-1.0, 0.0, 2.0])
def test_a_gru_with_constant_gates_nears_its_candidate(update: float) -> None:
    z, steps = sigmoid(np.array(update)), np.arange(1, 4)
    np.testing.assert_allclose(constant("GRU", [0.3, update, 0.6]), np.tanh(0.6) * (1 - z**steps))
    np.testing.assert_allclose(constant("GRU", [0.3, update, 0.6], keeps=False), np.tanh(0.6) * (1 - (1 - z) ** steps))


def test_linear_cells_sum_powers() -> None:
    linear = Activation("linear", lambda x: x)
    np.testing.assert_allclose(constant("RNN", [1.0], 2.0, candidate=linear), [1, 3, 7])
    r, nothing = sigmoid(np.array(0.5)), -1e3  # the update gate keeps nothing of the old state
    wanted = [1, 1 + 2 * r, 1 + 2 * r + 4 * r**2]
    for resets_product in (False, True):
        options = {"candidate": linear, "resets_product": resets_product}
        np.testing.assert_allclose(constant("GRU", [0.5, nothing, 1.0], 2.0, **options), wanted)


FORMS = {
    "LSTM": ("LSTM", {}, {}),
    "LSTM with other functions": (
        "LSTM",
        {
            "squash": Activation("cos", np.cos),
            "candidate": Activation("sin", np.sin),
            "emitted": Activation("abs", np.abs),
        },
        {"squash": np.cos, "candidate": np.sin, "emitted": np.abs},
    ),
    "GRU whose reset gate multiplies the product": ("GRU", {}, {}),
    "GRU whose reset gate multiplies the state": ("GRU", {"resets_product": False}, {"resets_state": True}),
    "GRU whose update gate takes": ("GRU", {"keeps": False}, {"takes": True}),
    "plain": ("RNN", {"candidate": Activation("sin", np.sin)}, {"candidate": np.sin}),
}


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("kind", "options", "plain"), FORMS.values(), ids=FORMS)
def test_states_are_those_of_the_definition(
    kind: str, options: dict[str, Any], plain: dict[str, Any], masked: bool, backward: bool
) -> None:
    weights = WEIGHTS[kind][0]
    wanted = run(weights, X, REAL if masked else REAL | True, backward=backward, **plain)
    found = cell(kind, weights, backward=backward, **options).run(X, REAL if masked else None)
    np.testing.assert_allclose(found, wanted)
    layers = Recurrence(((cell(kind, weights, backward=backward, **options),),), masked=masked)
    np.testing.assert_allclose(layers.run(X, REAL), wanted)


@pytest.mark.parametrize("kind", LETTERS)
def test_outputs_of_two_directions_are_joined(kind: str) -> None:
    first, second = WEIGHTS[kind]
    forward, backward = both(first, second, X, REAL)
    layers = ((cell(kind, first), cell(kind, second, backward=True)),)
    for joined, wanted in {
        "side by side": np.concatenate([forward, backward], -1),
        "side by side, the second first": np.concatenate([backward, forward], -1),
        "summed": forward + backward,
        "averaged": (forward + backward) / 2,
    }.items():
        np.testing.assert_allclose(Recurrence(layers, joined=joined).run(X, REAL), wanted)
    turned = np.concatenate([forward, backward[:, ::-1]], -1)
    np.testing.assert_allclose(Recurrence(layers, turned=False).run(X, REAL), turned)


def test_a_layer_reads_the_outputs_of_the_one_before() -> None:
    upper = [weights_of("LSTM", 2 * SIZE, SIZE, RANDOM) for _ in range(2)]
    lower = np.concatenate(both(*WEIGHTS["LSTM"], X, REAL), -1)
    layers = [(cell("LSTM", first), cell("LSTM", second, backward=True)) for first, second in (WEIGHTS["LSTM"], upper)]
    stack = Recurrence(tuple(layers))
    np.testing.assert_allclose(stack.run(X, REAL), np.concatenate(both(*upper, lower, REAL), -1))
    assert stack.cells == (*layers[0], *layers[1])


def test_cells_across_read_the_examples_one_after_the_other() -> None:
    weights = WEIGHTS["GRU"][0]
    found = Recurrence(((cell("GRU", weights),),), across=True).run(X, REAL)
    np.testing.assert_allclose(found, run(weights, X.swapaxes(0, 1), REAL.T).swapaxes(0, 1))


@pytest.mark.parametrize("name", POOLS)
def test_states_are_pooled(name: str) -> None:
    first, second = WEIGHTS["RNN"]
    layers = ((cell("RNN", first), cell("RNN", second, backward=True)),)
    wanted = POOLS[name](np.concatenate(both(first, second, X, REAL), -1), REAL)
    np.testing.assert_allclose(Recurrence(layers, pool=name).run(X, REAL), wanted[:, None])


@pytest.mark.parametrize(
    ("options", "backward", "needed"),
    [({}, False, False), ({}, True, True), ({"turned": False}, False, True),
        ({"pool": "the first vector"}, False, True)],
)  # fmt: skip
def test_later_tokens_are_needed_by_what_reads_backward_or_pools(
    options: dict[str, Any], backward: bool, needed: bool
) -> None:
    layers = ((cell("RNN", WEIGHTS["RNN"][0], backward=backward),),)
    assert Recurrence(layers, **options).needs_all_tokens is needed


def test_gates_are_put_in_another_order() -> None:
    own = cell("LSTM", WEIGHTS["LSTM"][0])
    found = own.ordered((1, 0, 3, 2), parts=("entry", "bias"))
    wanted = cell("LSTM", WEIGHTS["LSTM"][0].renamed("ifgo", "fiog", ("entry", "bias")))
    for part in ("entry", "state", "bias", "state_bias"):
        np.testing.assert_array_equal(getattr(found, part), getattr(wanted, part))
