"""The cache of compiled traces of models, which also remembers why a model has none."""

from __future__ import annotations

import threading
import types
import weakref
from collections.abc import Hashable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Final, Generic, Protocol, TypeVar

from embgrad.backend.protocol import Request, Run
from embgrad.backend.replay import Retries, agreeing
from embgrad.backend.responses import Respond
from embgrad.backend.trace_check import MeasuredObjective, UntraceableError, difference_of
from embgrad.common.lru import LRUCache
from embgrad.objectives.native import NativeObjective
from embgrad.toolkit.recorded_changes import Changes, changes_recorded, record_again

__all__ = ["TraceCache", "TraceMaker", "UnfitError", "UntraceableError"]

Trace = TypeVar("Trace")

#: The most lengths that have a trace each, if no trace for all lengths can be made.
LENGTHS: Final = 8

#: The most uses, each with its lengths, for which the cache remembers that a trace agreed with the model.
COMPARED: Final = 256

#: The most kinds of requests for which a model has traces.
FORMS: Final = 16

#: The most consecutive calls that find no valid traces; then no more are made.
PATIENCE: Final = 16

#: The most native objectives about which the cache remembers anything.
OBJECTIVES: Final = 256


class UnfitError(Exception):
    """The error that a trace cannot run a batch; its message is the reason."""


class TraceMaker(Protocol[Trace]):
    """The part of a backend that runs one call of a model, and creates and runs its traces."""

    def plain(self, request: Request) -> Run:
        """Run the model without a trace."""
        ...

    def make(self, request: Request, *, exact: bool) -> Trace:
        """Return a new trace, for any lengths unless `exact`.

        Args:
            exact: make the trace for this batch's lengths alone.

        Raises:
            UntraceableError: no trace can be made.
        """
        ...

    def again(self) -> AbstractContextManager[Any]:
        """Reset the model's random generators, so that the next run draws the same numbers as the previous one."""
        ...

    def run(self, trace: Trace, request: Request) -> Run:
        """Run a trace.

        Raises:
            UnfitError: the trace cannot run this batch.
            UntraceableError: it cannot serve this objective.
        """
        ...

    def dtypes(self, trace: Trace) -> Sequence[str]:
        """Return the names of the dtypes in which a trace computes."""
        ...


class _Form(Generic[Trace]):
    """The traces of one model for one kind of request, valid while the model does not change.

    Attributes:
        exact: whether each trace takes only the lengths that it was made for.
        refused: the reason why there is no trace, by objective.
        traces: the traces, by their lengths (None unless `exact`).
        compared: by the lengths and the uses for which a trace agreed with the model, what the model's pass changed.
    """

    def __init__(self, fingerprint: Any) -> None:
        self.fingerprint = fingerprint
        self.exact = False
        self.refused: LRUCache[str] = LRUCache(OBJECTIVES)
        self.traces: dict[Hashable, Trace] = {}
        self.compared: LRUCache[Changes] = LRUCache(COMPARED)


class _Model(Generic[Trace]):
    def __init__(self, references: tuple[Any, ...], limit: int) -> None:
        # Each drops this model from the cache when its owner dies, before an id is used again.
        self.references = references
        self.forms: LRUCache[_Form[Trace]] = LRUCache(limit)
        self.unused = 0


