"""Time and memory: functions that take turns in one process, least times of several rounds, and exact peaks."""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from embgrad.errors import EmbgradError

#: The smallest number of rounds.
FEWEST: Final = 3

#: The largest number of rounds whose single times are recorded.
MOST_KEPT: Final = 100

#: The largest relative L2 distance between `gradients` and code by hand.
MOST_DISTANCE: Final = 2e-5


@dataclass(frozen=True)
class Mode:
    """The functions of one mode that are compared on one case.

    Attributes:
        forward: the forward pass without gradients.
        by_hand: the ways in which an expert would compute the gradient at the lookup in this mode, by name.
        backward: forward and backward pass with the gradients of all weights, which leaves no gradient behind.
        gradients: `embgrad.gradients`.
        after: frees a framework's memory after each function of the memory measurement.
        saved: counts the bytes that a function keeps for the backward pass.
    """

    forward: Callable[[], Any]
    by_hand: Mapping[str, Callable[[], np.ndarray]]
    backward: Callable[[], Any]
    gradients: Callable[[], Any]
    after: Callable[[], None] = field(default=lambda: None)
    saved: Callable[[Callable[[], Any]], int] | None = None

    def functions(self) -> dict[str, Callable[[], Any]]:
        hands = {f"by hand: {way}": function for way, function in self.by_hand.items()}
        return {"forward": self.forward, **hands, "backward": self.backward, "gradients": self.gradients}


def checked(mode: Mode) -> tuple[dict[str, Any], dict[str, Callable[[], Any]]]:
    """Return the results of a first call of each function, and the functions that can be measured.

    Raises:
        RuntimeError: `gradients` differs from code by hand.
    """
    expected = {way: function() for way, function in mode.by_hand.items()}
    first = next(iter(expected.values()))
    for way, gradient in expected.items():
        if distance(gradient, first) > MOST_DISTANCE:
            raise RuntimeError(f"the ways by hand differ: {way!r} by {distance(gradient, first):.1e}")
    functions = mode.functions()
    try:
        result = mode.gradients()
    except EmbgradError as error:
        del functions["gradients"]
        return {"refused": f"{type(error).__name__}: {error}"}, functions
    apart = distance(result.values, first)
    if apart > MOST_DISTANCE:
        raise RuntimeError(f"embgrad.gradients is {apart:.1e} from code by hand")
    return {"distance": apart, "uncompiled": result.provenance.get("uncompiled")}, functions


def in_turns(functions: Mapping[Any, Callable[[], Any]], seconds: float, fewest: int = FEWEST) -> dict[str, Any]:
    """Return the least time of each function in seconds, the number of rounds, and the single times of few rounds.

    The functions take turns in random order, since each leaves caches and memory behind; a first round does not count.
    """
    random = np.random.default_rng(0)
    names = list(functions)
    taken: dict[Any, list[float]] = {name: [] for name in names}
    for name in names:
        functions[name]()
    rounds, end = 0, time.perf_counter() + seconds
    while rounds < fewest or time.perf_counter() < end:
        for name in (names[n] for n in random.permutation(len(names))):
            start = time.perf_counter()
            functions[name]()
            taken[name].append(time.perf_counter() - start)
        rounds += 1
    each = {"each": taken} if rounds <= MOST_KEPT else {}
    return {"times": {name: min(seconds) for name, seconds in taken.items()}, "rounds": rounds, **each}


def measured_peaks(mode: Mode, functions: Iterable[str]) -> dict[str, Any]:
    """Return the additional peak memory of each function in MiB, the least of three calls."""
    all_functions, actual = mode.functions(), {}
    for name in functions:
        peaks = []
        for _ in range(4):
            mode.after()
            peaks.append(peak_of(all_functions[name]))
        actual[name] = min(peaks[1:])
    saved = {} if mode.saved is None else {name: mode.saved(all_functions[name]) / 2**20 for name in functions}
    return {"peaks": actual, "saved": saved}


def peak_of(function: Callable[[], Any]) -> float:
    """Return the additional peak of resident memory during a call, in MiB, from the kernel's record (Linux)."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = _status("VmRSS")
    result = function()
    peak = _status("VmHWM")
    del result
    return (peak - before) / 1024


def _status(name: str) -> int:
    lines: Sequence[str] = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def distance(actual: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(actual - expected) / np.linalg.norm(expected))
