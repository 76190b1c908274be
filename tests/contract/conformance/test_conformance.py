"""Every backend against the suite that embgrad ships."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

from embgrad.testing.conformance import ConformanceSuite
from tests.conftest import backends_under_test


class TestConformance(ConformanceSuite):
    @pytest.fixture(params=backends_under_test())
    def harness(self, request: pytest.FixtureRequest) -> Any:
        return import_module(f"tests.contract.conformance.harness_{request.param}").Harness()
