"""The list of planted faults: each pair agrees without its fault, and each fault changes the output."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.cross.ports import sizes
from tests.cross.ports.architectures import ARCHITECTURES, reference
from tests.cross.ports.causes import CAUSES, FAMILIES, family
from tests.cross.ports.faults import FAULTS, LISTED
from tests.cross.ports.own_fault import PORTS
from tests.cross.ports.own_lists import OWN_FAULTS, OWN_PAIRS, OWN_RIGHT
from tests.cross.ports.pairs_of_faults import PAIRS
from tests.cross.ports.right_ports import RIGHT_PORTS
from tests.cross.ports.twins import TWIN_FAULTS

pytestmark = [pytest.mark.framework("torch"), pytest.mark.framework("jax"), pytest.mark.framework("tensorflow")]

#: How far a port that is right may be from its reference, by the dtype that rounds it.
FLOORS = {"float32": 1e-5, "tfloat32": 1e-2, "bfloat16": 1e-1}


def test_there_are_two_hundred_faults_with_names_of_their_own() -> None:
    assert len(LISTED) == len(FAULTS) >= 200
    assert len(PAIRS) == 25
    assert len(RIGHT_PORTS) == 50


def test_every_cause_of_every_family_is_planted() -> None:
    planted = {cause for fault in (*LISTED, *TWIN_FAULTS, *OWN_FAULTS) for cause in fault.causes}
    assert planted == set(CAUSES)
    assert {family(cause) for cause in planted} == set(FAMILIES)


def test_faults_are_planted_on_both_sides_in_twelve_architectures_and_more() -> None:
    in_references = [fault for fault in LISTED if fault.side == "reference"]
    assert len(LISTED) / 4 < len(in_references) < len(LISTED) / 2
    assert len({fault.architecture for fault in LISTED}) >= 12


@pytest.mark.sampled(6)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_sites_are_modules_of_the_reference(architecture: str) -> None:
    paths = [path for path, _ in reference(architecture).named_modules()]
    for fault in LISTED:
        if fault.architecture == architecture:
            assert any(re.search(fault.site, path) for path in paths), fault.name


def test_ports_written_by_hand_have_faults_with_names_of_their_own_and_known_causes() -> None:
    listed = [entry.name for entry in (*OWN_FAULTS, *OWN_PAIRS, *OWN_RIGHT)]
    assert len(set(listed)) == len(listed)
    assert {cause for fault in OWN_FAULTS for cause in fault.causes} <= set(CAUSES)
    assert {fault.port for fault in OWN_FAULTS} == set(PORTS)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", PORTS)
def test_sites_of_faults_in_ports_written_by_hand_are_modules_of_the_reference(name: str) -> None:
    paths = [path for path, _ in PORTS[name].reference().named_modules()]
    for fault in OWN_FAULTS:
        if fault.port == name:
            assert any(re.search(fault.site, path) for path in paths), fault.name


def test_two_faults_at_once_are_of_one_pair() -> None:
    for pair in PAIRS.values():
        first, second = pair.first, pair.second
        assert first.name != second.name
        assert (first.architecture, first.framework) == (second.architecture, second.framework)
        assert first.padding == second.padding


def test_the_size_of_every_fault_is_recorded() -> None:
    recorded = sizes.recorded()
    assert set(recorded) == {*FAULTS, *PAIRS}
    assert min(recorded.values()) > sizes.SMALLEST


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", FAULTS)
def test_a_pair_agrees_until_its_fault_is_planted(name: str) -> None:
    expect_changed(FAULTS[name])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", PAIRS)
def test_a_pair_agrees_until_its_two_faults_are_planted(name: str) -> None:
    expect_changed(PAIRS[name])


def expect_changed(fault: Any) -> None:
    before, after, moved = sizes.measure(fault)
    assert before < sizes.HEALTHY
    assert moved > sizes.SMALLEST
    assert after > moved / 2


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", RIGHT_PORTS)
def test_a_right_port_agrees(name: str) -> None:
    port = RIGHT_PORTS[name]
    assert port.make().difference() < FLOORS[port.floor]
