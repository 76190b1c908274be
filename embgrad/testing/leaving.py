"""Makes public calls, whole, mistaken and interrupted wherever they come by, and tells what they leave behind."""

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

#: A call that comes by a place more often takes long, and is interrupted there once.
MANY: Final = 8

#: By name the error that comes of a mistake, and the arguments that hold it, for the conformance suite's weights and batch.
MISTAKES: Final[Mapping[str, tuple[type[Exception], Mapping[str, Any]]]] = {
    "a label that is none": (embgrad.ObjectiveError, {"objective": embgrad.CrossEntropy([0, 99, 1])}),
    "an unknown output": (embgrad.OutputError, {"objective": embgrad.Sum(output="nothing")}),
    "an id outside the table": (embgrad.BatchError, {"batch": embgrad.TokenBatch([[3, 1], [2, 1000], [1, 5]])}),
    "an unknown point": (embgrad.UnknownPointError, {"at": "nothing"}),
    "a layer that is not there": (embgrad.PointError, {"at": "layer.7"}),
    "an override of a wrong shape": (embgrad.PointError, {"override": {"layer.1": np.zeros((3, 9, 9))}}),
    "an override that is not finite": (
        embgrad.ObjectiveError,
        {"override": {"layer.1": lambda value: value * NAN}, "at": "layer.2"},
    ),
    "an override behind the point": (embgrad.NoGradientError, {"override": {"layer.1": lambda value: value}}),
    "an edit of a wrong shape": (embgrad.PointError, {"edit": {"layer.1": lambda gradient: gradient[:1, :2]}}),
    "an edit that is not finite": (embgrad.EmbgradError, {"edit": {"layer.1": lambda gradient: gradient * NAN}}),
}


@dataclass
class Trial:
    """Public calls on one model, one after the other.

    Attributes:
        asked: what the calls are made with.
        look: gives the model's state.
        source: the framework's random numbers.
        around: what each call happens inside of.
        silent: the places that the model does not tell of, since its Python does not run.
    """

    asked: Asked
    look: Callable[[], Mapping[str, Any]]
    source: Source
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    silent: frozenset[str] = frozenset()

    def traces(self, call: PublicCall) -> list[str]:
        """What a call leaves behind on success, and wherever it is interrupted; or what else is not as it must be."""
        counts: dict[str, int] = {}

        def whole() -> None:
            with faults.counting() as counted:
                call.make(self.asked)
                counts.update(counted)

        found = list(self._of("success", call, whole))
        found += [
            f"success: it does not come by {place!r}" for place in sorted(call.passes - self.silent - counts.keys())
        ]
        for place in sorted(call.passes if call.keeps_a_trace else counts):
            for kind, times in _interruptions(counts.get(place, 1)):
                found += self.traces_of_an_interruption(call, place, kind, times)
        return found

    def traces_of_an_interruption(
        self, call: PublicCall, place: str, kind: type[BaseException], times: int = 0
    ) -> Iterator[str]:
        """What a call leaves behind that is interrupted at a place, once it has come by there so many times."""
        make = partial(_interrupted, partial(call.make, self.asked), place, kind, times)
        yield from self._of(f"{kind.__name__} at {place!r} after {times} time(s)", call, make, (place, kind))

    def traces_of_mistakes(self, call: PublicCall) -> list[str]:
        """What a call leaves behind for each mistake that can be made in it."""
        found: list[str] = []
        for name, (error, instead) in MISTAKES.items():
            if call.takes.issuperset(instead):
                mistaken = replace(self.asked, instead=instead)
                make = partial(_refused, partial(call.make, mistaken), error)
                found += self._of(name, call, make, ("backward", faults.UserError))
        return found

    def _of(
        self,
        ending: str,
        call: PublicCall,
        run: Callable[[], Any],
        ended: tuple[str, type[BaseException]] | None = None,
    ) -> Iterator[str]:
        """What is left behind by a call that ends so; where the user's own part in it ends early, where and by what."""
        theirs = tuple(self._own_traces(call, ended))
        with self.around():
            before = Snapshot({"model": self.look}, list(vars(self.asked).values()), [self.source], seed=7)
            try:
                run()
            except (Exception, KeyboardInterrupt, SystemExit) as error:
                yield f"{ending}: {type(error).__name__}: {error}"
            for path, how in before.differences(random_moves=call.training).items():
                if not path.startswith(theirs):
                    yield f"{ending}: left behind: {path} {how}"

    def _own_traces(self, call: PublicCall, ended: tuple[str, type[BaseException]] | None) -> list[str]:
        """The paths of what the user's own part of the call changes, once that was done before."""
        if call.own is None:
            return []
        make = partial(call.own, self.asked)
        if ended is not None and ended[0] not in self.silent:
            make = partial(_interrupted, make, *ended, 0)
        make()
        before = Snapshot({"model": self.look}, (), [self.source], seed=7)
        make()
        # Whether a new object is a new entry or a new whole is chance.
        return [re.sub(r"/\d+$", "", path) for path in before.differences()]


def _interruptions(count: int) -> list[tuple[type[BaseException], int]]:
    """By what a call is interrupted at a place that it comes by so often, and after how many times: first, last, in the midst."""
    if count > MANY:
        return [(KeyboardInterrupt, count // 2)]
    return [(faults.UserError, 0), (KeyboardInterrupt, count - 1), (SystemExit, 0)]


def _interrupted(run: Callable[[], Any], place: str, kind: type[BaseException], times: int) -> None:
    """Expects the error to come out, or one of its class that says so too, as Keras makes of what a layer raises."""
    with faults.raising(place, kind("on purpose"), times):
        try:
            run()
        except kind as came:
            if "on purpose" in str(came):
                return
            raise
    raise AssertionError("nothing was raised")


def _refused(run: Callable[[], Any], error: type[Exception]) -> None:
    try:
        run()
    except error:
        return
    raise AssertionError(f"it was not refused: expected {error.__name__}")
