"""One forward pass and its pullbacks: values and gradients at points and parameters, as NumPy."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch

from embgrad.backend import (
    Answer,
    BatchObjective,
    Call,
    Cotangents,
    Lookup,
    ModelPass,
    NativeObjective,
    ParameterValues,
    PassRecorder,
    Pullback,
    Reached,
    Request,
    Respond,
    Retries,
    Run,
    TableRest,
    TokenBatch,
    wrap_functions,
)
from embgrad.toolkit import as_parts
from embgrad_torch import inputs
from embgrad_torch.checkpoints import blocks_with_checkpoints, checkpointing, without_checkpoints
from embgrad_torch.inputs import TorchTensors
from embgrad_torch.lookup import Differentiating, LookupMode, WeightsDifferentiated
from embgrad_torch.modules import ModuleWatch
from embgrad_torch.parameters import Tables, parameter_values, trainable
from embgrad_torch.pullback import next_sequence_number, pull_back
from embgrad_torch.state import drawn_by_the_user, preserve, preserve_random_state, running, uncompiled
from embgrad_torch.tap import Taps, compute_dtype, expect_unwritten
from embgrad_torch.walk import Structure, TablePaths, further_paths, scripted_name

__all__ = ["points", "run"]

T = TypeVar("T")


def points(model: Any, batch: TokenBatch, call: Call | None = None) -> Reached:
    """Return the points that a forward pass reaches."""
    request = Request(call=call)
    return _repeat(
        lambda frozen: TorchPass(model, batch, request, PassRecorder(batch, None), frozen=frozen),
        TorchPass.points,
        frozen=True,
    )


def run(model: Any, batch: TokenBatch, request: Request) -> Run:
    """Run one forward pass, and a pullback for each set of cotangents.

    The weights are frozen, unless the model itself, or a native objective, may use their gradients; and in training mode a second
    pass would draw other random numbers.
    """
    tries = Retries(request)
    frozen = not (request.parameters or request.training or (request.has_native and request.pullback))
    return _repeat(lambda frozen: TorchPass(model, batch, tries.next(), frozen=frozen), TorchPass.run, frozen=frozen)


def _repeat(make: Callable[[bool], TorchPass], result_of: Callable[[TorchPass], T], *, frozen: bool) -> T:
    """Return the result of a pass; one with frozen weights is repeated with trainable ones where the model needs these."""
    try:
        return result_of(make(frozen))
    except WeightsDifferentiated:
        if not frozen:
            raise
    return result_of(make(False))


class TorchPass(ModelPass):
    """A forward pass of a PyTorch model, see `ModelPass`.

    Args:
        frozen: whether the weights are frozen, so that nothing is kept for their gradients.
    """

    def __init__(
        self, model: Any, batch: TokenBatch, request: Request, recorder: PassRecorder | None = None, *, frozen: bool
    ) -> None:
        super().__init__(model, batch, request, recorder)
        self.frozen = frozen
        self.structure = Structure(as_parts(model))
        self._trainable: Mapping[str, Any] = {}
        self._tables: Tables | None = None
        self._leaves: Mapping[str, Any] = {}  # the parameters and tables whose gradients are requested, by name
        self._since = 0

    @contextlib.contextmanager
    def prepare(self) -> Iterator[None]:
        """Set the model's state, and watch its functions and modules."""
        structure, request, recorder = self.structure, self.request, self.recorder
        walked, device = structure.walked, structure.device
        with (
            running(),
            preserve(structure, device, training=request.training) as weights,
            uncompiled,
            preserve_random_state(device, training=request.training),
            without_checkpoints(),
            contextlib.ExitStack() as stack,
        ):
            self._device, self._weights = device, weights
            if request.parameters:
                self._leaves = self._trainable = trainable(walked)
            if request.tables:
                self._tables = Tables(structure.parts, walked, request)
                tables = {f"table {number}": table for number, table in enumerate(self._tables.parameters)}
                self._leaves = {**self._leaves, **tables}
            self.request = request = wrap_functions(request, weights.trainable())
            self._taps = taps = Taps(request, attached=not self.frozen)
            self._mode = mode = LookupMode(recorder, taps, TablePaths(walked))
            mode.frozen = self.frozen and weights.freeze(() if self._tables is None else self._tables.parameters)
            stack.callback(self._release)
            if recorder.needs_modules:
                modules = ModuleWatch(recorder, taps, mode.is_active, lambda: mode.pulling)
                further = further_paths(structure.parts, walked) if recorder.everything else {}
                stack.enter_context(modules.on(walked, further))
            if self._tables is not None:
                stack.enter_context(self._tables.differentiable())
            if self.frozen and not request.pullback:
                stack.enter_context(torch.no_grad())
            elif self.frozen and not recorder.needs_modules:
                blocks = blocks_with_checkpoints(walked)
                if not any(name.startswith(f"{path}.") for name in request.points for path in blocks):
                    stack.enter_context(checkpointing(blocks.values()))
            yield

    def call(self) -> Any:
        """Call the model under the mode that sees its lookups."""
        if self._leaves:
            self._since = next_sequence_number()
        call, self.unused = inputs.plan(self.model, self.batch, self.request.call, self._device)
        mode = self._mode
        with mode:
            try:
                returned = call()
            except Exception as failure:
                # The model may have caught WeightsDifferentiated, or failed because a weight has no gradient.
                if mode.differentiated or (mode.frozen and "grad" in str(failure)):
                    raise WeightsDifferentiated from None
                self.recorder.expect_some((type(module).__name__ for module in self.structure.modules), failure)
                raise
        self._expect_undifferentiated()
        expect_unwritten(self._taps.aliased)
        return returned

    def unseen(self) -> str:
        """Return why lookups of this model may be invisible, for the message; an empty string for no reason."""
        scripted = scripted_name(self.structure)
        if scripted is None:
            return ""
        return (
            f"{scripted!r} is a TorchScript module (torch.jit.trace or torch.jit.script), whose lookups cannot be recorded: "
            "pass the torch.nn.Module that it was made from"
        )

    def objective(self, returned: Any, objective: Respond | NativeObjective) -> Answer:
        """Return the answer of one objective; a native one may draw random numbers, and finds the weights trainable."""
        self.tensors = TorchTensors(None if self._leaves else self._mode.head)
        if isinstance(objective, BatchObjective) and objective.is_ours:
            return super().objective(returned, objective)
        frozen = self._mode.frozen and isinstance(objective, NativeObjective)
        stop = Differentiating(self._mode.stop_differentiating) if frozen else contextlib.nullcontext()
        with drawn_by_the_user(), self._weights.trainable(), stop:
            try:
                return super().objective(returned, objective)
            except RuntimeError as failure:
                if self.request.pullback or torch.is_grad_enabled() or "grad" not in str(failure):
                    raise
                raise WeightsDifferentiated from None  # the function differentiates what was not recorded

    def activations(self, keys: Sequence[str]) -> dict[str, np.ndarray]:
        """Return the values at points."""
        return {key: self._taps.values[key] for key in keys}

    def pull_back(self, cotangents: Cotangents, keys: Sequence[str]) -> Pullback:
        """Pull one set of cotangents back to the points, and to the requested parameters and tables."""
        pulled = pull_back(
            cotangents,
            self._taps,
            self._leaves,
            self._mode,
            self.structure.parameters,
            repeats=self.request.repeats,
            since=self._since,
        )
        self._expect_undifferentiated()  # the model has caught the exception
        return pulled

    def compute_dtype(self, keys: Sequence[str], outputs: Sequence[Any], returned: Any) -> str:
        """Return the coarsest dtype of the points, the outputs that were read, autocast and products in half precision."""
        read = [self._taps.marks[key] for key in keys]
        return compute_dtype(read, outputs, returned, self.structure.parameters(), self._mode.halves)

    def parameters(self, gradients: Mapping[str, np.ndarray | None]) -> Mapping[str, ParameterValues] | None:
        """Return the gradients of the trainable parameters."""
        return parameter_values(self._trainable, gradients) if self.request.parameters else None

    def rests(self, keys: Sequence[str], gradients: Mapping[str, np.ndarray | None]) -> Mapping[str, TableRest] | None:
        """Return the gradients that reach the tables of lookups in other ways."""
        if self._tables is None:
            return None
        lookups = {key: self.recorder.record_of(key) for key in keys}
        paths = {key: lookup.path for key, lookup in lookups.items() if isinstance(lookup, Lookup)}
        of_tables = [gradients.get(f"table {number}") for number in range(len(self._tables.parameters))]
        return self._tables.rests(paths, of_tables)

    def masked_rows(self) -> Iterable[int | None]:
        """Return the rows that the Keras layers of the lookups mask."""
        return self.structure.masked_rows(lookup.path for lookup in self.recorder.lookups if lookup.layout is not None)

    def _expect_undifferentiated(self) -> None:
        if self._mode.differentiated:
            raise WeightsDifferentiated

    def _release(self) -> None:
        """Restore scaled rows, and break the cycles of tensors and hooks, which would wait for the garbage collector."""
        self._mode.restore()
        self._mode.head = None
        self._taps.forget()
