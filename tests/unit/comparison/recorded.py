"""Recordings of forward passes with values of a test's own, and models whose passes are functions in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import numpy as np

from embgrad import TokenBatch
from embgrad.comparison.recording import FINAL, HeldWeight, Recording, Running, Tensor

IDS = np.array([[5, 3, 8, 2], [7, 4, 6, 0]])
BATCH = TokenBatch(IDS, [[1, 1, 1, 1], [1, 1, 1, 0]])
REAL = BATCH.real


def tensor(key: str, values: np.ndarray, time: float = 0.0, roles: Sequence[str] = (), **further: Any) -> Tensor:
    """Return a tensor: at a module's side such as "up:output#0", of the output, or else of a lookup."""
    if key == FINAL:
        return Tensor(FINAL, "", "output", 0, (), float("inf"), values, **further)
    name, _, number = key.partition("#")
    path, _, side = name.partition(":")
    return Tensor(key, path, side or None, int(number or 0), tuple(roles), time, values, **further)


def recording(tensors: Sequence[Tensor], weights: Mapping[str, np.ndarray] | None = None, **further: Any) -> Recording:
    """Return a recording; a weight's module is its name up to the last dot."""
    held = tuple(
        HeldWeight(name, name.rpartition(".")[0], values.shape, partial(np.asarray, values))
        for name, values in (weights or {}).items()
    )
    return Recording(
        **{
            "label": "a model",
            "tensors": {item.key: item for item in tensors},
            "weights": held,
            "batch": BATCH,
            "dtype": "float64",
            **further,
        }
    )


#: Computes a tensor from the tensors before it, by key; a sequence of them by key is a model.
Steps = Mapping[str, Callable[[Mapping[str, np.ndarray]], np.ndarray]]


class Pass:
    """A model that computes tensors in order, each from those before it.

    Args:
        steps: by key the function that computes each; the last is the output.
        gradients: by key the gradients that arrive in a backward pass, last first.
        can_be_led: whether values can be put in.
    """

    def __init__(
        self, steps: Steps, gradients: Mapping[str, np.ndarray] | None = None, *, can_be_led: bool = True
    ) -> None:
        self.steps = steps
        self.can_be_led = can_be_led
        self.points = {key: key for key in steps if key != FINAL}
        self.gradients = gradients or {}
        self.passes = 0

    def led(
        self,
        values: Mapping[str, Callable[[np.ndarray], np.ndarray]],
        gradients: Mapping[str, Callable[[np.ndarray], np.ndarray]],
    ) -> dict[str, np.ndarray]:
        """Return the output of a pass with changed values, see `LiveSide.led`."""
        self.passes += 1
        at: dict[str, np.ndarray] = {}
        for key, step in self.steps.items():
            value = step(at)
            at[key] = values[key](value) if key in values else value
        for key, change in gradients.items():
            change(self.gradients[key])
        return {FINAL: at[FINAL]} if FINAL in at else {}

    def record(self, weights: Mapping[str, np.ndarray] | None = None, **further: Any) -> Recording:
        """Return the recording of its pass; `roles` has the roles by key."""
        at: dict[str, np.ndarray] = {}
        for key, step in self.steps.items():
            at[key] = step(at)
        roles = further.pop("roles", {})
        tensors = [
            tensor(key, values, float(number), roles.get(key, ()), gradient=self.gradients.get(key))
            for number, (key, values) in enumerate(at.items())
        ]
        return recording(tensors, weights, live=cast(Running, self), **further)

    def record_in_order(self) -> None:
        """Return None: the texts of a batch are always run in its order."""
