"""The share of each step in the time of a small call, without the steps inside it, in turns with code by hand."""

from __future__ import annotations

import contextlib
import functools
import importlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

#: The number of calls.
CALLS: Final = 200

#: The name for the time outside all steps.
ELSE: Final = "all else"

#: The steps of all frameworks, each with its functions.
COMMON: Final[Mapping[str, tuple[str, ...]]] = {
    "the arguments and the batch checked": (
        "embgrad.engine.gradients:check_options",
        "embgrad.engine.gradients:batch_of",
    ),
    "the lookups' indices checked": ("embgrad.model_points.recorder:PassRecorder.see",),
    "the objective and its cotangent": ("embgrad.backend.objective_callback:BatchObjective.__call__",),
    "the result made": ("embgrad.engine.run:assemble",),
    "what the result remembers": ("embgrad.engine.question:Question.provenance",),
}

#: The classes of passes by framework, whose methods are steps. A context manager is timed at its entry and its exit.
PASSES: Final[Mapping[str, str]] = {
    "torch": "embgrad_torch.run:TorchPass",
    "tensorflow": "embgrad_tensorflow.run:TensorFlowPass",
    "gluon": "embgrad_gluon.run:GluonPass",
    "jax": "embgrad_jax.run:JaxPass",
    "reference": "embgrad.testing.reference:ReferencePass",
}

#: The steps of a pass by the names of their methods, see `embgrad.backend.ModelPass`.
STEPS: Final[Mapping[str, str]] = {
    "the model's state set and restored": "prepare",
    "the forward pass, recorded": "call",
    "the outputs read": "objective",
    "the values read": "activations",
    "the pullback": "pull_back",
}


def _steps_of(framework: str) -> dict[str, tuple[str, ...]]:
    """Return the places of all steps of a framework."""
    return {**COMMON, **{step: (f"{PASSES[framework]}.{method}",) for step, method in STEPS.items()}}


class _Clock:
    """A clock that counts the time of the innermost step alone."""

    def __init__(self) -> None:
        self.spent: Counter[str] = Counter()
        self._inside: list[str] = []
        self._since = 0.0

    @contextlib.contextmanager
    def __call__(self, step: str) -> Iterator[None]:
        self._turn()
        self._inside.append(step)
        try:
            yield
        finally:
            self._turn()
            self._inside.pop()

    def _turn(self) -> None:
        now = time.perf_counter()
        if self._inside:
            self.spent[self._inside[-1]] += now - self._since
        self._since = now


def shares(call: Callable[[], Any], by_hand: Callable[[], Any], framework: str) -> dict[str, float]:
    """Return each step's share of a call's time, in the middle half of the calls.

    Args:
        call: calls `embgrad.gradients`.
        by_hand: runs before each call, so that all calls find the same state of the processor's caches.
        framework: the backend's name.
    """
    rounds: list[Counter[str]] = []
    with contextlib.ExitStack() as stack:
        clock = _Clock()
        for step, places in _steps_of(framework).items():
            for place in places:
                stack.enter_context(_timed(place, step, clock))
        for _ in range(CALLS):
            by_hand()
            clock.spent = Counter()
            with clock(ELSE):
                call()
            rounds.append(clock.spent)
    middle = sorted(rounds, key=Counter.total)[len(rounds) // 4 : -(len(rounds) // 4)]
    whole: Counter[str] = sum(middle, Counter())
    return {step: spent / whole.total() for step, spent in whole.most_common()}


@contextlib.contextmanager
def _timed(place: str, step: str, clock: _Clock) -> Iterator[None]:
    """Count the time of a function, or of a context manager's entry and exit, for the step."""
    module, _, path = place.partition(":")
    *owners, name = path.split(".")
    owner = functools.reduce(getattr, owners, importlib.import_module(module))
    original, is_inherited = getattr(owner, name), name not in vars(owner)

    @functools.wraps(original)
    def timed(*args: Any, **kwargs: Any) -> Any:
        with clock(step):
            result = original(*args, **kwargs)
        return _Timed(result, step, clock) if isinstance(result, contextlib.AbstractContextManager) else result

    setattr(owner, name, timed)
    try:
        yield
    finally:
        if is_inherited:
            delattr(owner, name)
        else:
            setattr(owner, name, original)


class _Timed:
    """A context manager whose entry and exit are timed."""

    def __init__(self, inner: Any, step: str, clock: _Clock) -> None:
        self._inner, self._step, self._clock = inner, step, clock

    def __enter__(self) -> Any:
        with self._clock(self._step):
            return self._inner.__enter__()

    def __exit__(self, *error: Any) -> Any:
        with self._clock(self._step):
            return self._inner.__exit__(*error)
