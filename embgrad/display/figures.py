"""Figures of comparisons as HTML: a table with a row for each point or example, and a plot of the differences by point."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from embgrad.display.html import Html, tag

__all__ = [
    *("COLOURS", "GRID", "HEIGHT", "LEFT", "RIGHT", "TOP", "WIDTH", "FigureRow", "Scale"),
    *("figure", "key", "picture", "rows_html", "scale_of"),
]

#: The dimensions of the plot in its own units: small, so that its labels are legible on a phone.
WIDTH, HEIGHT, LEFT, RIGHT, TOP, FOOT = 400.0, 220.0, 46.0, 10.0, 12.0, 74.0

#: The least width for a name along the bottom, and the largest number of its letters.
ROOM, MOST_LETTERS = 13.0, 15

#: The style of the lines behind the figures.
GRID: Final = {"stroke": "currentColor", "stroke_width": "0.6", "stroke_opacity": "0.25"}

#: The shapes that distinguish lines without colour, as SVG paths around the origin.
SHAPES: Final = (
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z",
    "M-3.5 -3.5h7v7h-7z",
    "M0 -4.6L4.4 3.4H-4.4z",
    "M0 -5L5 0L0 5L-5 0z",
    "M0 4.6L-4.4 -3.4H4.4z",
    "M-1.5 -4.5h3v3h3v3h-3v3h-3v-3h-3v-3h3z",
)

#: The colours of lines in a notebook, for dark and light backgrounds; a page has those of its style sheet.
COLOURS: Final = ("#2f8fc9", "#d8730f", "#1f9c78", "#c0609f", "#8a8a1c", "#808080")


@dataclass(frozen=True)
class FigureRow:
    """The figures of a comparison at one point, or of one example.

    Attributes:
        agrees: whether it agrees within the tolerance; None where there is no separate verdict.
        relative_l2: the relative L2 of the comparison, likewise `largest` and `cosine`.
    """

    name: str
    agrees: bool | None
    relative_l2: float
    largest: float
    cosine: float

    @property
    def mark(self) -> str:
        """The verdict as a sign."""
        return "" if self.agrees is None else "✓" if self.agrees else "✗"

    @property
    def cells(self) -> tuple[str, str, str]:
        """The figures as text."""
        return figure(self.relative_l2), figure(self.largest), f"{self.cosine:.8f}"


def figure(number: float) -> str:
    """Return a figure with three digits, or a sign for infinity."""
    if number == float("inf"):
        return "∞"
    return f"{number:.3g}" if number == 0 or 1e-2 <= abs(number) < 1e3 else f"{number:.2e}"


def rows_html(head: str, rows: Sequence[FigureRow], caption: str = "", *, inline: bool) -> Html:
    """Return a table of figures, with the verdict on each row where it has one.

    Args:
        inline: whether each cell has its own style, as in a notebook; a page has a style sheet.
    """
    figures = "text-align:right;padding:.15em .6em;font-variant-numeric:tabular-nums" if inline else None
    names = "text-align:left;padding:.15em .6em;font-weight:normal" if inline else None
    largest = "largest difference" if inline else Html("largest differ&shy;ence")
    headings = [tag("th", name, scope="col", style=figures) for name in ("relative L2", largest, "cosine")]
    body = [
        tag(
            "tr",
            tag("th", _mark(row, inline), row.name, scope="row", style=names),
            [tag("td", text, style=figures) for text in row.cells],
        )
        for row in rows
    ]
    return tag(
        "table",
        tag("caption", caption) if caption else None,
        tag("thead", tag("tr", tag("th", head, scope="col", style=names), headings)),
        tag("tbody", body),
        style="border-collapse:collapse" if inline else None,
    )


def _mark(row: FigureRow, inline: bool) -> Any:
    if row.agrees is None:
        return ""
    if inline:
        return f"{row.mark} "
    said = tag("span", " agrees" if row.agrees else " differs", class_="unseen")
    return [tag("span", row.mark, said, class_="yes" if row.agrees else "no"), " "]


@dataclass(frozen=True)
class Scale:
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


def picture(
    lines: Mapping[str, Sequence[FigureRow]], bounds: Sequence[float], first: str, *, inline: bool
) -> Html | None:
    """Return a plot of the relative L2 by point as SVG, or None where there are fewer than two points.

    Args:
        lines: for each result, the figures at its points.
        first: the name of the result that these are compared with.
    """
    points = list(dict.fromkeys(row.name for rows in lines.values() for row in rows))
    if len(points) < 2:
        return None
    scale = scale_of([row.relative_l2 for rows in lines.values() for row in rows], bounds)
    step = (WIDTH - LEFT - RIGHT) / len(points)
    xs = {point: round(LEFT + step * (number + 0.5), 1) for number, point in enumerate(points)}
    ends, foot = {"x1": LEFT, "x2": WIDTH - RIGHT}, HEIGHT + 12
    rungs = scale.rungs()
    labels = [tag("text", name, x=LEFT - 5, y=y + 3.5) for y, name in rungs]
    for point in points[:: math.ceil(ROOM / step)]:
        labels.append(tag("text", _short(point), x=xs[point], y=foot, transform=f"rotate(-45 {xs[point]} {foot})"))
    for bound in sorted({bound for bound in bounds if bound > 0}):
        y, dashes = scale.height(bound), {"stroke": "currentColor", "stroke_width": "1.2", "stroke_dasharray": "5 3"}
        name = tag("text", f"tolerance {figure(bound)}", x=WIDTH - RIGHT, y=y - 4)
        labels += [tag("line", **ends, y1=y, y2=y, **dashes), name]
    summary = "; ".join(_summary(label, rows) for label, rows in lines.items())
    return tag(
        "svg",
        tag("title", f"Relative L2 of the gradient against {first}, by point, on a logarithmic axis"),
        tag("desc", f"{summary}. The tables hold every figure."),
        tag("g", [tag("line", **ends, y1=y, y2=y) for y, _ in rungs], **GRID),
        tag("g", labels, font_size="10", fill="currentColor", text_anchor="end"),
        [_line(number, label, rows, xs, scale, inline) for number, (label, rows) in enumerate(lines.items())],
        role="img",
        viewBox=f"0 0 {WIDTH} {HEIGHT + FOOT}",
        style="max-width:34em;width:100%" if inline else None,
    )


def _line(
    number: int, label: str, rows: Sequence[FigureRow], xs: Mapping[str, float], scale: Scale, inline: bool
) -> Html:
    """Return the line of one result, with a mark at each point."""
    places = [(xs[row.name], scale.height(row.relative_l2)) for row in rows]
    titles = [tag("title", f"{label}, {row.name}: relative L2 {figure(row.relative_l2)}") for row in rows]
    marks = [
        tag("path", title, d=_shape(number), fill="currentColor", transform=f"translate({x} {y})")
        for title, (x, y) in zip(titles, places, strict=True)
    ]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    line = tag("polyline", points=path, fill="none", stroke="currentColor", stroke_width="1.4")
    colour = {"style": f"color:{COLOURS[number % len(COLOURS)]}"} if inline else {"class_": _class(number)}
    return tag("g", line, marks, **colour)


def key(number: int, label: str) -> Html:
    """Return the mark and the name of a line of the plot, for a page."""
    mark = tag("path", d=_shape(number), fill="currentColor")
    shape = tag("svg", mark, aria_hidden="true", viewBox="-6 -6 12 12", class_=_class(number))
    return tag("span", shape, f" {label}", class_="key")


def _shape(number: int) -> str:
    return SHAPES[number % len(SHAPES)]


def _class(number: int) -> str:
    return f"c{number % len(SHAPES)}"


def scale_of(values: Sequence[float], bounds: Sequence[float]) -> Scale:
    """Return the axis for figures and for bounds, which do not extend it to zero or infinity."""
    finite = [value for value in (*values, *bounds) if math.isfinite(value) and value > 0] or [1e-7, 1.0]
    low, high = math.floor(math.log10(min(finite))), math.ceil(math.log10(max(finite)))
    return Scale(low, max(high, low + 1), 0 in values, not all(map(math.isfinite, values)))


def _summary(label: str, lines: Sequence[FigureRow]) -> str:
    least, most = (pick(lines, key=lambda line: line.relative_l2) for pick in (min, max))
    return f"{label} from {figure(least.relative_l2)} at {least.name} to {figure(most.relative_l2)} at {most.name}"


def _short(name: str) -> str:
    """Return the end of a long name, since the end of a path says most."""
    return name if len(name) <= MOST_LETTERS else "…" + name[1 - MOST_LETTERS :]
