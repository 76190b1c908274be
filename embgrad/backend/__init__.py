"""The protocol that a backend fulfils, and the parts that backends share."""

from embgrad.backend.protocol import (
    ABILITIES,
    Backend,
    Call,
    Change,
    Listener,
    NativeObjective,
    ParameterValues,
    Point,
    PointValues,
    Reads,
    Request,
    Respond,
    Run,
    TableRest,
    Weight,
    reads_the_whole,
)

__all__ = [
    "ABILITIES",
    "Backend",
    "Call",
    "Change",
    "Listener",
    "NativeObjective",
    "ParameterValues",
    "Point",
    "PointValues",
    "Reads",
    "Request",
    "Respond",
    "Run",
    "TableRest",
    "Weight",
    "reads_the_whole",
]
