"""Reports on ports: whether a port agrees with its reference, and if not, at which points and why."""

from __future__ import annotations

from dataclasses import dataclass, field

from embgrad.comparison.weights import Matching

__all__ = ["Cause", "PortPoint", "PortReport", "SettingDifference"]


@dataclass(frozen=True)
class PortPoint:
    """The figures at a point that both models have.

    Attributes:
        name: the point's name, by the reference's path.
        port_name: the point's key in the port.
        layer: the index of the layer that contains it; None outside of the layers.
        values: the relative L2 of the port's values against the reference's, each model run by itself.
        gradient: the same of the gradients; None without an objective, and where there is none.
        floor: the relative L2 that rounding alone causes there.
        local: the relative L2 of what the port computes there from the reference's values at all earlier points; None where the
            port could not be run so.
        local_gradient: the same of the gradients.
        agrees: whether the port computes the same there as the reference, up to rounding.
    """

    name: str
    port_name: str
    layer: int | None
    values: float
    gradient: float | None
    floor: float
    local: float | None
    local_gradient: float | None
    agrees: bool


@dataclass(frozen=True)
class SettingDifference:
    """A setting that the two models' configurations declare in different ways.

    Attributes:
        name: the setting, such as "epsilon".
        a: its value in the reference, as text.
        b: its value in the port, as text.
        where: the names under which the two configurations hold it.
        matters: whether a cause with this setting was found; None where nothing shows it.
    """

    name: str
    a: str
    b: str
    where: tuple[str, str]
    matters: bool | None = None


@dataclass(frozen=True)
class Cause:
    """A cause of the difference between a port and its reference.

    Attributes:
        cause: a key of CAUSES.
        text: what differs, with the values of both models and the places.
        values: the setting's value in the reference and in the port, as texts.
        sites: the names of the points at which the difference arises, in order.
        layers: the indices of the layers that contain them.
        difference: the largest relative L2 of what the port computes at one of these points from the reference's values.
        remaining: the largest relative L2 between the port's values there and those that the cause predicts.
    """

    cause: str
    text: str
    values: tuple[str, str]
    sites: tuple[str, ...]
    layers: tuple[int, ...]
    difference: float
    remaining: float

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, eq=False)
class PortReport:
    """The verdict on a port, with the points at which it differs, and the causes.

    Attributes:
        agrees: whether the port computes what the reference computes, up to rounding.
        first: the name of the first point at which it does not; None if it agrees everywhere.
        causes: the causes that explain the difference, those with the largest effect first; empty if it agrees, or if none does.
        unexplained: the names of the points at which the port differs without a known cause.
        settings: the settings that the two configurations declare in different ways.
        weights: the weights of both models by their partners.
        points: the figures at every point that both have, in the order of the reference's pass.
        explained: the share of the squared difference of the models' outputs that all causes together explain; None if it was not
            measured.
        labels: descriptions of the reference and the port.
        floor: the dtype whose rounding errors count as agreement.
        notes: what could not be compared, and why.
        seconds: the time that each step took.
    """

    agrees: bool
    first: str | None
    causes: tuple[Cause, ...]
    unexplained: tuple[str, ...]
    settings: tuple[SettingDifference, ...]
    weights: Matching = field(repr=False)
    points: tuple[PortPoint, ...] = field(repr=False)
    explained: float | None
    labels: tuple[str, str]
    floor: str
    notes: tuple[str, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)
