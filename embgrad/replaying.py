"""Runs a request more than once and calls the user's functions once: to tell whether a trace gives what the model gives."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from embgrad.backend import Change, NativeObjective, Request, Run

__all__ = ["Gave", "Recorder", "ReplayError", "Tries", "Watching", "agreeing", "with_functions", "wrapped"]

#: How far, relative to its size, what a trace gives may be from what the model gives, by the dtype that rounds most in it.
AGREEING: Final[Mapping[str, float]] = {"float64": 1e-8, "float32": 1e-4, "float16": 5e-2, "bfloat16": 1e-1}

#: Of so many stretches of values that are to be told again sums are kept; of fewer values each is one.
STRETCHES: Final = 4096

#: The function of a native objective, and what takes which of the tensors that the model returned its value depends on → the
#: function, which tells that when it is called.
Watching = Callable[[Callable[[Any], Any], Callable[[tuple[int, ...]], None]], Callable[[Any], Any]]


def agreeing(dtypes: Iterable[str]) -> float:
    """How far apart two runs may be, relative to their size, that compute in these dtypes; other names do not round."""
    return max((AGREEING[one] for one in dtypes if one in AGREEING), default=AGREEING["float32"])


class ReplayError(Exception):
    """The second run came by other things than the first; says which, as "compile=True: ..." goes on."""


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
        return self._about != other._about or _apart(self._sums, other._sums, far, 0)


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


class Recorder:
    """Keeps what the functions of a request gave, so that a second run gets the same and none is called twice.

    A native objective is called again, on the second run's own outputs.

    Args:
        request: what is asked.
        watching: see `Watching`.

    Attributes:
        used: which of the tensors that the model returned a native objective depends on.
    """

    def __init__(self, request: Request, watching: Watching) -> None:
        self.used: tuple[int, ...] = ()
        self._request = request
        self._watching = watching
        self._gave: dict[tuple[str, str], list[np.ndarray]] = defaultdict(list)
        self._sets: Sequence[Mapping[str | None, np.ndarray]] = []
        self._outputs: list[Mapping[str | None, np.ndarray]] = []

    def recording(self) -> Request:
        """The request, for the first run."""
        respond = self._request.respond
        if isinstance(respond, NativeObjective):
            return self._with(self._record, replace(respond, function=self._watching(respond.function, self._use)))
        return self._with(self._record, self._respond)

    def replaying(self) -> Request:
        """The request, for another."""
        del self._outputs[1:]
        native = isinstance(self._request.respond, NativeObjective)
        return self._with(self._replay, self._request.respond if native else self._answer)

    def apart(self, found: Run, given: Run, far: float) -> str | None:
        """What is further apart than rounding takes two runs, as "compile=True: ..." goes on; None for nothing.

        Args:
            found: of the first run, that of the model itself.
            given: of the second, that of a trace.
            far: how far apart two arrays may be, relative to their size.
        """
        what = self._apart(found, given, far)
        if what is None:
            return None
        native = isinstance(self._request.respond, NativeObjective)
        other = ", or the objective gives something else each time" if native else ""
        return f"{what} of a trace of it differ from what it gives itself{other}"

    def _apart(self, found: Run, given: Run, far: float) -> str | None:
        slack = 1e-6 * max(
            (float(np.abs(one).max(initial=0)) for each in self._sets for one in each.values()), default=1
        )
        for name, values in found.points.items():
            other = given.points[name]
            pairs = [
                *zip(values.gradients, other.gradients, strict=False),
                *zip(values.before, other.before, strict=False),
            ]
            if len(values.gradients) != len(other.gradients) or any(_apart(*pair, far, slack) for pair in pairs):
                return f"the gradients at {name!r}"
            if _apart(values.activation, other.activation, far, 1e-6):
                return f"the values at {name!r}"
        if len(self._outputs) == 2 and any(
            _apart(one, self._outputs[1][name], far, 1e-6) for name, one in self._outputs[0].items()
        ):
            return "the outputs"
        return "the objective's values" if _apart(found.objective, given.objective, far, 1e-6) else None

    def _use(self, used: tuple[int, ...]) -> None:
        self.used = used

    def _with(self, change: Callable[[str, str, Change], Change], respond: Any) -> Request:
        return with_functions(self._request, change, compiled=False, respond=respond)

    def _record(self, option: str, key: str, change: Change) -> Change:
        def recorded(value: np.ndarray) -> np.ndarray:
            gave = change(value)
            self._gave[option, key].append(np.array(gave))
            return gave

        return recorded

    def _replay(self, option: str, key: str, change: Change) -> Change:
        order = iter(self._gave[option, key])

        def replayed(value: np.ndarray) -> np.ndarray:
            gave = next(order, None)
            if gave is None or gave.shape != value.shape:
                raise ReplayError("a trace of it comes by the points otherwise than the model itself")
            return gave

        return replayed

    def _respond(self, outputs: Mapping[str | None, np.ndarray]) -> Any:
        assert not isinstance(self._request.respond, NativeObjective)
        self._outputs.append(outputs)
        self._sets = self._request.respond(outputs)
        return self._sets

    def _answer(self, outputs: Mapping[str | None, np.ndarray]) -> Any:
        self._outputs.append(outputs)
        if any(one.shape != outputs[name].shape for name, one in self._outputs[0].items()):
            raise ReplayError("a trace of it gives outputs of other shapes than the model itself")
        return self._sets


def _apart(one: np.ndarray | None, other: np.ndarray | None, far: float, slack: float) -> bool:
    """Whether two arrays are further apart than so much of their size, and so much an entry."""
    if one is None or other is None:
        return one is not other
    if one.shape != other.shape or not np.array_equal(np.isfinite(one), np.isfinite(other)):
        return True
    own, others = np.nan_to_num(one).astype(np.float64), np.nan_to_num(other).astype(np.float64)
    return bool(np.linalg.norm(own - others) > far * np.linalg.norm(own) + slack * np.sqrt(own.size))
