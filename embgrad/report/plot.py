"""The layout of the plot of differences by point; the template draws it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from embgrad.report.verdicts import Line, figure

__all__ = ["Mark", "Plot", "Series", "plot"]

#: The dimensions of the plot in its own units: small, so that its labels are legible on a phone.
WIDTH, HEIGHT, LEFT, RIGHT, TOP, FOOT = 400.0, 220.0, 46.0, 10.0, 12.0, 74.0

#: The least width for a name along the bottom, and the largest number of its letters.
ROOM, MOST_LETTERS = 13.0, 15

#: The shapes that distinguish series without colour, as SVG paths around the origin.
SHAPES: Final = (
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z",
    "M-3.5 -3.5h7v7h-7z",
    "M0 -4.6L4.4 3.4H-4.4z",
    "M0 -5L5 0L0 5L-5 0z",
    "M0 4.6L-4.4 -3.4H4.4z",
    "M-1.5 -4.5h3v3h3v3h-3v3h-3v-3h-3v-3h3z",
)


@dataclass(frozen=True)
class Mark:
    """One figure in the plot."""

    x: float
    y: float
    text: str


@dataclass(frozen=True)
class Series:
    """The figures of one result, in order."""

    label: str
    number: int
    shape: str
    marks: tuple[Mark, ...]

    @property
    def line(self) -> str:
        """The points of the line through the marks, as SVG writes them."""
        return " ".join(f"{mark.x:.1f},{mark.y:.1f}" for mark in self.marks)


@dataclass(frozen=True)
class Plot:
    """The plot.

    Attributes:
        series: the lines.
        rungs: the labelled heights of the vertical axis.
        names: the labelled positions of the points on the horizontal axis.
        bounds: the labelled heights of tolerances.
        summary: the contents of the plot, in words.
    """

    series: tuple[Series, ...]
    rungs: tuple[tuple[float, str], ...]
    names: tuple[tuple[float, str], ...]
    bounds: tuple[tuple[float, str], ...]
    summary: str
    width: float = WIDTH
    height: float = HEIGHT + FOOT
    left: float = LEFT
    right: float = WIDTH - RIGHT
    bottom: float = HEIGHT


@dataclass(frozen=True)
class _Scale:
    """A logarithmic axis, with a rung for zero below and one for infinity above where there are such figures."""

    low: int
    high: int
    zero: bool
    infinite: bool

    def height(self, value: float) -> float:
        """Return the height of a figure."""
        start = self.low - (1 if self.zero else 0)
        end = self.high + (1 if self.infinite else 0)
        exponent = start if value == 0 else end if not math.isfinite(value) else math.log10(value)
        return round(HEIGHT - (HEIGHT - TOP) * (exponent - start) / (end - start), 1)

    def rungs(self) -> list[tuple[float, str]]:
        """Return the labelled powers of ten, few enough to be legible."""
        step = -(-(self.high - self.low) // 8)
        powers = [(self.height(10.0**power), f"1e{power:+03d}") for power in range(self.low, self.high + 1, step)]
        return [
            *([(self.height(0.0), "0")] if self.zero else []),
            *powers,
            *([(self.height(math.inf), "∞")] if self.infinite else []),
        ]


def plot(lines: Mapping[str, Sequence[Line]], bounds: Sequence[float]) -> Plot | None:
    """Return the plot of the relative L2 by point, or None where there are fewer than two points.

    Args:
        lines: for each result, the figures at its points.
        bounds: the tolerances to draw.
    """
    points = list(dict.fromkeys(line.name for figures in lines.values() for line in figures))
    if len(points) < 2:
        return None
    scale = _scale([line.relative_l2 for figures in lines.values() for line in figures], bounds)
    step = (WIDTH - LEFT - RIGHT) / len(points)
    xs = {point: round(LEFT + step * (number + 0.5), 1) for number, point in enumerate(points)}
    series = tuple(
        Series(label, number % len(SHAPES), SHAPES[number % len(SHAPES)], tuple(_marks(label, figures, xs, scale)))
        for number, (label, figures) in enumerate(lines.items())
    )
    interval = math.ceil(ROOM / step)
    names = tuple((xs[point], _short(point)) for point in points[::interval])
    drawn = tuple((scale.height(bound), f"tolerance {figure(bound)}") for bound in sorted(set(bounds)) if bound > 0)
    return Plot(series, tuple(scale.rungs()), names, drawn, "; ".join(_summary(*item) for item in lines.items()))


def _scale(values: Sequence[float], bounds: Sequence[float]) -> _Scale:
    finite = [value for value in (*values, *bounds) if math.isfinite(value) and value > 0] or [1e-7, 1.0]
    low, high = math.floor(math.log10(min(finite))), math.ceil(math.log10(max(finite)))
    return _Scale(low, max(high, low + 1), 0 in values, not all(map(math.isfinite, values)))


def _marks(label: str, lines: Sequence[Line], xs: Mapping[str, float], scale: _Scale) -> list[Mark]:
    return [
        Mark(
            xs[line.name],
            scale.height(line.relative_l2),
            f"{label}, {line.name}: relative L2 {figure(line.relative_l2)}",
        )
        for line in lines
    ]


def _summary(label: str, lines: Sequence[Line]) -> str:
    least, most = (pick(lines, key=lambda line: line.relative_l2) for pick in (min, max))
    return f"{label} from {figure(least.relative_l2)} at {least.name} to {figure(most.relative_l2)} at {most.name}"


def _short(name: str) -> str:
    """Return the end of a long name, since the end of a path says most."""
    return name if len(name) <= MOST_LETTERS else "…" + name[1 - MOST_LETTERS :]
