"""How long and how much memory: functions in turns within one process, the least of several rounds, and exact peaks."""

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

#: At least so many rounds count, however long they take.
FEWEST: Final = 3

#: Of so many rounds at most the single times are kept: of short functions there are thousands.
MOST_KEPT: Final = 100

#: How far `gradients` may be from code by hand, relative L2: rounding, and nothing beyond it.
MOST_DISTANCE: Final = 2e-5


@dataclass(frozen=True)
class Mode:
    """The functions of one mode that are compared, on one case.

    Attributes:
        forward: the forward pass alone, as this mode runs it without gradients.
        by_hand: by what is done, code that an expert would write in this mode; each gives the gradient at the lookup.
        backward: forward and backward pass with the gradients of all weights, which leaves no gradient behind.
        gradients: `embgrad.gradients`.
        after: run after each function in the memory's measurement, to give back what a framework holds.
        saved: the bytes that a function keeps for the backward pass, where the framework can tell.
        beside: further code by hand, by name, of which the overhead alone is measured: that makes the checks of `gradients`, or
            is not compiled where the mode is.
    """

    forward: Callable[[], Any]
    by_hand: Mapping[str, Callable[[], np.ndarray]]
    backward: Callable[[], Any]
    gradients: Callable[[], Any]
    after: Callable[[], None] = field(default=lambda: None)
    saved: Callable[[Callable[[], Any]], int] | None = None
    beside: Mapping[str, Callable[[], np.ndarray]] = field(default_factory=dict)

    def functions(self) -> dict[str, Callable[[], Any]]:
        hands = {f"by hand: {way}": function for way, function in self.by_hand.items()}
        return {"forward": self.forward, **hands, "backward": self.backward, "gradients": self.gradients}


def checked(mode: Mode) -> tuple[dict[str, Any], dict[str, Callable[[], Any]]]:
    """What a first call of each gives: their distance, the trace's fate; and the functions that can be measured.

    Raises:
        RuntimeError: `gradients` is not what code by hand gives.
    """
    expected = {way: function() for way, function in {**mode.by_hand, **mode.beside}.items()}
    first = next(iter(expected.values()))
    for way, one in expected.items():
        if distance(one, first) > MOST_DISTANCE:
            raise RuntimeError(f"the ways by hand differ: {way!r} by {distance(one, first):.1e}")
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
    """The least time of each function: rounds in which each has its turn, for so long, after one that does not count.

    The order changes from round to round, since what ran before leaves caches and memory behind.

    Args:
        functions: by name.
        seconds: how long to go on.
        fewest: at least so many rounds.

    Returns:
        By name the least times, in seconds; how many rounds there were; and where they are few, the times in each.
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
    return {"times": {name: min(own) for name, own in taken.items()}, "rounds": rounds, **each}


def measured_peaks(mode: Mode, functions: Iterable[str]) -> dict[str, Any]:
    """The peak memory of each function in MiB beyond what the process held before it, the least of three calls."""
    all_of_them, found = mode.functions(), {}
    for name in functions:
        peaks = []
        for _ in range(4):
            mode.after()
            peaks.append(peak_of(all_of_them[name]))
        found[name] = min(peaks[1:])
    saved = {} if mode.saved is None else {name: mode.saved(all_of_them[name]) / 2**20 for name in functions}
    return {"peaks": found, "saved": saved}


def peak_of(function: Callable[[], Any]) -> float:
    """The most resident memory during a call, in MiB, beyond what was resident before it.

    The kernel keeps the process's highest resident size, and begins anew when told so (Linux). What the allocator holds
    unused is given back first.
    """
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = _status("VmRSS")
    result = function()
    peak = _status("VmHWM")
    del result
    return (peak - before) / 1024


def _status(name: str) -> int:
    """A figure of the process's own, in KiB."""
    lines: Sequence[str] = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def distance(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))