class TraceCache(Generic[Trace]):
    """The traces of all models, dropped with their model; for each model the least recently used are dropped first.

    A trace must not refer to its model. One thread at a time may use a model's traces, while it holds the model's lock.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._models: dict[tuple[int, ...], _Model[Trace]] = {}

    def run(
        self,
        parts: Sequence[object],
        question: Hashable,
        fingerprint: Any,
        lengths: Hashable,
        request: Request,
        maker: TraceMaker[Trace],
    ) -> Run:
        """Run a trace of a model if there is one or one can be made, otherwise the model itself.

        If a trace is new, or is used for certain lengths (which the model's Python may treat differently), points, changes or
        outputs for the first time, the model is run as well and the results are compared.

        Args:
            parts: the model's parts.
            question: everything on which a trace depends beside the model, its weights and its inputs' values.
            fingerprint: the model's fingerprint. Its method `is_that_of` compares it with that of a later call, and `kept`
                returns one without references to the model.
            lengths: the shapes of the batch.
            request: the request.
            maker: creates and runs traces.
        """
        try:
            form = self._form(parts, question, fingerprint)
        except UntraceableError as error:
            return replace(maker.plain(request), uncompiled=str(error))
        return _Call(form, lengths, request, maker).run()

    def _form(self, parts: Sequence[object], question: Hashable, fingerprint: Any) -> _Form[Trace]:
        model = self._model(parts)
        form = model.forms.get(question, None)
        if form is not None and form.fingerprint.is_that_of(fingerprint):
            model.unused = 0
            return form
        model.unused += 1
        form = _Form(fingerprint.without_model())
        model.forms.put(question, form)
        if model.unused > PATIENCE:  # until a call finds a valid form again
            raise UntraceableError(
                f"the last {PATIENCE} calls each made a different request, or followed a change of the model, and each "
                "would need a new trace"
            )
        return form

    def _model(self, parts: Sequence[object]) -> _Model[Trace]:
        # A bound method is a new object at each access, so its owner and its function identify it.
        owners = [part.__self__ if isinstance(part, types.MethodType) else part for part in parts]
        functions = [getattr(part, "__func__", None) for part in parts]
        ids = (*map(id, owners), *map(id, functions))
        with self._lock:
            model = self._models.get(ids)
            if model is None:
                # The callback may run at any moment, so it must not take the lock.
                try:
                    references = tuple(weakref.ref(owner, lambda _: self._models.pop(ids, None)) for owner in owners)
                except TypeError as error:
                    raise UntraceableError(str(error)) from None
                model = self._models[ids] = _Model(references, FORMS)
            return model


class _Call(Generic[Trace]):
    """One call of a model: the choice between its traces and the model itself."""

    def __init__(self, form: _Form[Trace], lengths: Hashable, request: Request, maker: TraceMaker[Trace]) -> None:
        self._form = form
        self._lengths = lengths
        self._request = request
        self._maker = maker
        self._tries = Retries(request)
        native = next((objective for objective in request.objectives if isinstance(objective, NativeObjective)), None)
        self._objective: Hashable = None if native is None else _read_by(native)
        self._use: Hashable = (
            lengths,
            request.points,
            request.several,
            tuple(map(_read_by, request.objectives)),
            *(tuple(sorted(getattr(request, option))) for option in ("override", "add", "edit")),
        )

    def run(self) -> Run:
        """Return the result of a trace, or of the model."""
        reason = self._form.refused.get(self._objective, None) or self._form.refused.get(None, None)
        if reason is not None:
            return self._with_reason(self._maker.plain(self._tries.next()), reason)
        changes = self._form.compared.get(self._use, None)
        if changes is None:
            return self._compare()
        record_again(changes)
        try:
            return self._maker.run(self._form.traces[self._key], self._tries.next())
        except UnfitError as error:
            return self._with_reason(self._maker.plain(self._tries.next()), f"the trace failed on this batch ({error})")

    def _compare(self) -> Run:
        """Run the model itself, then a trace, and return the trace's result if the two agree, else the model's."""
        request = self._tries.next()
        objectives = [
            objective if isinstance(objective, NativeObjective) else MeasuredObjective(objective)
            for objective in request.objectives
        ]
        with changes_recorded() as changes:
            result = self._maker.plain(replace(request, compiled=False, objectives=tuple(objectives)))
        record_again(changes)
        is_known = self._key in self._form.traces
        size = max((each.largest for each in objectives if isinstance(each, MeasuredObjective)), default=0.0)
        try:
            return self._run_trace(result, changes, size or 1.0)
        except (UntraceableError, UnfitError) as error:
            if is_known and isinstance(error, UnfitError):  # the trace still runs other lengths
                return self._with_reason(result, f"the trace failed on this batch ({error})")
            if not isinstance(error, _FullError):
                self._form.refused.put(self._objective, str(error))
            return self._with_reason(result, str(error))

    def _run_trace(self, result: Run, changes: Changes, size: float) -> Run:
        trace = self._trace()
        with self._maker.again():
            traced = self._maker.run(trace, self._tries.next())
        difference = difference_of(result, traced, agreeing(self._maker.dtypes(trace)), size)
        if difference is not None:
            hint = ", or the objective gives different results each time" if self._request.has_native else ""
            raise UntraceableError(difference + hint)
        self._form.traces[self._key] = trace
        self._form.compared.put(self._use, changes)
        return traced

    def _trace(self) -> Trace:
        trace = self._form.traces.get(self._key)
        if trace is not None:
            return trace
        if not self._form.exact:
            try:
                return self._maker.make(self._request, exact=False)
            except UntraceableError:
                self._form.exact = True
        if len(self._form.traces) >= LENGTHS:
            raise _FullError(f"each length needs its own trace, and at most {LENGTHS} are kept")
        return self._maker.make(self._request, exact=True)

    @property
    def _key(self) -> Hashable:
        return self._lengths if self._form.exact else None

    def _with_reason(self, result: Run, reason: str) -> Run:
        return replace(result, uncompiled=reason) if self._request.compiled else result


def _read_by(objective: Respond | NativeObjective) -> Any:
    """Return the outputs that an objective reads; for a native one its code, also where each call creates it again."""
    if not isinstance(objective, NativeObjective):
        return objective.outputs
    return getattr(objective.function, "__code__", None) or type(objective.function)


class _FullError(UntraceableError):
    """The error that the limit on the number of traces is reached."""
