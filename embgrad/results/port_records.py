"""The records of a report on a port: its points, causes, settings and weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Cause", "PortFields", "PortPoint", "PortWeights", "SettingDifference", "WeightPair"]


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


@dataclass(frozen=True)
class WeightPair:
    """A weight of the reference and the weight of the port that belongs to it.

    Attributes:
        a: its name in the reference.
        b: its name in the port.
        distance: the relative L2 of the port's values against the reference's, in the same layout; infinite for another shape.
        relation: how the values relate, such as "equal", "times 8", "rounded to bfloat16 in b", "different".
        is_equal: whether the two hold the same numbers, in any layout.
        transposed: whether the port holds the matrix transposed.
        permuted: whether the port holds its rows or columns in another order.
        by_value: whether the values show that the two belong together; otherwise only their shapes and places do.
    """

    a: str
    b: str
    distance: float
    relation: str = "equal"
    is_equal: bool = True
    transposed: bool = False
    permuted: bool = False
    by_value: bool = True


@dataclass(frozen=True)
class PortWeights:
    """The weights of a reference and its port by their partners.

    Attributes:
        matches: the pairs, in the reference's order.
        parts: for weights of the reference that are fused or split in the port, the names of the port's weights with their rows.
        alone_a: the names of the reference's weights without a partner.
        alone_b: the names of the port's weights without a partner.
    """

    matches: tuple[WeightPair, ...]
    parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    alone_a: tuple[str, ...] = ()
    alone_b: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return (
            f"PortWeights({len(self.matches)} pairs, {len(self.different)} of them different, {len(self.parts)} fused or split, "
            f"without a partner {len(self.alone_a)} of the reference and {len(self.alone_b)} of the port)"
        )

    @property
    def different(self) -> tuple[WeightPair, ...]:
        """The pairs whose values differ."""
        return tuple(pair for pair in self.matches if not pair.is_equal)


@dataclass(frozen=True, eq=False)
class PortFields:
    """The fields of a report on a port, see `PortReport`."""

    agrees: bool
    first: str | None
    causes: tuple[Cause, ...]
    unexplained: tuple[str, ...]
    settings: tuple[SettingDifference, ...]
    weights: PortWeights = field(repr=False)
    points: tuple[PortPoint, ...] = field(repr=False)
    explained: float | None
    labels: tuple[str, str]
    floor: str
    notes: tuple[str, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
