"""The comparisons in words and figures: agreements, differences and their causes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from embgrad.comparison.diagnosis.findings import Finding
from embgrad.comparison.result import Comparison

__all__ = ["Line", "Verdict", "examples_of", "figure", "verdict"]

#: The largest number of examples whose figures are listed.
MOST_EXAMPLES: Final = 50

#: The largest number of findings that are listed, over all points.
MOST_FINDINGS: Final = 8


@dataclass(frozen=True)
class Line:
    """The figures at one point, or of one example.

    Attributes:
        name: the name of the point or the example.
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
    points: tuple[Line, ...]
    examples: tuple[Line, ...]
    findings: tuple[str, ...]
    notes: tuple[str, ...]
    advice: str
    unlisted: int
    point: str


def figure(number: float) -> str:
    """Return a figure with three digits, or a sign for infinity."""
    if number == float("inf"):
        return "∞"
    return f"{number:.3g}" if number == 0 or 1e-2 <= abs(number) < 1e3 else f"{number:.2e}"


def verdict(label: str, first: str, comparisons: Mapping[str, Comparison], shown: str | None) -> Verdict:
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
            Line(name, entry.agrees, entry.figures.relative_l2, entry.figures.largest, entry.figures.cosine)
            for name, entry in comparisons.items()
        ),
        examples=tuple(examples[:MOST_EXAMPLES]),
        findings=tuple(_findings(comparisons)),
        notes=_notes(comparisons),
        advice=advices[0] if advices else "",
        unlisted=max(0, len(examples) - MOST_EXAMPLES),
        point=point,
    )


def examples_of(comparison: Comparison) -> Iterator[Line]:
    """Yield the figures of each example that both results have, named by its number in a."""
    for number, figures in zip(comparison.examples, comparison.per_example, strict=True):
        yield Line(f"example {number}", None, figures.relative_l2, figures.largest, figures.cosine)


def _text(label: str, first: str, comparisons: Mapping[str, Comparison], differing: Sequence[str]) -> str:
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


def _findings(comparisons: Mapping[str, Comparison]) -> list[str]:
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


def _notes(comparisons: Mapping[str, Comparison]) -> tuple[str, ...]:
    """Return the further observations, each once, with its points unless it holds at all points."""
    points_by_text: dict[str, list[str]] = {}
    for point, comparison in comparisons.items():
        for text in comparison.notes:
            points_by_text.setdefault(text, []).append(point)
    return tuple(
        text if len(points) == len(comparisons) else f"at {', '.join(points)}: {text}"
        for text, points in points_by_text.items()
    )
