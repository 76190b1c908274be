"""Trials of public calls, complete, mistaken and interrupted at each place, which report the state that was not restored."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np

import embgrad
from embgrad.testing import faults
from embgrad.testing.calls import Asked, PublicCall
from embgrad.testing.snapshot import Snapshot, Source

__all__ = ["MISTAKES", "Trial"]

NAN: Final = float("nan")

#: A call that reaches a place more often than this takes long, and is interrupted there only once.
MANY: Final = 8

#: Mistakes by name: the expected error and the mistaken arguments, for the conformance suite's weights and batch.
MISTAKES: Final[Mapping[str, tuple[type[Exception], Mapping[str, Any]]]] = {
    "a label that is none": (embgrad.errors.ObjectiveError, {"objective": embgrad.CrossEntropy([0, 99, 1])}),
    "an unknown output": (embgrad.errors.OutputError, {"objective": embgrad.Sum(output="nothing")}),
    "an id outside the table": (embgrad.errors.BatchError, {"batch": embgrad.TokenBatch([[3, 1], [2, 1000], [1, 5]])}),
    "an unknown point": (embgrad.errors.UnknownPointError, {"at": "nothing"}),
    "a layer that is not there": (embgrad.errors.PointError, {"at": "layer.7"}),
    "an override of a wrong shape": (embgrad.errors.PointError, {"override": {"layer.1": np.zeros((3, 9, 9))}}),
    "an override that is not finite": (
        embgrad.errors.ObjectiveError,
        {"override": {"layer.1": lambda value: value * NAN}, "at": "layer.2"},
    ),
    "an override behind the point": (embgrad.errors.NoGradientError, {"override": {"layer.1": lambda value: value}}),
    "an addition of a wrong shape": (embgrad.errors.PointError, {"add": {"layer.1": np.zeros((3, 9, 9))}}),
    "an addition at an unknown point": (embgrad.errors.UnknownPointError, {"add": {"nothing": np.zeros(())}}),
    "an edit of a wrong shape": (embgrad.errors.PointError, {"edit": {"layer.1": lambda gradient: gradient[:1, :2]}}),
    "an edit that is not finite": (embgrad.EmbgradError, {"edit": {"layer.1": lambda gradient: gradient * NAN}}),
}


@dataclass
class Trial:
    """A series of public calls on one model, checked for state that they do not restore.

    Attributes:
        look: returns the model's state.
        source: the framework's random generators.
        around: returns a context manager in which each call runs.
        silent: the places that the model does not report, since its Python does not run.
    """

    asked: Asked
    look: Callable[[], Mapping[str, Any]]
    source: Source
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    silent: frozenset[str] = frozenset()

    def traces(self, call: PublicCall) -> list[str]:
        """Return the faults of a call when it succeeds and when it is interrupted at each place, such as state not restored."""
        counts: dict[str, int] = {}

        def whole() -> None:
            with faults.counting() as counted:
                call.make(self.asked)
                counts.clear()
                counts.update(counted)

        left = list(self._faults("success", call, whole))
        # A call may remember what probes have shown, so that later calls make fewer passes.
        left += self._faults("success again", call, whole)
        left += [f"success: it does not reach {place!r}" for place in sorted(call.passes - self.silent - counts.keys())]
        for place in sorted(call.passes if call.keeps_a_trace else counts):
            for error, times in _interruptions(place, counts.get(place, 1)):
                left += self.traces_of_an_interruption(call, place, error, times)
        return left

    def traces_of_an_interruption(
        self, call: PublicCall, place: str, error: type[BaseException], times: int = 0
    ) -> Iterator[str]:
        """Yield the faults of a call that is interrupted at a place after reaching it `times` times."""
        make = partial(_interrupt, partial(call.make, self.asked), place, error, times)
        yield from self._faults(f"{error.__name__} at {place!r} after {times} time(s)", call, make, (place, error))

    def traces_of_mistakes(self, call: PublicCall) -> list[str]:
        """Return the faults of a call for each mistake that its arguments can hold."""
        left: list[str] = []
        for name, (error, instead) in MISTAKES.items():
            if call.takes.issuperset(instead):
                mistaken = replace(self.asked, instead=instead)
                make = partial(_refuse, partial(call.make, mistaken), error)
                left += self._faults(name, call, make, ("backward", faults.UserError))
        return left

    def _faults(
        self,
        ending: str,
        call: PublicCall,
        run: Callable[[], Any],
        ended: tuple[str, type[BaseException]] | None = None,
    ) -> Iterator[str]:
        """Yield the faults of one call.

        Args:
            ending: the way in which the call ends, for messages.
            run: makes the call.
            ended: the place and the error at which the user's actions in the call end early; None if they complete.
        """
        theirs = tuple(self._paths_changed_by_user(call, ended))
        with self.around():
            before = Snapshot({"model": self.look}, list(vars(self.asked).values()), [self.source], seed=7)
            try:
                run()
            except (Exception, KeyboardInterrupt, SystemExit) as error:
                yield f"{ending}: {type(error).__name__}: {error}"
            for path, how in before.differences(random_moves=call.training).items():
                if not path.startswith(theirs):
                    yield f"{ending}: not restored: {path} {how}"

    def _paths_changed_by_user(self, call: PublicCall, ended: tuple[str, type[BaseException]] | None) -> list[str]:
        """Return the paths of the state that the user's actions in the call change, when they are repeated."""
        if call.own is None:
            return []
        make = partial(call.own, self.asked)
        if ended is not None and ended[0] not in self.silent:
            make = partial(_interrupt, make, *ended, 0)
        make()
        before = Snapshot({"model": self.look}, (), [self.source], seed=7)
        make()
        # A new object may show as a new entry or as a new container, by chance, so the index is dropped.
        return [re.sub(r"/\d+$", "", path) for path in before.differences()]


def _interruptions(place: str, count: int) -> list[tuple[type[BaseException], int]]:
    """Return the errors that interrupt a call at a place that it reaches `count` times, and after how many times each."""
    # Ctrl-C comes in the middle of a pass; sys.exit() comes from a callback.
    end = KeyboardInterrupt if place in ("forward", "backward", "objective") else SystemExit
    return [(end, count // 2)] if count > MANY else [(faults.UserError, 0), (end, count - 1)]


def _interrupt(run: Callable[[], Any], place: str, error: type[BaseException], times: int) -> None:
    """Run a call with an injected error, and check that it raises that error, or one of the same class with its message.

    Keras replaces an error from a layer by a new one of the same class.
    """
    with faults.raising(place, error("on purpose"), times):
        try:
            run()
        except error as raised:
            if "on purpose" in str(raised):
                return
            raise
    raise AssertionError("nothing was raised")


def _refuse(run: Callable[[], Any], error: type[Exception]) -> None:
    try:
        run()
    except error:
        return
    raise AssertionError(f"no error was raised: expected {error.__name__}")
