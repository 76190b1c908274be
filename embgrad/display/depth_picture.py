"""A plot of differences over the depth of a model: curves on a logarithmic axis, a band of rounding errors, marked points."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

from embgrad.display.depth import Depth
from embgrad.display.figures import COLOURS, GRID, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Scale, figure, scale_of
from embgrad.display.html import Html, tag

__all__ = ["depth_picture"]

#: The height below the axis, for the numbers of the layers and their name.
FOOT: Final = 34.0

#: The least width for the number of a layer.
ROOM: Final = 16.0

#: The sign of a point at fault, as an SVG path around the origin, and its colour in a notebook.
CROSS, RED = "M-4 -4L4 4M-4 4L4 -4", "#c8401f"


def depth_picture(depth: Depth, *, inline: bool) -> Html | None:
    """Return the plot as SVG, or None where there are fewer than two points.

    Args:
        inline: whether each element has its own style, as in a notebook; a page has a style sheet.
    """
    if len(depth.names) < 2:
        return None
    values = [value for name in depth.curves for _, value in depth.values_of(name)]
    scale = scale_of([*values, *depth.faults.values()], [floor for floor in depth.floor if floor > 0])
    step = (WIDTH - LEFT - RIGHT) / len(depth.names)
    xs = [round(LEFT + step * (number + 0.5), 1) for number in range(len(depth.names))]
    ends = {"x1": LEFT, "x2": WIDTH - RIGHT}
    rungs = scale.rungs()
    return tag(
        "svg",
        tag(
            "title", "Relative L2 of the port against the reference, over the depth of the model, on a logarithmic axis"
        ),
        tag("desc", "; ".join([*(_summary(name, depth) for name in depth.curves), _count_of_faults(depth)])),
        _band(depth, xs, scale),
        tag(
            "g",
            [tag("line", **ends, y1=y, y2=y) for y, _ in rungs],
            [_mark_of_layer(xs[at], step) for at in depth.layers],
            **GRID,
        ),
        tag("g", [tag("text", name, x=LEFT - 5, y=y + 3.5) for y, name in rungs], **_letters("end")),
        tag("g", list(_labels(depth, xs, step)), **_letters("middle")),
        [_curve(number, name, depth, xs, scale, inline) for number, name in enumerate(depth.curves)],
        [_fault(depth, index, xs[index], scale, inline) for index in depth.faults],
        role="img",
        viewBox=f"0 0 {WIDTH} {HEIGHT + FOOT}",
        style="max-width:40em;width:100%" if inline else None,
    )


def _letters(anchor: str) -> dict[str, str]:
    return {"font_size": "10", "fill": "currentColor", "text_anchor": anchor}


def _band(depth: Depth, xs: Sequence[float], scale: Scale) -> Html | None:
    """Return the area from the axis up to what rounding causes; None where that is not known."""
    known = [(x, floor) for x, floor in zip(xs, depth.floor, strict=True) if floor > 0]
    if not known:
        return None
    top = " ".join(f"{x},{scale.height(floor)}" for x, floor in known)
    points = f"{known[0][0]},{HEIGHT} {top} {known[-1][0]},{HEIGHT}"
    return tag("polygon", points=points, fill="currentColor", fill_opacity="0.16")


def _mark_of_layer(x: float, step: float) -> Html:
    left = round(x - step / 2, 1)
    return tag("line", x1=left, x2=left, y1=TOP, y2=HEIGHT)


def _labels(depth: Depth, xs: Sequence[float], step: float) -> Iterator[Html]:
    """Yield the numbers of the layers along the axis, as many as there is space for, and the axis's name."""
    starts = sorted(depth.layers)
    if starts:
        widths = [(after - at) * step for at, after in zip(starts, [*starts[1:], len(xs)], strict=True)]
        every = max(1, math.ceil(ROOM / max(min(widths), 1e-9)))
        for at, width in list(zip(starts, widths, strict=True))[::every]:
            yield tag("text", depth.layers[at], x=round(xs[at] - step / 2 + width / 2, 1), y=HEIGHT + 13)
    yield tag(
        "text", "layer" if starts else "point, in the order of the pass", x=(LEFT + WIDTH - RIGHT) / 2, y=HEIGHT + 28
    )


def _curve(number: int, name: str, depth: Depth, xs: Sequence[float], scale: Scale, inline: bool) -> Html:
    points = " ".join(f"{xs[index]},{scale.height(value)}" for index, value in depth.values_of(name))
    dashes = None if number == 0 else "4 2"
    line = tag(
        "polyline",
        tag("title", name),
        points=points,
        fill="none",
        stroke="currentColor",
        stroke_width="1.4",
        stroke_dasharray=dashes,
        stroke_linejoin="round",
    )
    return tag("g", line, **_colour_of(f"c{number}", COLOURS[number], inline))


def _fault(depth: Depth, index: int, x: float, scale: Scale, inline: bool) -> Html:
    value = depth.faults[index]
    title = tag("title", f"{depth.names[index]}: relative L2 {figure(value)} from equal inputs")
    cross = tag("path", title, d=CROSS, fill="none", stroke="currentColor", stroke_width="1.8")
    return tag("g", cross, transform=f"translate({x} {scale.height(value)})", **_colour_of("no", RED, inline))


def _colour_of(name: str, colour: str, inline: bool) -> dict[str, str]:
    return {"style": f"color:{colour}"} if inline else {"class_": name}


def _summary(name: str, depth: Depth) -> str:
    known = list(depth.values_of(name))
    if not known:
        return f"{name}: none"
    (first, start), (last, end) = known[0], known[-1]
    return f"{name} from {figure(start)} at {depth.names[first]} to {figure(end)} at {depth.names[last]}"


def _count_of_faults(depth: Depth) -> str:
    count = len(depth.faults)
    return f"{count} point{'' if count == 1 else 's'} at fault"
