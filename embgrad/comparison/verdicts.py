"""The comparisons in words and figures: agreements, differences and their causes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from embgrad.comparison.findings import Finding
from embgrad.display.figures import FigureRow, figure, picture, rows_html
from embgrad.display.html import Html, cell, tag

__all__ = ["Verdict", "comparison_cell", "comparisons_cell", "verdict"]

#: The largest number of examples whose figures are listed, on a page and in a notebook's cell.
MOST_EXAMPLES, MOST_IN_CELL = 50, 10

#: The largest number of findings that are listed, over all points.
MOST_FINDINGS: Final = 8


@dataclass(frozen=True)
class Verdict:
    """The comparison of one result with the first.

    Attributes:
        label: the result's name on the page.
        agrees: whether the two agree at every point.
        text: the verdict in words.
        sides: the descriptions of a and b, which the notes and findings mention.
        tolerance: the tolerance, as text.
        points: the figures at each point.
        examples: the figures of each example, at `point`.
        findings: the explanations of the difference, each with its points.
        notes: further observations of the comparison.
        advice: the suggested next step.
        unlisted: the number of examples that are not listed.
        point: the point of the examples' figures.
    """

    label: str
    agrees: bool
    text: str
    sides: tuple[str, str]
    tolerance: str
    points: tuple[FigureRow, ...]
    examples: tuple[FigureRow, ...]
    findings: tuple[str, ...]
    notes: tuple[str, ...]
    advice: str
    unlisted: int
    point: str


def comparison_cell(comparison: Any) -> Html:
    """Return the HTML of a `Comparison` that notebooks show: the verdict, its causes and the figures."""
    rows = list(examples_of(comparison))
    figures = comparison.figures
    whole = FigureRow("all", comparison.agrees, figures.relative_l2, figures.largest, figures.cosine)
    more = len(rows) - MOST_IN_CELL
    notes = [f"{more} more examples not listed"] if more > 0 else []
    by_point = {str(comparison.a.provenance.get("point", "?")): comparison}
    table = rows_html("", [whole, *rows[:MOST_IN_CELL]], inline=True)
    return _cell(verdict("b", "a", by_point, None), [table], notes)


def comparisons_cell(comparisons: Mapping[str, Any]) -> Html:
    """Return the HTML of `Comparisons` that notebooks show: the verdict, its causes, the figures at each point and their plot."""
    if not comparisons:
        return cell(heading="Comparisons", summary="of no points")
    outcome = verdict("b", "a", comparisons, None)
    bounds = sorted({comparison.tolerance for comparison in comparisons.values()})
    drawn = picture({"b": outcome.points}, bounds, "a", inline=True)
    content = [rows_html("point", outcome.points, inline=True), drawn]
    return _cell(outcome, content, [])


def _cell(outcome: Verdict, content: Sequence[Any], notes: Sequence[str]) -> Html:
    texts = [tag("div", text, style="margin:.3em 0") for text in (*outcome.findings, outcome.advice) if text]
    return cell(
        texts,
        content,
        heading=f"{'✓' if outcome.agrees else '✗'} {outcome.text}",
        summary=f"(tolerance {outcome.tolerance})",
        notes=[*notes, *outcome.notes, f"a is {outcome.sides[0]}; b is {outcome.sides[1]}."],
    )


def verdict(label: str, first: str, comparisons: Mapping[str, Any], shown: str | None) -> Verdict:
    """Return the verdict on one result.

    Args:
        label: the result's name.
        first: the name of the result that it was compared with.
        comparisons: the comparisons by point.
        shown: the point whose examples are listed; the first where it is None or was not compared.
    """
    point = shown if shown is not None and shown in comparisons else next(iter(comparisons))
    comparison = comparisons[point]
    examples = list(examples_of(comparison))
    differing = [name for name, comparison in comparisons.items() if not comparison.agrees]
    advices = [comparison.advice for comparison in comparisons.values() if not comparison.agrees and comparison.advice]
    tolerances = sorted({comparison.tolerance for comparison in comparisons.values()})
    return Verdict(
        label=label,
        agrees=not differing,
        text=_text(label, first, comparisons, differing),
        sides=comparison.labels,
        tolerance=" to ".join(figure(bound) for bound in dict.fromkeys((tolerances[0], tolerances[-1]))),
        points=tuple(
            FigureRow(name, entry.agrees, entry.figures.relative_l2, entry.figures.largest, entry.figures.cosine)
            for name, entry in comparisons.items()
        ),
        examples=tuple(examples[:MOST_EXAMPLES]),
        findings=tuple(_findings(comparisons)),
        notes=_notes(comparisons),
        advice=advices[0] if advices else "",
        unlisted=max(0, len(examples) - MOST_EXAMPLES),
        point=point,
    )


def examples_of(comparison: Any) -> Iterator[FigureRow]:
    """Yield the figures of each example that both results have, named by its number in a."""
    for number, figures in zip(comparison.examples, comparison.per_example, strict=True):
        yield FigureRow(f"example {number}", None, figures.relative_l2, figures.largest, figures.cosine)


def _text(label: str, first: str, comparisons: Mapping[str, Any], differing: Sequence[str]) -> str:
    largest = max(
        (comparison.figures.relative_l2 for comparison in comparisons.values()),
        key=lambda figure: (figure != figure, figure),
    )
    summary = f"relative L2 {figure(largest)}"
    if len(comparisons) == 1:
        return f"{label} {'differs from' if differing else 'agrees with'} {first}: {summary}"
    if not differing:
        return f"{label} agrees with {first} at all {len(comparisons)} points: {summary} at most"
    names = ", ".join(differing[:4]) + (f" and {len(differing) - 4} more" if len(differing) > 4 else "")
    return f"{label} differs from {first} at {len(differing)} of {len(comparisons)} points ({names}): {summary} at most"


def _findings(comparisons: Mapping[str, Any]) -> list[str]:
    """Return the explanations of the differences, each with its points unless it holds at all points that differ.

    Equal findings are listed once, with the figures of the point where they explain least. Findings with different numbers,
    such as factors of 2 and 3, are not equal.
    """
    differing = [point for point, comparison in comparisons.items() if not comparison.agrees]
    by_text: dict[str, dict[str, Finding]] = {}
    for point in differing:
        for finding in comparisons[point].findings:
            by_text.setdefault(finding.text, {})[point] = finding
    ordered = sorted(by_text.values(), key=lambda equal: (-len(equal), min(finding.left for finding in equal.values())))
    texts = []
    for equal in ordered:
        least = max(equal.values(), key=lambda finding: finding.left)
        texts.append(str(least) if len(equal) == len(differing) else f"at {', '.join(equal)}: {least}")
    more = len(texts) - MOST_FINDINGS
    return (
        texts if more <= 0 else [*texts[:MOST_FINDINGS], f"{more} more findings, each at other points, are not listed"]
    )


def _notes(comparisons: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the further observations, each once, with its points unless it holds at all points."""
    points_by_text: dict[str, list[str]] = {}
    for point, comparison in comparisons.items():
        for text in comparison.notes:
            points_by_text.setdefault(text, []).append(point)
    return tuple(
        text if len(points) == len(comparisons) else f"at {', '.join(points)}: {text}"
        for text, points in points_by_text.items()
    )
