"""What checks of ports name, against what was planted: representatives in the usual run, the lists under `make test-slow`."""

from __future__ import annotations

import json
import random
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.cross.ports.causes import FAMILIES, family
from tests.cross.ports.faults import FAULTS, LISTED
from tests.cross.ports.own_fault import OwnRight
from tests.cross.ports.own_lists import OWN_FAULTS, OWN_PAIRS, OWN_RIGHT
from tests.cross.ports.pairs_of_faults import PAIRS
from tests.cross.ports.right_ports import RIGHT_PORTS
from tests.cross.ports.trials import Outcome, check, read, try_fault, try_right, with_shares
from tests.cross.ports.twins import MODELS, TWIN_FAULTS, twins

pytestmark = [pytest.mark.framework("torch"), pytest.mark.framework("jax"), pytest.mark.framework("tensorflow")]

#: One of every family of causes, in each framework and on both sides, of those that take little time.
REPRESENTATIVES = (
    "bert-gluon-port-relu-in-one-layer",
    "bert-torch-port-dropout",
    "bert-keras-port-residual-missing",
    "bert-tensorflow-reference-norm-before-sum",
    "bert-flax-reference-residual-missing",
    "llama-lm-own-reference-untied",
    "llama-own-port-base",
    "llama-own-port-norm-with-mean",
    "gemma2-own-port-lookup-not-scaled",
    "phi3-own-port-output-transposed",
    "modernbert-window",
    "opt-positions",
    "granite-moe-top-k",
    "jax-textcnn-same-padding",
    "scan-mamba-decay-as-stored-in-one",
    "gluon-lstm-attention-last-at-padding",
    "nanogpt-no-residual-in-one",
)
EVERY = {**FAULTS, **{fault.name: fault for fault in (*TWIN_FAULTS, *OWN_FAULTS)}}
RIGHT_SAMPLE = random.Random(1).sample(sorted(RIGHT_PORTS), 4)


def missed(outcomes: list[Outcome]) -> list[str]:
    return [f"{outcome.name}: {outcome.error or outcome.texts}" for outcome in outcomes if not outcome.right]


def test_the_representatives_are_of_every_family_of_causes() -> None:
    assert {family(EVERY[name].causes[0]) for name in REPRESENTATIVES} == set(FAMILIES)


@pytest.mark.parametrize("name", REPRESENTATIVES)
def test_the_cause_of_a_fault_is_named_first(name: str) -> None:
    assert missed([try_fault(EVERY[name])]) == []


def outcome(name: str, kind: str, *, right: bool, wrong: bool = False, site: bool = True) -> Outcome:
    return Outcome(name, kind, (), (), right, wrong, site, False, (), (), 1.0)


def test_shares_are_written_between_the_marks_of_a_page(tmp_path: Path) -> None:
    outcomes = [
        outcome("a", "fault", right=True),
        outcome("b", "fault", right=False, site=False),
        outcome("c", "fault", right=False, wrong=True),
        outcome("a+b", "two", right=True, wrong=True),
    ]
    page = with_shares("x\n<!-- table: trials -->\nold\n<!-- end -->\ny", outcomes)
    assert (
        page
        == """x
<!-- table: trials -->

| Listed | Number | Right | Missed | Wrong | Site right |
| --- | --- | --- | --- | --- | --- |
| one fault | 3 | 1 | 1 | 1 | 2 |
| two faults at once | 1 | 1 | 0 | 1 | 1 |
| one fault in a further architecture | 0 | 0 | 0 | 0 | 0 |
| right ports | 0 | 0 | 0 | 0 | 0 |
| one fault in a port written by hand | 0 | 0 | 0 | 0 | 0 |
| two faults at once in one | 0 | 0 | 0 | 0 | 0 |
| right ports written by hand | 0 | 0 | 0 | 0 | 0 |

<!-- end -->
y"""
    )
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    first.write_text(json.dumps([asdict(one) for one in outcomes]))
    second.write_text(json.dumps([asdict(outcome("b", "fault", right=True))]))
    assert [(one.name, one.right) for one in read([first, second])] == [
        ("a", True),
        ("b", True),
        ("c", False),
        ("a+b", True),
    ]


@pytest.mark.parametrize("name", RIGHT_SAMPLE)
def test_a_right_port_agrees(name: str) -> None:
    assert missed([try_right(RIGHT_PORTS[name])]) == []


@pytest.mark.slow
def test_nine_tenths_of_all_faults_are_named_and_one_in_a_hundred_falsely_at_most() -> None:
    outcomes = [try_fault(fault) for fault in LISTED]
    assert sum(outcome.right for outcome in outcomes) >= 0.9 * len(outcomes), missed(outcomes)
    assert sum(outcome.wrong for outcome in outcomes) <= 0.01 * len(outcomes)
    assert sum(outcome.site for outcome in outcomes) >= 0.98 * len(outcomes)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", MODELS)
def test_a_model_and_its_twin_agree(name: str) -> None:
    report = check(twins(name))
    assert report.agrees, (report.first, report.causes)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("port", OWN_RIGHT, ids=lambda port: port.name)
def test_a_right_port_written_by_hand_agrees(port: OwnRight) -> None:
    assert missed([try_right(port)]) == []


@pytest.mark.slow
def test_nine_tenths_of_the_faults_in_ports_written_by_hand_are_named() -> None:
    outcomes = [try_fault(fault) for fault in (*OWN_FAULTS, *OWN_PAIRS)]
    assert sum(outcome.wrong for outcome in outcomes) <= 0.01 * len(outcomes)
    assert len(missed(outcomes)) <= 0.1 * len(outcomes), missed(outcomes)


@pytest.mark.slow
def test_most_faults_in_further_architectures_are_named_and_none_falsely() -> None:
    outcomes = [try_fault(fault) for fault in TWIN_FAULTS]
    assert [outcome.name for outcome in outcomes if outcome.wrong] == []
    assert len(missed(outcomes)) <= 0.1 * len(outcomes), missed(outcomes)


@pytest.mark.slow
def test_both_of_two_faults_are_named_in_four_fifths() -> None:
    outcomes = [try_fault(pair) for pair in PAIRS.values()]
    assert sum(outcome.right for outcome in outcomes) >= 0.8 * len(outcomes), missed(outcomes)


@pytest.mark.slow
def test_every_right_port_agrees() -> None:
    outcomes = [try_right(port) for port in RIGHT_PORTS.values()]
    assert missed(outcomes) == []
