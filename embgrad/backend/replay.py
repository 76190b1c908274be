"""Helpers for running a request several times while the user's functions are called only once for the same values."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from embgrad.backend.protocol import Change, FixedChange, Request
from embgrad.objectives.native import NativeObjective

__all__ = ["CallbackMemo", "Retries", "agreeing", "differ", "with_functions", "wrap_functions"]

#: The largest relative difference allowed between the results of a trace and of the model, by the coarsest dtype in the trace.
AGREEING: Final[Mapping[str, float]] = {"float64": 1e-8, "float32": 1e-4, "float16": 5e-2, "bfloat16": 1e-1}


def agreeing(dtypes: Iterable[str]) -> float:
    """Return the largest relative difference allowed between two runs that compute in these dtypes.

    Args:
        dtypes: the dtypes' names; names that are not floating point are ignored.
    """
    return max((AGREEING[dtype] for dtype in dtypes if dtype in AGREEING), default=AGREEING["float32"])


def with_functions(request: Request, replacement: Callable[[str, str, Change], Change], **others: Any) -> Request:
    """Return the request with other functions at its points.

    Args:
        replacement: takes an option ("override", "add" or "edit"), a point's key and the function there; returns the new one.
    """

    def changed(option: str) -> dict[str, Change]:
        return {key: replacement(option, key, change) for key, change in getattr(request, option).items()}

    return replace(request, override=changed("override"), add=changed("add"), edit=changed("edit"), **others)


def wrap_functions(request: Request, around: Callable[[Callable[[Any], Any]], Callable[[Any], Any]]) -> Request:
    """Return the request with each of the user's functions wrapped: those at its points, and that of a native objective.

    Args:
        request: the request.
        around: takes a function of the user, and returns the function that wraps it.
    """

    if not (request.has_changes or request.has_native):
        return request
    objectives = tuple(
        replace(objective, function=around(objective.function)) if isinstance(objective, NativeObjective) else objective
        for objective in request.objectives
    )
    return with_functions(request, lambda option, key, change: around(change), objectives=objectives)


class CallbackMemo:
    """The recorded results of one user function in one user call, replayed when the pass is tried again.

    The function may count its calls or draw random numbers, so it must run once for each time that the pass reaches its point, no
    matter how many tries the pass takes. The first try calls the function and records its results in order. A later try that
    reaches the point in the same order, with values that agree up to rounding, gets the recorded results; from the first value
    that disagrees on, the function is called anew.

    Attributes:
        calls: for each call, a copy of the value that it received, and its result.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[np.ndarray, np.ndarray]] = []

    def again(self, change: Change) -> MemoizedCallback:
        """Return the function for another try.

        Args:
            change: the user's function. If it is already a function for a try, its existing record is used, so that there is one
                record even when tries are nested.
        """
        return (
            MemoizedCallback(change.record, change.change)
            if isinstance(change, MemoizedCallback)
            else MemoizedCallback(self, change)
        )


class MemoizedCallback:
    """The function of one point for one try: it returns recorded results, and calls the user's function for new values."""

    def __init__(self, record: CallbackMemo, change: Change) -> None:
        self.record = record
        self.change = change
        self._position = 0

    def __call__(self, value: np.ndarray) -> np.ndarray:
        """Return the new values for a point, recorded or from the user's function; see `embgrad.backend.Change`."""
        calls, received = self.record.calls, value.copy()  # the function may write to the value
        if self._position >= len(calls) or _are_apart(calls[self._position][0], received):
            del calls[self._position :]
            calls.append((received, np.array(self.change(value))))
        _, result = calls[self._position]
        self._position += 1
        copy: np.ndarray = result.copy()
        return copy


def _are_apart(first: np.ndarray, second: np.ndarray) -> bool:
    """Return whether two values differ by more than rounding, or in dtype."""
    return first.dtype != second.dtype or differ(first, second, agreeing([first.dtype.name]), 0)


class Retries:
    """The tries of one request, which may run more than once, such as when a trace turns out not to fit the batch.

    Each of the user's functions at the request's points has one record of results for all tries, see `CallbackMemo`.

    Args:
        request: the request.
    """

    def __init__(self, request: Request) -> None:
        self._request = request
        self._records: defaultdict[tuple[str, str], CallbackMemo] = defaultdict(CallbackMemo)

    def next(self) -> Request:
        """Return the request for another try."""
        request = self._request
        return with_functions(request, self._again) if request.has_functions else request

    def _again(self, option: str, key: str, change: Change) -> Change:
        return change if isinstance(change, FixedChange) else self._records[option, key].again(change)


def differ(first: np.ndarray | None, second: np.ndarray | None, relative: float, absolute: float) -> bool:
    """Return whether two arrays differ by more than a tolerance in the L2 norm, or in shape, or in where they are finite.

    The tolerance is `relative` times the norm of `first`, plus `absolute` times the square root of the number of entries. None
    equals only None.
    """
    if first is None or second is None:
        return first is not second
    if first.shape != second.shape or not np.array_equal(np.isfinite(first), np.isfinite(second)):
        return True
    a, b = np.nan_to_num(first).astype(np.float64), np.nan_to_num(second).astype(np.float64)
    return bool(np.linalg.norm(a - b) > relative * np.linalg.norm(a) + absolute * np.sqrt(a.size))
