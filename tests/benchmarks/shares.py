"""Which steps of embgrad's own a small call spends its time in: functions timed from outside, the least of many calls."""

from __future__ import annotations

import contextlib
import functools
import importlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

__all__ = ["shares"]

#: Calls that are timed.
CALLS: Final = 200

#: Steps that all frameworks take.
COMMON: Final = {
    "the lookups' indices checked": "embgrad.watching:PointWatch.see",
    "the objective and its cotangent": "embgrad.responding:Respond.__call__",
    "the result made": "embgrad.task:assembled",
    "what the result remembers": "embgrad.task:Task.provenance",
}

#: By framework further steps. Those of a context manager are its entry and its exit.
STEPS: Final[Mapping[str, Mapping[str, str]]] = {
    "torch": {
        **COMMON,
        "the model's state looked at and put back": "embgrad_torch.run:as_found",
        "the call planned": "embgrad_torch.inputs:plan",
        "rows marked and copied": "embgrad_torch.tap:Taps.tensor",
    },
    "tensorflow": {
        **COMMON,
        "the model's state looked at and put back": "embgrad_tensorflow.run:_Pass.as_found",
        "the call planned": "embgrad_tensorflow.run:_planned",
        "the variables to watch": "embgrad_tensorflow.run:_watch_variables",
    },
    "gluon": {
        **COMMON,
        "the model's state looked at and put back": "embgrad_gluon.run:as_found",
        "the call planned": "embgrad_gluon.inputs:plan_call",
        "the way to the lookup in the graph": "embgrad_gluon.pullback:Pullback.look_at",
        "the lookups as a whole": "embgrad_gluon.lookup:Lookups._look_up",
    },
    "reference": COMMON,
}


def shares(call: Callable[[], Any], framework: str) -> dict[str, float]:
    """By step the milliseconds of a call that go to it. Steps may lie in one another.

    Args:
        call: calls `embgrad.gradients`.
        framework: the backend's name.
    """
    spent: Counter[str] = Counter()
    least: dict[str, float] = {}
    with contextlib.ExitStack() as stack:
        for what, place in STEPS[framework].items():
            stack.enter_context(_timed(place, what, spent))
        for number in range(CALLS):
            spent.clear()
            call()
            if number:
                for what in STEPS[framework]:
                    least[what] = min(least.get(what, float("inf")), spent[what] * 1e3)
    return dict(sorted(least.items(), key=lambda one: -one[1]))


@contextlib.contextmanager
def _timed(place: str, what: str, spent: Counter[str]) -> Iterator[None]:
    """Meanwhile the time of a function, or that of a context manager's two ends, is added up."""
    module, _, path = place.partition(":")
    *owners, name = path.split(".")
    owner = functools.reduce(getattr, owners, importlib.import_module(module))
    original = vars(owner)[name]

    def timed(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        try:
            given = original(*args, **kwargs)
        finally:
            spent[what] += time.perf_counter() - start
        return _Timed(given, what, spent) if isinstance(given, contextlib.AbstractContextManager) else given

    setattr(owner, name, timed)
    try:
        yield
    finally:
        setattr(owner, name, original)


class _Timed:
    """A context manager whose ends are timed."""

    def __init__(self, inner: Any, what: str, spent: Counter[str]) -> None:
        self._inner, self._what, self._spent = inner, what, spent

    def __enter__(self) -> Any:
        with self._timing():
            return self._inner.__enter__()

    def __exit__(self, *told: Any) -> Any:
        with self._timing():
            return self._inner.__exit__(*told)

    @contextlib.contextmanager
    def _timing(self) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self._spent[self._what] += time.perf_counter() - start
