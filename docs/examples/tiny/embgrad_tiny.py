"""A backend for a framework of one model, in NumPy: a table, a mean over positions, and a matrix."""

from __future__ import annotations

import numpy as np

from embgrad.backend import PassRecorder, Run, answered, compute_dtype, model_lock, owned, values_at
from embgrad.errors import UnsupportedError


class Bag:
    """The framework: logits (example, classes) = mean(table[ids]) @ matrix, with a pullback by hand."""

    def __init__(self, table, matrix):
        self.table, self.matrix = table, matrix

    def __call__(self, rows):
        return rows.mean(1) @ self.matrix

    def pull_back(self, rows, cotangent):
        return np.broadcast_to((cotangent @ self.matrix.T)[:, None] / rows.shape[1], rows.shape)


class Arrays:
    """How embgrad reads the framework's arrays."""

    kind, scalars = "a NumPy array", ((),)

    def is_tensor(self, value):
        return isinstance(value, np.ndarray)

    def dtype(self, array):
        return str(array.dtype)

    def to_numpy(self, array):
        return owned(array)


class TinyBackend:
    """The backend: it finds the lookup, runs the model, and pulls cotangents back to the rows."""

    name, package, extra = "tiny", "embgrad_tiny", None
    supports = frozenset({"word"})

    def owns(self, part):
        return isinstance(part, Bag)

    def versions(self):
        return {"tiny": "1.0"}

    def paths(self, model):
        return ["table"]

    def points(self, model, batch, call=None):
        watch = PassRecorder(batch, None)
        self._looked_up(model, batch, watch, call)
        return watch.points()

    def run(self, model, batch, request):
        with model_lock([model]):
            watch = request.recorder(batch)
            rows = self._looked_up(model, batch, watch, request.call)
            keys = watch.resolve()
            answer = answered(model(rows), batch, request, Arrays())
            pulled = [
                dict.fromkeys(keys.values(), owned(model.pull_back(rows, cotangent.astype(logits.dtype))))
                for ((logits, cotangent),) in answer.sets
            ]
        values = values_at(keys, watch, dict.fromkeys(keys.values(), owned(rows)), pulled)
        given = {"mask": batch.mask, "types": batch.types, **batch.extras}
        unused = tuple(name for name, value in given.items() if value is not None)
        return Run(
            values,
            compute_dtype([str(rows.dtype)], ()),
            unused,
            answer.objective,
            further=answer.further,
            lookups=watch.looked_up(),
            reached=watch.points() if request.record else None,
        )

    def _looked_up(self, model, batch, watch, call):
        if call is not None:
            raise UnsupportedError("a Bag is called in one way only. Leave call=... out")
        watch.see("table", batch.ids, *model.table.shape)  # an id outside the table is an error from here on
        rows = model.table[batch.ids]
        watch.record_output(rows)
        return rows
