"""The certificate: the figures of the tests that a gradient has passed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Certificate", "Slope", "worst"]


@dataclass(frozen=True)
class Slope:
    """How fast the objective changes in one direction.

    Attributes:
        direction: "gradient" for the gradient's own, else "random 1" and so on; with `split=True` of which example.
        expected: by the gradient: its inner product with the direction.
        found: by finite differences, of fourth order.
        uncertainty: how far the finite difference may be off, told by two steps and by rounding.
        tolerance: how far the two may be apart.
    """

    direction: str
    expected: float
    found: float
    uncertainty: float
    tolerance: float

    @property
    def holds(self) -> bool:
        """Whether the two agree within the tolerance."""
        return abs(self.found - self.expected) <= self.tolerance


@dataclass(frozen=True)
class Certificate:
    """What `check=True` has found.

    Attributes:
        slopes: finite differences against the gradient.
        scatter: how far the framework's own gradient of the table is from what the lookups and the other ways to the table
            give together, relative; None where there is no table at hand.
        independence: how far the first example's gradient is from what it is when the example is run alone, relative; None
            where there is but one, where the point is not seen as (example, position, dim), and where the model does not take
            an example alone. Where it is large examples meet: ask for `split=True`.
    """

    slopes: tuple[Slope, ...]
    scatter: float | None = None
    independence: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Certificate:
        """The reverse of `to_dict`."""
        slopes = tuple(Slope(**one) for one in given["slopes"])
        return cls(slopes, given["scatter"], given["independence"])


def worst(certificates: Sequence[Certificate | None]) -> Certificate:
    """One certificate of those of the micro-batches: all slopes, and the largest of each other figure."""
    present = [one for one in certificates if one is not None]

    def largest(name: str) -> float | None:
        return max((figure for one in present if (figure := getattr(one, name)) is not None), default=None)

    return Certificate(
        tuple(slope for one in present for slope in one.slopes), largest("scatter"), largest("independence")
    )
