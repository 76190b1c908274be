"""Run one forward pass of a model, and the pullbacks through it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from embgrad.backend import (
    Answer,
    Call,
    Cotangents,
    ModelPass,
    NativeObjective,
    ParameterValues,
    PassRecorder,
    Pullback,
    Reached,
    Request,
    Respond,
    Run,
    TableRest,
    TokenBatch,
    answer,
    compute_dtype,
    native_answer,
)
from embgrad.errors import UnsupportedError
from embgrad.toolkit import as_parts, every, first
from embgrad_gluon import bert
from embgrad_gluon.cures import Cures, Functions
from embgrad_gluon.graphs import imperatively, output_names
from embgrad_gluon.importing import import_mxnet
from embgrad_gluon.inputs import GluonArrays, call_model, is_floating
from embgrad_gluon.lookup import HINT, Handler, Lookups, Tables, compose, intercept_operators
from embgrad_gluon.modules import Modules, ignore_calls, intercept_calls
from embgrad_gluon.parameters import TableParameters, array_of, record_frozen_tables, trainable, values_of
from embgrad_gluon.pullback import BackwardPass
from embgrad_gluon.scopes import observe_scopes
from embgrad_gluon.state import preserve
from embgrad_gluon.tap import Taps

__all__ = ["points", "run"]

#: The message where MXNet refuses to write into an array that it records.
WRITES_WHILE_RECORDING: Final = (
    "the model writes into an array that it has computed from the lookup or from parameters (x += ..., x[i] = ...), "
    "which MXNet cannot do while it records. Compute a new array, such as x + ..., concat or where(...)"
)


def points(
    model: Any, batch: TokenBatch, call: Call | None = None, handlers: Mapping[str, Handler] | None = None
) -> Reached:
    """Return the points that a forward pass in evaluation mode reaches, in order.

    Args:
        model: the model.
        batch: the batch that it is run on.
        call: calls it in another way than by its arguments' names.
        handlers: by operators' names further handlers.
    """
    return GluonPass(model, batch, Request(call=call), PassRecorder(batch, None), handlers=handlers).points()


def run(model: Any, batch: TokenBatch, request: Request) -> Run:
    """Run one forward pass, and a pullback for each set of cotangents."""
    return GluonPass(model, batch, request).run()


class GluonPass(ModelPass):
    """A forward pass of a Gluon block, see `ModelPass`.

    Args:
        handlers: by operators' names further handlers.
    """

    def __init__(
        self,
        model: Any,
        batch: TokenBatch,
        request: Request,
        recorder: PassRecorder | None = None,
        *,
        handlers: Mapping[str, Handler] | None = None,
    ) -> None:
        super().__init__(model, batch, request, recorder)
        self.tensors = GluonArrays(training=request.training)
        self._parts = as_parts(model)
        self._handlers = handlers or {}
        self._native: dict[int, Any] = {}  # the values of the user's objectives, by the identities of their functions
        self._functions = Functions()
        self._trainable: Mapping[str, Any] | None = None
        self._tables: TableParameters | None = None

    @contextlib.contextmanager
    def prepare(self) -> Iterator[None]:
        """Set the mode, and record at which points and parameters gradients are taken."""
        request = self.request
        recorded = record_frozen_tables(self._parts) if request.tables else contextlib.nullcontext()
        with preserve(self._parts, training=request.training), recorded:
            cuts = not (request.parameters or request.tables)
            self._taps = Taps(self.recorder, request, cuts=cuts)
            yield

    def call(self) -> Any:
        """Call the model while operators and modules are intercepted, and wait for its outputs."""
        mx, request, taps = import_mxnet(), self.request, self._taps
        cures = Cures(request.training, parameters=request.parameters, repeats=request.repeats or bool(request.edit))
        cured = {**cures.handlers(), **self._handlers}
        # Parameters' gradients pass through the lookups, too; otherwise nothing below them is differentiated.
        self._lookups = Lookups(Tables(self._parts), taps, cut=not request.parameters)
        modules = intercept_calls(Modules(self._parts, taps)) if self.recorder.needs_modules else ignore_calls()
        recording = mx.autograd.record if request.pullback else mx.autograd.pause
        observe = functools.partial(observe_scopes, taps)
        with recording(train_mode=request.training), imperatively(observe), self._functions.intercept():
            with intercept_operators(compose(self._lookups.handlers(), cured)), modules:
                try:
                    returned, self.unused = call_model(self.model, self._parts, self.batch, request.call)
                except mx.MXNetError as error:
                    if "already in a computational graph" not in str(error):
                        raise
                    raise UnsupportedError(WRITES_WHILE_RECORDING) from error
            for objective in request.objectives:
                if isinstance(objective, NativeObjective):  # its lookups and calls are not the model's
                    with intercept_operators(cured), ignore_calls():
                        self._native[id(objective)] = objective.function(returned)
        self._extra_variables = cures.extra_variables
        for array in every(returned, self.tensors.is_tensor):
            array.wait_to_read()  # MXNet raises the errors of operators only when a result is read
        return returned

    def unseen(self) -> str:
        """Return what makes lookups invisible."""
        return HINT

    def lookups(self) -> Mapping[str, str]:
        """Return the keys of the points that the request names; all of them must be as they were written."""
        self._chosen = super().lookups()
        return self._chosen

    def objective(self, returned: Any, objective: Respond | NativeObjective) -> Answer:
        """Return the answer of one objective; that of a native one has been recorded with the pass."""
        if isinstance(objective, NativeObjective):
            value = self._native[id(objective)]
            return native_answer(value, objective, self.batch, self.tensors, several=self.request.several)
        known, exported = bert.output_names(self.model, returned), output_names(self.model)
        # The only output of a symbol has its name where it is requested by that, and otherwise the role of a single output.
        single = known or tuple(name for name in exported if name in objective.outputs)
        if single and self.tensors.is_tensor(returned):
            returned = {single[0]: returned}
        return answer(returned, objective, self.tensors, known or exported)

    def activations(self, keys: Sequence[str]) -> dict[str, np.ndarray]:
        """Return the values at points, and prepare the pullbacks to them."""
        request, kept = self.request, self._taps.kept
        for key in dict.fromkeys(self._chosen.values()):
            self._taps.expect_unwritten(key)
        arrays: dict[str, Any] = {}
        if request.parameters:
            self._trainable = trainable(self._parts)
            of_parameters = {name: array_of(parameter) for name, parameter in self._trainable.items()}
            arrays = {name: array for name, array in of_parameters.items() if array is not None}
        if request.tables:
            tables = {key: self._lookups.tables[key] for key in keys if key in self._lookups.tables}
            self._tables = TableParameters(self._parts, tables)
            arrays = {**arrays, **self._tables.arrays}
        self._backward = BackwardPass(
            kept, keys, arrays, self._extra_variables, self._taps.changes, training=request.training
        )
        return {key: kept[key].values() for key in keys}

    def pull_back(self, cotangents: Cotangents, keys: Sequence[str]) -> Pullback:
        """Pull one set of cotangents back to the points, and to the arrays that the request needs."""
        with self._functions.reraise():
            return self._backward(cotangents)

    def compute_dtype(self, keys: Sequence[str], outputs: Sequence[Any], returned: Any) -> str:
        """Return the coarsest dtype of the points and of the outputs that were read, or else that of the first output."""
        arrays = [*(self._taps.kept[key].forwarded for key in keys), *outputs]
        output = first(returned, is_floating)
        dtype = self.tensors.dtype
        return compute_dtype(map(dtype, arrays), [] if output is None else [dtype(output)])

    def parameters(self, gradients: Mapping[str, np.ndarray | None]) -> Mapping[str, ParameterValues] | None:
        """Return the gradients of the parameters; None where they are not requested."""
        if self._trainable is None:
            return None
        return {name: values_of(parameter, gradients.get(name)) for name, parameter in self._trainable.items()}

    def rests(self, keys: Sequence[str], gradients: Mapping[str, np.ndarray | None]) -> Mapping[str, TableRest] | None:
        """Return by key the gradients that reach the tables in other ways; None where they are not requested."""
        return None if self._tables is None else self._tables.rests(gradients)
