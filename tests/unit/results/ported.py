"""Reports on ports made by hand."""

from __future__ import annotations

from typing import Any

from embgrad.results import PortReport
from embgrad.results.port_records import Cause, PortPoint, PortWeights, SettingDifference, WeightPair

EPSILON = Cause(
    "layer-norm-epsilon",
    "epsilon 1e-05 in a and 1e-06 in b, layers 0–1",
    ("1e-05", "1e-06"),
    ("layers.0.norm", "layers.1"),
    (0, 1),
    0.25,
    1e-7,
)
SCALE = Cause("scaled-lookup", "table is multiplied by 1 in a and 8 in b", ("1", "8"), ("table",), (), 7.0, 0.0)
WEIGHTS = PortWeights(
    (
        WeightPair("table", "tok", 0.0),
        WeightPair("layers.0.W", "blk.0.w", 0.0, transposed=True),
        WeightPair("layers.1.W", "blk.1.w", 0.5, "times 1.5", is_equal=False),
    ),
    {"layers.0.qkv": ("blk.0.q", "blk.0.k", "blk.0.v")},
    ("head",),
    ("out", "more"),
)
SETTING = SettingDifference("epsilon", "1e-05", "1e-06", ("rms_norm_eps", "layer_norm_epsilon"), True)


def point(name: str, layer: int | None, values: float, local: float | None = 0.0, **changes: Any) -> PortPoint:
    """Return a point that agrees, unless there is another difference from equal inputs."""
    fields = {"gradient": 2 * values, "floor": 1e-7, "local_gradient": None, "agrees": not local}
    return PortPoint(
        **{"name": name, "port_name": name, "layer": layer, "values": values, "local": local, **fields, **changes}
    )


POINTS = (
    point("table", None, 0.0),
    point("layers.0.norm", 0, 0.25, 0.25),
    point("layers.0", 0, 0.125),
    point("layers.1.norm", 1, 0.125),
    point("layers.1", 1, 0.5, 0.03125),
    point("output", None, 0.5, gradient=None),
)


def report(**changes: Any) -> PortReport:
    """Return a report of a port with two faults of one cause, with these changes."""
    fields: dict[str, Any] = {
        "agrees": False,
        "first": "layers.0.norm",
        "causes": (EPSILON,),
        "unexplained": (),
        "settings": (SETTING,),
        "weights": WEIGHTS,
        "points": POINTS,
        "explained": 0.99997,
        "labels": ("torch Llama", "jax Llama"),
        "floor": "float32",
        "notes": ("b: there are no gradients",),
        "seconds": {"reference": 1.5, "port": 0.25},
    }
    return PortReport(**{**fields, **changes})


def agreeing() -> PortReport:
    """Return a report of a port that agrees."""
    points = (point("table", None, 0.0), point("layers.0", 0, 0.0), point("output", None, 1e-8))
    alike = PortWeights((WeightPair("table", "tok", 0.0),))
    return report(
        agrees=True,
        first=None,
        causes=(),
        settings=(),
        weights=alike,
        points=points,
        explained=None,
        notes=(),
        seconds={},
    )
