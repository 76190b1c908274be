"""The verdict on a result in words: its points, figures, findings and notes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from embgrad.comparison.findings import Finding
from embgrad.comparison.verdicts import comparison_cell, comparisons_cell, verdict


def figures(l2: float) -> Any:
    return SimpleNamespace(relative_l2=l2, largest=2 * l2, cosine=1 - l2)


def compared(
    l2: float,
    *,
    agrees: bool = False,
    findings: list[Finding] | None = None,
    notes: tuple[str, ...] = (),
    tolerance: float = 1e-5,
    advice: str = "",
    examples: int = 2,
) -> Any:
    return SimpleNamespace(
        agrees=agrees,
        figures=figures(l2),
        findings=findings or [],
        notes=notes,
        tolerance=tolerance,
        advice=advice,
        labels=("the first", "the second"),
        examples=list(range(5, 5 + examples)),
        per_example=[figures(l2 * number) for number in range(examples)],
        a=SimpleNamespace(provenance={"point": "word"}),
    )


def finding(text: str, explained: float | None = None) -> Finding:
    remaining = None if explained is None else (1 - explained) ** 0.5
    return Finding(("sign",), text, explained, remaining)


def test_a_verdict_on_one_point() -> None:
    found = verdict("b", "a", {"word": compared(0.5, advice="look", notes=("a note",))}, None)
    assert (found.label, found.agrees, found.text) == ("b", False, "b differs from a: relative L2 0.5")
    assert (found.sides, found.tolerance, found.point) == (("the first", "the second"), "1.00e-05", "word")
    assert (found.advice, found.notes, found.unlisted) == ("look", ("a note",), 0)
    (row,) = found.points
    assert (row.name, row.agrees, row.relative_l2, row.largest, row.cosine) == ("word", False, 0.5, 1.0, 0.5)
    assert [(each.name, each.agrees, each.relative_l2) for each in found.examples] == [
        ("example 5", None, 0.0),
        ("example 6", None, 0.5),
    ]
    agreeing = verdict("b", "a", {"word": compared(0, agrees=True, advice="look")}, None)
    assert (agreeing.text, agreeing.advice) == ("b agrees with a: relative L2 0", "")


def test_a_verdict_on_several_points() -> None:
    points = {f"p{number}": compared(0.1 * number, agrees=number in (0, 6)) for number in range(7)}
    found = verdict("b", "a", points, None)
    assert found.text == "b differs from a at 5 of 7 points (p1, p2, p3, p4 and 1 more): relative L2 0.6 at most"
    four = verdict("b", "a", {name: points[name] for name in ("p0", "p1", "p2", "p3", "p4")}, None)
    assert four.text == "b differs from a at 4 of 5 points (p1, p2, p3, p4): relative L2 0.4 at most"
    alike = verdict("b", "a", {name: points[name] for name in ("p0", "p6")}, None)
    assert alike.text == "b agrees with a at all 2 points: relative L2 0.6 at most"


def test_what_is_not_a_number_is_the_largest_figure() -> None:
    points = {"p": compared(np.nan), "q": compared(2.0)}
    assert verdict("b", "a", points, None).text.endswith("relative L2 nan at most")
    assert verdict("b", "a", dict(reversed(points.items())), None).text.endswith("relative L2 nan at most")


@pytest.mark.parametrize(("shown", "point"), [("q", "q"), ("r", "p"), (None, "p")])
def test_examples_are_those_of_the_point_that_is_shown(shown: str | None, point: str) -> None:
    points = {"p": compared(0.5, tolerance=1e-3), "q": compared(0.25, tolerance=1e-6)}
    found = verdict("b", "a", points, shown)
    assert (found.point, found.examples[1].relative_l2) == (point, points[point].figures.relative_l2)
    assert found.tolerance == "1.00e-06 to 1.00e-03"


def test_fifty_examples_are_listed() -> None:
    found = verdict("b", "a", {"p": compared(0.5, examples=53)}, None)
    assert (len(found.examples), found.unlisted) == (50, 3)
    assert verdict("b", "a", {"p": compared(0.5, examples=50)}, None).unlisted == 0


def test_findings_that_hold_at_some_points_are_listed_with_them() -> None:
    same, other, rare = finding("same", 0.99), finding("other", 0.99), finding("rare", 1.0)
    points = {
        "p": compared(0.5, findings=[rare, same]),
        "q": compared(0.5, findings=[finding("same", 0.95), other]),
        "r": compared(0.0, agrees=True, findings=[finding("unseen")]),
    }
    found = verdict("b", "a", points, None)
    assert found.findings == (str(finding("same", 0.95)), f"at p: {rare}", f"at q: {other}")


def test_eight_findings_are_listed() -> None:
    points = {"p": compared(0.5, findings=[finding(f"f{number}", 0.9 + number / 100) for number in range(10)])}
    found = verdict("b", "a", points, None).findings
    assert found[:2] == (str(finding("f9", 0.99)), str(finding("f8", 0.98)))
    assert (len(found), found[-1]) == (9, "2 more findings, each at other points, are not listed")
    points["p"].findings = points["p"].findings[:8]
    assert len(verdict("b", "a", points, None).findings) == 8


def test_notes_are_listed_once_with_their_points() -> None:
    points = {"p": compared(0.5, notes=("both", "first")), "q": compared(0.5, notes=("both",))}
    assert verdict("b", "a", points, None).notes == ("both", "at p: first")


@pytest.mark.parametrize(("examples", "note"), [(10, ""), (12, "2 more examples not listed")])
def test_a_cell_lists_ten_examples(examples: int, note: str) -> None:
    html = str(comparison_cell(compared(0.5, examples=examples)))
    assert ("more examples not listed" in html) is bool(note)
    assert note in html
    assert "border-collapse:collapse" in html  # a notebook has no style sheet
    assert "example 14" in html
    assert "example 15" not in html


def test_comparisons_of_no_points_are_said_to_be_so() -> None:
    assert "of no points" in str(comparisons_cell({}))
