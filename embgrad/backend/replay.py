"""Runs a request more than once, and calls the user's functions at its points once for the same values."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from embgrad.backend.protocol import Change, Request
from embgrad.objectives.native import NativeObjective

__all__ = ["Gave", "Tries", "agreeing", "differ", "with_functions", "wrapped"]

#: How far, relative to its size, what a trace gives may be from what the model gives, by the dtype that rounds most in it.
AGREEING: Final[Mapping[str, float]] = {"float64": 1e-8, "float32": 1e-4, "float16": 5e-2, "bfloat16": 1e-1}

#: Of so many stretches of values that are to be told again sums are kept; of fewer values each is one.
STRETCHES: Final = 4096


def agreeing(dtypes: Iterable[str]) -> float:
    """How far apart two runs may be, relative to their size, that compute in these dtypes; other names do not round."""
    return max((AGREEING[one] for one in dtypes if one in AGREEING), default=AGREEING["float32"])


def with_functions(request: Request, made: Callable[[str, str, Change], Change], **others: Any) -> Request:
    """The request with other functions at its points.

    Args:
        request: what is asked.
        made: gives, for an option, the key of a point and the function there, another.
        others: further fields of the request to be replaced.
    """

    def of(option: str) -> dict[str, Change]:
        return {key: made(option, key, one) for key, one in getattr(request, option).items()}

    return replace(request, override=of("override"), add=of("add"), edit=of("edit"), **others)


def wrapped(request: Request, around: Callable[[Callable[[Any], Any]], Callable[[Any], Any]]) -> Request:
    """The request with another function around each of the user's: those at its points, and a native objective's."""
    respond = request.respond
    if not (request.override or request.add or request.edit or isinstance(respond, NativeObjective)):
        return request
    if isinstance(respond, NativeObjective):
        respond = replace(respond, function=around(respond.function))
    return with_functions(request, lambda option, key, change: around(change), respond=respond)


class Gave:
    """What one function gave in one call of the user's, which may take several tries: it is called once for the same values.

    As it may count or draw, it is called for each time that one try comes by its point; what a later try comes by in the same
    order, with values that agree, gets what the earlier did.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[_Glimpse, np.ndarray]] = []

    def again(self, change: Change) -> Again:
        """The function for another try. Of one that is for a try already, what it gave there is known, and kept once."""
        return Again(change.gave, change.change) if isinstance(change, Again) else Again(self, change)


class Again:
    """A function for one try.

    Args:
        gave: what it gave in earlier ones.
        change: the function itself.
    """

    def __init__(self, gave: Gave, change: Change) -> None:
        self.gave = gave
        self.change = change
        self._place = 0

    def __call__(self, value: np.ndarray) -> np.ndarray:
        """See `embgrad.backend.Change`."""
        calls, came = self.gave.calls, _Glimpse(value)
        if self._place >= len(calls) or calls[self._place][0].is_apart(came):
            del calls[self._place :]
            calls.append((came, np.array(self.change(value))))
        _, gave = calls[self._place]
        self._place += 1
        again: np.ndarray = gave.copy()
        return again


class _Glimpse:
    """What tells whether other values are the same to rounding, without these: they would be kept for as long as a pass takes.

    Two sums over each of some thousand stretches, weighted so that hardly a change leaves both as they were.

    Args:
        values: any array of floating-point numbers.
    """

    def __init__(self, values: np.ndarray) -> None:
        flat = values.reshape(-1)
        length = max(1, flat.size // STRETCHES)
        whole = np.zeros((-(-flat.size // length), length), values.dtype)
        np.copyto(whole.reshape(-1)[: flat.size], flat, where=np.isfinite(flat))
        places = np.arange(length)
        weights = np.stack([np.cos(places), np.sin(np.sqrt(2) * (places + 1))], 1)
        self._sums = whole @ weights.astype(values.dtype)
        self._about = (values.shape, values.dtype, int(np.isnan(flat).sum()), int(np.isinf(flat).sum()))

    def is_apart(self, other: _Glimpse) -> bool:
        """Whether they differ by more than rounding."""
        far = agreeing([self._about[1].name])
        return self._about != other._about or differ(self._sums, other._sums, far, 0)


class Tries:
    """One request that may take several tries, such as a trace that turns out not to serve; see `Gave`.

    Args:
        request: what is asked.
    """

    def __init__(self, request: Request) -> None:
        self._request = request
        self._gave: defaultdict[tuple[str, str], Gave] = defaultdict(Gave)

    def next(self) -> Request:
        """The request, for another try."""
        request = self._request
        if not (request.override or request.add or request.edit):
            return request
        return with_functions(request, lambda option, key, change: self._gave[option, key].again(change))


def differ(first: np.ndarray | None, second: np.ndarray | None, relative: float, absolute: float) -> bool:
    """Return whether two arrays differ by more than `relative` of their size and `absolute` an entry."""
    if first is None or second is None:
        return first is not second
    if first.shape != second.shape or not np.array_equal(np.isfinite(first), np.isfinite(second)):
        return True
    one, other = np.nan_to_num(first).astype(np.float64), np.nan_to_num(second).astype(np.float64)
    return bool(np.linalg.norm(one - other) > relative * np.linalg.norm(one) + absolute * np.sqrt(one.size))
