"""The certificate: the measurements of the tests that a gradient has passed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["Certificate", "Slope", "worst"]


@dataclass(frozen=True)
class Slope:
    """The slope of the objective in one direction, by the gradient and by finite differences.

    Attributes:
        direction: "gradient" for the gradient's own direction, else "random 1" and so on; with `split=True` it names the
            example as well.
        expected: the slope by the gradient: its inner product with the direction.
        found: the slope by finite differences of fourth order.
        uncertainty: the error bound of the finite difference, estimated from several step sizes, from both sides and from
            rounding. Where the objective has a kink instead of a slope, it is as large as needed for the test to pass.
        tolerance: the largest difference of the two that passes.
    """

    direction: str
    expected: float
    found: float
    uncertainty: float
    tolerance: float

    @property
    def holds(self) -> bool:
        """True where the two slopes agree within the tolerance."""
        return abs(self.found - self.expected) <= self.tolerance


@dataclass(frozen=True)
class Certificate:
    """The measurements of `check=True`.

    Attributes:
        slopes: finite differences compared with the gradient.
        scatter: the difference between the framework's own gradient of the table and the sum of the gradients through the
            lookups and through other uses of the table, relative to the largest of these three; None where there is no table.
        independence: the relative difference between the first example's gradient in the batch and when run alone; None
            where there is only one example, where the point is not seen as (example, position, dim), and where the model does
            not accept a single example. A large value means that examples depend on one another: use `split=True`.
        untested: with `split=True`, the examples that could not be tested: their own objective changes by no more than its
            rounding, or examples depend on one another and these were not among those tested individually.
        neighbours: the largest relative difference of an example's gradient or objective when every second example holds other
            ids; None where there is only one example, or the test was not run.
        order: the same when the batch is run from its last example to its first.
        padding: the largest relative difference of an example's gradient or objective when it is run alone without its padding;
            None where there is no padding, or the test was not run. A large value means that padding is read.
        unrun: by the names "independence", "neighbours", "order" and "padding" the reasons why a test was not run.
    """

    slopes: tuple[Slope, ...]
    scatter: float | None = None
    independence: float | None = None
    untested: tuple[int, ...] = ()
    neighbours: float | None = None
    order: float | None = None
    padding: float | None = None
    unrun: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        wrong = sum(not slope.holds for slope in self.slopes)
        parts = [f"{len(self.slopes)} slopes, {f'{wrong} wrong' if wrong else 'all hold'}"]
        for name in ("scatter", "independence", "neighbours", "order", "padding"):
            if (figure := getattr(self, name)) is not None:
                parts.append(f"{name} {figure:.2g}")
        if self.untested:
            parts.append(f"{len(self.untested)} examples not tested")
        if self.unrun:
            parts.append(f"not run: {', '.join(self.unrun)}")
        return f"Certificate({', '.join(parts)})"

    def to_dict(self) -> dict[str, Any]:
        """Return the certificate as JSON-compatible values."""
        return asdict(self)


def worst(certificates: Sequence[Certificate | None]) -> Certificate:
    """Combine the certificates of sub-batches into one: all slopes, and the largest value of each other measurement."""
    present = [certificate for certificate in certificates if certificate is not None]

    def largest(name: str) -> float | None:
        return max(
            (figure for certificate in present if (figure := getattr(certificate, name)) is not None), default=None
        )

    return Certificate(
        tuple(slope for certificate in present for slope in certificate.slopes),
        largest("scatter"),
        largest("independence"),
        tuple(sorted({example for certificate in present for example in certificate.untested})),
        largest("neighbours"),
        largest("order"),
        largest("padding"),
        {name: why for certificate in present for name, why in certificate.unrun.items()},
    )
