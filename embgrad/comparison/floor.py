"""The floor of a comparison of two models: the differences that rounding errors alone cause, measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from embgrad.common.tolerance import HALVES, coarsest, unit_roundoff
from embgrad.comparison.led_pass import Led, can_be_led, lead
from embgrad.comparison.recording import Recording, Tensor
from embgrad.comparison.sites import Pair, difference
from embgrad.comparison.weight_values import rounded

__all__ = [
    "ROUNDOFFS",
    "accumulated_floors",
    "coarser_half",
    "estimated_floors",
    "local_floors",
    "name_of_roundoff",
    "precision_of",
    "roundoff_for",
    "with_rounding",
]

#: The rounding error of one operation that is assumed at least, in unit roundoffs.
LEAST_FLOOR: Final = 4.0

#: The dtypes whose rounding errors can be accepted, with their unit roundoffs.
ROUNDOFFS: Final = {
    "float64": unit_roundoff("float64"),
    "float32": unit_roundoff("float32"),
    "tfloat32": 2.0**-11,
    "float16": unit_roundoff("float16"),
    "bfloat16": unit_roundoff("bfloat16"),
}


def roundoff_for(a: Recording, b: Recording, floor: str | None) -> float:
    """Return the unit roundoff whose errors count as agreement: of a dtype, or of the precision in which both sides compute."""
    if floor is not None:
        return ROUNDOFFS[floor]
    return ROUNDOFFS["float64" if a.dtype == b.dtype == "float64" else "float32"]


def precision_of(recording: Recording) -> str:
    """Return the dtype in which a side computes: half precision where most of its modules' values have no more digits.

    A dtype that is recorded is the coarsest of all operations, and one norm may compute in half precision alone.
    """
    computed = [tensor.values for tensor in recording.tensors.values() if tensor.side is not None]
    for dtype in ("bfloat16", "float16"):  # most numbers of the first are numbers of the second, too
        if 2 * sum(np.array_equal(rounded(values, dtype), values) for values in computed) > len(computed):
            return dtype
    return "float64" if recording.dtype == "float64" else "float32"


def coarser_half(precisions: Sequence[str]) -> str | None:
    """Return the coarser half precision among dtypes; None where there is none."""
    halves = [precision for precision in precisions if precision in HALVES]
    return coarsest(halves) if halves else None


def name_of_roundoff(roundoff: float) -> str:
    """Return the name of the dtype with a unit roundoff."""
    return next(name for name, number in ROUNDOFFS.items() if number == roundoff)


def local_floors(
    pairs: Sequence[Pair], leader: Recording, follower: Recording, led: Led, roundoff: float
) -> list[float]:
    """Return by pair the relative L2 that rounding the inputs causes at the output, measured by a pass with rounded inputs."""
    noisy = lead(pairs, with_rounding(leader, roundoff), follower, led.follower)
    real = leader.batch.real
    return [
        max(difference(led.values[number], noisy.values[number], real), LEAST_FLOOR * roundoff)
        if number in led.values
        else 0.0
        for number in range(len(pairs))
    ]


def with_rounding(recording: Recording, roundoff: float) -> Recording:
    """Return the recording, without gradients, with each value changed by a random rounding error."""
    random = np.random.default_rng(0)

    def changed(tensor: Tensor) -> Tensor:
        noise = random.uniform(-roundoff, roundoff, tensor.values.shape)
        return replace(tensor, values=tensor.values * (1 + noise).astype(tensor.values.dtype), gradient=None)

    return replace(recording, tensors={key: changed(tensor) for key, tensor in recording.tensors.items()})


def estimated_floors(pairs: Sequence[Pair], roundoff: float) -> list[float]:
    """Return by pair the relative L2 that rounding errors cause, which grow with the root of the number of points before."""
    return [LEAST_FLOOR * roundoff * float(number) ** 0.5 for number in range(1, len(pairs) + 1)]


def accumulated_floors(pairs: Sequence[Pair], a: Recording, roundoff: float) -> list[float]:
    """Return by pair the relative L2 that rounding errors at all points cause together.

    It is measured by a pass of the reference, or estimated where that cannot be run.
    """
    if not can_be_led(a):
        return estimated_floors(pairs, roundoff)
    assert a.live is not None, "it can be led"
    random = np.random.default_rng(1)
    arrived: dict[str, np.ndarray] = {}

    def function(key: str) -> Callable[[np.ndarray], np.ndarray]:
        def change(values: np.ndarray) -> np.ndarray:
            arrived[key] = np.array(values)
            return values * (1 + random.uniform(-roundoff, roundoff, values.shape))

        return change

    final = a.live.led({pair.a: function(pair.a) for pair in pairs if pair.a in a.live.points}, {})
    arrived |= final
    return [
        difference(pair.in_a(a.tensors[pair.a].values), pair.in_a(arrived[pair.a]), a.batch.real)
        if pair.a in arrived
        else 0.0
        for pair in pairs
    ]
