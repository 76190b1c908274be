"""The numbers of an attention core, fitted to its outputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from embgrad.comparison.hypotheses.core import Core, Part
from embgrad.comparison.hypotheses.rotary import Scaling
from embgrad.comparison.hypotheses.sources import relative

__all__ = ["INTERVALS", "fitted_numbers", "number_of", "settled", "with_number"]

#: The intervals in which numbers lie, as powers of ten.
INTERVALS: Final = {"scale": (-4.0, 1.5), "base": (1.0, 8.5), "cap": (-0.5, 3.0), "factor": (-2.0, 2.0)}

#: How many numbers of an interval are tried first, and how often the nearest is improved.
POINTS: Final = 24
STEPS: Final = 14

#: The change of a logarithm by which a derivative is measured.
SMALL: Final = 1e-5


def number_of(core: Core, name: str) -> float | None:
    """Return a number of a core, "scale", "cap", "base" or "factor"; None where it has none."""
    if name in ("scale", "cap"):
        return core.scale if name == "scale" else core.cap
    if core.rotary is None:
        return None
    if name == "base" or core.rotary.scaling is None:
        return core.rotary.base if name == "base" else None
    return core.rotary.scaling.factor


def with_number(core: Core, name: str, number: float) -> Core:
    """Return the core with another number."""
    if name in ("scale", "cap"):
        return replace(core, scale=number) if name == "scale" else replace(core, cap=number)
    assert core.rotary is not None, "the caller has checked"
    if name == "base":
        return replace(core, rotary=replace(core.rotary, base=number))
    scaling = core.rotary.scaling or Scaling("linear", 1.0)
    return replace(core, rotary=replace(core.rotary, scaling=replace(scaling, factor=number)))


def fitted_numbers(core: Core, part: Part, wanted: np.ndarray, names: Sequence[str] = ()) -> Core:
    """Return the core with the numbers that fit best to a part of the outputs.

    Args:
        core: the core with its other settings.
        part: the part of the outputs.
        wanted: their values.
        names: the numbers that are fitted; all that it has except a factor if empty.
    """
    names = names or [name for name in ("scale", "base", "cap") if number_of(core, name) is not None]
    best = core
    for name in names:
        low, high = INTERVALS[name]
        tried = [best] if number_of(best, name) is not None else []
        tried += [with_number(best, name, 10.0**at) for at in np.linspace(low, high, POINTS)]
        best = min(tried, key=lambda core: relative(core.part(part), wanted))
    return _improved(best, part, wanted, names)


def _improved(core: Core, part: Part, wanted: np.ndarray, names: Sequence[str]) -> Core:
    """Return the core after steps of the method of Levenberg and Marquardt in the numbers' logarithms."""
    damping = 1e-3
    rest = (core.part(part) - wanted).ravel()
    for _ in range(STEPS):
        slopes = []
        for name in names:
            number = number_of(core, name) or 1.0
            moved = with_number(core, name, number * math.exp(SMALL))
            slopes.append(((moved.part(part) - wanted).ravel() - rest) / SMALL)
        jacobian = np.stack(slopes, 1)
        square = jacobian.T @ jacobian
        while damping < 1e6:
            step = np.linalg.solve(square + damping * np.diag(np.diag(square) + 1e-30), -jacobian.T @ rest)
            changed = core
            for name, change in zip(names, np.clip(step, -2, 2), strict=True):
                changed = with_number(changed, name, (number_of(core, name) or 1.0) * math.exp(change))
            left = (changed.part(part) - wanted).ravel()
            if left @ left < rest @ rest:
                break
            damping *= 8
        else:
            return core
        gain = (left @ left) / (rest @ rest)
        core, rest, damping = changed, left, damping / 8
        if gain > 1 - 1e-6:
            return core
    return core


def settled(core: Core, off: Callable[[Core], float], most: float, usual: Iterable[Core] = ()) -> Core:
    """Return the core with each number replaced by the shortest that fits as well.

    Args:
        core: the core.
        off: returns how far a core is off.
        most: how far it may be off.
        usual: cores whose numbers are preferred.
    """
    limit = max(min(most, 2 * off(core)), 1.2 * off(core))
    if core.cap is not None and off(replace(core, cap=None)) <= limit:
        core = replace(core, cap=None)
    if core.rotary is not None and off(replace(core, rotary=None)) <= limit:
        core = replace(core, rotary=None)
    if core.rotary is not None and core.rotary.scaling is not None:
        plain = replace(core, rotary=replace(core.rotary, scaling=None))
        core = plain if off(plain) <= limit else core
    for name in INTERVALS:
        number = number_of(core, name)
        if number is None:
            continue
        known = [number_of(other, name) for other in usual]
        known += [core.usual_scale, 1 / math.sqrt(max(round(number**-2), 1))] if name == "scale" else []
        near = [other for other in known if other is not None and math.isclose(other, number, rel_tol=0.01)]
        for other in [*near, *(float(f"{number:.{digits}g}") for digits in (1, 2, 3, 4, 5, 6))]:
            changed = with_number(core, name, other)
            if off(changed) <= limit:
                core = changed
                break
    return core
