"""What is said of causes inside two models, and of models that differ without a known cause."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from embgrad.comparison.align import aligned
from embgrad.comparison.diagnosis.case import Measure
from embgrad.comparison.diagnosis.diagnose import _recorded_causes
from embgrad.comparison.diagnosis.models import _as_object, _beside, _cut, _joined, _listed
from embgrad.comparison.diagnosis.search import Candidate
from embgrad.comparison.findings import Finding
from embgrad.comparison.report import port_weights
from embgrad.comparison.weight_values import Part
from embgrad.comparison.weights import Match, Matching
from embgrad.results.port_records import PortWeights, WeightPair
from tests.unit.comparison.test_accepted_causes import CASE
from tests.unit.comparison.test_compare import IDS, recorded


def test_four_causes_are_listed() -> None:
    assert _cut(list("abcd")) == list("abcd")
    assert _cut(list("abcdef")) == ["a", "b", "c", "d", "2 more"]
    assert _joined(list("abcde")) == "a, and b, and c, and d, and 1 more"
    assert _listed(list("abcde")) == "a, b, c, d, 1 more"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("b has up.W times 2", "that b has up.W times 2"),
        ("the gain is w in a and 1 + w in b", "that the gain is w in a and 1 + w in b"),
        ("epsilon 0.1 in a and 0.2 in b", "epsilon 0.1 in a and 0.2 in b"),
        ("heads 4 in a and what is 2 in b", "heads 4 in a and what is 2 in b"),
    ],
)
def test_a_cause_is_the_end_of_a_sentence(text: str, wanted: str) -> None:
    assert _as_object(text) == wanted


def pair(a: str, b: str, relation: str = "equal", *, transposed: bool = False) -> WeightPair:
    return WeightPair(a, b, 0.0, relation, relation == "equal", transposed, False, True)


def report(*matches: WeightPair, unexplained: tuple[str, ...] = ("up",), labels: tuple[str, str] = ("M", "M")) -> Any:
    weights = PortWeights(matches=matches, parts={}, alone_a=(), alone_b=())
    return SimpleNamespace(unexplained=unexplained, labels=labels, weights=weights)


def candidate(remaining: float) -> Candidate:
    return Candidate(CASE, ("sign",), "the sign", Measure(1.0, remaining, 1.0), False, True, "b")


UNKNOWN = "the models differ at up without a known cause"


def test_models_without_a_known_cause_are_a_note() -> None:
    assert _beside("", report(), None) == UNKNOWN
    assert _beside("epsilon", report(), None) == f"{UNKNOWN}; known is epsilon"
    nowhere = "the models differ without a known cause, at no point that both have"
    assert _beside("", report(unexplained=()), candidate(0.5)) == nowhere
    assert _beside("", report(pair("w", "w", "times 2"), labels=("M", "N")), None) == UNKNOWN


CHANGED, TURNED, EQUAL = pair("w", "w", "times 2"), pair("v", "v", transposed=True), pair("u", "u")


@pytest.mark.parametrize(
    ("matches", "rest", "causes", "text", "side"),
    [
        (
            (CHANGED, TURNED, EQUAL, pair("s", "t", "different")),
            candidate(0.0),
            ("different-weight", "transposed-weight", "sign"),
            "the weights w (times 2), v (transposed), and the sign",
            "b",
        ),
        ((CHANGED,), candidate(0.5), ("different-weight",), "the weights w (times 2)", ""),
        ((TURNED,), None, ("transposed-weight",), "the weights v (transposed)", ""),
        ((), candidate(0.0), ("sign",), "the sign", "b"),
    ],
)
def test_weights_of_one_name_that_differ_are_a_finding(
    matches: Any, rest: Candidate | None, causes: tuple[str, ...], text: str, side: str
) -> None:
    found = _beside("epsilon", report(*matches), rest)
    assert found == Finding(causes, f"{text}; {UNKNOWN}", None, None, side)


def certain(a: Any, b: Any) -> list[tuple[tuple[str, ...], str, str]]:
    return [(found.causes, found.text, found.side) for found in _recorded_causes(a, b, aligned(a, b))]


def test_recorded_differences_are_certain_causes() -> None:
    assert certain(recorded(), recorded()) == []
    text = "b ran in training mode, where dropout is active, and a did not"
    assert certain(recorded(), recorded(training=True)) == [(("dropout",), text, "b")]
    assert certain(recorded(training=True), recorded(training=True)) == []
    assert certain(recorded(training=True), recorded())[0][2] == "a"
    other = ("other-point",), "a was taken at 'word', and b at 'layer.0'", ""
    assert certain(recorded(), recorded(point="layer.0")) == [other]
    assert certain(recorded(point="embeddings"), recorded())[0][0] == ("after-norm",)
    assert certain(recorded(point="embeddings"), recorded(point="layer.0"))[0][0] == ("other-point",)


def test_recorded_objectives_and_ids_are_certain_causes() -> None:
    one, two = ({"class": name} for name in ("CrossEntropy", "Sum"))
    text = "a is the gradient of CrossEntropy, and b of Sum"
    assert certain(recorded(objective=one), recorded(objective=two)) == [(("sum-objective",), text, "")]
    logit = recorded(objective={"class": "Logit"})
    assert certain(recorded(objective=one), logit)[0][0] == ("other-objective",)
    for unknown in ("callable", "Scalar", None):
        assert certain(recorded(objective=one), recorded(objective={"class": unknown})) == []
    other = replace(recorded(), ids=IDS + 10)
    assert certain(recorded(), other) == [(("other-ids",), "the ids differ at 6 of 6 positions", "")]


def test_a_report_holds_how_each_weight_is_arranged() -> None:
    order = np.array([1, 0])
    matches = (
        Match("a", "b", 0.0, transposed=True),
        Match("c", "d", 0.5, order=order, relation="different", by_value=False),
    )
    parts = {"e": (Part("f", order, order),), "i": (Part("j", order, order, "rounded to float16 in b", 0.01),)}
    held = port_weights(Matching(matches, parts, ("g",), ("h",)))
    assert held.matches == (
        WeightPair("a", "b", 0.0, "equal", True, True, False, True),
        WeightPair("c", "d", 0.5, "different", False, False, True, False),
        WeightPair("i", "j", 0.01, "rounded to float16 in b", False, False, False, True),
    )
    assert (held.parts, held.alone_a, held.alone_b) == ({"e": ("f",)}, ("g",), ("h",))
