"""The functions that draw calls, with their weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from tests.fuzz import (
    calls_broken,
    calls_gradients,
    calls_kinds,
    calls_points,
    calls_stream,
    calls_tables,
)
from tests.fuzz.cases import Case
from tests.fuzz.drawing import Draw

#: The frameworks from which a call's number draws one, also where they are not under test.
FRAMEWORKS: Final = ("reference", "torch", "tensorflow", "gluon", "jax")

CALLS: Final[Mapping[Callable[[Draw, str], Case], float]] = {
    calls_gradients.gradients: 10.0,
    calls_gradients.graphs: 0.6,
    calls_broken.broken_gradients: 8.0,
    calls_broken.certificates: 0.5,
    calls_kinds.kinds: 1.5,
    calls_tables.table_gradients: 1.5,
    calls_tables.padding_report: 1.0,
    calls_tables.parameter_gradients: 1.5,
    calls_tables.broken_asking: 1.5,
    calls_points.points: 1.0,
    calls_points.broken_points: 0.7,
    calls_points.native_points: 1.0,
    calls_points.capture: 1.5,
    calls_stream.stream: 1.2,
}


def framework_of(seed: int, number: int) -> str:
    """Return the framework of a call without importing it."""
    return Draw(seed, number).choice(FRAMEWORKS)


def drawn_case(seed: int, number: int) -> Case:
    draw = Draw(seed, number)
    framework = draw.choice(FRAMEWORKS)
    return draw.weighted(CALLS)(draw, framework)
