"""A backend for a framework of one model, in NumPy: a table, a mean over positions, and a matrix."""

from __future__ import annotations

import numpy as np

from embgrad.backend import ModelPass, PassRecorder, Pullback, Request, compute_dtype
from embgrad.errors import UnsupportedError
from embgrad.toolkit import copy_owned, model_lock


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
        return copy_owned(array)


class BagPass(ModelPass):
    """A forward pass of a Bag and its pullbacks: the steps of `ModelPass` that touch the framework."""

    tensors = Arrays()

    def prepare(self):
        return model_lock([self.model])

    def call(self):
        if self.request.call is not None:
            raise UnsupportedError("a Bag is called in one way only. Leave call=... out")
        given = {"mask": self.batch.mask, "types": self.batch.types, **self.batch.extras}
        self.unused = tuple(name for name, value in given.items() if value is not None)
        self.recorder.see("table", self.batch.ids, *self.model.table.shape)  # an id outside the table is an error
        self.rows = self.model.table[self.batch.ids]
        self.recorder.record_output(self.rows)
        return self.model(self.rows)

    def activations(self, keys):
        return {key: copy_owned(self.rows) for key in keys}

    def pull_back(self, cotangents, keys):
        ((logits, cotangent),) = cotangents
        gradient = self.model.pull_back(self.rows, cotangent.astype(logits.dtype))
        return Pullback({key: copy_owned(gradient) for key in keys})

    def compute_dtype(self, keys, outputs, returned):
        return compute_dtype([str(self.rows.dtype)], ())


class TinyBackend:
    """The backend: it owns Bags, and runs passes of them."""

    name, package, extra = "tiny", "embgrad_tiny", None
    supports = frozenset({"word"})

    def owns(self, part):
        return isinstance(part, Bag)

    def versions(self):
        return {"tiny": "1.0"}

    def paths(self, model):
        return ["table"]

    def points(self, model, batch, call=None):
        return BagPass(model, batch, Request(call=call), PassRecorder(batch, None)).points()

    def run(self, model, batch, request):
        return BagPass(model, batch, request).run()
