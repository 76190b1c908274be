"""A generated model in NumPy and float64, differentiated by complex steps.

An analytic function has f(x + ih) = f(x) + ih f'(x) + O(h²), so that the imaginary part over h is the derivative, exact to
rounding for h = 1e-30. A pass makes a step in each entry of a point at once, along a leading axis of every array.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from tests.contract.properties.specs import EPSILON, Spec, weights_of

STEP: Final = 1e-30

#: A function that is applied to every intermediate result.
Kept = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Batch:
    """Ids, and a mask and types where the model takes them, (example, position) each."""

    ids: np.ndarray
    mask: np.ndarray | None = None
    types: np.ndarray | None = None

    @property
    def real(self) -> np.ndarray:
        return np.ones(self.ids.shape) if self.mask is None else self.mask.astype(np.float64)

    def take(self, examples: Any) -> Batch:
        return Batch(*(None if array is None else array[examples] for array in (self.ids, self.mask, self.types)))


class Forward:
    """One forward pass.

    Attributes:
        activations: the values of all points, (direction, example, ..., width), and the head's table, under "head".
        output: (direction, example, entries), or (direction, example, position, entries).
    """

    def __init__(
        self,
        spec: Spec,
        batch: Batch,
        *,
        at: str = "",
        steps: np.ndarray | float = 0.0,
        override: Mapping[str, np.ndarray] | None = None,
        add: Mapping[str, np.ndarray] | None = None,
        kept: Kept = np.asarray,
    ) -> None:
        self.activations: dict[str, np.ndarray] = {}
        self._at, self._steps, self._override, self._add = at, steps, override or {}, add or {}
        self._weights, self._kept, self._real = weights_of(spec), kept, batch.real
        hidden = self._embedded(spec, batch)
        for number, block in enumerate(spec.blocks):
            hidden = self._mean(hidden) if number == spec.pool else hidden
            prefix = f"blocks.{number}."
            own = {name.removeprefix(prefix): w for name, w in self._weights.items() if name.startswith(prefix)}
            made = getattr(self, f"_{block.kind}")(hidden, **own)
            hidden = self._point(f"blocks.{number}", kept(hidden + made) if block.residual else made)
        self.output = self._headed(spec, self._mean(hidden) if len(spec.blocks) == spec.pool else hidden)

    def _point(self, name: str, value: np.ndarray) -> np.ndarray:
        if name in self._override:
            value = value * 0 + self._override[name]
        if name in self._add:
            value = self._kept(value + self._add[name])
        self.activations[name] = value.real
        return value + self._steps if name == self._at else value

    def _embedded(self, spec: Spec, batch: Batch) -> np.ndarray:
        hidden = self._point("word", self._weights["words"][batch.ids][None])
        hidden = self._kept(hidden * (1.0 if spec.scale is None else spec.scale))
        if spec.positions:
            places = np.tile(np.arange(batch.ids.shape[1]), (len(batch.ids), 1))
            hidden = self._kept(hidden + self._point("position", self._weights["positions"][places][None]))
        if spec.types:
            hidden = self._kept(hidden + self._point("type", self._weights["segments"][batch.types][None]))
        return self._point("embeddings", hidden)

    def _headed(self, spec: Spec, hidden: np.ndarray) -> np.ndarray:
        if spec.head == "none":
            return hidden
        if spec.head == "linear":
            return self._linear(hidden, self._weights["head.weight"], self._weights["head.bias"])
        table = np.swapaxes(self._point("head", self._weights["words"][None]), 1, 2)
        return self._kept(hidden @ (table if hidden.ndim == 3 else table[:, None]))

    def _mean(self, x: np.ndarray) -> np.ndarray:
        share = (self._real / self._real.sum(1, keepdims=True))[..., None]
        return self._kept((x * share).sum(2))

    def _linear(self, x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
        return self._kept(self._kept(x @ weight) + bias)

    def _tanh(self, x: np.ndarray) -> np.ndarray:
        made = np.tanh(x)
        if np.isrealobj(made):
            return self._kept(made)
        value = self._kept(made.real)
        # Frameworks take the slope from the value, as 1 - y², where rounding counts for more the nearer the value is to 1.
        return value + 1j * self._kept(made.imag + np.imag(x) * (made.real**2 - value**2))

    def _mix(self, x: np.ndarray) -> np.ndarray:
        return self._kept(x - self._kept(x.mean(1, keepdims=True)) / 2)

    def _norm(self, x: np.ndarray, gain: np.ndarray, shift: np.ndarray) -> np.ndarray:
        kept = self._kept
        centred = kept(x - kept(x.mean(-1, keepdims=True)))
        deviation = kept(np.sqrt(kept((centred**2).mean(-1, keepdims=True)) + EPSILON))
        return kept(kept(kept(centred / deviation) * gain) + shift)

    def _attention(self, x: np.ndarray, query: np.ndarray, key: np.ndarray, value: np.ndarray) -> np.ndarray:
        kept = self._kept
        queries, keys, values = (kept(x @ weight) for weight in (query, key, value))
        scores = kept(queries @ np.swapaxes(keys, -1, -2)) / np.sqrt(x.shape[-1])
        scores = np.where(self._real[:, None, :] > 0, scores, -1e9)
        powers = kept(np.exp(kept(scores - scores.real.max(-1, keepdims=True))))
        return kept(kept(powers / powers.sum(-1, keepdims=True)) @ values)
