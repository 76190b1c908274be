"""What a comparison of two results holds, and how it is shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from embgrad.common.metrics import Figures, PositionFigures
from embgrad.common.text import visible
from embgrad.comparison.diagnosis.findings import Finding
from embgrad.errors import did_you_mean
from embgrad.results.gradients import EmbeddingGradients
from embgrad.results.rendering import rendered

__all__ = ["Comparison", "Comparisons"]


@dataclass(frozen=True, eq=False)
class Comparison:
    """Two results side by side.

    Attributes:
        agrees: whether they are the same to rounding, where they can be compared.
        tolerance: the relative L2 up to which they agree.
        figures: over all examples.
        examples: the numbers of a's examples that b has too.
        per_example: of each of these.
        per_position: of each position, (example, position) as in a, NaN where b has none; None at points without positions.
        labels: what a and b are.
        notes: what had to be done to bring the two together, and what is known to differ in how they were made.
        findings: what explains the difference, best first; empty where they agree, or where nothing explains it.
        a: the first result, as given.
        b: the second, as given.
        advice: what to do where they differ and nothing explains it; else empty.
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
    a: EmbeddingGradients = field(repr=False)
    b: EmbeddingGradients = field(repr=False)
    advice: str = ""

    @property
    def verdict(self) -> str:
        """In one line."""
        relative = f"relative L2 {self.figures.relative_l2:.2e}, tolerance {self.tolerance:.1e}"
        return f"{'agree' if self.agrees else 'differ'}: {relative}"

    def __repr__(self) -> str:
        lines = [f"b = {self.labels[1]} against a = {self.labels[0]}", self.verdict]
        lines.append(f"{'':>12} relative L2     largest      cosine")
        rows = [
            ("all", self.figures),
            *((f"example {i}", one) for i, one in zip(self.examples, self.per_example, strict=True)),
        ]
        lines += [f"{name:>12} {one.relative_l2:11.3e} {one.largest:11.3e} {one.cosine:11.8f}" for name, one in rows]
        lines += [f"finding: {finding}" for finding in self.findings]
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join(map(visible, [*lines, self.advice] if self.advice else lines))

    def _repr_html_(self) -> str | None:
        """What notebooks show; None, and so the text, without the extra `report`."""
        return rendered(self)

    def to_dict(self) -> dict[str, Any]:
        """All but the results, as JSON can hold it."""
        return {
            "labels": list(self.labels),
            "agrees": self.agrees,
            "tolerance": self.tolerance,
            "figures": self.figures.to_dict(),
            "examples": list(self.examples),
            "per_example": [one.to_dict() for one in self.per_example],
            "per_position": None if self.per_position is None else _listed_by_position(self.per_position),
            "notes": list(self.notes),
            "findings": [finding.to_dict() for finding in self.findings],
            "advice": self.advice,
        }


class Comparisons(Mapping[str, Comparison]):
    """Comparisons by name, as of several points.

    Attributes:
        agrees: whether all of them do.
        findings: what explains the differences, of all of them, those that explain the most points first.
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
        """Whether all of them do."""
        return all(one.agrees for one in self.values())

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What explains the differences; of findings with the same causes the one that explains least."""
        found: dict[tuple[str, ...], list[Finding]] = {}
        for one in self.values():
            for finding in one.findings:
                found.setdefault(finding.causes, []).append(finding)
        ordered = sorted(found.values(), key=lambda same: (-len(same), min(one.left for one in same)))
        return tuple(max(same, key=lambda one: one.left) for same in ordered)

    def _repr_html_(self) -> str | None:
        """What notebooks show; None, and so the text, without the extra `report`."""
        return rendered(self)

    def to_dict(self) -> dict[str, Any]:
        """Each comparison's, by name."""
        return {"agrees": self.agrees, "comparisons": {name: one.to_dict() for name, one in self.items()}}

    def __repr__(self) -> str:
        return "\n\n".join(f"{visible(name)}\n{one!r}" for name, one in self.items())


def _listed_by_position(figures: PositionFigures) -> dict[str, list[list[float | None]]]:
    """As lists, with None where JSON has no number."""
    arrays = {"relative_l2": figures.relative_l2, "largest": figures.largest, "cosine": figures.cosine}
    return {
        name: [[float(one) if np.isfinite(one) else None for one in row] for row in array]
        for name, array in arrays.items()
    }
