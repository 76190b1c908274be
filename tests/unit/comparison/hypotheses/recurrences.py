"""Recurrent layers as their definitions say, one text and one gate at a time, and their weights as models store them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

Function = Callable[[np.ndarray], np.ndarray]

#: The letters of the gates: input, forget, candidate (g) and output of an LSTM, reset, update (z) and candidate of a GRU.
LETTERS = {"LSTM": "ifgo", "GRU": "rzg", "RNN": "g"}


def sigmoid(x: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-x)))


class Weights(NamedTuple):
    """The weights of a cell by the letter of the gate."""

    entry: Mapping[str, np.ndarray]  # (feature, input)
    state: Mapping[str, np.ndarray]  # (feature, feature)
    bias: Mapping[str, np.ndarray]
    state_bias: Mapping[str, np.ndarray]

    def renamed(self, letters: str, others: str, parts: Sequence[str] = ()) -> Weights:
        """Return the weights in which gates have those of others, in some of the parts, or in all."""
        partners = dict(zip(letters, others, strict=True))
        wanted = parts or self._fields
        return self._replace(**{part: {x: getattr(self, part)[partners[x]] for x in letters} for part in wanted})

    def changed(self, part: str, function: Function, letters: str = "") -> Weights:
        """Return the weights with a function of a part's arrays, of some gates or of all."""
        own = getattr(self, part)
        return self._replace(**{part: {x: function(own[x]) if x in (letters or own) else own[x] for x in own}})

    def stacked(self, part: str, letters: str) -> np.ndarray:
        """Return a part's arrays one below the other in the order of letters, (gate and feature, ...)."""
        return np.concatenate([getattr(self, part)[letter] for letter in letters])


def weights_of(kind: str, inputs: int, size: int, random: np.random.Generator) -> Weights:
    shapes = ((size, inputs), (size, size), (size,), (size,))
    return Weights(*({letter: random.normal(size=shape) for letter in LETTERS[kind]} for shape in shapes))


def states(
    weights: Weights,
    x: np.ndarray,
    moves: np.ndarray,
    *,
    backward: bool = False,
    squash: Function = sigmoid,
    candidate: Function = np.tanh,
    emitted: Function = np.tanh,
    resets_state: bool = False,
    takes: bool = False,
) -> np.ndarray:
    """Return the states after each token of one text, (position, feature), which change where it moves."""
    h = memory = np.zeros(len(next(iter(weights.bias.values()))))
    found = np.zeros((len(x), len(h)))
    for position in reversed(range(len(x))) if backward else range(len(x)):
        if moves[position]:
            own = {gate: matrix @ x[position] + weights.bias[gate] for gate, matrix in weights.entry.items()}
            its = {gate: matrix @ h + weights.state_bias[gate] for gate, matrix in weights.state.items()}
            if "o" in own:
                i, f, o = (squash(own[gate] + its[gate]) for gate in "ifo")
                memory = f * memory + i * candidate(own["g"] + its["g"])
                h = o * emitted(memory)
            elif "z" in own:
                r, z = (squash(own[gate] + its[gate]) for gate in "rz")
                late = weights.state["g"] @ (r * h) + weights.state_bias["g"] if resets_state else r * its["g"]
                new = candidate(own["g"] + late)
                h = (1 - z) * h + z * new if takes else z * h + (1 - z) * new
            else:
                h = candidate(own["g"] + its["g"])
        found[position] = h
    return found


def run(weights: Weights, x: np.ndarray, real: np.ndarray, **options: object) -> np.ndarray:
    """Return the states of several texts, (example, position, feature)."""
    return np.stack([states(weights, *text, **options) for text in zip(x, real, strict=True)])  # type: ignore[arg-type]


def both(
    first: Weights, second: Weights, x: np.ndarray, real: np.ndarray, **options: object
) -> tuple[np.ndarray, np.ndarray]:
    """Return the states of a forward and a backward cell."""
    return run(first, x, real, **options), run(second, x, real, backward=True, **options)
