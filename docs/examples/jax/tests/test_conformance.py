"""The backend against the suite that embgrad ships."""

from __future__ import annotations

import pytest
from harness import Harness

from embgrad.testing.conformance import ConformanceSuite


class TestConformance(ConformanceSuite):
    """Everything is in the suite; a backend's own part is the harness."""

    @pytest.fixture
    def harness(self) -> Harness:
        """Builds the suite's models in Flax NNX."""
        return Harness()
