"""A small sample of the held-out faults, the whole list in the slow run, and that the page shows the list as it is."""

from __future__ import annotations

import importlib

import pytest

from embgrad.comparison.diagnosis.findings import Finding
from tests.cross.diagnosis import held_out

#: Faults of each framework that take little time.
SAMPLE = (
    "^(one bias zeroed|one layer without a bias|two layers swapped|one layer with another|weights rounded to float16)"
)


def said(found: list[held_out.Outcome]) -> str:
    wrong = [one for one in found if one.answer == "wrong"]
    return "\n".join(f"{one.fault} | {one.framework} {one.detail} | {one.models}: {one.text}" for one in wrong)


@pytest.mark.parametrize("framework", held_out.FRAMEWORKS)
def test_no_wrong_cause_is_named_for_a_sample(framework: str) -> None:
    found = held_out.outcomes([framework], SAMPLE, nets=1)
    assert len(found) == 5 * len(held_out.MODELS)
    assert held_out.counts(found)["wrong"] == 0, said(found)
    assert all(one.answer == "right" for one in found if one.models == "both models")


@pytest.mark.slow
def test_few_wrong_causes_are_named() -> None:
    found = held_out.outcomes()
    for given in held_out.MODELS:
        mine = [one for one in found if one.models == given]
        assert held_out.counts(mine)["wrong"] <= (1 - held_out.NOT_WRONG) * len(mine), said(mine)


def test_an_answer_is_wrong_where_the_layer_is_another() -> None:
    finding = Finding(("different-weight",), "that b's model has another layers.1.weight", 1.0, 0.0)
    assert held_out._answer(finding, ("different-weight",), "net.layers.1") == "right"
    assert held_out._answer(finding, ("different-weight",), "net.layers.0") == "wrong"
    assert held_out._answer(finding, ("missing-bias",), "") == "wrong"
    assert held_out._answer(finding, (), "") == "wrong"


def test_the_page_lists_the_held_out_faults() -> None:
    page = held_out.PAGE.read_text(encoding="utf-8")
    block = page.partition(held_out.BEGIN)[2].partition(held_out.END)[0]
    listed = {line.split(" | ")[0].removeprefix("| ") for line in block.splitlines() if line.startswith("| ")}
    modules = [
        importlib.import_module(f"tests.cross.diagnosis.held_out_{framework}") for framework in held_out.FRAMEWORKS
    ]
    known = {name for module in modules for name in module.INJECTIONS}
    assert {*held_out.MODELS} <= listed
    assert len(known & listed) >= 0.9 * len(known)  # some are too small to be seen
    assert not [name for name in listed - known - {*held_out.MODELS} if not name.endswith("right / none / wrong")]
