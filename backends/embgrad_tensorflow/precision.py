"""Tells in which dtype a model computes that turns its numbers into another one on their way: Keras's mixed precision."""

from __future__ import annotations

from typing import Any

from tensorflow.python import pywrap_tfe

from embgrad.watching import PointWatch
from embgrad_tensorflow.lookup import Points, Watcher
from embgrad_tensorflow.walk import Tables

__all__ = ["TurningWatcher", "is_turned"]


class TurningWatcher(Watcher):
    """Takes down, too, what the numbers at the points are turned into.

    Attributes:
        computing: the floating-point dtypes that what depends on a point was cast to.
    """

    def __init__(self, watch: PointWatch, tables: Tables, points: Points | None = None) -> None:
        super().__init__(watch, tables, points)
        self.computing: set[Any] = set()

    def _same_table(self, name: str, inputs: Any, attrs: Any, outputs: Any) -> None:
        if name == "Cast" and is_turned(inputs[0], outputs[0]):
            self.computing.add(outputs[0].dtype)
        super()._same_table(name, inputs, attrs, outputs)


def is_turned(tensor: Any, cast: Any) -> bool:
    """Whether what was cast just now depends on a point, and goes on as a floating-point number."""
    if not (tensor.dtype.is_floating and cast.dtype.is_floating):
        return False
    return bool(pywrap_tfe.TFE_Py_TapeSetShouldRecordBackprop([tensor]))
