"""The result of a comparison, and its representations as text, HTML and JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from embgrad.common.metrics import Figures, PositionFigures
from embgrad.common.text import visible
from embgrad.comparison.findings import Finding
from embgrad.errors import did_you_mean
from embgrad.results.io import Result

__all__ = ["Comparison", "Comparisons"]


@dataclass(frozen=True, eq=False)
class Comparison:
    """The comparison of two results.

    Attributes:
        agrees: whether the two are equal up to rounding at the positions that can be compared.
        tolerance: the relative L2 up to which they agree.
        figures: the figures over all examples.
        examples: the indices of a's examples that b has too.
        per_example: the figures of each of these examples.
        per_position: the figures of each position, (example, position) as in a, NaN where b has none; None at points without
            positions.
        labels: descriptions of a and b.
        notes: how the two had to be rearranged to match, and recorded differences in how they were computed.
        findings: the causes that explain the difference, best first; empty if the two agree, or if no cause explains it.
        a: the first result, unchanged.
        b: the second result, unchanged.
        advice: what to do if the two differ and no cause explains it; otherwise empty.
    """

    agrees: bool
    tolerance: float
    figures: Figures
    examples: tuple[int, ...]
    per_example: tuple[Figures, ...]
    per_position: PositionFigures | None
    labels: tuple[str, str]
    notes: tuple[str, ...]
    findings: tuple[Finding, ...]
    a: Result
    b: Result
    advice: str = ""

    @property
    def verdict(self) -> str:
        """The outcome in one line."""
        relative = f"relative L2 {self.figures.relative_l2:.2e}, tolerance {self.tolerance:.1e}"
        return f"{'agree' if self.agrees else 'differ'}: {relative}"

    def __repr__(self) -> str:
        lines = [f"b = {self.labels[1]} against a = {self.labels[0]}", self.verdict]
        lines.append(f"{'':>12} relative L2     largest      cosine")
        rows = [
            ("all", self.figures),
            *((f"example {i}", figures) for i, figures in zip(self.examples, self.per_example, strict=True)),
        ]
        lines += [
            f"{name:>12} {figures.relative_l2:11.3e} {figures.largest:11.3e} {figures.cosine:11.8f}"
            for name, figures in rows
        ]
        lines += [f"finding: {finding}" for finding in self.findings]
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join(map(visible, [*lines, self.advice] if self.advice else lines))

    def _repr_html_(self) -> str:
        """Return the HTML that notebooks show."""
        from embgrad.comparison.verdicts import comparison_cell  # few comparisons are shown

        return comparison_cell(self)

    def to_dict(self) -> dict[str, Any]:
        """Return everything except the results, in a form that JSON can hold."""
        return {
            "labels": list(self.labels),
            "agrees": self.agrees,
            "tolerance": self.tolerance,
            "figures": self.figures.to_dict(),
            "examples": list(self.examples),
            "per_example": [figures.to_dict() for figures in self.per_example],
            "per_position": None if self.per_position is None else _listed_by_position(self.per_position),
            "notes": list(self.notes),
            "findings": [finding.to_dict() for finding in self.findings],
            "advice": self.advice,
        }


class Comparisons(Mapping[str, Comparison]):
    """Comparisons by name, for example of several points.

    Attributes:
        agrees: whether all comparisons agree.
        findings: the causes that explain the differences, over all comparisons; those that explain the most points come first.
    """

    def __init__(self, comparisons: Mapping[str, Comparison]) -> None:
        self._comparisons = dict(comparisons)

    def __getitem__(self, name: str) -> Comparison:
        if name not in self._comparisons:
            raise KeyError(f"no comparison {name!r}.{did_you_mean(name, self._comparisons)}")
        return self._comparisons[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._comparisons)

    def __len__(self) -> int:
        return len(self._comparisons)

    @property
    def agrees(self) -> bool:
        """True if all comparisons agree."""
        return all(comparison.agrees for comparison in self.values())

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The causes that explain the differences; of findings with the same causes the one that explains least."""
        by_causes: dict[tuple[str, ...], list[Finding]] = {}
        for comparison in self.values():
            for finding in comparison.findings:
                by_causes.setdefault(finding.causes, []).append(finding)
        ordered = sorted(by_causes.values(), key=lambda same: (-len(same), min(finding.left for finding in same)))
        return tuple(max(same, key=lambda finding: finding.left) for same in ordered)

    def _repr_html_(self) -> str:
        """Return the HTML that notebooks show."""
        from embgrad.comparison.verdicts import comparisons_cell  # few comparisons are shown

        return comparisons_cell(self)

    def to_dict(self) -> dict[str, Any]:
        """Return the dictionary of each comparison, by name."""
        return {"agrees": self.agrees, "comparisons": {name: comparison.to_dict() for name, comparison in self.items()}}

    def __repr__(self) -> str:
        return "\n\n".join(f"{visible(name)}\n{comparison!r}" for name, comparison in self.items())


def _listed_by_position(figures: PositionFigures) -> dict[str, list[list[float | None]]]:
    """Return the figures as nested lists, with None for numbers that JSON cannot hold."""
    arrays = {"relative_l2": figures.relative_l2, "largest": figures.largest, "cosine": figures.cosine}
    return {
        name: [[float(number) if np.isfinite(number) else None for number in row] for row in array]
        for name, array in arrays.items()
    }
