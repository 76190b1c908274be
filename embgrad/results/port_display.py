"""Reports on ports as text, as a page and in notebooks: the verdict, causes, settings, weights, and a line for each layer."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final

from embgrad.common.text import visible
from embgrad.display.depth import Depth
from embgrad.display.depth_picture import depth_picture
from embgrad.display.figures import figure, key
from embgrad.display.html import Html, cell, page, tag
from embgrad.results.port_records import PortFields, PortPoint, PortWeights, SettingDifference
from embgrad.version import __version__

__all__ = ["depth_of", "parts", "report_cell", "report_page", "text", "verdict"]

#: The most causes in the verdict, points at fault in the table of a text, and weights or points that a sentence names.
MOST_CAUSES, MOST_FAULTS, MOST_NAMED = 2, 6, 3

#: The columns of the table after the point's name: what the numbers of each are.
COLUMNS: Final = {
    "values": "the relative L2 of the values, each model run by itself",
    "gradient": "that of the gradients",
    "rounding": "what rounding alone causes",
    "from equal inputs": "what arises between the points before and this one",
}


def verdict(report: PortFields) -> str:
    """Return the outcome in one line."""
    if report.agrees:
        count = len(report.points)
        where = f"at all {count} points" if count > 1 else f"at {report.points[0].name}, the only point that both have"
        return f"the port agrees: {where}, up to rounding in {report.floor}"
    if report.first is None and not report.causes:
        return "the port differs, and no point shows where the difference arises"
    if not report.causes:
        return f"the port differs: first at {report.first}, and no known cause explains it"
    named = [cause.text for cause in report.causes[:MOST_CAUSES]]
    if more := len(report.causes) - len(named):
        named.append(f"{more} more cause{'' if more == 1 else 's'}")
    share = "" if report.explained is None else f" ({_of_difference(report.explained)})"
    rest = len(report.unexplained)
    left = f"; without a known cause at {rest} point{'' if rest == 1 else 's'}" if rest else ""
    return f"the port differs: {'; '.join(named)}{share}{left}"


def _of_difference(share: float) -> str:
    """Return a share of the outputs' difference, with five digits, so that 99.997 % is not written as all."""
    return "which alone do not bring the outputs nearer" if share < 0 else f"{100 * share:.5g} % of the difference"


def text(report: PortFields) -> str:
    """Return the report as text."""
    return "".join(part for part, _ in parts(report)).rstrip("\n")


def parts(report: PortFields) -> Iterator[tuple[str, str]]:
    """Yield the texts of the report with their styles, in Rich's words."""
    yield f"b = {visible(report.labels[1])} against a = {visible(report.labels[0])}\n", "dim"
    yield f"{visible(verdict(report))}\n", "bold green" if report.agrees else "bold red"
    for line in _sentences(report):
        yield f"{visible(line)}\n", ""
    rows = list(_rows(report))
    columns = _columns(report)
    cells = [("point", *columns, ""), *((row.name, *row.cells(columns), row.note) for row in rows)]
    widths = [max(len(visible(line[column])) for line in cells) for column in range(len(cells[0]))]
    for number, (name, *figures, note) in enumerate(cells):
        shown = [f"{entry:>{width}}" for entry, width in zip(figures, widths[1:-1], strict=True)]
        line = "  ".join([f"{visible(name):<{widths[0]}}", *shown, visible(note)]).rstrip()
        yield f"{line}\n", "dim" if number == 0 else "red" if rows[number - 1].is_fault else ""


def _sentences(report: PortFields) -> Iterator[str]:
    """Yield a line for each cause and setting, and for the weights and notes."""
    for cause in report.causes:
        off = f"relative L2 {figure(cause.difference)} there, {figure(cause.remaining)} of it unexplained"
        yield f"cause: {cause.text} ({_where(cause.sites)}, {off})"
    if report.unexplained:
        yield f"no known cause: {_names(report.unexplained)}"
    for setting in report.settings:
        yield f"setting: {_setting(setting)}"
    yield f"weights: {_weights(report.weights)}"
    for note in report.notes:
        yield f"note: {note}"


def _where(sites: Sequence[str]) -> str:
    return f"at {sites[0]}" if len(sites) == 1 else f"at {len(sites)} points, first {sites[0]}"


