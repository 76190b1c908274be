"""Recurrent layers in NumPy: LSTM, GRU and plain cells, of one direction or two, and several above one another.

LSTM: Hochreiter and Schmidhuber, "Long short-term memory", 1997, with forget gates; GRU: Cho and others, "Learning phrase
representations using RNN encoder–decoder for statistical machine translation", 2014, and the variant of cuDNN, which multiplies
the state's product by the reset gate and not the state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from embgrad.comparison.hypotheses.functions import Activation, logistic
from embgrad.comparison.hypotheses.pooling import POOLS

__all__ = ["GATES", "LOGISTIC", "TANH", "Cell", "Recurrence"]

LOGISTIC: Final = Activation("the logistic function", logistic)
TANH: Final = Activation("tanh", np.tanh)

#: The gates of each kind of cell, in the order in which a cell holds them here.
GATES: Final[Mapping[str, tuple[str, ...]]] = {
    "LSTM": ("input", "forget", "candidate", "output"),
    "GRU": ("reset", "update", "candidate"),
    "RNN": ("candidate",),
}


@dataclass(frozen=True, eq=False)
class Cell:
    """A recurrent cell, which reads the tokens in one direction.

    Attributes:
        kind: "LSTM", "GRU" or "RNN".
        entry: the matrices of the inputs, (input, gate, feature).
        state: the matrices of the state, (feature, gate, feature).
        bias: what is added to the products with the inputs, (gate, feature).
        state_bias: what is added to those with the state, (gate, feature).
        backward: whether the last token is read first.
        squash: the function of the gates but the candidate.
        candidate: the function of the candidate.
        emitted: the function of an LSTM's memory that becomes the output.
        resets_product: whether a GRU's reset gate multiplies the product with the state; otherwise it multiplies the state.
        keeps: whether a GRU's update gate is the share of the old state; otherwise it is that of the candidate.
    """

    kind: str
    entry: np.ndarray
    state: np.ndarray
    bias: np.ndarray
    state_bias: np.ndarray
    backward: bool = False
    squash: Activation = LOGISTIC
    candidate: Activation = TANH
    emitted: Activation = TANH
    resets_product: bool = True
    keeps: bool = True

    @property
    def size(self) -> int:
        """The number of features of the state."""
        return len(self.state)

    def ordered(self, order: tuple[int, ...], *, parts: tuple[str, ...]) -> Cell:
        """Return the cell whose gates have the weights of others, in the arrays of some names."""
        return replace(self, **{part: getattr(self, part)[..., list(order), :] for part in parts})

    def run(self, x: np.ndarray, moves: np.ndarray | None = None) -> np.ndarray:
        """Return the states after each token, (example, position, feature).

        Args:
            x: the inputs, (example, position, input).
            moves: the positions that change the state, bool, (example, position); None for all.
        """
        products = np.tensordot(x, self.entry, 1) + self.bias
        hidden = memory = np.zeros((len(x), self.size))
        states = np.empty((*x.shape[:2], self.size))
        count = x.shape[1]
        for position in reversed(range(count)) if self.backward else range(count):
            following, stored = self._step(products[:, position], hidden, memory)
            if moves is not None:
                at = moves[:, position, None]
                following, stored = np.where(at, following, hidden), np.where(at, stored, memory)
            states[:, position] = hidden = following
            memory = stored
        return states

    def _step(self, given: np.ndarray, hidden: np.ndarray, memory: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the next state and memory for the inputs' products, (example, gate, feature)."""
        product = np.tensordot(hidden, self.state, 1) + self.state_bias
        if self.kind == "RNN":
            return self.candidate.apply(given[:, 0] + product[:, 0]), memory
        if self.kind == "LSTM":
            gates = given + product
            entering, forgetting, leaving = (self.squash.apply(gates[:, gate]) for gate in (0, 1, 3))
            stored = forgetting * memory + entering * self.candidate.apply(gates[:, 2])
            return leaving * self.emitted.apply(stored), stored
        reset, update = (self.squash.apply(given[:, gate] + product[:, gate]) for gate in (0, 1))
        if self.resets_product:
            inner = given[:, 2] + reset * product[:, 2]
        else:
            inner = given[:, 2] + (reset * hidden) @ self.state[:, 2] + self.state_bias[2]
        found = self.candidate.apply(inner)
        old, new = (update, 1 - update) if self.keeps else (1 - update, update)
        return old * hidden + new * found, memory


@dataclass(frozen=True, eq=False)
class Recurrence:
    """Layers of recurrent cells.

    Attributes:
        layers: for each layer its cells, one for each direction.
        masked: whether padding leaves the state as it is.
        joined: what becomes of the outputs of two directions: "side by side", "side by side, the second first", "summed" or
            "averaged".
        turned: whether the outputs of a backward cell stand in the order of the tokens; otherwise the last is first.
        across: whether the cells read the examples of the batch one after the other instead of the tokens.
        pool: the name in `POOLS` of what becomes of the last layer's outputs; empty for nothing.
    """

    layers: tuple[tuple[Cell, ...], ...]
    masked: bool = True
    joined: str = "side by side"
    turned: bool = True
    across: bool = False
    pool: str = ""

    @property
    def cells(self) -> tuple[Cell, ...]:
        """All cells, layer by layer."""
        return tuple(cell for layer in self.layers for cell in layer)

    @property
    def needs_all_tokens(self) -> bool:
        """Return whether its first outputs depend on later tokens."""
        return bool(self.pool) or any(cell.backward for cell in self.cells) or not self.turned

    def run(self, x: np.ndarray, real: np.ndarray) -> np.ndarray:
        """Return the outputs of the last layer, (example, position, feature), or the pooled ones, (example, 1, feature).

        Args:
            x: the inputs, (example, position, input).
            real: the positions that are not padding, bool, (example, position).
        """
        outputs = self._outputs(x, real)
        return self.pooled(outputs, real) if self.pool else outputs

    def pooled(self, outputs: np.ndarray, real: np.ndarray) -> np.ndarray:
        """Return what becomes of the last layer's outputs, (example, 1, feature)."""
        return POOLS[self.pool](outputs, real)[:, None]

    def _outputs(self, x: np.ndarray, real: np.ndarray) -> np.ndarray:
        if self.across:
            x, real = x.swapaxes(0, 1), real.swapaxes(0, 1)
        for layer in self.layers:
            found = [self._turned(cell, cell.run(x, real if self.masked else None)) for cell in layer]
            if self.joined in ("summed", "averaged"):
                x = sum(found[1:], found[0]) / (len(found) if self.joined == "averaged" else 1)
            else:
                x = np.concatenate(found if self.joined == "side by side" else found[::-1], -1)
        return x.swapaxes(0, 1) if self.across else x

    def _turned(self, cell: Cell, states: np.ndarray) -> np.ndarray:
        return states[:, ::-1] if cell.backward and not self.turned else states
