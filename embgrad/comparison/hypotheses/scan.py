"""The selective scan in NumPy: Gu and Dao, "Mamba: Linear-time sequence modeling with selective state spaces", 2023."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from embgrad.comparison.hypotheses.functions import ACTIVATIONS, IDENTITY, Activation
from embgrad.comparison.hypotheses.site import Values
from embgrad.comparison.hypotheses.sources import Source
from embgrad.comparison.recording import HeldWeight

__all__ = ["PARTS", "RATES", "Scan", "split"]

SOFTPLUS: Final = next(function for function in ACTIVATIONS if function.name == "softplus")

#: The functions of a weight that the rates of decay are.
RATES: Final[Mapping[str, Callable[[np.ndarray], np.ndarray]]] = {
    "-exp of its weight": lambda x: -np.exp(x),
    "its weight": lambda x: x,
    "exp of its weight": np.exp,
    "minus its weight": lambda x: -x,
}

#: What depends on the tokens.
PARTS: Final = ("the step", "B", "C")


@dataclass(frozen=True, eq=False)
class Scan:
    """A linear recurrence of each feature, h = exp(step A) h + step B u, whose output is (C h + D u) times a gate.

    Attributes:
        u: what enters.
        parts: what the step is a product with, B and C.
        logs: the weight that A is a function of, (feature, state).
        matrix: what the first part is multiplied by, (part, feature).
        bias: what is added to this product, (feature,).
        skip: D, (feature,).
        weights: the weights that hold the last four, by name.
        gate: what the output is multiplied by a function of; None for nothing.
        gated: this function.
        stepped: the function of the step.
        rate: the name of the function of its weight that is A.
        held: whether B is multiplied by (exp(step A) - 1) / A, as by a zero-order hold, instead of the step.
        epsilon: what is added to the mean square by whose root the parts are divided; None where they are not.
        backward: whether the last token is read first.
        masked: whether padding enters as zeros.
        skip_gated: whether the gate multiplies the skip.
        whole: the tensor that holds the parts; None where they are tensors of their own.
        order: the order in which it does.
    """

    u: Source
    parts: tuple[Source, Source, Source]
    logs: np.ndarray
    matrix: np.ndarray
    bias: np.ndarray
    skip: np.ndarray
    weights: Mapping[str, HeldWeight]
    gate: Source | None = None
    gated: Activation = IDENTITY
    stepped: Activation = SOFTPLUS
    rate: str = "-exp of its weight"
    held: bool = False
    epsilon: float | None = None
    backward: bool = False
    masked: bool = False
    skip_gated: bool = True
    whole: Source | None = None
    order: tuple[str, ...] = ()

    @property
    def needs_all_tokens(self) -> bool:
        """Return whether an output depends on later tokens."""
        return self.backward

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the points that it reads."""
        every = (self.u, *self.parts, *([] if self.gate is None else [self.gate]))
        return tuple(dict.fromkeys(name for source in every for name in source.names))

    def run(self, at: Values, real: np.ndarray, features: np.ndarray | slice = slice(None)) -> np.ndarray:
        """Return the outputs of some features, (example, position, feature)."""
        gate = 1.0 if self.gate is None else self.gated.apply(self.gate.read(at)[..., features])
        skipped = self.skip[features] * self.u.read(at)[..., features]
        states = self.scanned(at, real, features)
        return np.asarray((states + skipped) * gate if self.skip_gated else states * gate + skipped)

    def scanned(self, at: Values, real: np.ndarray, features: np.ndarray | slice) -> np.ndarray:
        """Return the outputs of the states alone."""
        u = self.u.read(at)[..., features] * (real[..., None] if self.masked else 1)
        low, entering, leaving = (self._scaled(part.read(at)) for part in self.parts)
        step = self.stepped.apply(low @ self.matrix[:, features] + self.bias[features])
        rates = RATES[self.rate](self.logs[features])
        state, outputs = np.zeros((len(u), *rates.shape)), np.empty(u.shape)
        for position in range(u.shape[1])[:: -1 if self.backward else 1]:
            now = step[:, position, :, None]
            share = np.expm1(now * rates) / rates if self.held else now
            entered = u[:, position, :, None] * entering[:, position, None]
            state = np.exp(now * rates) * state + share * entered
            outputs[:, position] = (state @ leaving[:, position, :, None])[..., 0]
        return outputs

    def _scaled(self, part: np.ndarray) -> np.ndarray:
        return part if self.epsilon is None else part / np.sqrt((part**2).mean(-1, keepdims=True) + self.epsilon)


def split(whole: Source, order: tuple[str, ...], low: int, states: int) -> tuple[Source, Source, Source]:
    """Return the step's part, B and C of a tensor that holds them in an order."""
    sizes = [low if name == PARTS[0] else states for name in order]
    ends = np.cumsum(sizes)
    first, second, third = (
        whole.part(np.arange(ends[at] - sizes[at], ends[at]), name) for name in PARTS for at in [order.index(name)]
    )
    return first, second, third
