"""The objective as a backend's callback: answers the outputs with cotangents, and keeps the objective's values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from embgrad.backend.protocol import Run
from embgrad.inputs.batch import TokenBatch
from embgrad.objectives.native import NativeObjective, native_values
from embgrad.objectives.objectives import Objective

__all__ = ["Respond", "objective_values", "respond_with"]


class Respond:
    """The objective as a backend's callback; keeps its values.

    Args:
        objective: what is pulled back.
        batch: what is run.
        sets: how many sets of cotangents there are: 0, 1 for the sum of the examples, or one for each example.
        sized: whether anybody asks how far the values may be off, as who pulls nothing back does.

    Attributes:
        objective: see above.
        values: the objective's, after the callback.
        shape: that of the output that it read, after the callback.
        size: Σ|output × cotangent|: to first order by how much Σ|values| changes when every output does by its own size. For
            who asks how far the values may be off; else 0.
    """

    def __init__(self, objective: Objective, batch: TokenBatch, sets: int, *, sized: bool = False) -> None:
        self.values = np.zeros(len(batch))
        self.shape: tuple[int, ...] = ()
        self.size = 0.0
        self.objective = objective
        self._batch = batch
        self._sets = sets
        self._sized = sized or sets == 0
        self._places: tuple[np.ndarray, np.ndarray] | None = None

    @property
    def is_ours(self) -> bool:
        """Whether no code of the user's runs in the callback, so that any thread may run it."""
        return type(self.objective).__module__.partition(".")[0] == "embgrad"

    def reads(self, name: str | None, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray] | None:
        """See `embgrad.backend.Reads`: the rows that count, where these are few."""
        self.shape = shape
        if type(self.objective).evaluate is not Objective.evaluate:  # it wants to see the whole
            return None
        places = self.objective.places(shape, self._batch)
        few = places is not None and 0 < 2 * len(places[0]) <= shape[0] * shape[1]
        self._places = places if few else None
        return self._places

    def __call__(self, outputs: Mapping[str | None, np.ndarray]) -> Sequence[Mapping[str | None, np.ndarray]]:
        """See `embgrad.backend.Respond`."""
        name = self.objective.output
        if self._places is None:
            self.shape = outputs[name].shape
            self.values, cotangent = self.objective.evaluate(outputs[name], self._batch)
        else:
            self.values, cotangent = self.objective.evaluate_rows(outputs[name], self._places, self._batch)
        if self._sized:
            counted = cotangent != 0  # the others may be infinite, as masked classes are
            self.size = float(np.abs(outputs[name][counted].astype(np.float64) * cotangent[counted]).sum())
        if self._sets < 2:
            return [{name: cotangent}] * self._sets
        owners = np.arange(len(cotangent)) if self._places is None else self._places[0]
        return [{name: _only(cotangent, owners == example)} for example in range(len(self._batch))]


def respond_with(
    objective: Objective | NativeObjective, batch: TokenBatch, sets: int = 1, *, sized: bool = False
) -> Respond | NativeObjective:
    """The objective as a request has it."""
    return Respond(objective, batch, sets, sized=sized) if isinstance(objective, Objective) else objective


def objective_values(respond: Respond | NativeObjective, run: Run) -> np.ndarray:
    """The objective's values after a run."""
    return respond.values if isinstance(respond, Respond) else native_values(run.objective)


def _only(cotangent: np.ndarray, rows: np.ndarray) -> np.ndarray:
    alone = np.zeros_like(cotangent)
    alone[rows] = cotangent[rows]
    return alone
