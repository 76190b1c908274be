"""What the properties allow for rounding is little enough for a wrong gradient to be told."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from tests.conftest import REFERENCE
from tests.contract.properties.cases import Case
from tests.contract.properties.generating import cases
from tests.contract.properties.running import by_hand


@pytest.mark.framework(REFERENCE)
def test_little_is_allowed() -> None:
    """In nearly all cases; a layer norm of two entries makes a gradient of next to nothing, of which more is rounding."""
    shares: dict[str, list[float]] = {"float64": [], "float32": []}

    @by_hand
    @given(case=cases(meets=True) | cases())
    def collect(case: Case) -> None:
        answer = case.closed_form()
        largest = float(np.abs(answer["word"]).max())
        shares[case.spec.dtype].append(answer.allowed["word"] / max(largest, 1e-300))

    collect()
    for dtype, little in (("float64", 1e-11), ("float32", 1e-3)):
        assert len(shares[dtype]) > 20
        assert np.mean(np.array(shares[dtype]) < little) > 0.75
