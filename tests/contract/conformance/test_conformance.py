"""Every backend against the suite that embgrad ships."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

from embgrad.testing.calls import CALLS
from embgrad.testing.conformance import ConformanceSuite
from tests.conftest import REFERENCE, backends_under_test
from tests.support.sampling import slow

#: Calls that reach a backend by others alone; what they leave behind themselves, they leave with the reference too.
MADE_OF_OTHERS = {
    *("substitutions", "faithfulness", "infidelity", "sensitivity", "search", "padding_report", "influence"),
    *("stream, left before its end", "stream to a folder", "compare", "bisect", "check_port", "attribute_pairs"),
    *("dump", "golden"),
}
assert CALLS.keys() >= MADE_OF_OTHERS
SLOW = set() if REFERENCE in backends_under_test() else MADE_OF_OTHERS


class TestConformance(ConformanceSuite):
    @pytest.fixture(params=backends_under_test())
    def harness(self, request: pytest.FixtureRequest) -> Any:
        return import_module(f"tests.contract.conformance.harness_{request.param}").Harness()

    @pytest.mark.filterwarnings("ignore::embgrad.EmbgradWarning")
    @pytest.mark.parametrize("name", [slow(name) if name in SLOW else name for name in CALLS])
    def test_no_trace_of_a_call(self, harness: Any, model: Any, name: str) -> None:
        super().test_no_trace_of_a_call(harness, model, name)
