"""A generated model in NumPy and float64: its output, and by reverse mode by hand the gradient at each of its points."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.contract.properties import steps
from tests.contract.properties.specs import Spec, weights_of


@dataclass(frozen=True)
class Batch:
    """What a model is run on, (example, position) each.

    Attributes:
        ids: whole numbers inside the table.
        mask: 1 at real positions, or None where the model takes none.
        types: whole numbers, or None likewise.
    """

    ids: np.ndarray
    mask: np.ndarray | None = None
    types: np.ndarray | None = None

    @property
    def real(self) -> np.ndarray:
        return np.ones(self.ids.shape) if self.mask is None else self.mask.astype(np.float64)

    def take(self, examples: Any) -> Batch:
        """Some of the examples, by a slice or an order."""
        mask, types = (None if one is None else one[examples] for one in (self.mask, self.types))
        return Batch(self.ids[examples], mask, types)


def as_it_is(value: np.ndarray) -> np.ndarray:
    return value


@dataclass
class Forward:
    """One forward pass, and pullbacks through it.

    Attributes:
        override: by point the value that goes on in place of what was computed.
        add: by point what is added to it.
        kept: what is done to every intermediate result.
        weights: other ones than the model's; None for its own.
        activations: by point what went on: "word", "position", "type", and "blocks.0" and so on.
        output: (example, entries), or (example, position, entries).
    """

    spec: Spec
    batch: Batch
    override: Mapping[str, np.ndarray] = field(default_factory=dict)
    add: Mapping[str, np.ndarray] = field(default_factory=dict)
    kept: steps.Kept = as_it_is
    weights: Mapping[str, np.ndarray] | None = None
    activations: dict[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._weights = weights_of(self.spec) if self.weights is None else self.weights
        self._pullbacks: list[tuple[str, steps.Pullback]] = []
        hidden = self._embedded()
        for number, block in enumerate(self.spec.blocks):
            hidden = self._pooled(hidden, number)
            hidden = self._point(f"blocks.{number}", self._step(number, block.kind, hidden, block.residual))
        self._hidden = self._pooled(hidden, len(self.spec.blocks))
        self.output = self._headed(self._hidden)

    def pull_back(self, cotangent: np.ndarray) -> dict[str, np.ndarray]:
        """The gradient at each point, and at the table: "table" by the lookup alone, "head" by a head that is tied to it."""
        found = {"head": np.zeros((self.spec.vocab, self.spec.width))}
        if self.spec.head == "tied":
            rows, of_rows = self._hidden.reshape(-1, self.spec.width), cotangent.reshape(-1, self.spec.vocab)
            found["head"] = self.kept(of_rows.T @ rows)
        g = cotangent
        for name, pullback in reversed(self._pullbacks):
            if name in self.activations:
                found[name] = g
            g = pullback(g)
        found |= {name: found["embeddings"] for name in ("position", "type") if name in self.activations}
        found["table"] = np.zeros_like(found["head"])
        np.add.at(found["table"], self.batch.ids, found["word"])
        return found

    def _embedded(self) -> np.ndarray:
        spec, shape = self.spec, self.batch.ids.shape
        hidden = self._point("word", self._weights["words"][self.batch.ids])
        scale = 1.0 if spec.scale is None else spec.scale
        self._pullbacks.append(("scale", lambda g: self.kept(g * scale)))
        hidden = self.kept(hidden * scale)
        if spec.positions:
            places = np.tile(np.arange(shape[1]), (shape[0], 1))
            self.activations["position"] = self._weights["positions"][places]
            hidden = self.kept(hidden + self.activations["position"])
        if spec.types:
            assert self.batch.types is not None
            self.activations["type"] = self._weights["segments"][self.batch.types]
            hidden = self.kept(hidden + self.activations["type"])
        return self._point("embeddings", hidden)

    def _point(self, name: str, value: np.ndarray) -> np.ndarray:
        """What goes on behind a point; the gradient there is what comes to it on the way back."""
        value = np.broadcast_to(self.override.get(name, value), value.shape)
        if name in self.add:
            value = self.kept(value + self.add[name])
        self.activations[name] = value
        self._pullbacks.append((name, as_it_is))
        return value

    def _pooled(self, hidden: np.ndarray, blocks: int) -> np.ndarray:
        if self.spec.pool != blocks:
            return hidden
        return self._went(steps.mean(hidden, self.batch.real, self.kept))

    def _step(self, number: int, kind: str, hidden: np.ndarray, residual: bool) -> np.ndarray:
        prefix = f"blocks.{number}."
        own = {name.removeprefix(prefix): one for name, one in self._weights.items() if name.startswith(prefix)}
        if kind == "linear":
            made, back = steps.linear(hidden, own["weight"], own["bias"], self.kept)
        elif kind == "tanh":
            made, back = steps.tanh(hidden, self.kept)
        elif kind == "attention":
            made, back = steps.attention(hidden, self.batch.real, own, self.kept)
        elif kind == "norm":
            made, back = steps.norm(hidden, own["gain"], own["shift"], self.kept)
        else:
            made, back = steps.mix(hidden, self.kept)
        if residual:
            return self._went((self.kept(hidden + made), lambda g: self.kept(g + back(g))))
        return self._went((made, back))

    def _headed(self, hidden: np.ndarray) -> np.ndarray:
        if self.spec.head == "none":
            return hidden
        tied = self.spec.head == "tied"
        weight = self._weights["words"].T if tied else self._weights["head.weight"]
        return self._went(steps.linear(hidden, weight, 0.0 if tied else self._weights["head.bias"], self.kept))

    def _went(self, step: steps.Step) -> np.ndarray:
        made, back = step
        self._pullbacks.append(("", back))
        return made
