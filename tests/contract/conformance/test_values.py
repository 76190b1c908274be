"""The backends without gradients against the suite that embgrad ships for these."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

from embgrad.testing.checks_values import ValuesSuite
from tests.conftest import values_only_under_test


class TestValues(ValuesSuite):
    @pytest.fixture(params=values_only_under_test())
    def harness(self, request: pytest.FixtureRequest) -> Any:
        return import_module(f"tests.contract.conformance.harness_{request.param}").Harness()
