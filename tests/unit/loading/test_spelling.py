"""Objectives and labels as command-line arguments."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

import embgrad
from embgrad.errors import EmbgradError
from embgrad.loading.errors import UsageError
from embgrad.loading.objectives import CLASSES, labels_from, parse_objective


@pytest.mark.parametrize(
    ("spelled", "labels", "found"),
    [
        ("Sum()", None, {"class": "Sum"}),
        ("Sum", None, {"class": "Sum"}),
        (" embgrad.Sum(output = 'pooled') ", None, {"class": "Sum", "output": "pooled"}),
        ("Logit(-1, position=-1)", None, {"class": "Logit", "index": -1, "position": -1}),
        ("Logit([1, 2])", None, {"class": "Logit", "index": [1, 2]}),
        ("Logit()", [3, 4], {"class": "Logit", "index": [3, 4]}),
        ("Margin(1, against=0)", None, {"class": "Margin", "index": 1, "against": 0}),
        ("Projection([0.5, -2e-3])", None, {"class": "Projection", "vector": [0.5, -2e-3]}),
        ("CrossEntropy(of='probabilities')", [0], {"class": "CrossEntropy", "labels": [0], "of": "probabilities"}),
        (None, [0, 1], {"class": "CrossEntropy", "labels": [0, 1], "of": "logits"}),
    ],
)
def test_objectives_are_parsed(spelled: str | None, labels: Any, found: dict[str, Any]) -> None:
    objective = parse_objective(spelled, labels)
    assert objective is not None
    assert objective.describe() == found


def test_every_objective_can_be_parsed() -> None:
    public = {name: getattr(embgrad, name) for name in embgrad.__all__}
    objectives = {name for name, cls in public.items() if inspect.isclass(cls) and issubclass(cls, embgrad.Objective)}
    assert set(CLASSES) == objectives - {"Objective"}


@pytest.mark.parametrize(
    ("spelled", "labels", "said"),
    [
        ("Smu()", None, "Did you mean 'Sum'"),
        ("Scalar(f)", None, "Scalar takes a function"),
        ("Sum(ouput='pooled')", None, "Sum has no argument 'ouput'.*Did you mean 'output'"),
        ("Sum(", None, "is not valid Python"),
        ("", None, "is not valid Python"),
        ("(" * 500 + ")" * 500, None, "is not valid Python|expected the name"),
        ("Sum() + Sum()", None, "expected the name of an objective"),
        ("Logit(__import__('os').getcwd())", None, "expected literals"),
        ("Logit(*[1])", None, "expected literals"),
        ("Logit(**{'index': 1})", None, "unpacks a dict"),
        ("Logit(index=1, index=2)", None, "has index twice|keyword argument repeated"),
        ("os.system('true')", None, "expected the name of an objective"),
        ("Logit()", None, "missing a required argument.*or --labels"),
        ("Projection()", None, "missing a required argument: 'vector'"),
        ("Margin(1, 2, 3)", None, "too many positional arguments"),
        ("Sum()", [1], "--labels applies only to 'CrossEntropy', 'Logit'"),
        ("Logit(1)", [1], "pass only one"),
        ("Logit(('a', 0.5))", None, "index"),
    ],
)
def test_other_objectives_are_refused(spelled: str, labels: Any, said: str) -> None:
    with pytest.raises(EmbgradError, match=said):
        parse_objective(spelled, labels)


def test_labels(directory: Path) -> None:
    (directory / "labels.txt").write_text("0,\r\n1,\r\n\r\n-100,\r\n")
    assert labels_from("labels.txt") == labels_from("0,1 -100,") == [0, 1, -100]
    assert labels_from("0, 1 2") == [0, 1, 2]
    assert labels_from("[[0, -100], [1, 2]]") == [[0, -100], [1, 2]]
    assert labels_from(None) is parse_objective(None) is None
    (directory / "labels.txt").write_text("zero\n")
    with pytest.raises(UsageError, match=r"labels\.txt holds 'zero"):
        labels_from("labels.txt")
    for skipped in ("0,1,,2", ",0,1", "0, , 1", "0,1,,"):
        with pytest.raises(UsageError, match="expected whole numbers"):
            labels_from(skipped)
