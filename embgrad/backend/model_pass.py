"""One forward pass of a model and its pullbacks, in eight steps, of which a framework fills in those that touch its tensors."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from embgrad.backend.cotangents import Answer, Cotangents, Tensors, answer_objective, answers_in_turn, values_at
from embgrad.backend.own_mask import GradientSizes, unused_inputs
from embgrad.backend.parameters import ParameterValues, TableRest
from embgrad.backend.protocol import NativeObjective, Point, Request, Run
from embgrad.backend.responses import Respond
from embgrad.errors import PointNotReachedError
from embgrad.inputs.batch import TokenBatch
from embgrad.model_points.descent import Reached
from embgrad.model_points.recorder import PassRecorder

__all__ = ["ModelPass", "Pullback"]


@dataclass(frozen=True)
class Pullback:
    """The gradients of one set of cotangents, as NumPy; None where no path of the graph leads to a point or an array.

    Attributes:
        points: the gradients at the points by key, after edits.
        before: the gradients that edits have replaced, by key.
        arrays: the gradients of parameters and tables, by name.
    """

    points: Mapping[str, np.ndarray | None]
    before: Mapping[str, np.ndarray | None] = field(default_factory=dict)
    arrays: Mapping[str, np.ndarray | None] = field(default_factory=dict)


class ModelPass(ABC):
    """One forward pass of a model on a batch, and the pullbacks that a request asks for.

    `run` goes in eight steps:

    1. `prepare` sets the state of the model and of the process, and holds their locks.
    2. `call` calls the model, whose lookups and modules are recorded.
    3. `lookups` finds the keys of the points that the request names.
    4. `objective` returns the cotangents of the outputs, which the objective computes in NumPy.
    5. `activations` reads the values at the points, and `pull_back` pulls each set of cotangents back to them.
    6. `parameters` and `rests` collect what else was requested.
    7. `prepare` ends, and has restored all that it set.
    8. The result is put together.

    A framework implements `prepare`, `call`, `pull_back`, `activations` and `compute_dtype`; the other steps have a default.

    Args:
        model: the model, or a sequence of its parts.
        batch: the batch that it is run on.
        request: what is requested.
        recorder: records the pass; None for the request's own.

    Attributes:
        tensors: access to the framework's tensors.
        unused: the names of the inputs that the model cannot take, after `call`.
        reached: with `Request.record` the points that the pass reached, where they are not the recorder's.
    """

    tensors: Tensors

    def __init__(self, model: Any, batch: TokenBatch, request: Request, recorder: PassRecorder | None = None) -> None:
        self.model = model
        self.batch = batch
        self.request = request
        self.recorder = request.recorder(batch) if recorder is None else recorder
        self.unused: tuple[str, ...] = ()
        self.reached: Sequence[Point] | None = None

    # The steps that a framework implements

    @abstractmethod
    def prepare(self) -> AbstractContextManager[Any]:
        """Set the state for the pass while the context is open, and restore it afterwards, also after an error."""

    @abstractmethod
    def call(self) -> Any:
        """Call the model, record what it reaches, and return its return value."""

    @abstractmethod
    def activations(self, keys: Sequence[str]) -> dict[str, np.ndarray]:
        """Return by key the values with which the model continued at points."""

    @abstractmethod
    def pull_back(self, cotangents: Cotangents, keys: Sequence[str]) -> Pullback:
        """Return the gradients of one set of cotangents at points."""

    @abstractmethod
    def compute_dtype(self, keys: Sequence[str], outputs: Sequence[Any], returned: Any) -> str:
        """Return the dtype in which the model computed, see `embgrad.backend.compute_dtype`.

        Args:
            keys: the keys of the points that were read.
            outputs: the outputs that the first objective read.
            returned: the model's return value.
        """

    # The steps that have a default

    def unseen(self) -> str:
        """Return why lookups of this model may have stayed unseen, for a message; empty for no reason."""
        return ""

    def lookups(self) -> Mapping[str, str]:
        """Return the keys of the points that the request names, by these names."""
        with contextlib.suppress(PointNotReachedError):
            return self.recorder.resolve()
        return self.recorder.resolve(self.unseen())  # raises the error with the reason

    def objective(self, returned: Any, objective: Respond | NativeObjective) -> Answer:
        """Return the answer of one objective to the model's return value."""
        return answer_objective(returned, self.batch, objective, self.tensors, several=self.request.several)

    def parameters(self, gradients: Mapping[str, np.ndarray | None]) -> Mapping[str, ParameterValues] | None:
        """Return the requested gradients of parameters by name; None where none are requested."""
        return None

    def rests(self, keys: Sequence[str], gradients: Mapping[str, np.ndarray | None]) -> Mapping[str, TableRest] | None:
        """Return by key the gradients that reach the tables in other ways; None where they are not requested."""
        return None

    def masked_rows(self) -> Iterable[int | None]:
        """Return for each lookup of the ids the row that its layer masks by itself; None for one that masks none."""
        return [lookup.padding for lookup in self.recorder.lookups if lookup.layout is not None]

    # The pass

    def points(self) -> Reached:
        """Return the points that a forward pass reaches, in order."""
        with self.prepare():
            self.call()
        return self.recorder.points()

    def run(self) -> Run:
        """Run the forward pass and the pullbacks, and return what was requested; the model is as it was."""
        with self.prepare():
            returned = self.call()
            chosen = self.lookups()
            request = self.request
            names = request.keys_to_read(chosen)
            keys = list(dict.fromkeys(names.values()))
            answers = answers_in_turn(request, partial(self.objective, returned))
            values = self.activations(keys)
            dtype = self.compute_dtype(keys, answers.outputs, returned)
            del returned  # outputs that are not read are freed before the pullback
            sizes = None
            if request.reduce is not None and "mask" in self.unused:
                sizes = GradientSizes(request.reduce)
                request = replace(request, reduce=sizes.reduce)
            pulled = self._pull(answers.sets if request.pullback else (), keys, values, request.reduce_gradients)
            arrays = pulled[0].arrays if pulled else {}
            parameters, rests = self.parameters(arrays), self.rests(keys, arrays)
        gradients, before = [each.points for each in pulled], [each.before for each in pulled]
        found = values_at(names, self.recorder, values, gradients, before, rests)
        unused, masked_id = self.unused, None
        if "mask" in unused:
            read = found.values() if sizes is None else sizes.of(found, chosen)
            unused, masked_id = unused_inputs(unused, self.batch, self.masked_rows(), read)
        return Run(
            found,
            dtype,
            unused,
            answers.responses,
            parameters,
            masked_id=masked_id,
            lookups=self.recorder.find_lookups(),
            reached=(self.reached or self.recorder.points()) if request.record else None,
        )

    def _pull(
        self,
        sets: Iterable[Cotangents],
        keys: Sequence[str],
        values: Mapping[str, np.ndarray],
        reduced: Callable[..., Mapping[str, np.ndarray | None]],
    ) -> list[Pullback]:
        pulled: list[Pullback] = []
        for cotangents in sets:
            gradients = self.pull_back(cotangents, keys)
            arrays = {} if pulled else gradients.arrays  # those of further sets are not requested
            pulled.append(replace(gradients, points=reduced(gradients.points, values), arrays=arrays))
        return pulled
