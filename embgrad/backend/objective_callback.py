"""An objective of a batch in the form in which a backend takes it: it returns values, and cotangents for the outputs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from embgrad.backend.responses import Respond, Response
from embgrad.inputs.batch import TokenBatch
from embgrad.inputs.decoder import positions_of
from embgrad.objectives.native import NativeObjective
from embgrad.objectives.objective import Layouts, Objective, OpenPositionsError

__all__ = ["BatchObjective", "callback_of"]


class BatchObjective:
    """An objective of a batch, as a backend calls it, see `embgrad.backend.Respond`.

    Args:
        objective: the objective whose gradient is computed.
        batch: the batch that the model runs on.
        sets: the number of sets of cotangents: 0, 1 for the sum over examples, or the number of examples for one set each.
        sized: compute `Response.size`, for an estimate of the values' rounding error.
        layouts: what is known of the model's outputs, read when the objective is called.

    Attributes:
        objective: see above.
    """

    def __init__(
        self,
        objective: Objective,
        batch: TokenBatch,
        sets: int,
        *,
        sized: bool = False,
        layouts: Layouts | None = None,
    ) -> None:
        self.objective = objective
        self._batch = batch
        self._sets = sets
        self._sized = sized
        self._layouts = layouts
        self._shape: tuple[int, ...] = ()
        self._rows: tuple[np.ndarray, np.ndarray] | None = None

    @property
    def outputs(self) -> tuple[str | None, ...]:
        """The name of the output that the objective reads."""
        return (self.objective.output,)

    @property
    def is_ours(self) -> bool:
        """Return whether the callback runs only embgrad's code, so that any thread may run it."""
        return type(self.objective).__module__.partition(".")[0] == "embgrad"

    def reads(self, name: str | None, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the rows that the objective reads if they are at most half of all, else None."""
        self._shape = shape
        if type(self.objective).evaluate is not Objective.evaluate:  # a subclass's `evaluate` expects the whole output
            return None
        before = self._before(shape)
        rows = self.objective.places(self._own_shape(shape, before), self._batch)
        if rows is None or not 0 < 2 * len(rows[0]) <= shape[0] * shape[1]:
            self._rows = None
            return None
        self._rows = rows
        return rows if before is None else (rows[0], rows[1] + before)

    def __call__(self, outputs: Mapping[str | None, np.ndarray]) -> Response:
        """Return the objective's values and its sets of cotangents for the outputs."""
        name = self.objective.output
        rows, self._rows = self._rows, None
        if rows is None:
            self._shape = outputs[name].shape
            before = self._before(self._shape)
            found, cotangent = self._of_whole(outputs[name], before)
        else:
            found, cotangent = self._with_axes().evaluate_rows(outputs[name], rows, self._batch)
        values = np.array(np.broadcast_to(found, len(self._batch)), np.float64)
        size = 0.0
        if self._sized:
            counted = cotangent != 0  # where the cotangent is 0 the output may be infinite, as at masked classes
            size = float(np.abs(outputs[name][counted].astype(np.float64) * cotangent[counted]).sum())
        sets = [{name: cotangent}] * self._sets
        if self._sets > 1:
            owners = np.arange(len(cotangent)) if rows is None else rows[0]
            sets = [{name: _only(cotangent, owners == example)} for example in range(len(self._batch))]
        return Response(values, sets, self._shape, size)

    def _of_whole(self, output: np.ndarray, before: int | None) -> tuple[np.ndarray, np.ndarray]:
        """Return the objective's values and the cotangent of a whole output, of which its positions of the batch count."""
        if before is None:
            return self._with_axes().evaluate(output, self._batch)
        own = slice(before, before + self._batch.shape[1])
        cotangent = np.zeros(output.shape)
        values, cotangent[:, own] = self._with_axes().evaluate(output[:, own], self._batch)
        return values, cotangent

    def _before(self, shape: tuple[int, ...]) -> int | None:
        """Return how many positions of an output stand before the batch's; None where they are not known to."""
        objective, batch = self.objective, self._batch
        if self._layouts is None or len(shape) != 3 or type(objective).evaluate is not Objective.evaluate:
            return None
        more = shape[1] - batch.shape[1]
        if more <= 0 or shape[0] != len(batch) or positions_of(shape, batch, objective.output) is not batch:
            return None
        is_prefixed = self._layouts.prefixed.get((objective.output, more))
        if is_prefixed is None:
            raise OpenPositionsError(objective.output, shape, more)
        return more if is_prefixed else None

    def _own_shape(self, shape: tuple[int, ...], before: int | None) -> tuple[int, ...]:
        """Return an output's shape without the positions that are not the batch's."""
        return shape if before is None else (shape[0], self._batch.shape[1], *shape[2:])

    def _with_axes(self) -> Objective:
        """Return the objective with the output's axes that are positions, as far as they are known and fit its shape."""
        layout = None if self._layouts is None else self._layouts.axes.get((self.objective.output, len(self._shape)))
        if layout is None or self.objective.axes is not None:
            return self.objective
        if any(size not in (None, actual) for size, actual in zip(layout[1:], self._shape[1:], strict=True)):
            return self.objective  # it was an output with other classes
        return self.objective.with_axes([axis for axis, size in enumerate(layout) if size is None])


def callback_of(
    objective: Objective | NativeObjective,
    batch: TokenBatch,
    sets: int = 1,
    *,
    sized: bool = False,
    layouts: Layouts | None = None,
) -> Respond | NativeObjective:
    """Return the objective in the form that `Request.objectives` takes."""
    if not isinstance(objective, Objective):
        return objective
    return BatchObjective(objective, batch, sets, sized=sized, layouts=layouts)


def _only(cotangent: np.ndarray, rows: np.ndarray) -> np.ndarray:
    selected = np.zeros_like(cotangent)
    selected[rows] = cotangent[rows]
    return selected
