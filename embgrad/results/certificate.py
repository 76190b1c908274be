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
        uncertainty: how far the finite difference may be off, told by several steps, by both sides and by rounding; as much as
            makes it hold where the objective has no slope there, but a kink.
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
            give together, relative to the largest of these three; None where there is no table at hand.
        independence: how far the first example's gradient is from what it is when the example is run alone, relative; None
            where there is but one, where the point is not seen as (example, position, dim), and where the model does not take
            an example alone. Where it is large examples meet: ask for `split=True`.
        untested: with `split=True` the examples of which nothing can be told: their own objective changes by no more than its
            rounding, or examples meet, and these are not among those that were tried one by one.
        unscattered: why `scatter` does not apply to the table, such as one that is detached; None where it does.
    """

    slopes: tuple[Slope, ...]
    scatter: float | None = None
    independence: float | None = None
    untested: tuple[int, ...] = ()
    unscattered: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Certificate:
        """The reverse of `to_dict`; one of before the last two figures has none of them.

        Raises:
            KeyError, TypeError: it is none.
        """
        slopes = tuple(Slope(**one) for one in given["slopes"])
        untested, why = given.get("untested", ()), given.get("unscattered")
        if not isinstance(untested, (list, tuple)) or not all(type(one) is int for one in untested):
            raise TypeError("the examples that are not tested are no whole numbers")
        if not isinstance(why, (str, type(None))):
            raise TypeError("why a figure does not apply is no text")
        return cls(slopes, given["scatter"], given["independence"], tuple(untested), why)


def worst(certificates: Sequence[Certificate | None]) -> Certificate:
    """One certificate of those of the micro-batches: all slopes, and the largest of each other figure."""
    present = [one for one in certificates if one is not None]

    def largest(name: str) -> float | None:
        return max((figure for one in present if (figure := getattr(one, name)) is not None), default=None)

    return Certificate(
        tuple(slope for one in present for slope in one.slopes),
        largest("scatter"),
        largest("independence"),
        tuple(sorted({example for one in present for example in one.untested})),
        next((one.unscattered for one in present if one.unscattered is not None), None),
    )
