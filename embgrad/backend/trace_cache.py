"""Keeps compiled traces of models, runs one where there is one, and remembers why there is none."""

from __future__ import annotations

import threading
import types
import weakref
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Final, Generic, Protocol, TypeVar

from embgrad.backend.protocol import Request, Run
from embgrad.backend.replay import Tries, agreeing
from embgrad.backend.trace_check import Trial, UntraceableError
from embgrad.common.lru import Bounded
from embgrad.objectives.native import NativeObjective

__all__ = ["KeptTraces", "OtherUseError", "TraceMaker", "UnfitError", "UntraceableError"]

Trace = TypeVar("Trace")

#: For how many lengths each has a trace of its own, where a trace of any length cannot be had.
LENGTHS: Final = 8

#: For how many lengths it is remembered that a trace gives what the model gives.
COMPARED: Final = 256

#: For how many functions given as objectives anything is remembered.
OBJECTIVES: Final = 256


class UnfitError(Exception):
    """A trace does not serve for a batch; says why."""


class OtherUseError(Exception):
    """An objective uses other outputs than a trace was made for.

    Attributes:
        used: the numbers of the tensors that it uses, among those that the model returned.
    """

    def __init__(self, used: tuple[int, ...]) -> None:
        super().__init__(used)
        self.used = used


class TraceMaker(Protocol[Trace]):
    """The part of a backend that runs one call of a model, and makes and runs its traces."""

    def plain(self, request: Request) -> Run:
        """Run the model without a trace."""
        ...

    def watched(self, function: Callable[[Any], Any], tell: Callable[[tuple[int, ...]], None]) -> Callable[[Any], Any]:
        """Return a native objective's function that tells which of the returned tensors its value depends on."""
        ...

    def make(self, found: Run, used: tuple[int, ...], *, exact: bool) -> Trace:
        """Return a new trace, for any lengths unless `exact`.

        Args:
            found: the result of the model itself.
            used: the tensors that a native objective uses.
            exact: make it for this batch's lengths alone.

        Raises:
            UntraceableError: there is none.
        """
        ...

    def again(self) -> AbstractContextManager[Any]:
        """Turn the model's random generators back, so that the next run draws the same numbers as the one before."""
        ...

    def run(self, trace: Trace, request: Request) -> Run:
        """Run a trace.

        Raises:
            UnfitError: it does not serve for this batch.
            OtherUseError: it does not serve for this objective.
        """
        ...

    def dtypes(self, trace: Trace) -> Sequence[str]:
        """Return the names of the dtypes in which a trace computes."""
        ...


class _Form(Generic[Trace]):
    """The traces of one model and one question, while the model does not change.

    Attributes:
        fingerprint: of the model.
        exact: whether each trace takes only the lengths that it was made for.
        refused: by objective why there is no trace.
        traces: by the lengths, where they are exact, and what the objective uses.
        compared: those and the lengths for which a trace gave what the model gives.
        used: by objective what it used last.
    """

    def __init__(self, fingerprint: Any) -> None:
        self.fingerprint = fingerprint
        self.exact = False
        self.refused: Bounded[str] = Bounded(OBJECTIVES)
        self.traces: dict[Hashable, Trace] = {}
        self.compared: Bounded[bool] = Bounded(COMPARED)
        self.used: Bounded[tuple[int, ...]] = Bounded(OBJECTIVES)


class _Model(Generic[Trace]):
    def __init__(self, references: tuple[Any, ...], limit: int) -> None:
        self.references = references
        self.forms: Bounded[_Form[Trace]] = Bounded(limit)
        self.unused = 0