def _names(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _setting(setting: SettingDifference) -> str:
    return (
        f"{setting.name} is {setting.a} in a ({setting.where[0]}) and {setting.b} in b ({setting.where[1]})"
        f"{_matters(setting)}"
    )


def _matters(setting: SettingDifference) -> str:
    if setting.matters is None:
        return ""
    return ", which is a cause" if setting.matters else ", which changes nothing here"


def _weights(weights: PortWeights) -> str:
    """Return a sentence with the numbers of weights that are equal, differ, and have no partner."""
    equal = [pair for pair in weights.matches if pair.is_equal]
    moved = [
        f"{count} {how}"
        for how, count in (
            ("transposed", sum(pair.transposed for pair in equal)),
            ("in another order", sum(pair.permuted for pair in equal)),
        )
        if count
    ]
    clauses = [f"{len(equal)} equal" + (f" ({', '.join(moved)})" if moved else "")]
    if weights.parts:
        clauses.append(f"{len(weights.parts)} fused or split")
    if weights.different:
        named = _names([f"{pair.a}: {pair.relation}" for pair in weights.different])
        clauses.append(f"{len(weights.different)} different ({named})")
    for side, alone in (("a", weights.alone_a), ("b", weights.alone_b)):
        if alone:
            clauses.append(f"{len(alone)} of {side} without a partner ({_names(alone)})")
    return ", ".join(clauses)


@dataclass(frozen=True)
class _Row:
    """A row of the table: a layer, or a point.

    Attributes:
        point: the point whose figures it shows; of a layer the last.
        note: what else there is to say.
        is_fault: whether the row is a point at fault.
    """

    name: str
    point: PortPoint
    note: str = ""
    is_fault: bool = False

    def cells(self, columns: Sequence[str]) -> tuple[str, ...]:
        """Return the figures of columns as texts."""
        point = self.point
        figures = dict(zip(COLUMNS, (point.values, point.gradient, point.floor or None, point.local), strict=True))
        return tuple("" if (number := figures[name]) is None else figure(number) for name in columns)


def _columns(report: PortFields) -> list[str]:
    """Return the columns in which there is a figure."""
    has_gradients = any(point.gradient is not None for point in report.points)
    return [name for name in COLUMNS if has_gradients or name != "gradient"]


def _rows(report: PortFields) -> Iterator[_Row]:
    """Yield a row for each layer, for what lies outside of the layers, and for the first points at fault."""
    shown = 0
    for layer, group in itertools.groupby(report.points, key=lambda point: point.layer):
        points = list(group)
        faults = [point for point in points if not point.agrees]
        listed = faults[: MOST_FAULTS - shown]
        shown += len(listed)
        ends = points[-1] in listed and layer is not None
        for point in listed[:-1] if ends else listed:
            yield _Row(f"  ✗ {_within(point)}", point, is_fault=True)
        more = len(faults) - len(listed)
        note = f"{more} {'more ' if listed else ''}at fault" if more else ""
        if layer is not None:
            yield _Row(f"layer {layer}{' ✗' if ends else ''}", points[-1], note, ends)
        elif points[-1] not in listed:
            yield _Row(points[-1].name, points[-1], note)


def _within(point: PortPoint) -> str:
    """Return the name of a point inside its layer."""
    mark = f".{point.layer}."
    return point.name if point.layer is None or mark not in point.name else point.name.partition(mark)[2]


def depth_of(report: PortFields) -> Depth:
    """Return the differences by point, for a plot."""
    points = report.points
    layers: dict[int, int] = {}
    for index, point in enumerate(points):
        if point.layer is not None and point.layer not in layers.values():
            layers[index] = point.layer
    curves: dict[str, list[float | None]] = {"values": [point.values for point in points]}
    if any(point.gradient is not None for point in points):
        curves["gradients"] = [point.gradient for point in points]
    return Depth(
        [point.name for point in points],
        curves,
        [point.floor for point in points],
        {
            index: point.values if point.local is None else point.local
            for index, point in enumerate(points)
            if not point.agrees
        },
        layers,
    )


def report_cell(report: PortFields) -> Html:
    """Return the report for a notebook's cell."""
    lines = [tag("div", line) for line in _sentences(report)]
    return cell(
        depth_picture(depth_of(report), inline=True),
        lines,
        heading=verdict(report),
        notes=[
            f"b = {report.labels[1]} against a = {report.labels[0]}; show() prints a table, to_html() returns a page"
        ],
    )


def report_page(report: PortFields) -> str:
    """Return the report as a page."""
    return page(
        "Check of a port",
        tag(
            "header",
            tag("h1", "Check of a port"),
            tag("p", "b = ", tag("strong", report.labels[1]), " against a = ", tag("strong", report.labels[0])),
        ),
        tag(
            "main",
            tag("p", verdict(report), class_="verdict" if report.agrees else "verdict bad"),
            _figure_html(report),
            _causes_html(report),
            _settings_html(report),
            _weights_html(report.weights),
            _layers_html(report),
            [tag("p", note, class_="small") for note in report.notes],
        ),
        tag("footer", tag("p", _origin(report), class_="small")),
        style=resources.files("embgrad.results").joinpath("port.css").read_text(encoding="utf-8"),
        inline=False,
    )


def _origin(report: PortFields) -> str:
    took = f" in {sum(report.seconds.values()):.1f} s" if report.seconds else ""
    return f"Made by embgrad {__version__}{took}; differences up to rounding in {report.floor} count as agreement."


def _figure_html(report: PortFields) -> Html | None:
    depth = depth_of(report)
    drawn = depth_picture(depth, inline=False)
    if drawn is None:
        return None
    keys = [key(number, name) for number, name in enumerate(depth.curves)]
    marks = [
        tag("span", "✗", class_="no"),
        " what arises at a point from equal inputs; grey: what rounding alone causes",
    ]
    return tag(
        "figure",
        drawn,
        tag("figcaption", keys, marks if depth.faults else "grey: what rounding alone causes"),
    )


def _causes_html(report: PortFields) -> Any:
    if report.agrees:
        return None
    rows = [
        (cause.text, _where(cause.sites), figure(cause.difference), figure(cause.remaining)) for cause in report.causes
    ]
    left = tag("p", f"Without a known cause: {_names(report.unexplained)}.") if report.unexplained else None
    table = _table(("cause", "where", "relative L2 there", "unexplained"), rows) if rows else None
    return [tag("h2", "Causes"), table, left]


def _settings_html(report: PortFields) -> Any:
    if not report.settings:
        return None
    rows = [
        (setting.name, f"{setting.a} ({setting.where[0]})", f"{setting.b} ({setting.where[1]})", _matters(setting)[2:])
        for setting in report.settings
    ]
    return [tag("h2", "Settings that differ"), _table(("setting", "a", "b", ""), rows)]


def _weights_html(weights: PortWeights) -> Any:
    rows = [(pair.a, pair.b, pair.relation, figure(pair.distance)) for pair in weights.different]
    rows += [(name, "", "without a partner", "") for name in weights.alone_a]
    rows += [("", name, "without a partner", "") for name in weights.alone_b]
    table = _table(("a", "b", "how b relates to a", "relative L2"), rows) if rows else None
    return [tag("h2", "Weights"), tag("p", f"Matched by value: {_weights(weights)}."), table]


def _layers_html(report: PortFields) -> Any:
    columns = _columns(report)
    caption = "; ".join(f"{name}: {COLUMNS[name]}" for name in columns)
    rows = [(row.name, *row.cells(columns), row.note) for row in _rows(report)]
    every = [
        (_full_name(point), *_Row(point.name, point).cells(columns), "" if point.agrees else "✗ at fault")
        for point in report.points
    ]
    head = ("point", *columns, "")
    return [
        tag("h2", "Layers and points at fault"),
        tag("p", f"{caption}.", class_="small"),
        _table(head, rows, "figures"),
        tag("details", tag("summary", f"All {len(every)} points"), _table(head, every, "figures")),
    ]


def _full_name(point: PortPoint) -> str:
    return point.name if point.name == point.port_name else f"{point.name} = {point.port_name}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], name: str | None = None) -> Html:
    body = [tag("tr", tag("th", first, scope="row"), [tag("td", entry) for entry in rest]) for first, *rest in rows]
    heads = tag("thead", tag("tr", [tag("th", entry, scope="col") for entry in head]))
    return tag("div", tag("table", heads, tag("tbody", body), class_=name), class_="wide")
