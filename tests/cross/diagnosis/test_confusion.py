"""The confusion table holds what the project promises, and the page shows it as it is.

The whole table takes minutes: those tests are marked slow, and otherwise a small sample stands for them.
"""

from __future__ import annotations

import re

import numpy as np
import pytest

from embgrad.comparison.findings import CAUSES
from tests.cross.diagnosis import confusion
from tests.cross.diagnosis.faults import BASES, FAULTS, FRAMEWORKS, PAIRS, UNKNOWN
from tests.cross.diagnosis.recipes import Recipe
from tests.cross.diagnosis.trials import Outcome, all_trials, run
from tests.cross.diagnosis.worlds import KINDS, world

#: What this project asks of itself.
RIGHT_FIRST = 0.95
NONE_FOR_RANDOM = 0.99


#: Of each group of trials every so-manieth is in the sample, of those that take little time.
SAMPLED = {"fault": 16, "pair": 7, "unknown": 2, "random": 24, "noise": 20, "healthy": 2}
QUICK = ("torch", "gluon")


@pytest.fixture(scope="module")
def found() -> tuple[Outcome, ...]:
    return confusion.outcomes()


@pytest.fixture(scope="module")
def sample() -> tuple[Outcome, ...]:
    trials = list(all_trials())
    chosen = [
        trial
        for group, step in SAMPLED.items()
        for trial in [one for one in trials if one.group == group and set(one.column.split(" → ")) <= {*QUICK}][::step]
    ]
    assert {one.group for one in chosen} == set(SAMPLED)
    return tuple(run(trial) for trial in chosen)


def as_listed() -> tuple[Outcome, ...]:
    """Every trial as if it had ended well, so that the tables' rows are known without a run."""
    return tuple(
        Outcome(one, one.expected[0] if one.must_name else (), (), one.group == "healthy", 0.0, "", 0.0)
        for one in all_trials()
    )


def of(found: tuple[Outcome, ...], *groups: str) -> list[Outcome]:
    return [one for one in found if one.trial.group in groups]


def told(outcomes: list[Outcome]) -> str:
    return "\n".join(f"{one.trial.name}: {one.named} {one.text}" for one in outcomes)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_code_by_hand_is_right(framework: str) -> None:
    """It computes what embgrad does where nothing goes wrong, so that a fault is the one that was meant, and no other."""
    for kind in KINDS[framework]:
        one = world(framework, kind, 1)
        base = BASES.get(kind, "cross-entropy")
        healthy = one.healthy(base)
        computed = one.native.by_hand(one.model, one, one.loss(base), Recipe())
        assert np.linalg.norm(computed.values - healthy.values) < 5e-6 * np.linalg.norm(healthy.values), kind
        np.testing.assert_allclose(computed.losses, healthy.objective, rtol=1e-4)


def test_every_fault_is_one_and_every_cause_has_a_fault() -> None:
    names = [one.name for one in (*FAULTS, *PAIRS)]
    assert len(set(names)) == len(names)
    injected = {cause for fault in FAULTS for answer in fault.expected for cause in answer}
    listed = list(CAUSES)
    assert injected >= set(listed[: listed.index("different-table")])  # those of results and of requests
    assert injected <= set(CAUSES)
    assert any(not one.expected for one in UNKNOWN)


def test_a_sample_is_right(sample: tuple[Outcome, ...]) -> None:
    assert len(sample) >= 20
    assert all(one.right for one in sample), told([one for one in sample if not one.right])


def test_fifty_faults_in_all_frameworks() -> None:
    found = as_listed()
    asked = [one for one in of(found, "fault") if one.trial.must_name]
    assert len({one.trial.row for one in asked}) >= 50
    assert len({one.trial.expected[0] for one in asked}) >= 20
    for framework in FRAMEWORKS:
        assert len({one.trial.row for one in asked if one.trial.column == framework}) >= 40
    assert len({one.trial.row for one in of(found, "pair") if one.trial.must_name}) >= 25


@pytest.mark.slow
def test_the_right_cause_is_named_first(found: tuple[Outcome, ...]) -> None:
    for group in ("fault", "pair"):
        right, asked = confusion.named_right(of(found, group))
        assert right >= RIGHT_FIRST * asked, told([one for one in of(found, group) if not one.right])


@pytest.mark.slow
def test_the_right_cause_is_named_first_in_each_framework(found: tuple[Outcome, ...]) -> None:
    for framework in FRAMEWORKS:
        mine = [one for one in of(found, "fault") if one.trial.column == framework]
        right, asked = confusion.named_right(mine)
        assert right >= RIGHT_FIRST * asked, told([one for one in mine if not one.right])


@pytest.mark.slow
def test_no_cause_is_named_for_unrelated_gradients(found: tuple[Outcome, ...]) -> None:
    controls = of(found, "random")
    assert sum(not one.trial.with_models for one in controls) >= 80
    assert sum(one.trial.with_models for one in of(found, "random", "noise")) >= 3
    assert sum(not one.named for one in controls) >= NONE_FOR_RANDOM * len(controls), told(
        [one for one in controls if one.named]
    )
    assert not any(one.agrees for one in controls)


@pytest.mark.slow
def test_a_false_cause_is_worse_than_none(found: tuple[Outcome, ...]) -> None:
    """Where the numbers cannot tell, or no hypothesis is about it, nothing is named but what is so."""
    for untold in (
        of(found, "unknown"),
        of(found, "noise"),
        [one for one in of(found, "fault", "pair") if not one.trial.must_name],
    ):
        assert sum(one.false for one in untold) <= (1 - RIGHT_FIRST) * len(untold), told(
            [one for one in untold if one.false]
        )


@pytest.mark.slow
def test_healthy_models_agree_over_the_frameworks(found: tuple[Outcome, ...]) -> None:
    healthy = of(found, "healthy")
    assert healthy
    assert all(one.agrees and not one.named for one in healthy), told([one for one in healthy if not one.right])


@pytest.mark.slow
def test_no_comparison_fails(found: tuple[Outcome, ...]) -> None:
    assert not any(one.failed for one in found), told([one for one in found if one.failed])


def test_the_page_is_current() -> None:
    """It lists these faults and trials; how many of them must be right, the tests above say."""
    page = confusion.PAGE.read_text(encoding="utf-8")
    assert rows(confusion.page_with(confusion.tables(as_listed()), page)) == rows(page)


@pytest.mark.slow
def test_the_tables_rows_are_those_of_the_trials(found: tuple[Outcome, ...]) -> None:
    assert rows(confusion.tables(found)) == rows(confusion.tables(as_listed()))


def rows(page: str) -> list[str]:
    """The tables' rows, without how many trials were right: on another machine's rounding one may fall otherwise."""
    return [re.sub(r"\d+ of (\d+)( \([^)]*\))?", r"of \1", line) for line in page.splitlines() if line.startswith("|")]