class KeptTraces(Generic[Trace]):
    """The traces of all models, each no longer than its model lives, and of each model the longest unused going first.

    A trace must not refer to its model. One thread at a time may use a model's traces, while it holds the model's lock.

    Args:
        limit: how many questions of one model have traces.
        patience: after how many questions in a row that were each a new one no trace is made.
    """

    def __init__(self, limit: int = 16, patience: int = 16) -> None:
        self._limit = limit
        self._patience = patience
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
        """Run a trace of a model where there is one or can be one, else the model itself.

        When a trace is new, or meets lengths for the first time, which the model's Python may treat differently, the model is
        run too and the results are compared.

        Args:
            parts: the model's parts.
            question: everything that a trace depends on, beside the model, its weights and the values that it takes.
            fingerprint: tells by `is_that_of` whether it is that of a later call, and returns by `kept` one without references
                to the model.
            lengths: the shapes of the batch.
            request: the request.
            maker: makes and runs traces.
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
        form = _Form(fingerprint.kept())
        model.forms.put(question, form)
        if model.unused > self._patience:  # until two calls in a row are the same
            raise UntraceableError(
                f"the last {self._patience} calls each asked for something else, or found the model changed, and each would "
                "take a trace of its own"
            )
        return form

    def _model(self, parts: Sequence[object]) -> _Model[Trace]:
        # a bound method is another object at each call
        owners = [part.__self__ if isinstance(part, types.MethodType) else part for part in parts]
        functions = [getattr(part, "__func__", None) for part in parts]
        ids = (*map(id, owners), *map(id, functions))
        with self._lock:
            known = self._models.get(ids)
            if known is None or any(one() is not owner for one, owner in zip(known.references, owners, strict=True)):
                # a callback may come in the middle of anything: it takes no lock
                try:
                    references = tuple(weakref.ref(owner, lambda _: self._models.pop(ids, None)) for owner in owners)
                except TypeError as error:
                    raise UntraceableError(str(error)) from None
                known = self._models[ids] = _Model(references, self._limit)
            return known


class _Call(Generic[Trace]):
    """One call of a model."""

    def __init__(self, form: _Form[Trace], lengths: Hashable, request: Request, maker: TraceMaker[Trace]) -> None:
        self._form = form
        self._lengths = lengths
        self._request = request
        self._maker = maker
        self._tries = Tries(request)
        native = request.respond if isinstance(request.respond, NativeObjective) else None
        code: Any = None if native is None else getattr(native.function, "__code__", None) or type(native.function)
        self._objective: Hashable = code

    def run(self) -> Run:
        """Return what a trace gives, or the model."""
        why = self._form.refused.get(self._objective, None) or self._form.refused.get(None, None)
        if why is not None:
            return self._explained(self._maker.plain(self._tries.next()), why)
        for _ in range(2):  # what an objective uses shows when it runs
            used = self._form.used.get(self._objective, None)
            place = None if used is None else self._place(used)
            if place is None or not self._form.compared.get((place, self._lengths), False):
                break
            try:
                return self._maker.run(self._form.traces[place], self._tries.next())
            except OtherUseError as error:
                self._form.used.put(self._objective, error.used)
            except UnfitError as error:
                return self._explained(
                    self._maker.plain(self._tries.next()), f"the trace failed on this batch ({error})"
                )
        return self._compared()

    def _compared(self) -> Run:
        """Run the model itself, then a trace, and return what the trace gives where it agrees."""
        trial = Trial(self._tries.next(), self._maker.watched)
        found = self._maker.plain(trial.first())
        known = self._place(trial.used) in self._form.traces
        try:
            return self._tried(trial, found)
        except (UntraceableError, UnfitError) as error:
            if known and isinstance(error, UnfitError):  # it serves for other lengths
                return self._explained(found, f"the trace failed on this batch ({error})")
            if not isinstance(error, _FullError):
                self._form.refused.put(self._objective, str(error))
            return self._explained(found, str(error))

    def _tried(self, trial: Trial, found: Run) -> Run:
        used = trial.used
        for _ in range(2):
            trace = self._trace(found, used)
            try:
                with self._maker.again():
                    given = self._maker.run(trace, trial.second())
                break
            except OtherUseError as error:
                used = error.used
        else:
            raise UntraceableError("the objective depends on other outputs each time")
        difference = trial.difference(found, given, agreeing(self._maker.dtypes(trace)))
        if difference is not None:
            raise UntraceableError(difference)
        place = self._place(used)
        self._form.traces[place] = trace
        self._form.compared.put((place, self._lengths), True)
        self._form.used.put(self._objective, used)
        return given

    def _trace(self, found: Run, used: tuple[int, ...]) -> Trace:
        known = self._form.traces.get(self._place(used))
        if known is not None:
            return known
        if not self._form.exact:
            try:
                return self._maker.make(found, used, exact=False)
            except UntraceableError:
                self._form.exact = True
        if len(self._form.traces) >= LENGTHS:
            raise _FullError(f"each length takes a trace of its own, and {LENGTHS} are kept")
        return self._maker.make(found, used, exact=True)

    def _place(self, used: tuple[int, ...]) -> Hashable:
        return (self._lengths if self._form.exact else None, used)

    def _explained(self, found: Run, why: str) -> Run:
        return replace(found, uncompiled=why) if self._request.compiled else found


class _FullError(UntraceableError):
    """As many traces are kept as there are to be."""
